"""Array codecs that send part of the values, or fewer numbers that stand for them, and whose words add: all ranks
choose the same. A switch sums them, and so does every host method.

Imported by the table of codecs alone. Start at randomk.py; blocks.py has what they share.
"""
