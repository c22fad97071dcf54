"""Collectives whose ranks all do the same at the same time, phase by phase: thousands of ranks at the cost of one.

In a phase every rank sends one message of the same size. All flows of a phase are looked at together: the slowest of
their max–min rates sets the pace, which is that of the link with the least capacity per flow. Phases that follow each
other with the same flows are computed once and repeated. A rank's way is then that of `stepwise_seconds`: it goes on
with the first segment that came.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log2
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulation.sim.flow.call_load import CallLoad
from emulation.sim.flow.collective_messages import Carriage
from emulation.sim.flow.flow_network import FlowNetwork
from transport.collectives.collective_party import HEAD_BYTES
from transport.collectives.halving import is_power_of_two
from transport.collectives.rings import hierarchical_group, torus_sides


class Phase(NamedTuple):
    """times: so often, one after the other. share: of the array, in each message. to: of each rank, its receiver."""

    times: int
    share: float
    to: NDArray[np.int64]


def _rings(workers: int, group: int) -> list[Phase]:
    """Inside groups of consecutive ranks, across, inside."""
    ranks = np.arange(workers)
    inside = Phase(group - 1, 1 / group, ranks // group * group + (ranks + 1) % group)
    across = Phase(2 * (workers // group - 1), 1 / workers, (ranks + group) % workers)
    if group == workers:
        return [inside._replace(times=2 * (workers - 1))]
    return [phase for phase in (inside, across, inside) if phase.times]


def _half_a_ring(workers: int) -> list[Phase]:
    return [phase._replace(times=workers - 1) for phase in _rings(workers, workers)]


def _halving_doubling(workers: int) -> list[Phase]:
    steps = [Phase(1, 2.0 ** -(bit + 1), np.arange(workers) ^ 1 << bit) for bit in range(round(log2(workers)))]
    return steps + steps[::-1]


def _recursive_doubling(workers: int) -> list[Phase]:
    return [Phase(1, 1.0, np.arange(workers) ^ 1 << bit) for bit in range(round(log2(workers)))]


@dataclass(frozen=True)
class Phased:
    """phases(workers, option); fits: for which numbers of workers."""

    phases: Callable[[int, int], list[Phase]]
    fits: Callable[[int], bool] = lambda _workers: True


PHASED: dict[tuple[str, str], Phased] = {
    ("allreduce", "ring"): Phased(lambda workers, _: _rings(workers, workers)),
    ("reduce_scatter", "ring"): Phased(lambda workers, _: _half_a_ring(workers)),
    ("all_gather", "ring"): Phased(lambda workers, _: _half_a_ring(workers)),
    ("allreduce", "torus"): Phased(lambda workers, _: _rings(workers, torus_sides(workers)[0])),
    ("allreduce", "hierarchical"): Phased(lambda workers, option: _rings(workers, hierarchical_group(workers, option))),
    ("allreduce", "halving_doubling"): Phased(lambda workers, _: _halving_doubling(workers), is_power_of_two),
    ("allreduce", "recursive_doubling"): Phased(lambda workers, _: _recursive_doubling(workers), is_power_of_two),
}


class LinkPhase(NamedTuple):
    """A phase on links. flows: that cross each link; slowest_ns: per byte, at the least max-min rate; pause_ns, way_ns:
    of each rank's way, without its first link: latency, and what a byte of a frame takes."""

    times: int
    share: float
    flows: NDArray[np.int64]
    slowest_ns: float
    pause_ns: NDArray[Any]
    way_ns: NDArray[Any]


class Chains:
    """Every member's links up to the top and down again, by level, of a tree in which all have as many."""

    def __init__(self, network: FlowNetwork, members: tuple[str, ...]) -> None:
        self._network = network
        paths = [network.topology.path(member, network.topology.top) for member in members]
        names = {node: number for number, node in enumerate(network.topology.nodes)}
        self.up = np.array([[network.number[hop] for hop in path] for path in paths])
        self.down = np.array([[network.number[hop[::-1]] for hop in path] for path in paths])
        self._above = np.array([[names[above] for _, above in path] for path in paths])

    def links(self, to: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The paths from each member to `to`: (pairs, links), a row for each link on a path; and how many levels a path
        goes up."""
        same = self._above == self._above[to]
        levels = same.argmax(axis=1) + 1
        used = np.arange(self.up.shape[1])[None, :] < levels[:, None]
        pairs = np.repeat(np.arange(len(to)), levels)
        both = np.stack([np.tile(pairs, 2), np.concatenate([self.up[used], self.down[to][used]])])
        return both, levels

    def steps(self, phases: list[Phase]) -> list[LinkPhase]:
        """Phases with the same receivers cross the same links."""
        network, known = self._network, dict[bytes, LinkPhase]()
        byte_ns, pauses = np.array(network.byte_ns), np.array(network.delays_ns) + network.latency_ns
        for phase in phases:
            if (name := phase.to.tobytes()) not in known:
                (pairs, links), _ = self.links(phase.to)
                flows, count = np.bincount(links, minlength=network.links), len(phase.to)
                pause_ns = np.bincount(pairs, pauses[links].astype(float), count) - float(network.latency_ns)
                way_ns = np.bincount(pairs, byte_ns[links], count) - byte_ns[self.up[:, 0]]
                known[name] = LinkPhase(0, 0.0, flows, float((flows * byte_ns)[links].max()), pause_ns, way_ns)
        return [known[phase.to.tobytes()]._replace(times=phase.times, share=phase.share) for phase in phases]


def phased(
    steps: list[LinkPhase], size_bytes: int, network: FlowNetwork, how: Carriage, segment_bytes: int
) -> CallLoad:
    """An allreduce of size_bytes. segment_bytes: of a message's data, at most."""
    busy, transfer_ns = np.zeros(network.links), how.costs.transfer_ns
    begin = end = way_ns = 0.0
    sent_bytes = 0
    for step in steps:
        wire, full, acks = _wire(size_bytes * step.share, how, segment_bytes)
        first, _, _ = _wire(min(size_bytes * step.share, segment_bytes), how, segment_bytes)
        port_ns = (wire + acks) * max(step.slowest_ns, how.flow_byte_ns)
        each_ns = step.pause_ns + full * step.way_ns + 2 * transfer_ns
        way_ns = float(each_ns.mean() if step.times > 1 else each_ns.max())  # what goes round meets all ways in turn
        pace_ns = max(port_ns, first * step.slowest_ns + way_ns)  # from one step's beginning to the next one's
        end = max(begin, end) + (step.times - 1) * pace_ns + port_ns
        begin = end - port_ns + first * step.slowest_ns + way_ns
        busy += step.flows * ((wire + acks) * step.times)
        sent_bytes += round((wire + acks) * step.times)
    worked_ns = 2.0 * transfer_ns * sum(step.times for step in steps)
    return CallLoad(end, end + way_ns, busy * np.array(network.byte_ns), sent_bytes, sent_bytes, worked_ns)


def _wire(size_bytes: float, how: Carriage, segment_bytes: int) -> tuple[float, int, int]:
    """(bytes on the wire of a message that travels in segments, of its longest frame, of its acknowledgements)."""
    messages = max(1, -(-int(size_bytes) // segment_bytes))
    full = [segment_bytes] * min(1, messages - 1)
    rest = size_bytes - segment_bytes * (messages - 1)
    wire, acks = 0.0, 0
    for data, times in ((*full, messages - 1), (rest, 1)) if full else ((rest, 1),):
        frames = how.frames(int(data) + HEAD_BYTES)
        wire += times * (data + HEAD_BYTES + frames * how.frame_bytes)
        acks += times * -(-frames // how.ack_every) * how.ack_bytes
    longest = min(int(wire), how.segment_bytes + how.frame_bytes)
    return wire, longest, acks
