"""What workloads learn: data and a model, a file each, and a table of all.

Imported by the scenario (the table alone) and by workload.py; knows nothing of ranks and networks.
Start at task.py, then table.py.
"""
