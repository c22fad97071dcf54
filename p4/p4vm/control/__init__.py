"""The control plane of a program on any engine: tables, groups, registers, meters; P4Info and runtime JSON.

Imported by commands, host, stf and planes. Imports ir and the contract in engine.py.
Start in switch.py.
"""
