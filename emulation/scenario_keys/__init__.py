"""Keys of scenario files: what each may hold, and the reference of all, from the dataclasses of `scenario_tables`.

For the rest of emulation/ and its command line.
Start at values.py.
"""
