"""Experiments: scenarios in virtual time and in Mininet, training, certificates, reports, the benchmark, the command.

Imports all other packages; imported by nothing. A room imports only those before it: scenario, results, workloads, sim,
testbed, report, experiments, cli.
Start at scenario/scenario.py (what goes in) and results/results.py (what comes out), then experiments/compare.py.
"""
