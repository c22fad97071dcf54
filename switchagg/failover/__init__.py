"""Failover: a job's calls go on without their switch, with the same bits. Part of the core; pure.

agreement.py is what all ranks decide from one exchanged table, and each rank's stage; part_rows.py is what a rank has
of a call that a switch left unfinished; recovery_rounds.py ends such calls, and carries later ones, by plain
collectives of the hosts. Imported by transport and emulation; imports only the core. Start at agreement.py.
"""
