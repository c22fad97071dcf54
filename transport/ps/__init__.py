"""The parameter server: slices on servers, its modes; server and worker are pure parties.

Imported by group, torch and emulation.
Start at config.py, then server.py and worker.py; colocated.py: both as one member; group.py opens them in real time.
"""
