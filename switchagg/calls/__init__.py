"""Calls: from what a caller requests to what an endpoint asks for its chunks. Part of the core; pure.

call_request.py is the request; member_calls.py codes, splits and numbers it; array_calls.py and chunked_call.py lay
it out; round_calls.py is for codecs of several rounds; verified_sums.py tags and verifies what travels. Imported by
the core, transport and emulation; imports only the core. Start at member_calls.py.
"""
