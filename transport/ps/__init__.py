"""The parameter server: slices on servers, its modes; server and worker are pure parties.

Imported by group, torch and emulation.
Start at config.py, then server.py and worker.py; group.py opens both in real time.
"""
