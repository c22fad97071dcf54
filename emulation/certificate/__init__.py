"""The fidelity certificate: did the links, queues and CPUs behave as the scenario says?

Imported by mininet, bench and report.
Start at fidelity.py; monitor.py is the process that measures.
"""
