"""What an endpoint asks for its chunks: collectives, partial sums, small calls. Part of the core; pure.

`switchagg.call` makes them. Imported by the core and by transport; imports only the core.
Start at chunked_call.py.
"""
