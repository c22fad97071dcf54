"""The programs that scripts for bmv2 call (p4c-bm2-ss, simple_switch_grpc, …), on our engine.

Imported by `switchagg p4`, and run as programs; imports p4vm.
Start in tools.py, which writes them as scripts into a folder; compiler.py and switch.py are what they run.
"""
