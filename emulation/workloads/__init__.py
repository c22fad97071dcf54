"""Workloads: models, data and one rank's part of a training run, for virtual time and real time alike.

Imported by sim, testbed and experiments; imports scenario and results.
Start at tasks/ and workload.py, then replicas.py (all ranks of virtual time in one process).
"""
