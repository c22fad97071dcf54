"""What may be asked of a running switch, a row per command; read from bmv2's runtime CLI, STF and runtime JSON.

Imported by host, stf and cli. Imports control.
Start in words.py, which says what a row is; line.py has all rows.
"""
