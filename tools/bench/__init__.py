"""Micro-benchmarks of our own parts, for people who change them: `python -m tools.bench --help`, from the checkout.

Users' benchmark is `switchagg bench`; it has nothing of this. Start at `__main__.py`.
"""

import os
from pathlib import Path

# Processes that a benchmark starts find these modules by it.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
