"""The back end in C: compiles what c_code writes, with the runtime in runtime/, loads it and drives it.

Imported by compile.py and host. Imports c_code and ir.
Start in native_engine.py; runtime/p4vm.h is the runtime's own description.
"""
