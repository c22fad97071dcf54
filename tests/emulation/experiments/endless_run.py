"""Stands in for a run of a study: in the folder that ENDLESS_RUN names, as long as its process may live."""

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from emulation.experiments.study.study_plan import StudyCell


def trained(cell: StudyCell) -> dict[str, Any]:
    """Seed 1 ends at once; others start a process, and leave its number as a file while it runs."""
    if cell.seed == 1:
        return {}
    folder = Path(os.environ["ENDLESS_RUN"])
    with tempfile.TemporaryDirectory(dir=folder):
        sleeper = subprocess.Popen(["sleep", "30"])
        number = folder / str(sleeper.pid)
        try:
            number.touch()
            time.sleep(30)
        finally:
            time.sleep(0.5)  # as ranks need to end: time for whatever would interrupt it
            sleeper.kill()
            sleeper.wait()
            number.unlink()
    return {}
