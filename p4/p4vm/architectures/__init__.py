"""The architectures that run: each is a description, which lowering and both back ends read.

Imported by lower, ir, python and c_code. Imports nothing of the engine.
Start in description.py, then v1model.py.
"""
