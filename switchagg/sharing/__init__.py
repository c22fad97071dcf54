"""What jobs share: slots, quotas of addresses, and the switches below a controller's own. Pure.

Imported by switchagg's controller and by transport; imports only the core.
Start at switches.py, then tree_controller.py.
"""
