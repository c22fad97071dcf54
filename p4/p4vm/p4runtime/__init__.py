"""P4Runtime: controllers that speak it over gRPC, served by a program that runs here.

Imported by `p4vm run --p4runtime` and tests; needs the packages of the extra `p4runtime`. Imports control and
host. Start in service.py; runtime_pipeline.py knows the ids, state.py what may be written and read.
"""

import os

# The code that the package p4runtime brings is too old for the fast implementation of protobuf from version 4 on.
os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
