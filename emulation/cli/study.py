"""`switchagg study …`: many small trainings whose results are put together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emulation.cli.outcomes import outcomes

app = typer.Typer(
    name="study",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Train many cells in memory, go on where it stopped, and show what came out.",
)


@app.callback()
def _describe() -> None:
    pass


@app.command()
def codecs(
    codec: Annotated[
        list[str] | None,
        typer.Option(
            "--codec",
            help="Like lanes8+ef, cd_sgd:period=5~ternary, float32; repeat for more  [default: 23]",
        ),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="images, digits or small_text; repeat for more  [default: all]")
    ] = None,
    workers: Annotated[
        list[int] | None, typer.Option(min=2, max=64, help="Repeat for more  [default: 4, and 8 for images]")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each cell")] = 3,
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only cells whose title has this in it")] = "",
    jobs: Annotated[int, typer.Option(min=0, max=1024, help="Processes; 0: one on each core")] = 0,
    ray: Annotated[bool, typer.Option("--ray", help="On a Ray cluster (RAY_ADDRESS), or this machine by Ray")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Few codecs and iterations: does everything work?")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the runs and of what is made from them")] = Path("results/study"),
) -> None:
    """Codecs beside float32 and 16 bits: final accuracy, error, bits on the wire, time to accuracy.

    Each run is kept in OUT/cells, named by all that decides it: codec, workload, workers, seed, rate, code. What is
    there isn't trained again, so an interrupted study goes on, and one with more seeds or codecs adds to what is there.
    study.json, study.html, figures and tables.md are made from all of them.

    **Examples**

    `switchagg study codecs --quick`

    `switchagg study codecs --workload images --workers 8 --codec float32 --codec bf16 --codec lanes8+ef --seeds 5`

    `RAY_ADDRESS=auto switchagg study codecs --ray`
    """
    with outcomes(f"the same command goes on from the runs in {out}/cells"):
        from emulation.experiments.study.study_request import StudyRequest, study

        request = StudyRequest(tuple(codec or ()), tuple(workload or ()), tuple(workers or ()), seeds, only, quick)
        for line in study(request, out, jobs, ray, lambda text: typer.echo(text, err=True)):
            typer.echo(line)
