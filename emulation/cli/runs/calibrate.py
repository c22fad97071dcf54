"""`switchagg calibrate`: what packets cost this machine's CPUs, for virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emulation.cli.outcomes import outcomes
from emulation.cli.progress import say

HEADS = ("path", "packet", "at the switch", "wake-up", "spread, fast", "spread, slow")


def calibrate(
    out: Annotated[Path, typer.Option(help="File for the costs")] = Path("results/hosts.toml"),
) -> None:
    """Measure what packets cost this machine, for virtual time.

    It takes about two minutes, in which nothing else should run: a method for each link sums 1 MB among 4 workers on
    emulated links of 50 Mb/s and 1 Gb/s. The table has the CPU time of each packet and wake-up in µs; the spread is
    that of the middle eighty percent.

    **Examples**

    `switchagg calibrate`

    `switchagg bench fidelity --hosts results/hosts.toml`
    """
    with outcomes():
        from emulation.experiments.bench import calibration
        from emulation.experiments.bench.bench_run import require_folder
        from emulation.report.table_kit import columns
        from emulation.results.whole_file import write_text
        from emulation.testbed.netns import run_in_user_namespace

        run_in_user_namespace()
        require_folder(out.parent)
        measured = calibration.calibrate(say)
        write_text(out, calibration.text_of(measured))
        for line in [*columns(HEADS, calibration.lines(measured)), str(out)]:
            typer.echo(line)
