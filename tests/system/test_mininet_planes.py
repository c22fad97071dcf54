"""The daemon's data planes in the switch node: links as asked for, exact sums over them, and nothing left attached."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from emulation.testbed import netns
from emulation.testbed.mininet.services import ServiceProcess, SwitchPlace
from emulation.testbed.mininet.shaping import NetworkSpec
from switchagg.native import bpf, library

if TYPE_CHECKING:
    from emulation.testbed.mininet import emulated_network

pytestmark = pytest.mark.system

WORKER = """
import sys
import numpy as np
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession
rank, elements = int(sys.argv[1]), int(sys.argv[2])
wish = JoinOptions(elements=elements, window_slots=64)
with SwitchSession.join("tcp://10.0.0.254:5555", "job", rank, 2, wish) as session:
    array = np.arange(100_000, dtype=np.int32) * (rank + 1)
    session.allreduce(array).result(60)
    assert (array == np.arange(100_000) * 3).all(), "the sum is wrong"
    print(session.core)
"""


def daemon(plane: str, elements: int) -> ServiceProcess:
    return SwitchPlace(5555, 5556, plane, "udp", elements, 4096).process()


@pytest.fixture(params=[("auto", 1500), ("native", 9000), ("reference", 1500), ("xdp", 1500), ("xdp", 9000)], ids=str)
def network(request: pytest.FixtureRequest, requires_mininet: None) -> "Iterator[emulated_network.EmulatedNetwork]":
    from emulation.testbed.mininet import emulated_network

    plane, mtu_bytes = request.param
    missing = {"native": library.missing, "xdp": bpf.missing}.get(plane, lambda: "")()
    if missing:
        pytest.skip(f"needs the data plane {plane}: {missing}")
    spec = NetworkSpec(workers=2, mtu_bytes=mtu_bytes)
    with emulated_network.EmulatedNetwork(spec) as running:
        running.start_data_plane(daemon(plane, elements_for(mtu_bytes)))
        yield running


def elements_for(mtu_bytes: int) -> int:
    return 360 if mtu_bytes == 1500 else 2048


def xdp_on_ports(network: "emulated_network.EmulatedNetwork") -> dict[str, bool]:
    links = json.loads(netns.run_script(network.switch_pid, "ip -d -j link show"))
    return {link["ifname"]: "xdp" in link for link in links if link["ifname"].startswith("s1-eth")}


def test_sums_are_exact_and_a_killed_switch_leaves_nothing_attached(
    network: "emulated_network.EmulatedNetwork",
) -> None:
    """The network refuses links with other settings than requested, so a network that runs has the right ones."""
    (switch,), elements = network.services, elements_for(network.spec.mtu_bytes)
    workers = [
        network.spawn(
            rank,
            [sys.executable, "-P", "-c", WORKER, str(rank), str(elements)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for worker in workers:
        said, complaints = worker.communicate(timeout=300)
        assert worker.returncode == 0, complaints + switch.output()
        assert said.strip() in ("native", "python")
    counters = network.counters()
    assert all(link.up_bytes > 400_000 and link.down_bytes > 400_000 for link in counters), "it went past the shapers"
    in_kernel = "(xdp, " in switch.output()
    assert set(xdp_on_ports(network).values()) == {in_kernel}
    switch.process.kill()
    switch.process.wait(10)
    assert set(xdp_on_ports(network).values()) == {False}
    shown = netns.run_script(network.switch_pid, "tc qdisc show; tc filter show dev s1-eth1 ingress")
    assert "bpf" not in shown
