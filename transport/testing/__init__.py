"""Live tests of a switch, packet by packet: a switch, jobs whose workers are sockets of the test, packets, verdicts.

Users import it as `switchagg.testing`, which is also a plugin of pytest; nothing else of the packages imports it, and
pytest is imported by fixtures.py and vector_files.py alone. Start at switches.py, then jobs.py.
"""
