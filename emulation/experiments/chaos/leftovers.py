"""What a run has made and not removed, looked for by id: processes, namespaces, links, BPF programs, files."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from switchagg.native import bpf

GRACE_S = 3.0
LOOK_S = 0.05


class Leftovers:
    """Looks at this machine before a run, when it is made, and after it.

    token: every process of the run inherits it as the environment variable `variable`. namespaces: those of the run,
    by number, as /proc names them. links: of its links, should they be in this namespace. folder: of its files.
    """

    variable = "SWITCHAGG_CHAOS_RUN"

    def __init__(self) -> None:
        self.token = f"{os.getpid()}-{time.time_ns()}"
        self.namespaces: dict[int, str] = {}
        self.links: set[str] = set()
        self.folder: Path | None = None
        self._links_before = {name for _, name in socket.if_nameindex()}
        self._programs = _programs()

    def found_after(self) -> list[str]:
        """What is still there after a moment's grace, a line each."""
        end_s = time.monotonic() + GRACE_S
        while (lines := self._look()) and time.monotonic() < end_s:
            time.sleep(LOOK_S)
        return lines

    def _look(self) -> list[str]:
        lines = []
        for process in Path("/proc").glob("[0-9]*"):
            if int(process.name) == os.getpid():
                continue
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
                namespace = (process / "ns/net").stat().st_ino
            except OSError:  # It has ended meanwhile, or is another user's.
                continue
            if f"{self.variable}={self.token}".encode() in environment:
                lines.append(f"process {process.name}")
            if namespace in self.namespaces:
                lines.append(f"namespace of {self.namespaces[namespace]}, which process {process.name} is in")
        lines += [f"link {name}" for _, name in socket.if_nameindex() if name in self.links - self._links_before]
        lines += [f"BPF program {name}" for name in sorted(_programs() - self._programs)]
        if self.folder is not None and self.folder.exists():
            lines.append(f"folder {self.folder}")
        return lines


def _programs() -> set[str]:
    """BPF programs on the links of this namespace; none where we may not look."""
    programs = set()
    for index, name in socket.if_nameindex():
        try:
            programs |= {f"{program} at {name}" for program in (bpf.attached(index), *bpf.at_ingress(index)) if program}
        except (OSError, RuntimeError):
            continue
    return programs
