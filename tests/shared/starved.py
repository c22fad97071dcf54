"""A process that has work to do and hardly gets a processor, as on a machine that is far too busy."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

WORK_S = 0.25
"""Of a processor: takes more than 2 s beside `busy`, where `STARVED` gets a tenth of it at most."""
STARVED = f"""
import os, time
os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})
os.nice(10)
began = time.process_time()
while time.process_time() - began < {WORK_S}: pass
"""
"""Python lines that starve their process until they are done."""


@contextmanager
def busy() -> Iterator[None]:
    """Something else runs on STARVED's processor meanwhile."""
    runs = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-S", "-c", runs]) as burner:
        try:
            yield
        finally:
            burner.kill()
