"""`switchagg study …`: many small trainings whose results are put together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emulation.cli.command_group import CommandGroup
from emulation.cli.outcomes import outcomes
from emulation.cli.progress import say

app = typer.Typer(
    name="study",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Train with many codecs, and show which keep the accuracy.",
)


@app.callback()
def _describe() -> None:
    pass


@app.command()
def accuracy(
    codec: Annotated[
        list[str] | None,
        typer.Option(
            "--codec",
            help="Like lanes8+ef, cd_sgd:period=5~ternary, float32; may be repeated  [default: 23 codecs]",
        ),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="images, digits or small_text; may be repeated  [default: all]")
    ] = None,
    workers: Annotated[
        list[int] | None,
        typer.Option(min=2, max=64, help="Number of workers; may be repeated  [default: 4, and 8 for images]"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each codec, each with a seed of its own")] = 3,
    only: Annotated[str, typer.Option(metavar="TEXT", help="Run only what has this text in its title")] = "",
    jobs: Annotated[int, typer.Option(min=0, max=1024, help="Processes; 0 means one on each core")] = 0,
    ray: Annotated[bool, typer.Option("--ray", help="Run on a Ray cluster (RAY_ADDRESS), or here by Ray")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few codecs and iterations, to see whether everything works")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the results")] = Path("results/study"),
) -> None:
    """Show which codecs train as well as float32: final accuracy, error, bits on the wire, time to accuracy.

    Each run is kept in OUT/cells and isn't trained again: the same command continues an interrupted study, and more
    seeds or codecs add to what is there. study.json, study.html, figures and tables.md are made from all runs.

    **Examples**

    `switchagg study accuracy --quick`

    `switchagg study accuracy --workload images --workers 8 --codec float32 --codec bf16 --codec lanes8+ef --seeds 5`

    `RAY_ADDRESS=auto switchagg study accuracy --ray`
    """
    with outcomes(f"the same command goes on from the runs in {out}/cells"):
        from emulation.experiments.study.study_request import StudyRequest, study

        request = StudyRequest(tuple(codec or ()), tuple(workload or ()), tuple(workers or ()), seeds, only, quick)
        for line in study(request, out, jobs, ray, say):
            typer.echo(line)
