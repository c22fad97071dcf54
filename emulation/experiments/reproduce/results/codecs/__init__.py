"""Published results of sending less: bytes, and what fewer of them gain.

Found by `emulation.experiments.reproduce.catalogue`.
Start with `dgc.py`.
"""
