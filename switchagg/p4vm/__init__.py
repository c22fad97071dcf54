"""A P4-16 engine: runs programs written for v1model anywhere Python runs."""
