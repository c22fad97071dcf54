"""`switchagg scenarios`: the shipped scenarios, and the keys of scenario files: what each may hold, and its default."""

from __future__ import annotations

from typing import Annotated

import typer

from emulation.cli.outcomes import outcomes
from emulation.cli.start.completion import reference_names


def scenarios(
    name: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO|TABLE|TABLE.KEY",
            help="Like quickstart, topology or workload.iterations  [default: a list of both]",
            autocompletion=reference_names,
        ),
    ] = "",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the reference of all keys as a page: docs/reference/scenario.md")
    ] = False,
) -> None:
    """List shipped scenarios, and the keys that a scenario may hold.

    With the name of a shipped scenario it prints that file; with a table or a key of scenario files it prints what the
    key is, its default and what is allowed.

    **Examples**

    `switchagg scenarios` : names and titles, then the tables of a scenario file

    `switchagg scenarios quickstart > mine.toml` : a file to start from

    `switchagg scenarios topology`

    `switchagg scenarios workload.compute_ns`
    """
    with outcomes():
        from emulation.scenario import key_reference
        from emulation.scenario.scenario import shipped

        files = shipped()
        if markdown:
            typer.echo(key_reference.markdown(), nl=False)
        elif path := files.get(name.removesuffix(".toml")):
            typer.echo(path.read_text(encoding="utf-8"), nl=False)
        else:
            typer.echo("\n".join(key_reference.text(name, files) if name else key_reference.contents(files.values())))
