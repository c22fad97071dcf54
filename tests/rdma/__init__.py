"""RoCEv2: packets, queue pairs, the endpoint."""
