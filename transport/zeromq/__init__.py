"""ZeroMQ: a link to the switch, a mesh between members, CURVE keys.

Imported by control, switch, worker and group; imports links and meshes. zmq is imported here and in control alone.
Start at zmq_sockets.py, then zmq_link.py and zmq_mesh.py.
"""
