"""A scenario in virtual time without packets: calls share links max–min fairly (`flow`), or follow α–β–γ (`formula`).

Imported by sim; imports its clock, topologies, plans of collectives.
Start at flow_simulation.py.
"""
