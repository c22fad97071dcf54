"""Runs the switch with the folder's adder.p4 on generated packets, and compares the results with the reference's."""

import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from switchagg.dataplane.contract import Output
from switchagg.dataplane.p4.p4_plane import P4Plane
from switchagg.dataplane.p4.plane_program import PROGRAM_VARIABLE
from switchagg.dataplane.p4.plane_traffic import AdmittedTraffic, Arrived, Shape, traffic
from switchagg.errors import SwitchaggError
from switchagg.job import MODULUS
from switchagg.wire import Op, Packet, decode

SHAPE = Shape(seed=3, packets=250, workers=3, elements=4, window=2)
MOST_TIMES = 8
"""Fewer times each rank's values are looked for in a sum."""

Ints = list[int]
Results = dict[int, Ints]
"""The values that go to each port."""


def results_of(outputs: Sequence[Output]) -> Results:
    frames = ((port, row.tobytes()) for output in outputs for row in output.bundle for port in output.ports)
    return {port: decode(frame).values.tolist() for port, frame in frames}


def values_text(values: Ints) -> str:
    return "[" + ", ".join(str(value) for value in values) + "]"


def explanation(values: Ints, right: Ints, op: Op, by_rank: dict[int, Ints], earlier: Ints) -> str:
    """The origin of a result's values, in the words of S4. by_rank: the ranks' values; earlier: the slot version's sums
    before this chunk."""
    columns = list(zip(*by_rank.values(), strict=True))
    if op is Op.MAX:
        if values == [wrapped(sum(column)) for column in columns]:
            return "it is their sum, but hdr.chunk.op says MAX"
        if values == [wrapped(max(value % MODULUS for value in column)) for column in columns]:
            return "it is the maximum of unsigned numbers: compare as int<32>"
        if values == [max(0, *column) for column in columns]:
            return "a packet without values (meta.header_only) was compared as if it had zeros"
        return rank_text(values, by_rank) or lane_text(values, right)
    for times in product(range(MOST_TIMES), repeat=len(by_rank)):
        if values == [wrapped(sum(n * value for n, value in zip(times, column, strict=True))) for column in columns]:
            return times_text(dict(zip(by_rank, times, strict=True)))
    if [wrapped(a - b) for a, b in zip(values, right, strict=True)] == earlier:
        return "the sums of the chunk before are in it: a chunk's first values replace what the registers hold"
    return lane_text(values, right)


def rank_text(result: Ints, by_rank: dict[int, Ints]) -> str:
    return next((f"it has rank {rank}'s values alone" for rank, values in by_rank.items() if values == result), "")


def lane_text(values: Ints, right: Ints) -> str:
    lanes = [f"v{lane}" for lane in range(len(right)) if values[lane] != right[lane]]
    if len(lanes) == len(right):
        return "it is nothing that these ranks' values make"
    return f"only {', '.join(lanes)} {'is' if len(lanes) == 1 else 'are'} wrong"


def times_text(times: dict[int, int]) -> str:
    """How often each rank's values are in a sum."""
    if not any(times.values()):
        return "it is all zeros: nothing was stored"
    missing = [f"rank {rank}'s values are missing" for rank, n in times.items() if n == 0]
    again = [f"rank {rank}'s are in it {n} times (is its bit in meta.before?)" for rank, n in times.items() if n > 1]
    return "; ".join(missing + again)


def wrapped(value: int) -> int:
    """As a signed number of 32 bits."""
    return (value + MODULUS // 2) % MODULUS - MODULUS // 2


def fault_of(plane: P4Plane) -> list[str]:
    """The first packet whose results have wrong values, and an explanation."""
    contributions: dict[int, dict[int, Ints]] = {}  # chunk -> rank -> values that it gave
    last: dict[tuple[int, int], Ints] = {}  # slot version -> its last sums
    for step in traffic(SHAPE):
        if isinstance(step, AdmittedTraffic):
            plane.admit(step.job, step.ports)
        if not isinstance(step, Arrived):
            continue
        packet = decode(step.data)
        values = contributions.setdefault(packet.chunk, {})
        if len(packet.values):
            values[packet.rank] = packet.values.tolist()
        outputs = plane.process(np.frombuffer(step.data, np.uint8)[np.newaxis, :], step.port)
        results = results_of(outputs)
        right = {port: decode(data).values.tolist() for port, data in step.results}
        earlier = last.get((packet.slot, packet.version), [0] * SHAPE.elements)
        for port in right:
            if results.get(port) != right[port]:
                words = explanation(results[port], right[port], packet.op, values, earlier)
                return [
                    f"{packet_text(packet, step)}: {values_text(results[port])}, right is {values_text(right[port])}",
                    words,
                ]
        if step.reason == "broadcast":
            last[packet.slot, packet.version] = max(right.values(), key=len)
    return []


def packet_text(packet: Packet, step: Arrived) -> str:
    again = ", sent again" if packet.retransmission else ""
    return f"packet {step.note.split(':')[0]} ({packet.op.name}, rank {packet.rank}, chunk {packet.chunk}{again})"


def faults(folder: Path) -> list[str]:
    """The faults of the folder's adder.p4."""
    os.environ[PROGRAM_VARIABLE] = str(folder / "main.p4")
    try:
        return fault_of(P4Plane(SHAPE.slots, SHAPE.elements, backend="python"))
    except SwitchaggError as error:
        return [str(error).removeprefix("data plane p4: ")]
    finally:
        del os.environ[PROGRAM_VARIABLE]
