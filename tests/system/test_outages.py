"""Links of real namespaces that go down, at either end, and come back before the lease ends: no job ends."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
import zmq

from emulation.testbed import netns
from tests.system.xdp_net import CONTROL, SWITCH, Star
from transport.meshes.mesh import MemberLost, Mesh, MessageReceived
from transport.meshes.tcp_gathering import TcpOptions
from transport.meshes.tcp_mesh import TcpMesh
from transport.meshes.udp_mesh import UdpMesh, UdpMeshOptions
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession
from transport.zeromq.zmq_mesh import ZeroMqMesh
from transport.zeromq.zmq_sockets import ZeroMqOptions

pytestmark = pytest.mark.system

LEASE_S = 5.0
"""TCP sends again 0.2, 0.6, 1.4, 3.0 and 6.2 s after a loss: an outage that ends in between, long before the last."""
OUTAGE_S = LEASE_S - 0.5
SOON_S = 30.0


class Job:
    """A job of one worker, in a node's namespace, which makes calls until it is closed."""

    def __init__(self, net: Star, node: int) -> None:
        join = lambda: SwitchSession.join(CONTROL, f"job{node}", 0, 1, JoinOptions())  # noqa: E731
        self.session = netns.within(net.nodes[node].holder.pid, join)
        self.calls = 0
        self.failures: list[BaseException] = []
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        try:
            while not self.closing.wait(0.02):
                array = np.arange(5000, dtype=np.int32)
                self.session.allreduce(array).result(SOON_S)
                assert (array == np.arange(5000)).all()
                self.calls += 1
        except BaseException as error:
            self.failures.append(error)

    def go_on(self) -> None:
        """Wait for further calls."""
        end_s, calls = time.monotonic() + SOON_S, self.calls + 10
        while self.calls < calls:
            assert not self.failures, self.failures
            assert time.monotonic() < end_s
            time.sleep(0.02)

    def close(self) -> None:
        self.closing.set()
        self.thread.join(SOON_S)
        self.session.close()


@pytest.fixture
def net(requires_root_namespaces: None) -> Iterator[Star]:
    with Star(2) as star:
        yield star


def test_c9_a_link_that_is_back_before_the_lease_ends_saves_the_job(net: Star, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq.Context, "instance", zmq.Context)  # the process's makes all sockets in one namespace
    options = DaemonOptions(CONTROL, (SWITCH, 5556), lease_s=LEASE_S)
    daemon = netns.within(net.switch.holder.pid, lambda: SwitchDaemon(options))
    with ExitStack() as ending:
        ending.callback(daemon.stop)
        netns.within(net.switch.holder.pid, daemon.start)
        jobs = [Job(net, node) for node in range(2)]
        for job in jobs:
            ending.callback(job.close)
            job.go_on()
        # one link is down at the worker's end, whose routes go, one at the switch's: that worker only has no carrier
        for cut in (((net.nodes[0], "eth0"), (net.switch, "p1")), ((net.switch, "br0"),)):
            for where, name in cut:
                where.sh(f"ip link set {name} down")
            time.sleep(OUTAGE_S - 0.1)
            for where, name in cut:
                where.sh(f"ip link set {name} up")
            time.sleep(1.0)
            for job in jobs:
                job.go_on()


MESHES: tuple[tuple[Any, Any], ...] = (
    (TcpMesh, TcpOptions(silence_s=LEASE_S)),
    (ZeroMqMesh, ZeroMqOptions(silence_s=LEASE_S)),
    (UdpMesh, UdpMeshOptions(silence_s=LEASE_S)),
)


def pair(net: Star, kind: Any, options: Any, port: int) -> list[Mesh]:
    """The two ends of a mesh between the nodes."""
    addresses = [(f"10.77.0.{member + 1}", port) for member in range(2)]
    with ThreadPoolExecutor(2) as pool:
        ends = [
            pool.submit(
                netns.within, net.nodes[member].holder.pid, partial(kind.connect, member, addresses, options=options)
            )
            for member in range(2)
        ]
        return [end.result() for end in ends]


TICKETS = count()


def turn(pairs: list[list[Mesh]], until_s: float, busy: list[list[Mesh]]) -> int:
    """Run all, with messages on those that are busy, until then; how many have come. No member may be lost."""
    came = 0
    while time.monotonic() < until_s:
        for ends in pairs:
            for mesh in ends:
                events = mesh.receive()
                assert not [event for event in events if isinstance(event, MemberLost)], type(mesh)
                came += sum(isinstance(event, MessageReceived) for event in events)
        for one, two in busy:
            one.send(1, b"", bytes(500), next(TICKETS))
            two.send(0, b"", bytes(500), next(TICKETS))
        time.sleep(0.02)
    return came


def test_a_link_that_is_back_before_a_peer_counts_as_gone_saves_host_methods(net: Star) -> None:
    with ExitStack() as ending:
        pairs = [pair(net, *kind, 6000 + number) for number, kind in enumerate(MESHES * 2)]
        for mesh in [mesh for ends in pairs for mesh in ends]:
            ending.callback(mesh.close, 0.0)
        turn(pairs, time.monotonic() + 1.5, pairs[:3])
        net.switch.sh("ip link set p1 down")
        turn(pairs, time.monotonic() + OUTAGE_S, pairs[:3])
        net.switch.sh("ip link set p1 up")
        turn(pairs, time.monotonic() + LEASE_S, pairs[:3])  # what was late is there, and no limit passes later
        for ends in pairs:
            assert turn([ends], time.monotonic() + 0.5, [ends]) > 10
