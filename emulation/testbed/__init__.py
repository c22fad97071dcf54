"""The testbed: scenarios in real time, in network namespaces of Mininet, with a process per rank and a certificate.

Imported by experiments and cli; imports scenario, results, workloads, and sim for predictions and segments.
Start at mininet/mininet_run.py, then trainers/trainer.py; children.py has the typed messages to child processes.
"""
