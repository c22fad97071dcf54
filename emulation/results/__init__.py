"""Results: what a method's run leaves behind, its summary, speed-ups with intervals, timelines; results_schema.md.

Imported by every room above, and imports scenario alone.
Start at results.py.
"""
