"""Compilers for tests that build the package: optimising, and the BPF programs, take most of a build's time."""

import os
import shutil
from pathlib import Path

import pytest


def programs(folder: Path, **scripts: str) -> str:
    """A folder of shell scripts, to be a PATH."""
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def quick_compiler(folder: Path, but: str = "") -> dict[str, str]:
    """An environment whose compiler optimises nothing, and that has none for BPF.

    but: of the C files it compiles only those of this name; the objects of all others are empty.
    """
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("needs a C compiler")
    script = f'export PATH="{os.environ["PATH"]}"\n'
    if but:
        script += f'case "$*" in *{but}*|*-shared*) ;; *)\n'
        script += '  for word; do [ "$option" = -o ] && object=$word; option=$word; done\n'
        script += '  set -- -x c -c /dev/null -o "$object"\nesac\n'
    return {"PATH": programs(folder, cc=f'{script}exec {compiler} "$@" -O0 -DSA_NO_CLONES'), "CC": "cc"}
