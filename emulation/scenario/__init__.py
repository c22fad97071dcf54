"""Scenarios: what an experiment is, declared and checked; its topology, profile, bounds and computing times.

Imported by every other room; imports none of them.
Start at scenario_tables.py (the keys), then scenario.py (a file becomes a Scenario) and scenario_checks.py.
"""
