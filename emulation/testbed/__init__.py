"""The testbed: scenarios in real time, in network namespaces of Mininet, with a process per rank and a certificate.

Imported by report's users, experiments and cli; imports sim for predictions and segments, and the rooms below it.
Start at mininet/mininet_run.py, then trainers/trainer.py; children.py has the typed messages to child processes.
"""
