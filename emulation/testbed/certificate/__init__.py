"""The fidelity certificate: did the links, queues and CPUs behave as the scenario says, and what may be quoted?

Imported by mininet and experiments; the record and its verdicts are in emulation/results.
Start at fidelity.py; monitor.py is the process that measures.
"""
