"""The tasks that workloads learn, data and a model, a file for each, and a table of all.

Imported by the scenario (the table alone) and by workload.py; knows nothing of ranks and networks.
Start at task.py, then workload_kinds.py.
"""
