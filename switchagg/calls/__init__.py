"""Calls as an endpoint asks for their chunks: collectives, partial sums, small calls. Part of the core; pure.

Imported by `switchagg.call`, which makes them, by endpoints and by transport; imports only the core.
Start at chunked_call.py.
"""
