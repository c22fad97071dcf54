"""Several spines in virtual time: which of them a frame takes, and a job that sums over a tree through each.

Imported by network; imports its links.
Start at paths.py.
"""
