"""The parameter server: slices on servers, its modes; server and worker are pure parties.

Imported by group, torch and emulation; imports contracts and the contract of meshes.
Start at config.py, then ps_server.py and ps_worker.py; colocated.py: both as one member. group/ps_group.py runs them in
real time.
"""
