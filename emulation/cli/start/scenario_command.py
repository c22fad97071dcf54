"""`switchagg scenario`: the keys of scenario files, what each may hold and what it is by default."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from emulation.cli.outcomes import outcomes


class ReferenceCommand(TyperCommand):
    """A command whose help ends with the tables that there are, read when help is shown and not before."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from emulation.scenario.key_reference import text

        super().format_help(ctx, formatter)
        formatter.write("\n".join(text()) + "\n")


def scenario(
    what: Annotated[
        str, typer.Argument(metavar="[TABLE[.KEY]]", help="Like topology, workload.iterations  [default: all tables]")
    ] = "",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The whole reference, as docs/reference/scenario.md has it")
    ] = False,
) -> None:
    """Show what a scenario file may hold: tables, keys, defaults, what is allowed.

    **Examples**

    `switchagg scenario topology`

    `switchagg scenario workload.compute_ns`
    """
    with outcomes():
        from emulation.scenario import key_reference

        typer.echo(key_reference.markdown() if markdown else "\n".join(key_reference.text(what)), nl=not markdown)
