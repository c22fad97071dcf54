"""Codecs of rows that are rotated at random first, so that their values are about normally distributed.

Imported by the table of codecs. Start at rows.py, which scales rotated rows and has them put in lanes; rotation.py is
the rotation (F14), thc.py another way to write such rows, released.py with one scale for an array (F15).
"""
