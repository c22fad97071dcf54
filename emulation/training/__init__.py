"""Models, data, and one rank of a training run.

Imported by sim and by the processes that mininet starts.
Start at tasks/ and workload.py, then trainer.py (real time; DDP or a schedule) and replicas.py (virtual time).
"""
