"""Families of lanes for known methods, rules F11 to F13; families.py says what each is from.

Where a lane's width follows from the number of workers, users write the family's name alone, and `for_workers` finds
the codec: `ternary` is `ternary4` for 7 workers, `ternary5` for 15.

Imported by the table of codecs alone. Start at families.py.
"""
