"""The first commands of a newcomer: files to begin with, what is shipped, versions, completion in a shell.

Imported by the command line alone, at each of its starts: nothing heavy is imported here outside of functions.
Start at shipped.py.
"""
