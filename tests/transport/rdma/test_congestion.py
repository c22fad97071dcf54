"""Two endpoints and marks on their way: notifications, the rate, and what a slow rate must not bring about."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
from waiting import until

from switchagg.native import library
from tests.transport.rdma.relay import Relay
from transport.rdma import soft
from transport.rdma.verbs import AccessFlags, Opcode, QPAttributes, QPType, SendRequest, WCStatus

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")

LINE_BPS = 1_000_000_000
MESSAGE_BYTES = 1 << 15
BOTH = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
HOST = f"127.{177 + os.getpid() % 70}.{os.getpid() // 70 % 250}"


class End(NamedTuple):
    context: soft.SoftContext
    cq: soft.SoftCompletionQueue
    pair: soft.SoftQueuePair
    region: soft.SoftRegion


def make(context: soft.SoftContext, kind: QPType) -> End:
    domain, cq = context.alloc_pd(), context.create_cq(64)
    region = context.reg_mr(domain, np.zeros(1 << 20, np.uint8), BOTH)
    return End(context, cq, context.create_qp(domain, kind, cq, cq), region)


@contextmanager
def ends_of(kind: QPType) -> Iterator[tuple[End, End]]:
    with soft.open(f"{HOST}.1", port=0) as first, soft.open(f"{HOST}.2", port=0) as second:
        yield make(first, kind), make(second, kind)


def write(here: End, there: End, size: int) -> WCStatus:
    """One write, done."""
    request = SendRequest(
        1, Opcode.WRITE, here.region.address, size, here.region.lkey, there.region.address, there.region.rkey
    )
    assert here.pair.post_send([request]) == 1
    return here.cq.poll(1, 20)[0].status


def ended(child: int, timeout_s: float) -> bool:
    """Whether a child has exited with status 0 without help; it is ended otherwise."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status == 0
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


@pytest.mark.parametrize("kind", [QPType.RC, QPType.UC])
def test_marks_slow_the_sender_down_until_they_end(kind: QPType) -> None:
    with ends_of(kind) as (a, b):
        relay = Relay(a.context.address, b.context.address, (f"{HOST}.3", f"{HOST}.4"), 1, tos=3)
        try:
            for end, (host, port), other in ((a, relay.worker_side, b), (b, relay.switch_side, a)):
                end.pair.connect(
                    other.pair.end._replace(host=host, port=port), QPAttributes(path_mtu=1024, line_bps=LINE_BPS)
                )
            for _ in range(40):
                assert write(a, b, MESSAGE_BYTES) == WCStatus.SUCCESS
            assert a.pair.counters["rate_cuts"] > 0  # the rate itself recovers within a millisecond
            for side in relay._sockets:
                side.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 2)
            until(lambda: a.pair.counters["rate_bps"] >= LINE_BPS)
        finally:
            relay.close()
        ours, theirs = a.pair.counters, b.pair.counters
        assert 0 < ours["rate_cuts"] <= ours["cnps_received"] <= theirs["cnps_sent"] <= theirs["marked"]
        # What came back was marked, too: acknowledgements are answered, notifications never.
        assert ours["marked"] > 0
        assert ours["cnps_sent"] <= ours["acks_received"]


def test_a_rate_so_slow_that_acknowledgements_take_long_is_no_loss() -> None:
    """One is asked for after 64 packets, in 1 to 2 s: eight timeouts, if they counted from the first packet. A busy
    machine may add some."""
    with ends_of(QPType.RC) as (a, b):
        slow = QPAttributes(path_mtu=4096, line_bps=1_000_000, timeout=15)
        a.pair.connect(b.pair.end, slow)
        b.pair.connect(a.pair.end, slow)
        assert write(a, b, 70 * 4096) == WCStatus.SUCCESS
        assert a.pair.counters["timeouts"] < 5


def test_a_forked_process_closes_its_copy_and_ours_goes_on() -> None:
    """The thread isn't in the child, but the lock that it held may be."""
    with ends_of(QPType.RC) as (a, b):
        a.pair.connect(b.pair.end)
        b.pair.connect(a.pair.end)
        over, statuses = threading.Event(), []

        def keep_busy() -> None:
            while not over.is_set():
                statuses.append(write(a, b, 1 << 20))

        busy: Any = threading.Thread(target=keep_busy)
        busy.start()
        try:
            for _ in range(20):
                child = os.fork()
                if not child:
                    a.context.close()
                    os._exit(0)
                assert ended(child, 60)
        finally:
            over.set()
            busy.join()
        assert write(a, b, 1000) == WCStatus.SUCCESS
        assert set(statuses) == {WCStatus.SUCCESS}
