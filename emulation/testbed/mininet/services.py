"""A service of the workers, a process in a node's namespaces: its command line, start, output, end.

Standard library only: Mininet's own command line starts switches too, under the system's Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from emulation.testbed import netns
from emulation.testbed.mininet.node_addresses import SWITCH_ADDRESS
from emulation.testbed.mininet.shaping import UnfitError
from emulation.testbed.patience import Patience

READY = "switchagg switch ready"  # what the daemon writes once it answers
SLOTS_LEAST = 4096  # the daemon's own default


@dataclass(frozen=True)
class ServiceProcess:
    """A process beside the workers' own: a data plane, or a parameter server. It has started when its output contains
    `ready`. name: for messages.
    """

    command: tuple[str, ...]
    ready: str = READY
    log_path: Path | None = None  # None: the log is an unnamed file that leaves nothing behind
    timeout_s: float = 30.0  # as `Patience` counts: an interpreter with numpy takes seconds
    environment: dict[str, str] | None = None
    name: str = "the data plane"


@dataclass(frozen=True)
class SwitchPlace:
    """The settings that a switch starts with. slots: the switch has at least these. parent: control address of the
    switch above, name: its own, of one below another."""

    control_port: int
    data_port: int
    dataplane: str
    link: str
    elements: int
    slots: int
    impair: str = ""
    segments: int = 0  # packets per send; 0: the daemon's own default
    multicast: str = ""  # interface where the kernel copies results for all workers
    address: str = SWITCH_ADDRESS
    parent: str = ""
    name: str = ""

    @property
    def control(self) -> str:
        """Where workers join, if it is the root."""
        return f"tcp://{self.address}:{self.control_port}"

    def process(self, log_path: Path | None = None) -> ServiceProcess:
        """The daemon at this place, on one thread of computing."""
        words = ["--control", self.control, "--data", f"{self.address}:{self.data_port}", "--link", self.link]
        words += ["--dataplane", self.dataplane, "--elements", str(self.elements)]
        words += ["--slots", str(max(SLOTS_LEAST, self.slots)), "--drain", "0"]  # Its jobs end before it does.
        if self.segments:
            words += ["--segments", str(self.segments)]
        if self.multicast:
            words += ["--multicast", self.multicast]
        if self.impair:
            words += ["--impair", self.impair]
        if self.parent:
            words += ["--parent", self.parent, "--name", self.name]
        command = switchagg_command("switch", *words)
        return ServiceProcess(command, log_path=log_path, environment={**os.environ, "OMP_NUM_THREADS": "1"})


def switchagg_command(*words: str, python: str = sys.executable) -> tuple[str, ...]:
    """`switchagg …`. -P: a file of the user's folder named like a module of a library must not take its place."""
    return (python, "-P", "-m", "emulation.cli.main", *words)


class RunningService:
    """A service that has been started in the namespaces of `pid`."""

    def __init__(self, pid: int, service: ServiceProcess) -> None:
        self.service = service
        log_path = service.log_path
        self._log: IO[bytes] = open(log_path, "w+b") if log_path else tempfile.TemporaryFile()  # noqa: SIM115
        self.process: subprocess.Popen[bytes] = netns.spawn(
            pid,
            service.command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=service.environment,
        )

    def wait_until_ready(self) -> None:
        """Raises UnfitError with its last output."""
        name, command = self.service.name, " ".join(self.service.command)
        patience = Patience(self.service.timeout_s, lambda: [self.process.pid], f"{name} isn't ready")
        while self.service.ready not in self.output():
            if self.ended:
                raise UnfitError(f"{name} ended at its start ({self._last_output()}): {command}")
            if patience.over():
                raise UnfitError(f"{name} was not ready after {patience.words} ({self._last_output()}): {command}")
            time.sleep(0.01)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def output(self) -> str:
        """All that the service has written so far."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode("utf-8", errors="replace")

    def last_line(self) -> str:
        """The last line that the service has written; "" if it has written none."""
        lines = self.output().strip().splitlines()
        return lines[-1] if lines else ""

    def cpu_ns(self) -> int:
        """CPU time of all its threads so far."""
        total = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                total += int((task / "schedstat").read_text(encoding="ascii").split()[0])
            except OSError:
                continue
        return total

    def close(self) -> None:
        """Ends it, by its id. Idempotent."""
        netns.end(self.process)
        self._log.close()

    def _last_output(self) -> str:
        line = self.last_line()
        return f"its last line: {line}" if line else "it wrote nothing"
