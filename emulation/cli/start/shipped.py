"""`switchagg examples`: training scripts, P4 programs and tools for packets, in a checkout or an installed wheel.

A wheel has them in emulation/examples, where setup.py puts them, and the P4 programs in switchagg/programs.
"""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from emulation.cli.outcomes import known, outcomes

PROGRAMS = "p4"
_PACKAGE = Path(__file__).resolve().parents[2]
_INSTALLED = _PACKAGE / "examples"
_GENERATED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


def shipped(installed: Path = _INSTALLED) -> dict[str, Path]:
    """Name -> file or folder, sorted. Raises RunFailed if this installation was made without them."""
    from emulation.scenario.errors import RunFailed

    root = installed.parents[1]
    folders, programs = [installed], root / "switchagg" / "programs"
    if not installed.is_dir():
        folders = [root / "examples", root / "tools" / "scapy", root / "tools" / "wireshark"]
    if not all(folder.is_dir() for folder in (*folders, programs)):
        raise RunFailed(f"{folders[0]} and {programs} are not both there: install switchagg again, or use a checkout")
    folders_by_name = {folder.name: folder for folder in folders[1:]} | {PROGRAMS: programs}
    for path in folders[0].iterdir():
        if path.name == "p4":  # beside the programs: changed ones
            folders_by_name |= {changed.name: changed for changed in path.iterdir()}
        elif not path.name.startswith(("_", ".")):
            folders_by_name[path.name] = path
    return dict(sorted(folders_by_name.items()))


def about(path: Path) -> str:
    """The first line of what a file, or a folder's first file to read, says of itself."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and file.suffix not in ("", ".pyc", ".ini"))
        first = [path / name for name in ("README.md", "switchagg.p4") if path / name in files] + files
        return about(first[0]) if first else ""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    elif path.suffix == ".ipynb":
        text = "".join(json.loads(text)["cells"][0]["source"])
    lines = (line.strip("-#/*<>!;[] \t") for line in text.splitlines())
    return next(filter(None, lines), "")


def text_for(path: Path, name: str) -> str:
    """A training script whose docstring names it where it will be."""
    return path.read_text(encoding="utf-8").replace(f"examples/{path.name}", name)


def copy_out(name: str, path: Path, folder: Path) -> Path:
    """Copies an example into a folder, which is made. Raises RunFailed if something of its name is there already, or if
    it can't be written."""
    from emulation.scenario.errors import RunFailed

    target = folder / name
    if target.exists() or target.is_symlink():
        raise RunFailed(f"{target} is there already, and stays as it is; copy to another folder with --to")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target, ignore=_GENERATED)
        elif path.suffix == ".py":
            target.write_text(text_for(path, name), encoding="utf-8")
        else:
            shutil.copyfile(path, target)
    except OSError as error:
        why = f"{target}: cannot be written ({error.strerror or error})"
        raise RunFailed(f"{why}; copy to another folder with --to") from error
    return target


def example_names(incomplete: str) -> list[str]:
    """For completion in a shell."""
    return [name for name in shipped() if name.startswith(incomplete)]


def examples(
    name: Annotated[
        str | None, typer.Argument(help="Example to copy out  [default: a list of all]", autocompletion=example_names)
    ] = None,
    to: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for the copy; it is made if it isn't there")
    ] = Path(),
) -> None:
    """List the shipped examples, or copy one out to change it.

    They are training scripts, P4 programs and tools for packets.

    **Examples**

    `switchagg examples` : their names, with a line about each

    `switchagg examples train_ddp.py` : into this folder; its first lines say how to run it

    `switchagg examples p4 --to mine` : the switch as P4 programs, to change and to run with `switchagg p4`
    """
    with outcomes():
        folders_by_name = shipped()
        if name is None:
            for title, path in folders_by_name.items():
                typer.echo(f"{title:<23} {about(path)}")
            typer.echo("\nTo copy one out: switchagg examples NAME [--to FOLDER]", err=True)
            return
        chosen = f"{name}.py" if f"{name}.py" in folders_by_name else known("example", name, folders_by_name)
        typer.echo(f"{copy_out(chosen, folders_by_name[chosen], to)}: {about(folders_by_name[chosen])}")
