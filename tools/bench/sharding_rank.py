"""A rank of the benchmark of reduce-scatter and all-gather: a process in its worker's namespace.

    python -m tools.bench.sharding_rank '{"rank": 0, …}'

It opens one method, times every kind of operation from a common start, and reports once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from emulation.experiments.bench.allreduce.allreduce_rank import MeetingPoint
from emulation.testbed.children import ChildReport, send_report
from emulation.testbed.host import interface_bytes
from emulation.testbed.mininet.launch import RENDEZVOUS_PORT
from switchagg.calls.call_request import own_shard
from transport.group.group_opening import GroupOptions, open_group
from transport.group.method_name import parse

REDUCE_SCATTER, ALL_GATHER, BOTH = "reduce-scatter", "all-gather", "both at once"
PORT = 29_800
Array = NDArray[np.float32]
Wait = Callable[[], object]


class ShardingTask(msgspec.Struct, frozen=True):
    """A rank's task. size_bytes: of the whole array of either kind. limit_s: longest operation."""

    rank: int
    addresses: tuple[str, ...]
    interface: str
    method: str
    switch: str
    size_bytes: int
    operations: int
    meeting_point: str
    limit_s: float


class ShardingTimes(ChildReport):
    """By kind: durations of all operations; bytes of this rank's interface in one; wrong elements in all."""

    durations_ns: dict[str, list[int]]
    sent_bytes: dict[str, float]
    received_bytes: dict[str, float]
    wrong: dict[str, int]


class ShardedMethod(Protocol):
    """A method; both kinds work in place, on arrays of which `own_shard` is the rank's, and return a wait."""

    def reduce_scatter(self, array: Array) -> Wait: ...

    def all_gather(self, array: Array) -> Wait: ...


class SwitchaggSharded:
    """A group of switchagg."""

    def __init__(self, place: ShardingTask) -> None:
        name, workers = parse(place.method), len(place.addresses)
        more: dict[str, Any] = {"bind": place.addresses[place.rank]} if name.is_switch else {}
        options = GroupOptions(60.0, place.limit_s, switch=place.switch or None, more=more)
        addresses = [(address, PORT) for address in place.addresses]
        self.group = open_group(
            name.method, name.link, place.rank, addresses[:workers], job="bench-sharding", options=options
        )
        self._limit_s = place.limit_s

    def reduce_scatter(self, array: Array) -> Wait:
        future = self.group.reduce_scatter(array)
        return lambda: future.result(self._limit_s)

    def all_gather(self, array: Array) -> Wait:
        future = self.group.all_gather(array)
        return lambda: future.result(self._limit_s)


class GlooSharded:
    """A group of Gloo. Reduce-scatter gives another array; all-gather takes one."""

    def __init__(self, place: ShardingTask) -> None:
        self._begin = _gloo_collectives(place)
        self._rank, self._workers = place.rank, len(place.addresses)

    def reduce_scatter(self, array: Array) -> Wait:
        return self._begin("reduce_scatter", array, own_shard(array, self._rank, self._workers))

    def all_gather(self, array: Array) -> Wait:
        return self._begin("all_gather", array, own_shard(array, self._rank, self._workers).copy())


def _gloo_collectives(place: ShardingTask) -> Callable[[str, Array, Array], Wait]:
    """begin(kind, whole, shard) of Gloo's reduce-scatter and all-gather; it returns what waits for the end."""
    import torch  # which takes a second to import
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    torch.set_num_threads(1)
    at = f"tcp://{place.addresses[0]}:{RENDEZVOUS_PORT}"
    dist.init_process_group(
        "gloo", init_method=at, rank=place.rank, world_size=len(place.addresses), timeout=timedelta(seconds=120)
    )
    # Renamed in PyTorch 2.13.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def begin(kind: str, full_array: Array, shard: Array) -> Wait:
        target, source = torch.from_numpy(full_array), torch.from_numpy(shard)
        if kind == "reduce_scatter":
            target, source = source, target
        work = (scatter if kind == "reduce_scatter" else gather)(target, source, async_op=True)
        assert work is not None, "asynchronous"
        wait: Wait = work.wait
        return wait

    return begin


class ShardingRank:
    """A rank with inputs whose exact sums are known: small whole numbers."""

    def __init__(self, place: ShardingTask) -> None:
        self._place, self._workers = place, len(place.addresses)
        self._point = MeetingPoint(place.meeting_point, place.rank, self._workers, place.limit_s)
        self._contestant: ShardedMethod = GlooSharded(place) if place.method == "gloo" else SwitchaggSharded(place)
        pattern = np.arange(place.size_bytes // 4 // self._workers * self._workers) % 101
        self._inputs = [(pattern + 13 * rank).astype(np.float32) for rank in range(self._workers)]
        self._sum: Array = np.add.reduce(np.array(self._inputs))
        self._arrays = np.zeros_like(self._sum), np.zeros_like(self._sum)

    def run(self) -> ShardingTimes:
        times, interface = ShardingTimes({}, {}, {}, {}), self._place.interface
        for kind in (REDUCE_SCATTER, ALL_GATHER, BOTH):
            self._operation(kind)  # opens TCP's windows
            before = interface_bytes(interface)
            done = [self._operation(kind) for _ in range(self._place.operations)]
            tx, rx = (after - first for after, first in zip(interface_bytes(interface), before, strict=True))
            times.durations_ns[kind] = [duration_ns for duration_ns, _ in done]
            times.sent_bytes[kind] = tx / len(done)
            times.received_bytes[kind] = rx / len(done)
            times.wrong[kind] = sum(wrong for _, wrong in done)
        self._point.meet()
        return times

    def _operation(self, kind: str) -> tuple[int, int]:
        rank, workers = self._place.rank, self._workers
        reduced, gathered = self._arrays
        np.copyto(reduced, self._inputs[rank])
        gathered[:] = 0
        np.copyto(own_shard(gathered, rank, workers), own_shard(self._inputs[rank], rank, workers))
        self._point.start_together()
        start_ns = time.monotonic_ns()
        waits: list[Wait] = []
        if kind != ALL_GATHER:
            waits.append(self._contestant.reduce_scatter(reduced))
        if kind != REDUCE_SCATTER:
            waits.append(self._contestant.all_gather(gathered))
        for wait in waits:
            wait()
        end_ns = time.monotonic_ns()
        self._point.meet()
        wrong = 0
        if kind != ALL_GATHER:
            shards = [own_shard(array, rank, workers) for array in (reduced, self._sum)]
            wrong += int(np.count_nonzero(shards[0] != shards[1]))
        if kind != REDUCE_SCATTER:
            expected = np.concatenate([own_shard(array, r, workers) for r, array in enumerate(self._inputs)])
            wrong += int(np.count_nonzero(gathered != expected))
        return end_ns - start_ns, wrong


def main() -> None:
    send_report(ShardingRank(msgspec.json.decode(sys.argv[1], type=ShardingTask)).run())
    os._exit(0)  # groups and Gloo end with the process


if __name__ == "__main__":
    main()
