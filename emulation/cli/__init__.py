"""The command `switchagg`, a file per command or group of commands.

Imported by nothing but the entry point and tests.
Start at main.py.
"""
