"""The switch of programs/ behind the data-plane contract (p4 on the engine p4vm, bmv2), and traffic that tests it.

Named in switchagg.dataplane.plane_kinds; imported by transport and emulation. The one room of switchagg that imports
p4vm (extra p4): planes only when a program is compiled. Start in p4_plane.py; plane_program.py has what both share.
"""
