"""Collectives among hosts: algorithms as plans, what runs any plan, a party for all calls of a member, their costs."""
