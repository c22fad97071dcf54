"""The controller: it admits jobs, shares slots among them, keeps leases, quotas of addresses and the switches below.

Imported by transport; imports only job, join and membership. The code is pure.
Start at admission.py (`Controller`); preempting_controller.py, rebalancing_controller.py and tree_controller.py each
add to the one before.
"""
