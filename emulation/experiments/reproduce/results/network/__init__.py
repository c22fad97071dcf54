"""Published results of what networks and servers do with an allreduce: times and rates, without a model that trains.

Found by `emulation.experiments.reproduce.catalogue`.
Start with `switchml_workers.py`.
"""
