"""A folder of what was compiled before, safe to load code from: only its owner may write it, and what is damaged or
somebody else's is not read. Files are written whole under another name, then renamed: processes don't disturb each
other."""

import atexit
import contextlib
import functools
import hashlib
import os
import pickle
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from p4vm.source import P4Error

DIGEST_BYTES = 32
FILES_MAX = 1000
"""Beyond it the oldest go: about 60 MB, 300 programs."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def default_folder() -> Path:
    """$XDG_CACHE_HOME/p4vm, or the same in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "p4vm"


def digest(*parts: bytes | str) -> str:
    """A key of these parts: equal only where all are."""
    key = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        key.update(len(data).to_bytes(8, "big"))
        key.update(data)
    return key.hexdigest()


def default_cache() -> "Cache":
    """In `default_folder`; where that can't be written, in one of this process alone. Raises P4Error: others may write
    it."""
    try:
        return Cache(default_folder())
    except Unwritable:
        return Cache(_own_folder())


@functools.lru_cache(maxsize=1)
def _own_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="p4vm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def folder_of_ones_own(folder: Path) -> os.stat_result:
    """Make it if it isn't there, shut it to others if it is this user's; what it is then. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid == os.geteuid() and status.st_mode & 0o077:
        folder.chmod(0o700)
        status = folder.stat()
    return status


class Unwritable(P4Error):
    """There is no such cache folder, and it can't be made."""


class Cache:
    """folder: made if it isn't there, for its owner alone. Raises P4Error: another user may write it; Unwritable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            status = folder_of_ones_own(folder)
        except OSError as error:
            raise Unwritable(
                f"cache folder {folder}: {error.strerror}; set XDG_CACHE_HOME to a folder of yours"
            ) from None
        if not os.access(folder, os.W_OK):
            raise Unwritable(f"cache folder {folder} can't be written; set XDG_CACHE_HOME to a folder of yours")
        if status.st_uid != os.geteuid() or status.st_mode & OTHERS_WRITE:
            raise P4Error(f"cache folder {folder} can be written by others; set XDG_CACHE_HOME to a folder of yours")

    def path(self, name: str) -> Path:
        return self.folder / name

    def trusted(self, name: str) -> Path | None:
        """The file, if this user alone may write it."""
        path = self.path(name)
        try:
            status = path.lstat()
        except OSError:
            return None
        trusted = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & OTHERS_WRITE
        return path if trusted else None

    def read(self, name: str) -> bytes | None:
        """The bytes stored under the name; None: the file is missing, damaged, or another user may write it."""
        path = self.trusted(name)
        if path is None:
            return None
        try:
            content = path.read_bytes()
        except OSError:
            return None
        data = content[DIGEST_BYTES:]
        return data if content[:DIGEST_BYTES] == bytes.fromhex(digest(data)) else None

    def write(self, name: str, data: bytes) -> None:
        """Silently not, where there is no room."""
        with contextlib.suppress(OSError), self.replacing(name) as path:
            path.write_bytes(bytes.fromhex(digest(data)) + data)

    def load(self, name: str) -> object | None:
        """A pickled object; None: there is none, or it is damaged."""
        data = self.read(name)
        if data is None:
            return None
        try:
            value: object = pickle.loads(data)
        except Exception:  # pickles of other versions fail in any way
            return None
        return value

    def store(self, name: str, value: object) -> None:
        """Silently not, where it is nested too deeply for pickle."""
        with contextlib.suppress(RecursionError):
            self.write(name, pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def prune(self) -> None:
        """Takes away the oldest files where there are too many: they are made again when they are needed."""
        aged = []
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                aged.append((path.stat().st_mtime_ns, path))
        for _, path in sorted(aged)[: max(0, len(aged) - FILES_MAX)]:
            with contextlib.suppress(OSError):
                path.unlink()

    @contextlib.contextmanager
    def replacing(self, name: str) -> Iterator[Path]:
        """A path to write to; it becomes the name's file at the end, unless something is raised."""
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".new-")
        os.close(handle)
        try:
            yield Path(temporary)
            os.replace(temporary, self.path(name))
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
