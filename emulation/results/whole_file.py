"""Files that are written whole or not at all: a full disk leaves what was there before, and an error that names it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to; once that has succeeded the file takes the place of `path`, and else it is removed.

    Raises OSError that names `path`.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        if error.filename is not None and str(error.filename) != str(partial):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8. Raises OSError that names `path`."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
