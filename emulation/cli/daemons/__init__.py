"""Commands about the processes that serve workers: a switch, a parameter server, their keys and their status.

Imported by the command line alone, at each of its starts: nothing heavy is imported here outside of functions.
Start at switch_command.py.
"""
