"""`switchagg p4`: the commands of the P4 engine p4vm, and `generate`, which writes tests for the switch's programs."""

from __future__ import annotations

import typer

from emulation.cli.command_group import CommandGroup
from emulation.cli.outcomes import EXIT_FAILED, stop
from emulation.cli.p4_generate import generate


def add_p4(app: typer.Typer) -> None:
    """Where the extra p4 isn't installed, the command says how to get it."""
    try:
        from p4vm.cli.main import app as engine
    except ModuleNotFoundError as error:
        if error.name != "p4vm":
            raise
        settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
        app.command("p4", context_settings=settings)(_missing)
        return
    engine.command()(generate)
    app.add_typer(engine, name="p4", cls=CommandGroup)


def _missing() -> None:
    """Check, test and run P4 programs; first: pip install 'switchagg[p4]'."""
    stop("the P4 engine is not installed; run: pip install 'switchagg[p4]'", EXIT_FAILED)
