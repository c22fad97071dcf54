"""Models, data, and one rank of a training run.

Imported by sim and by the processes that mininet starts.
Start at workload.py, then trainer.py (real time) and replicas.py (virtual time).
"""
