"""`switchagg --version`: what a report of a fault should say, without importing PyTorch."""

from __future__ import annotations

import platform

import typer


def show_version(wanted: bool) -> None:
    """Prints two lines and ends the command, if wanted."""
    if wanted:
        typer.echo("\n".join(version_lines()))
        raise typer.Exit


def version_lines() -> tuple[str, str]:
    """switchagg, its commit and where it is; Python, PyTorch, the compiled core and the system."""
    from emulation.testbed.host import ROOT, installed_version, pretty_name, revision
    from switchagg.native import library

    commit = revision()
    torch = installed_version("torch")
    return (
        f"switchagg {installed_version('switchagg') or 'not installed'}{f', {commit}' if commit else ''}, {ROOT}",
        f"Python {platform.python_version()}, {f'torch {torch}' if torch else 'no torch'}, "
        f"{'no' if library.missing() else 'with'} compiled core, {pretty_name()}, Linux {platform.release()} "
        f"{platform.machine()}",
    )
