"""Published results of when what is sent: iterations of models, overlapped in one way or another.

Found by `emulation.experiments.reproduce.catalogue`.
Start with `bytescheduler_example.py`, which can be checked by hand.
"""
