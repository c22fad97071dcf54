"""Switches below switches over loopback, in threads: exact sums over links that lose, up or down only; three levels."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from switchagg.calls.array_calls import array_call
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import JobError
from switchagg.job import JobConfig, StreamConfig
from switchagg.native import library
from transport.contracts.switch_host import Uplink
from transport.links.udp_link import UdpLink
from transport.switch.impairments import Impairments, parse_impairments
from transport.switch.native_switch_loop import NativeSwitchLoop
from transport.switch.switch_loop import CommandLoop, SwitchLoop
from transport.worker.worker_loop import WorkerLoop

LOOPBACK = ("127.0.0.1", 0)
LIVENESS_S = 60.0
ELEMENTS, WINDOW, VALUES = 8, 8, 400
NATIVE = pytest.param(
    "native", marks=pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")
)


@dataclass
class Node:
    """A switch of a tree: its workers come first among its children, then the switches below."""

    plane: str
    workers: int = 0
    below: list["Node"] = field(default_factory=list)
    impairments: Impairments | None = None
    loop: CommandLoop[Any] | None = None

    def __post_init__(self) -> None:
        self.link = UdpLink(LOOPBACK)
        plane = DATAPLANES[self.plane](2 * WINDOW, ELEMENTS)
        if self.plane == "native":
            self.loop = NativeSwitchLoop(self.link, plane, impairments=self.impairments)  # type: ignore[arg-type]
        else:
            self.loop = SwitchLoop(self.link, plane)
        self.loop.start()
        self.address = self.link.address

    @property
    def all_workers(self) -> int:
        return self.workers + sum(node.all_workers for node in self.below)


@contextmanager
def running(root: Node) -> Iterator[list[WorkerLoop]]:
    """The workers of a tree, by rank in the job."""
    job = JobConfig(3, 9, root.all_workers, ELEMENTS, (StreamConfig(0, WINDOW),), rto_initial_ns=20_000_000)
    workers: list[WorkerLoop] = []
    loops: list[CommandLoop[Any]] = []

    def admit(node: Node, uplink: Uplink | None) -> None:
        assert node.loop is not None
        loops.append(node.loop)
        links = [UdpLink(LOOPBACK) for _ in range(node.workers)]
        children = [link.address for link in links] + [below.address for below in node.below]
        node.loop.admit(job, children, uplink)
        for wire_rank, link in enumerate(links):
            workers.append(WorkerLoop(link, job, len(workers), node.address, wire_rank=wire_rank))
        for number, below in enumerate(node.below):
            admit(below, Uplink(node.address, node.workers + number))

    try:
        admit(root, None)
        yield workers
    finally:
        for worker in workers:
            worker.close()
        for loop in loops:
            loop.stop()


def check_sums(workers: list[WorkerLoop], calls: int = 4) -> None:
    """Several calls at once, bit for bit."""
    random = np.random.default_rng(1)
    inputs = random.integers(-(1 << 30), 1 << 30, (calls, len(workers), VALUES)).astype(np.int32)
    arrays = inputs.copy()
    futures: list[Future[Any]] = [
        worker.submit(0, array_call(arrays[call, rank], "sum", worker._job))
        for call in range(calls)
        for rank, worker in enumerate(workers)
    ]
    for future in futures:
        future.result(LIVENESS_S)
    for call in range(calls):
        assert (arrays[call] == inputs[call].sum(axis=0, dtype=np.int32)).all()


def counters(node: Node) -> dict[str, int]:
    assert node.loop is not None
    return node.loop.counters()


@pytest.mark.parametrize("plane", ["reference", NATIVE])
def test_unequal_racks_and_a_worker_at_the_root_sum_exactly(plane: str) -> None:
    root = Node(plane, 1, [Node(plane, 3), Node(plane, 1)])
    with running(root) as workers:
        check_sums(workers)
        for leaf in root.below:
            assert counters(leaf)["up"] == counters(leaf)["broadcast"] == counters(root)["broadcast"]


def test_three_levels_of_different_data_planes_sum_exactly() -> None:
    pods = [Node("native", 0, [Node("reference", 2), Node("native", 1)]), Node("reference", 2)]
    with running(Node("native", 0, pods)) as workers:
        check_sums(workers)


@pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")
@pytest.mark.parametrize("way", ["up", "down"])
def test_sums_are_exact_where_only_links_between_switches_lose_packets_one_way(way: str) -> None:
    losses = parse_impairments("seed=5", **{way: "loss=20%"})
    root = Node("native", 0, [Node("native", 2), Node("native", 2)], losses)
    with running(root) as workers:
        check_sums(workers)
        assert counters(root)[f"{way}_lost"] > 0
        again = sum(counters(leaf).get("up_again", 0) for leaf in root.below)
        assert again > 0  # the rack's sum, never a worker's values
        assert counters(root).get("drop_port", 0) == counters(root).get("drop_rank", 0) == 0


def test_a_parent_that_is_also_a_child_is_refused() -> None:
    node = Node("reference", 0)
    assert node.loop is not None
    job = JobConfig(3, 9, 2, ELEMENTS, (StreamConfig(0, WINDOW),))
    try:
        with pytest.raises(JobError, match="different addresses"):
            node.loop.admit(job, [("127.0.0.1", 5), ("127.0.0.1", 6)], Uplink(("127.0.0.1", 6), 0))
    finally:
        node.loop.stop()
