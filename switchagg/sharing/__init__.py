"""Jobs share slots, quotas of addresses, and the switches below a controller's own; the code is pure.

The controller and transport import this folder; it imports only the core.
Start at switch_registry.py, then tree_controller.py.
"""
