"""Runs the switch with the folder's adder.p4 on generated packets, and compares the results with the reference's."""

import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from p4vm.planes.p4 import P4Plane
from p4vm.planes.program import PROGRAM_VARIABLE
from p4vm.planes.traffic import Admitted, Arrived, Shape, traffic
from switchagg.dataplane.contract import Output
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


def shown(values: Ints) -> str:
    return "[" + ", ".join(str(value) for value in values) + "]"


def explained(got: Ints, right: Ints, op: Op, given: dict[int, Ints], earlier: Ints) -> str:
    """What the values of a result are, in the words of S4. given: the ranks' values; earlier: the slot version's sums
    before this chunk."""
    columns = list(zip(*given.values(), strict=True))
    if op is Op.MAX:
        if got == [wrapped(sum(column)) for column in columns]:
            return "it is their sum, but hdr.chunk.op says MAX"
        if got == [wrapped(max(value % MODULUS for value in column)) for column in columns]:
            return "it is the maximum of unsigned numbers: compare as int<32>"
        if got == [max(0, *column) for column in columns]:
            return "a packet without values (meta.bare) was compared as if it had zeros"
        return told_by_rank(got, given) or told_by_lane(got, right)
    for times in product(range(MOST_TIMES), repeat=len(given)):
        if got == [wrapped(sum(n * value for n, value in zip(times, column, strict=True))) for column in columns]:
            return told_by_times(dict(zip(given, times, strict=True)))
    if [wrapped(a - b) for a, b in zip(got, right, strict=True)] == earlier:
        return "the sums of the chunk before are in it: a chunk's first values replace what the registers hold"
    return told_by_lane(got, right)


def told_by_rank(got: Ints, given: dict[int, Ints]) -> str:
    return next((f"it has rank {rank}'s values alone" for rank, values in given.items() if values == got), "")


def told_by_lane(got: Ints, right: Ints) -> str:
    lanes = [f"v{lane}" for lane in range(len(right)) if got[lane] != right[lane]]
    if len(lanes) == len(right):
        return "it is nothing that these ranks' values make"
    return f"only {', '.join(lanes)} {'is' if len(lanes) == 1 else 'are'} wrong"


def told_by_times(times: dict[int, int]) -> str:
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
    """The first packet whose results have wrong values, and what is wrong with them."""
    given: dict[int, dict[int, Ints]] = {}  # chunk -> rank -> values
    last: dict[tuple[int, int], Ints] = {}  # slot version -> what it summed last
    for step in traffic(SHAPE):
        if isinstance(step, Admitted):
            plane.admit(step.job, step.ports)
        if not isinstance(step, Arrived):
            continue
        packet = decode(step.data)
        values = given.setdefault(packet.chunk, {})
        if len(packet.values):
            values[packet.rank] = packet.values.tolist()
        outputs = plane.process(np.frombuffer(step.data, np.uint8)[np.newaxis, :], step.port)
        got = results_of(outputs)
        right = {port: decode(data).values.tolist() for port, data in step.sent}
        earlier = last.get((packet.slot, packet.version), [0] * SHAPE.elements)
        for port in right:
            if got.get(port) != right[port]:
                words = explained(got[port], right[port], packet.op, values, earlier)
                return [f"{told(packet, step)}: {shown(got[port])}, right is {shown(right[port])}", words]
        if step.reason == "broadcast":
            last[packet.slot, packet.version] = max(right.values(), key=len)
    return []


def told(packet: Packet, step: Arrived) -> str:
    again = ", sent again" if packet.retransmission else ""
    return f"packet {step.note.split(':')[0]} ({packet.op.name}, rank {packet.rank}, chunk {packet.chunk}{again})"


def faults(folder: Path) -> list[str]:
    """What is wrong with the folder's adder.p4."""
    os.environ[PROGRAM_VARIABLE] = str(folder / "main.p4")
    try:
        return fault_of(P4Plane(SHAPE.slots, SHAPE.elements, backend="python"))
    except SwitchaggError as error:
        return [str(error).removeprefix("data plane p4: ")]
    finally:
        del os.environ[PROGRAM_VARIABLE]
