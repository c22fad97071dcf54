"""`switchagg reproduce`: published results, run again."""

from __future__ import annotations

from typing import Annotated

import typer

from emulation.cli.outcomes import EXIT_FAILED, EXIT_USAGE, outcomes, stop
from emulation.cli.progress import say


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Results to run  [default: all]")] = None,
    jobs: Annotated[int, typer.Option(min=0, max=1024, help="Processes; 0 means one on each core")] = 0,
) -> None:
    """Run papers' results again, and show their numbers beside ours.

    Our numbers come from the papers' inputs alone: from virtual time, from the schedules' model or from counted bytes.
    A result *agrees* or *differs* by one rule for all, and says why it differs; it is *open* where too little of the
    paper could be read. With names, it shows every cell, with source, conditions, inputs and error.

    **Examples**

    `switchagg reproduce` : all results, a line each

    `switchagg reproduce dgc mgwfbp`
    """
    with outcomes():
        from rich.console import Console
        from rich.table import Table

        from emulation.experiments.reproduce import catalogue, reproduced_page
        from emulation.experiments.reproduce.published import ReproduceError

        try:
            wanted = [catalogue.find(name) for name in names or catalogue.names()]
        except ReproduceError as error:
            stop(str(error), EXIT_USAGE)
        try:
            results = catalogue.run_results(wanted, jobs, say)
        except ReproduceError as error:
            stop(str(error), EXIT_FAILED)
        console = Console()

        def show(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
            table = Table(title=title or None, title_justify="left")
            for place, word in enumerate(head):
                table.add_column(word, no_wrap=not place)
            for row in rows:
                table.add_row(*row)
            console.print(table)

        name, _, *rest = reproduced_page.SUMMARY_HEAD
        show("", (name, *rest), [(row[0], *row[2:]) for row in reproduced_page.summary_rows(results)])
        for published, judgement in results if names else ():
            head = ("cell", f"paper, {published.unit}", "ours", "error")
            show(published.title, head, reproduced_page.cell_rows(published, judgement))
            console.print(*reproduced_page.facts(published), sep="\n", markup=False, highlight=False)
            console.print(reproduced_page.verdict_line(published, judgement), style="bold")
