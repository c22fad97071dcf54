"""A program as a switch on network interfaces: queues, captures, a control socket; in Python or with its loop in C.

Imported by `p4vm run` and tests. Imports control, commands and native.
Start in software_switch.py; native_host.py has `make_host`, which takes the faster one.
"""
