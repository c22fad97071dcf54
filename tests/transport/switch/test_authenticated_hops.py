"""Authenticated hops live over loopback: an attacker on the path changes no sum and ends no call (A1 to A5)."""

import socket
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hostile_relay import HostileRelay

from switchagg.calls.array_calls import array_call
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import AggregationFailed
from switchagg.job import JobConfig, StreamConfig
from switchagg.native import library
from switchagg.wire import Bundle, Op, Packet, encode
from transport.contracts.switch_host import Uplink
from transport.links.hop_tags import Hop, HopKeys, secret_of_switch
from transport.links.udp_link import UdpLink
from transport.switch.impairments import parse_impairments
from transport.switch.native_switch_loop import NativeSwitchLoop
from transport.switch.switch_loop import CommandLoop, SwitchLoop
from transport.worker.native_worker_loop import NativeWorkerLoop
from transport.worker.worker_loop import CallLoop, WorkerLoop

LOOPBACK = ("127.0.0.1", 0)
LIVENESS_S = 120.0
ELEMENTS, WINDOW, RANKS = 90, 32, 3
JOB = JobConfig(3, 9, RANKS, ELEMENTS, (StreamConfig(0, WINDOW), StreamConfig(WINDOW, WINDOW)), rto_min_ns=20_000_000)
SECRET = bytes(range(32))
CORES = [
    "python",
    pytest.param("native", marks=pytest.mark.skipif(bool(library.missing()), reason=f"{library.missing()}")),
]


def switch_loop(core: str, impairments: str = "") -> tuple[CommandLoop[Any], UdpLink]:
    link = UdpLink(LOOPBACK)
    if core == "native":
        plane: Any = DATAPLANES["native"](4 * WINDOW, ELEMENTS)
        emulated = parse_impairments(impairments) if impairments else None
        return NativeSwitchLoop(link, plane, impairments=emulated), link
    return SwitchLoop(link, DATAPLANES["reference"](4 * WINDOW, ELEMENTS)), link


def worker_loop(core: str, link: UdpLink, rank: int, switch: Any, job: JobConfig = JOB, **how: Any) -> CallLoop:
    make = NativeWorkerLoop if core == "native" else WorkerLoop
    return make(link, job, rank, switch, **how)


def sums(workers: list[CallLoop], calls: int, values: int, seed: int) -> None:
    """Calls of integers and floats on all workers; each result is compared."""
    numbers = np.random.default_rng(seed)
    for number in range(calls):
        dtype = (np.int32, np.float32, np.int64)[number % 3]
        arrays = numbers.integers(-1000, 1000, (len(workers), values)).astype(dtype)
        want = arrays.sum(0, dtype=dtype)
        futures: list[Future[Any]] = []
        for worker, array in zip(workers, arrays, strict=True):
            futures.append(worker.submit(number % 2, array_call(array, "sum", JOB)))
        for future, array in zip(futures, arrays, strict=True):
            future.result(LIVENESS_S)
            assert np.array_equal(array, want), f"call {number}"


@contextmanager
def attacked(
    core: str, secret: bytes, seed: int, recorded: "dict[tuple[int, bool], deque[Bundle]] | None" = None
) -> Iterator[tuple[CommandLoop[Any], HostileRelay, list[CallLoop]]]:
    """A switch, an attacker on all its links, and workers."""
    with ExitStack() as ending:
        loop, link = switch_loop(core)
        ending.callback(loop.stop)
        links = [UdpLink(LOOPBACK) for _ in range(RANKS)]
        relay = HostileRelay([one.address for one in links], link.address, seed, recorded=recorded)
        ending.callback(relay.close)
        loop.start()
        loop.admit(JOB, relay.seen_as, secret=secret)
        workers = []
        for rank, one in enumerate(links):
            keys = HopKeys.of(secret, rank) if secret else None
            workers.append(worker_loop(core, one, rank, relay.towards_switch[rank], hop_keys=keys))
            ending.callback(workers[-1].close)
        yield loop, relay, workers


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("draw", range(2))
def test_an_attacker_on_the_path_changes_no_sum_and_ends_no_call(core: str, draw: int) -> None:
    """A hostile bundle comes with every honest one: changed, cut, without its tag, mixed of two, repeated, of an
    earlier generation, or sent back."""
    values, calls = (20_000, 12) if core == "native" else (3_000, 3)
    with attacked(core, bytes(reversed(SECRET)), draw) as (_, relay, workers):
        sums(workers, 2, values // 4, draw)
        recorded = dict(relay.record)
    with attacked(core, SECRET, draw, recorded) as (loop, relay, workers):
        sums(workers, calls, values, draw)
        time.sleep(0.1)
        hostile = Counter(relay.hostile)
        told = [loop.counters(), *(worker.counters for worker in workers)]
        unauthenticated = sum(counters["drop_unauthenticated"] for counters in told)
    assert len(hostile) == 8
    # Few name another job, or are too short to name one; what sockets have no room for is counted by the kernel.
    assert unauthenticated >= 0.8 * sum(hostile[kind] for kind in ("bit", "bytes", "bare", "old"))


@pytest.mark.parametrize("core", CORES)
def test_without_tags_the_same_attacker_changes_sums(core: str) -> None:
    """The attacker isn't harmless: it is the tags that keep it out."""
    with attacked(core, b"", 0) as (_, _, workers), pytest.raises((AssertionError, AggregationFailed)):
        sums(workers, 60, 3_000, 0)


@pytest.mark.parametrize("core", CORES)
def test_a_wrong_tag_is_never_answered(core: str) -> None:
    """Neither a member's address nor a member of another job gets a byte out of the switch, 10,000 packets each."""
    with ExitStack() as ending:
        loop, link = switch_loop(core)
        ending.callback(loop.stop)
        loop.start()
        links = [UdpLink(LOOPBACK) for _ in range(4)]
        for one in links:
            ending.callback(one.close)
        alone = replace(JOB, workers=1)
        other = replace(alone, job_id=4, streams=(StreamConfig(2 * WINDOW, WINDOW), StreamConfig(3 * WINDOW, WINDOW)))
        loop.admit(alone, [links[0].address], secret=SECRET)
        loop.admit(other, [links[1].address], secret=bytes(32))
        one = Packet(3, 9, 0, 0, Op.SUM, 0, 0, 0, np.arange(ELEMENTS, dtype=np.int32))
        frames = np.frombuffer(encode(one), np.uint8)[np.newaxis].repeat(10_000, axis=0)
        frames[:, -4:] = np.arange(10_000, dtype=">u4").view(np.uint8).reshape(-1, 4)
        wrong = Hop(ELEMENTS, [HopKeys.of(bytes(32), 0)])  # what the other job's member has
        for attacker, packets in ((links[0], frames), (links[1], wrong.tagged(frames)), (links[2], frames)):
            for first in range(0, len(packets), 500):
                attacker.send(packets[first : first + 500], link.address)
                time.sleep(0.005)
        time.sleep(0.2)
        counters = loop.counters()
        assert counters["link_sent_datagrams"] == 0
        assert counters["drop_unauthenticated"] > 10_000
        assert counters["drop_unknown_sender"] > 1_000
        assert not any(one.receive() for one in links)
        right = Hop(ELEMENTS, [HopKeys.of(SECRET, 0)]).tagged(frames[:1])
        links[0].send(right, link.address)
        assert links[0].wait(5.0)
        ((answer, _, _),) = links[0].receive()
        assert answer.shape == (1, right.shape[1])


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("impairments", ["", "loss=3%,reorder=5%,duplicate=3%"])
def test_a_leaf_verifies_children_and_parent(core: str, impairments: str) -> None:
    if impairments and core != "native":
        pytest.skip("only the loop in C emulates links")
    below = secret_of_switch(SECRET, "rack")
    with ExitStack() as ending:
        (root, root_link), (leaf, leaf_link) = switch_loop(core, impairments), switch_loop(core, impairments)
        links = [UdpLink(LOOPBACK) for _ in range(RANKS)]
        for loop in (root, leaf):
            ending.callback(loop.stop)
            loop.start()
        root.admit(JOB, [links[0].address, leaf_link.address], secret=SECRET)
        uplink = Uplink(root_link.address, 1, bytes(HopKeys.of(SECRET, 1)))
        leaf.admit(JOB, [links[1].address, links[2].address], uplink, below)
        workers: list[CallLoop] = []
        for rank, (secret, wire_rank, switch) in enumerate(
            ((SECRET, 0, root_link), (below, 0, leaf_link), (below, 1, leaf_link))
        ):
            how = {"wire_rank": wire_rank, "hop_keys": HopKeys.of(secret, wire_rank)}
            workers.append(worker_loop(core, links[rank], rank, switch.address, **how))
            ending.callback(workers[-1].close)
        sums(workers, 6, 5_000, 1)
        for told in (root.counters(), leaf.counters(), *(worker.counters for worker in workers)):
            assert told["drop_unauthenticated"] == 0
        stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        ending.callback(stranger.close)
        before = root.counters()["drop_unauthenticated"]
        result = Packet(3, 9, 0, 0, Op.SUM, 0, 0, 0, np.zeros(ELEMENTS, np.int32), result=True)
        forged = np.frombuffer(encode(result) + bytes(8), np.uint8)[np.newaxis]
        root._ask(lambda: root._link.send(forged, leaf_link.address))
        time.sleep(0.2)
        assert leaf.counters()["drop_unauthenticated"] == before + 1
