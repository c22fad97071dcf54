"""A call of method `switch` alone on idle links: its packets in order, as many in flight as the window has slots."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from emulation.scenario.topologies.topology import Topology
from emulation.sim.flow.call_load import CallLoad
from emulation.sim.flow.flow_network import FlowNetwork
from emulation.sim.network.simulated_link import UDP_FRAMING_BYTES
from switchagg.calls.array_calls import form_of
from switchagg.calls.chunked_call import ArrayCall
from switchagg.description import DESCRIBED_WORKERS_MOST
from switchagg.job import JobConfig
from switchagg.layout import Shares, run_of
from switchagg.wire import HEADER_BYTES, Route, frame_bytes

PACKETS_MOST = 50_000
"""A longer call has so many packets counted one by one: the remaining packets follow at the pace of the second half."""


class Tree:
    """The switches that aggregate for a job, and what a packet takes to the root and back."""

    def __init__(self, network: FlowNetwork, tree: Topology) -> None:
        byte_ns = network.byte_ns
        self._up, self._down, self._worker_up, self._worker_down = (list[int]() for _ in range(4))
        trips: dict[str, tuple[float, float]] = {tree.root: (0.0, 0.0)}  # by switch: of a byte to the root and back; ns
        for parent, children in sorted(tree.children.items(), key=lambda entry: len(tree.path(entry[0], tree.root))):
            for child in children:
                up, down = network.route(child, parent), network.route(parent, child)
                of_byte, rest = trips[parent]
                rest += sum(up.pauses_ns) + sum(down.pauses_ns)
                trips[child] = (of_byte + up.byte_ns + down.byte_ns, rest)
                worker = child not in tree.children
                (self._worker_up if worker else self._up).extend(up.links)
                (self._worker_down if worker else self._down).extend(down.links)
        self.workers = len(tree.workers)
        self.byte_ns, self.rest_ns = max(trips[worker] for worker in tree.workers)
        self._network, self.slowest_ns = network, max(byte_ns[link] for link in (*self._worker_up, *self._up))

    def busy_ns(self, wire: int, up_bytes: float, down_bytes: float) -> tuple[np.ndarray, float]:
        """By link, how long it sends for a packet of so many bytes; and the longest. given, got: what a worker sends,
        and what it is sent, on average."""
        byte_ns = np.array(self._network.byte_ns)
        busy = np.zeros(self._network.links)
        for links, size in (
            (self._up, wire),
            (self._down, wire),
            (self._worker_up, up_bytes),
            (self._worker_down, down_bytes),
        ):
            np.add.at(busy, links, size)
        busy *= byte_ns
        return busy, float(busy.max())


def packets(call: ArrayCall, job: JobConfig) -> tuple[int, int, int]:
    """(packets before those with values, data packets, rounds of agreement) of a call."""
    words = 1 if job.workers <= DESCRIBED_WORKERS_MOST else 0
    form = form_of(call, job)
    return (1, form.small, 0) if form.small else (words, form.layout.chunks, call.codec.rounds)


def shape_of_call(call: ArrayCall, job: JobConfig, window: int, tree: Tree, flow_byte_ns: float = 0.0) -> CallLoad:
    """call: of any rank, its array may be one without values. window: slots of its stream. flow_byte_ns: of a worker's
    connection, at least."""
    first, data, rounds = packets(call, job)
    wire, header_only = frame_bytes(job.elements) + UDP_FRAMING_BYTES, HEADER_BYTES + UDP_FRAMING_BYTES
    total = first + data + (-(-data // job.elements) if rounds else 0)
    route = call.shares.route if call.shares.routed else Route.ALL
    share = (job.workers - 1) / job.workers
    most, least = wire * share + header_only * (1 - share), header_only * share + wire * (1 - share)
    up_bytes, down_bytes = {Route.ALL: (wire, wire), Route.TO_OWNER: (most, least)}.get(route, (least, most))
    per_packet, pace_ns = tree.busy_ns(wire, up_bytes, down_bytes)
    trip_ns = wire * tree.byte_ns + tree.rest_ns
    own_ns = up_bytes * tree.slowest_ns
    rooted = route is not Route.ALL and call.shares.owner is not None
    if rooted:  # the root's link carries all that is given, or got, and nobody else's as much
        per_packet, pace_ns = tree.busy_ns(wire, wire, wire)
    pace_ns = max(pace_ns, up_bytes * flow_byte_ns)
    left, back = _times(first, data, job.elements if rounds else 0, window, pace_ns, max(own_ns, trip_ns))
    left = min(left, back)
    done: Any = back
    if route is not Route.ALL:
        late = _late(call.shares, max(1, data // job.workers), window, job.workers)
        done = np.full(tree.workers, back)
        for rank, packets_late in late.items():
            done[rank] += packets_late * (wire - header_only) * tree.slowest_ns
        left += max([0, *late.values()]) * (wire - header_only) * tree.slowest_ns
    sent_bytes: Any = total * wire
    received: Any = total * wire
    if route is not Route.ALL:
        before = (total - data) * wire
        sent_bytes, received = (
            np.full(tree.workers, round(before + data * per_chunk)) for per_chunk in (up_bytes, down_bytes)
        )
        if rooted:
            of_root, of_others = (wire, header_only) if route is Route.FROM_OWNER else (header_only, wire)
            sent_bytes[:], received[:] = before + data * of_others, before + data * of_root
            sent_bytes[call.shares.owner], received[call.shares.owner] = (
                before + data * of_root,
                before + data * of_others,
            )
    return CallLoad(left, done, per_packet * total, sent_bytes, received)


def _late(shares: Shares, rows: int, window: int, workers: int) -> dict[int, int]:
    """By how many packets with values which ranks are late or early, where shards take turns of so many rows.

    A rank's header-only packets for others' rows wait behind its own with values. So in an all-gather nothing but the
    first run comes before rank 0 has sent that, whose own link is idle until then; in a reduce-scatter the rows of the
    last run are all complete at once, and on their way to the last rank while the others have nothing left to get. With
    a root, who gets values has them a packet later than others their header-only one.
    """
    gives = shares.route is Route.FROM_OWNER
    if shares.owner is not None:
        return {rank: -1 for rank in range(workers) if (rank == shares.owner) is gives}
    run = run_of(window, workers)
    if gives:
        return {0: min(run, rows) - 1}
    last = rows - (rows - 1) // run * run
    return {**dict.fromkeys(range(workers - 2), -1), workers - 1: last - 1}


def _order(first: int, data: int, group: int) -> Iterator[int]:
    """The kind of each packet: -1: it waits for nothing; else the number of the group whose agreed exponent it needs;
    scale chunks are sent a whole group ahead (W4)."""
    yield from [-1] * first
    if not group:
        yield from [-1] * data
        return
    groups = -(-data // group)
    yield -2
    for number in range(groups):
        if number + 1 < groups:
            yield -2
        yield from [number] * (min((number + 1) * group, data) - number * group)


def _times(first: int, data: int, group: int, window: int, pace_ns: float, trip_ns: float) -> tuple[float, float]:
    """When the last packet has left its host, and when its result is there."""
    rest_ns = trip_ns - pace_ns
    results: list[float] = []
    agreed: list[float] = []
    left = 0.0
    for number, needs in enumerate(_order(first, data, group)):
        if number == PACKETS_MOST:
            break
        begin = left
        if needs >= 0:
            begin = max(begin, agreed[needs])
        if number >= window:
            begin = max(begin, results[number - window])
        left = begin + pace_ns
        back = left + rest_ns
        results.append(back)
        if needs == -2:
            agreed.append(back)
    total = first + data + (-(-data // group) if group else 0)
    if total > PACKETS_MOST:
        half = PACKETS_MOST // 2
        left += (total - PACKETS_MOST) * (results[-1] - results[half - 1]) / half
    return left, left + rest_ns if results else 0.0
