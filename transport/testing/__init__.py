"""Live tests of a switch, packet by packet: a switch, jobs whose workers are sockets of the test, packets, verdicts.

Users import it as `switchagg.testing`, which is also a plugin of pytest; no other room imports it. It imports links,
contracts, control and switch, and pytest in fixtures.py and vector_files.py alone. Start at switches.py, then jobs.py.
"""
