"""A deterministic network in virtual time: links, switches and hosts on one heap of integer nanoseconds."""
