"""The sources of the C core: where a file is, and copies in which a bug was planted."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "switchagg/native"
CODECS = sorted(path.name for path in CORE.glob("codecs/*.c"))


def source(name: str, core: Path = CORE) -> Path:
    """The file of this name in the core, or in a copy of it."""
    (found,) = core.rglob(name)
    return found


def sources() -> list[Path]:
    """All C files of the shared library."""
    return sorted(path for path in CORE.rglob("*.c") if not path.name.endswith(".bpf.c"))


def planted(folder: Path, name: str, right: str, wrong: str) -> Path:
    """A copy of the core below `folder` in which `wrong` replaces `right`, once, in file `name`."""
    core = folder / "core"
    for path in (*CORE.rglob("*.c"), *CORE.rglob("*.h")):
        copy = core / path.relative_to(CORE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    path = source(name, core)
    text = path.read_text()
    assert right in text, "the bug has no place any more: plant another"
    path.write_text(text.replace(right, wrong))
    return core
