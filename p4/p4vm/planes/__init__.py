"""The switch of p4/ behind the data-plane contract (p4 on this engine, bmv2), and traffic that tests it.

Named in switchagg.dataplane.plane_kinds; imported by transport and emulation. The one room that knows switchagg.
Start in p4.py; program.py has what both planes share.
"""
