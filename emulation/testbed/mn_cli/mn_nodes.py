"""Links and switches that the command line of Mininet (`mn --custom`) takes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from emulation.testbed.mininet import shaping
from emulation.testbed.mininet.emulated_network import BridgeSwitch, Link, Mininet, TCIntf, error
from emulation.testbed.mininet.services import RunningService, ServiceProcess
from transport.links.ethernet import ETHERNET_BYTES


class FastIntf(TCIntf):
    """Mininet's shaped interface for `mn --custom`: also beyond 1 Gb/s, which Mininet ignores without an error."""

    bwParamMax = shaping.RATE_MOST_BPS // 1_000_000

    def tc(self, cmd: str, tc: str = "tc") -> Any:
        # without it the kernel warns of a large quantum, which Mininet reports as an error
        return super().tc(f"{cmd} quantum {1500 + ETHERNET_BYTES}" if " htb rate " in f" {cmd}" else cmd, tc)


class FastLink(Link):
    """`--link tc,bw=MBIT` of our custom file."""

    def __init__(self, *args: Any, **params: Any) -> None:
        super().__init__(*args, **{"cls1": FastIntf, "cls2": FastIntf, **params})


class AggSwitch(BridgeSwitch):
    """The bridge plus a data plane, for `mn --custom`: our own process in the switch's namespace."""

    def __init__(self, name: str, data_plane: ServiceProcess | None = None, **params: Any) -> None:
        self.data_plane = data_plane
        self.running: RunningService | None = None
        super().__init__(name, **params)

    def start(self, controllers: Sequence[Any]) -> None:
        """Makes the bridge, starts the data plane, waits until it is ready. Raises UnfitError with its last output."""
        super().start(controllers)
        self.start_process()

    def start_process(self) -> None:
        """Starts the data plane, if any, and waits until it is ready. Raises UnfitError with its last output."""
        if self.data_plane is not None:
            self.running = RunningService(self.pid, self.data_plane)
            self.running.wait_until_ready()

    def stop(self, deleteIntfs: bool = True) -> None:
        """Ends our process, by its id."""
        self.end_process()
        super().stop(deleteIntfs)

    def end_process(self) -> None:
        """Ends the data plane. Idempotent."""
        if self.running is not None:
            self.running.close()
            self.running = None


_mininets_iperf = Mininet.iperf


def iperf(net: Any, *arguments: Any, **options: Any) -> Any:
    """In place of Mininet's own, which asks for ever whether the server listens where a program for that is missing."""
    if missing := [program for program in ("iperf", "telnet") if shutil.which(program) is None]:
        error(f"*** iperf can't be tested: {' and '.join(missing)} missing; apt-get install {' '.join(missing)}\n")
        return []
    return _mininets_iperf(net, *arguments, **options)
