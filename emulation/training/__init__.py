"""Models, data, and one rank of a training run.

Imported by sim and by the processes that mininet starts.
Start at tasks/, workload.py, then trainer.py (real time; ddp_trainer.py, scheduled_trainer.py) and replicas.py (virtual time).
"""
