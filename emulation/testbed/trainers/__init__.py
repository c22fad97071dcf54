"""Trainers: one rank of a training run in real time, a process each.

Started by emulation/testbed/mininet; takes models and data from emulation/workloads.
Start at trainer.py (which trainer a workload needs), then ddp_trainer.py.
"""
