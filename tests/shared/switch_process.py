"""A switch in a process of its own, which can be killed, stopped, and started again at the same place."""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress

from waiting import SOON_S

LEASE_S = 1.0


def free_port(kind: int) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class SwitchProcess:
    def __init__(self, dataplane: str = "auto", slots: int = 512, lease_s: float = LEASE_S) -> None:
        self._ports = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_DGRAM)
        self.control = f"tcp://127.0.0.1:{self._ports[0]}"
        self._options = ("--slots", str(slots), "--lease", str(lease_s), "--dataplane", dataplane)
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "emulation.cli.main", "switch", "--control", self.control),
                *("--data", f"127.0.0.1:{self._ports[1]}", *self._options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        lines = iter(self.process.stdout)
        assert any("ready" in line for line in lines)
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.send(signal.SIGKILL)
            self.process.wait(SOON_S)
            self.process = None
