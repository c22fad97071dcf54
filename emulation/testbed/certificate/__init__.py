"""The fidelity certificate: did the links, queues and CPUs behave as the scenario says, and what may be quoted?

Imported by mininet, bench, report and by results (speedups.py: verdicts, and speed-ups with intervals).
Start at fidelity.py; monitor.py is the process that measures.
"""
