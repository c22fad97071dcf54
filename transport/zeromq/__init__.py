"""ZeroMQ: a link to the switch, a mesh between members, CURVE keys.

Imported by worker, switch, control and meshes; the only room that imports zmq, with control.
Start at sockets.py, then link.py and mesh.py.
"""
