"""A link that has to send its packets one by one warns once, and works."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from switchagg.native import library
from transport.links.udp_link import UdpLink
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

SO_NO_CHECK = 11
SLOW = "packets go to the kernel one by one"
SOON_S = 120.0
"""A generous bound for what takes a second."""


def warnings_of(recwarn: pytest.WarningsRecorder) -> list[str]:
    return [text for warning in recwarn.list if SLOW in (text := str(warning.message))]


@pytest.mark.parametrize(("core", "dataplane"), [("native", "auto"), ("python", "reference")])
def test_refused_segmentation_is_reported_once_at_both_ends(
    core: str, dataplane: str, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    if core == "native" and (reason := library.missing()):
        pytest.skip(reason)
    made: list[UdpLink] = []
    as_made = UdpLink.__init__

    def without_checksums(link: UdpLink, *arguments: Any, **options: Any) -> None:
        as_made(link, *arguments, **options)
        link._socket.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)  # then the kernel won't segment
        made.append(link)

    monkeypatch.setattr(UdpLink, "__init__", without_checksums)
    lines: list[str] = []
    address = "tcp://127.0.0.1:0", ("127.0.0.1", 0)
    with SwitchDaemon(DaemonOptions(*address, dataplane=dataplane, slots=512), log=lines.append) as running:
        wish = JoinOptions(elements=32, window_slots=8, core=core)
        with ThreadPoolExecutor(2) as pool:
            sessions = list(
                pool.map(lambda rank: SwitchSession.join(running.control_endpoint, "slow", rank, 2, wish), range(2))
            )
        if not all(one.gso or one.gso_fallback for one in made):
            pytest.skip("this kernel has no UDP_SEGMENT")
        deadline_s = time.monotonic() + SOON_S
        while time.monotonic() < deadline_s and not (
            len(warnings_of(recwarn)) == 2 and any(SLOW in line for line in lines)
        ):
            for future in [session.allreduce(np.ones(5000, np.int32)) for session in sessions]:
                future.result(SOON_S)
            time.sleep(0.1)
        time.sleep(1.5)  # a beat, and a look of the daemon, later
        for session in sessions:
            session.close()
    assert sum(SLOW in line for line in lines) == 1
    assert sorted(text.split(":")[0] for text in warnings_of(recwarn)) == ["job slow, rank 0", "job slow, rank 1"]
    assert all("Invalid argument" in text and "ethtool -K NAME tx on" in text for text in warnings_of(recwarn))
