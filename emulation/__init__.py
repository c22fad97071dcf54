"""Emulate: scenarios, topologies, workloads and the report."""
