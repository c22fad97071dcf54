"""Keys of scenario files: the values that each allows, and the reference of all, from `scenario_tables`.

Imported by scenario.py and the command line.
Start at key_values.py.
"""
