"""The sources of the C core: where a file is, and copies in which a bug was planted."""

import shutil
from pathlib import Path

from switchagg.native import headers

CORE = ROOT = headers.ROOT
"""What #includes begin at."""

CODECS = sorted(path.name for path in (ROOT / "switchagg/native/codecs").glob("*.c"))


def source(name: str, core: Path = CORE) -> Path:
    """The file of this name in the core, or in a copy of it."""
    (path,) = (path for path in headers.sources(name) if path.name == name)
    return core / path.relative_to(CORE)


def sources() -> list[Path]:
    """All C files of the shared library."""
    return headers.sources(".c")


def planted(folder: Path, name: str, right: str, wrong: str) -> Path:
    """A copy of the core below `folder` in which `wrong` replaces `right`, once, in file `name`."""
    core = folder / "core"
    for path in (*headers.sources(".c"), *headers.sources(".h")):
        copy = core / path.relative_to(CORE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    path = source(name, core)
    text = path.read_text()
    assert right in text, "the bug has no place any more: plant another"
    path.write_text(text.replace(right, wrong))
    return core
