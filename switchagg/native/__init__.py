"""The compiled core: C behind the same verbs as the Python beside it, optional everywhere.

Imported by dataplane, transport and bench; its modules only load what setup.py built of the C sources: those here, in
transport/native and in emulation/sim/native.
Start at library.py; in C at rule/slot.h (the switch's rule), then worker/endpoint.c; xdp/ is the switch in the kernel.
"""
