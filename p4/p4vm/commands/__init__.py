"""The commands of a running switch, a row for each; bmv2's runtime CLI, STF and runtime JSON carry them out.

Imported by host, stf and cli. Imports control.
Start in words.py, which says what a row is; line.py has all rows.
"""
