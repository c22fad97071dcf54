"""Jobs that lose their switch in virtual time: ranks meet, decide by `switchagg.failover`, recover over hosts, go back.
What forwards frames goes on; a switch is a process.

Imported by sim and experiments. Start at failover_simulation.py and moving_rank.py.
"""
