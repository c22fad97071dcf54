"""The error of profiles and traces that can't be read, and functions that read files."""

from __future__ import annotations

import os
from pathlib import Path

FILE_BYTES_MOST = 1 << 30
PIECE_BYTES = 1 << 24


class ProfileError(Exception):
    """A profile or trace is wrong: one line, for the user, that names the file, and the line, layer or node."""


def read_bytes(path: Path, most: int = FILE_BYTES_MOST) -> bytes:
    """All of a file, or of a pipe. Raises ProfileError if it can't be read or is larger than that."""
    pieces, size = [], 0
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while size <= most and (piece := file.read(PIECE_BYTES)):
                pieces.append(piece)
                size = max(size, sum(map(len, pieces)))
        if size > most:
            raise ProfileError(f"{path}: {size} bytes or more; allowed: {most} at most")
        return b"".join(pieces)
    except (OSError, ValueError) as error:  # a zero byte in the name raises ValueError
        raise ProfileError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def read_text(path: Path, most: int = FILE_BYTES_MOST) -> str:
    """The same as text."""
    try:
        return read_bytes(path, most).decode()
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path}: byte {error.start}: not UTF-8 text") from error
