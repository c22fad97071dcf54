"""Links of real namespaces that go down, at either end, and come back before the lease ends: no job ends."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from emulation.mininet import netns
from tests.system.xdp_net import CONTROL, SWITCH, Star
from transport.switch.daemon import SwitchDaemon
from transport.switch.options import DaemonOptions
from transport.worker.options import JoinOptions
from transport.worker.session import SwitchSession

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


def test_c9_a_link_that_is_back_before_the_lease_ends_saves_the_job(net: Star) -> None:
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
