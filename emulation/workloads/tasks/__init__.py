"""The tasks that workloads learn, data and a model, a file for each, and a table of all.

Imported by workload.py, by the names in scenario/workload_kinds.py; knows nothing of ranks and networks.
Start at task.py.
"""
