"""Published results, run again: a paper's own numbers beside ours, judged by a rule stated beforehand.

Each file of `results/` is one result: what the paper printed, where, under which conditions, and which run makes ours
from the paper's inputs alone. Start with `published.py` (what a result is, and the rule), then any of `results/`, then
the runs: `byte_counts`, `network_times`, `schedule_times`. Imported by `emulation.cli` only; imports the simulator,
profiles, schedules and codecs.
"""
