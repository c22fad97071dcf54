"""Topologies: how hosts and switches are linked. Pure; the standard library only.

Imported by scenario, bounds, sim, mininet and report; imports nothing of the project.
Start at topology.py, then star.py; topology_kinds.py lists all, placement.py says which switches aggregate.
"""
