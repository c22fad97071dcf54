"""The control plane of a program on any engine: tables, groups, registers, meters, P4Info.

Imported by commands, host, stf and planes. Imports ir, the contract in engine.py and, for text, commands.
Start in controlled_switch.py.
"""
