"""Drives a slot rule by workers on a faulty network, and compares what it sends with what PROTOCOL.md's rule does."""

import runpy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from switchagg.aggregator import Aggregator, Decision
from switchagg.dataplane.p4.plane_traffic import SAYS, Arrived, Shape, TrafficFaults, traffic
from switchagg.wire import Op, Packet, Route, decode

PACKETS, WORKERS, ELEMENTS, WINDOW = 400, 3, 4, 2
RUNS = 6
IN_ORDER = TrafficFaults(loss=0.1)
LATE_COPIES = TrafficFaults(duplicate=0.1)
ANY_ORDER = TrafficFaults(loss=0.05, duplicate=0.1, reorder=0.1, straggler=0.02)

Answer = tuple[str, Any] | None
"""("one" or "all", sums), or nothing."""


def plain(packet: Packet) -> Packet:
    """The packet as a sum of all workers: this exercise has no maxima, and all workers give values."""
    values = packet.values if len(packet.values) else np.zeros(ELEMENTS, np.int32)
    return replace(packet, op=Op.SUM, route=Route.ALL, owner=0, values=values)


class Sums(Aggregator):
    """The reference, for such packets."""

    def accept(self, packet: Packet, port: int) -> Decision:
        return super().accept(plain(packet), port)


@dataclass(frozen=True)
class Step:
    """A packet at the switch. reason, right: the reference's verdict and answer."""

    number: int
    packet: Packet
    reason: str
    right: Answer

    @property
    def name(self) -> str:
        packet = self.packet
        place = f"slot {packet.slot} version {packet.version}"
        return f"packet {self.number} (rank {packet.rank}, chunk {packet.chunk}, {place})"


def run_of(seed: int, network: TrafficFaults) -> list[Step]:
    """The packets of a run."""
    shape = Shape(seed, PACKETS, WORKERS, ELEMENTS, WINDOW)
    arrived = (step for step in traffic(shape, network, Sums) if isinstance(step, Arrived))
    steps = []
    for number, step in enumerate(arrived, 1):
        sums = decode(step.results[0][1]).values if step.results else None
        right = {"broadcast": ("all", sums), "reply": ("one", sums)}.get(step.reason)
        steps.append(Step(number, plain(decode(step.data)), step.reason, right))
    return steps


def overtaken(steps: list[Step]) -> list[tuple[Step, int]]:
    """Packets that came after a later chunk of their rank in the same slot, and that chunk."""
    latest: dict[tuple[int, int], int] = {}
    pairs = []
    for step in steps:
        place = step.packet.rank, step.packet.slot
        if step.packet.chunk < latest.get(place, 0):
            pairs.append((step, latest[place]))
        latest[place] = max(step.packet.chunk, latest.get(place, 0))
    return pairs


def ordered_runs() -> Iterator[list[Step]]:
    """Runs in which packets are lost and sent again, but never overtake each other."""
    return (steps for seed in count() if not overtaken(steps := run_of(seed, IN_ORDER)))


def fault_of(make: Any, steps: list[Step]) -> list[str]:
    """The first packet to which the rule answers otherwise than the reference, and why."""
    rule = make(WINDOW, WORKERS)
    for place, step in enumerate(steps):
        packet = step.packet
        answer = rule.packet(packet.slot, packet.version, packet.rank, packet.chunk, packet.values.copy())
        if answer is not None and not (isinstance(answer, tuple) and len(answer) == 2 and answer[0] in ("one", "all")):
            return [f'{step.name}: `packet` returned {answer!r}; it is None, ("one", sums) or ("all", sums)']
        if not alike(answer, step.right):
            return [f"{step.name}: {difference(answer, step.right)}", why(steps[: place + 1])]
    return []


def alike(answer: Answer, right: Answer) -> bool:
    if answer is None or right is None:
        return answer is right
    return answer[0] == right[0] and np.array_equal(answer[1], right[1])


def difference(answer: Answer, right: Answer) -> str:
    if answer is None or right is None:
        words = [f"the sums to {output[0]}" if output else "nothing" for output in (answer, right)]
        return f"your rule sends {words[0]}, right is {words[1]}"
    if answer[0] != right[0]:
        return f"the sums go to {answer[0]}, right is to {right[0]}"
    return f"a wrong sum, {np.asarray(answer[1]).tolist()}; right is {right[1].tolist()}"


def why(steps: list[Step]) -> str:
    """The old copy that caused it, if there was one in this slot; else the last packet's role."""
    last = steps[-1]
    for step, later in reversed(overtaken(steps)):
        if step.packet.slot == last.packet.slot:
            old = f"{step.name} was an old copy: rank {step.packet.rank}'s chunk {later} was there before it"
            if step.reason == "drop_older":
                return f"{old}; it is too old for this slot version, and must change nothing (S2)"
            return f"{old}; it may be answered, but is not the first of any turn, and frees no other version (S2, S3)"
    return f"that packet is: {SAYS[last.reason]}"


def faults(folder: Path) -> list[str]:
    """The faults of the folder's rule.py."""
    rule = runpy.run_path(str(folder / "rule.py"))["Rule"]
    for steps in islice(ordered_runs(), RUNS):
        if wrong := fault_of(rule, steps):
            return [f"already with packets that keep their order: {wrong[0]}", *wrong[1:]]
    runs = (run_of(seed, network) for network in (LATE_COPIES, ANY_ORDER) for seed in range(RUNS))
    wrong = [fault for steps in runs if (fault := fault_of(rule, steps))]
    for fault in sorted(wrong, key=lambda fault: "a wrong sum" not in fault[0]):  # wrong sums come first
        return [f"right as long as packets keep their order; when they don't: {fault[0]}", *fault[1:]]
    return []
