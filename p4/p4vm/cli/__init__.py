"""The command `p4vm`, and the programs that scripts for bmv2 call (p4c-bm2-ss, simple_switch_grpc, …), on this engine.

Imported by `switchagg p4`, which has the same commands; each command imports the rooms it needs when it runs.
Start in main.py; bmv2_tools.py writes scripts that run bmv2_compiler.py and bmv2_switch.py.
"""
