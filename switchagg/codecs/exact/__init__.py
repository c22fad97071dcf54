"""Exact sums, F19 to F21: the correctly rounded sums of the ranks' values. Their bits depend on these
values alone: not on what lies beside them, nor on the order in which, or the method by which, they are summed.

Imported by the table of codecs, and by switchagg/native, which does the same in C. Start at exact.py; `groups` finds
how many bits a group of values needs, `integers` writes values as integers of so many, `nearest` rounds their sums.
"""
