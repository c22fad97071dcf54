"""Traffic written out as tests: golden packets for any data plane (tests/vectors), or STF for programs/v1model.

Every packet stands with what it exercises and with all that must come out for it, as the reference has it.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import count
from typing import TYPE_CHECKING

from p4vm.control.core import action_names
from switchagg.dataplane.p4.plane_program import (
    AGGREGATION_PORT,
    COUNTERS,
    LANES,
    OUTCOME_COUNTER,
    PROGRAMS,
    SLOTS,
    SWITCH_ADDRESS,
    SWITCH_MAC,
    PlaneControl,
    address_of,
    defines,
    headers_of,
    mac_of,
    room,
)
from switchagg.dataplane.p4.plane_traffic import AdmittedTraffic, Arrived, Evicted, LostPackets, Shape, Step
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import SwitchaggError
from switchagg.job import JobConfig

if TYPE_CHECKING:
    from p4vm.ir import ir_nodes as ir

SLOTS_DEFAULT = 1024
"""The element count that the program is compiled for unless a macro says otherwise."""

ELEMENTS_DEFAULT = 32
PORTS_MOST = 510
"""Physical ports of a v1model switch that packets can leave by."""


# ---- golden packets


def vector(steps: Iterable[Step], shape: Shape, title: str) -> Iterator[str]:
    """Lines in the format of tests/vectors/README.md."""
    yield f"# {title}"
    yield f"switch {shape.slots} {shape.elements}"
    counters: Counter[str] = Counter()
    for step in steps:
        if isinstance(step, AdmittedTraffic):
            yield _job_line(step.job, step.ports)
        elif isinstance(step, Evicted):
            yield f"evict {step.job_id}"
        elif isinstance(step, LostPackets):
            yield f"# {step.note}"
        else:
            counters[step.reason] += 1
            yield f"# {step.note}"
            yield f"packet {step.port} {_grouped(step.data)}"
            yield from (f"expect {port} {_grouped(data)}" for port, data in step.results)
    yield from (f"counter {reason} {packets}" for reason, packets in sorted(counters.items()))


def _job_line(job: JobConfig, ports: Sequence[int]) -> str:
    streams = ",".join(f"{stream.first_slot}+{stream.window_slots}" for stream in job.streams)
    return (
        f"job id={job.job_id} generation={job.generation} workers={job.workers} elements={job.elements} "
        f"streams={streams} ports={','.join(map(str, ports))}"
    )


def _grouped(data: bytes) -> str:
    """Hex, header fields apart from each other, then the values."""
    header = [data[start:end].hex() for start, end in ((0, 2), (2, 3), (3, 4), (4, 6), (6, 8), (8, 12))]
    header += [data[start:end].hex() for start, end in ((12, 13), (13, 14), (14, 16), (16, 20))]
    return " ".join(header + [data[at : at + 4].hex() for at in range(20, len(data), 4)])


# ---- STF


def stf(steps: Iterable[Step], shape: Shape, title: str) -> Iterator[str]:
    """Lines of an STF test: tables, groups and registers that admit the jobs, whole frames. Raises SwitchaggError.

    p4c's own runner for bmv2 leaves out `remove`, so a file in which jobs end is for `switchagg p4 test` alone.
    """
    if shape.ports > PORTS_MOST:
        raise SwitchaggError(f"{shape.ports} workers in all: a v1model switch has {PORTS_MOST} ports")
    if shape.elements > (most := DATAPLANES["p4"].fitting(shape.elements)):
        raise SwitchaggError(f"{shape.elements} elements per packet: the program holds {most}")
    if shape.slots > SLOTS[-1]:
        raise SwitchaggError(f"{shape.slots} slots in all: the program holds {SLOTS[-1]}")
    yield f"# {title}"
    yield f"# Run it: switchagg p4 test switchagg/programs/v1model/switchagg.p4 THIS_FILE{_macros(shape)}"
    words = _Words()
    control = PlaneControl(words.run, shape.elements, shape.slots, shape.ports)
    counters: Counter[str] = Counter()
    for step in steps:
        if isinstance(step, AdmittedTraffic):
            yield f"# job {step.job.job_id} is admitted with generation {step.job.generation} (S7)"
            control.admit(step.job, step.ports)
        elif isinstance(step, Evicted):
            yield f"# job {step.job_id} is evicted (S8); p4c's runner leaves these lines out"
            control.evict(step.job_id)
        yield from words.take()
        if isinstance(step, LostPackets):
            yield f"# {step.note}"
        elif isinstance(step, Arrived):
            words.fresh = False
            counters[step.reason] += 1
            yield f"# {step.note}"
            yield f"packet {control.physical(step.port)} {_spaced(sent_by(step.port, step.data))}"
            for port, data in step.results:
                yield f"expect {control.physical(port)} {_spaced(sent_to(port, data))} $"
    for reason, packets in sorted(counters.items()):
        # p4c's grammar takes a name without dots here
        yield f"check_counter {OUTCOME_COUNTER.rsplit('.', 1)[1]}({COUNTERS.index(reason)}) packets == {packets}"


def _macros(shape: Shape) -> str:
    """The macros that the program must be compiled with, where they differ from its defaults."""
    macros = "" if shape.elements == ELEMENTS_DEFAULT else f" -D ELEMENTS={shape.elements}"
    if shape.elements > LANES or shape.slots > SLOTS_DEFAULT:  # else no index depends on it
        macros += f" -D SLOTS={room(shape.slots)}"
    return macros


def sent_by(port: int, data: bytes) -> bytes:
    """The frame of a datagram from a port, with the checksum a worker's kernel gives it (P5)."""
    return _with_checksum(headers_of(port, len(data)) + data)


def sent_to(port: int, data: bytes) -> bytes:
    """The frame of a result to a port: from where it was sent to (S6)."""
    frame = bytearray(headers_of(port, len(data)) + data)
    address, udp_port = address_of(port)
    frame[:12] = mac_of(port).to_bytes(6, "big") + SWITCH_MAC.to_bytes(6, "big")
    frame[26:38] = struct.pack("!IIHH", SWITCH_ADDRESS, address, AGGREGATION_PORT, udp_port)
    return _with_checksum(bytes(frame))  # IPv4's own stays right: the same words in another order


def _with_checksum(frame: bytes) -> bytes:
    covered = frame[26:34] + struct.pack("!HH", 17, len(frame) - 34) + frame[34:40] + frame[42:]
    covered += bytes(len(covered) % 2)
    total = sum(struct.unpack(f"!{len(covered) // 2}H", covered))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return frame[:40] + struct.pack("!H", ~total & 0xFFFF or 0xFFFF) + frame[42:]


def _spaced(frame: bytes) -> str:
    """Hex: Ethernet, IPv4, UDP, then the datagram."""
    parts = [frame[start:end].hex() for start, end in ((0, 6), (6, 12), (12, 14), (14, 34), (34, 42))]
    return " ".join([*parts, _grouped(frame[42:])])


class _Words:
    """Commands of a command line, said as STF says them: what `PlaneControl` runs while a test is written.

    fresh: no packet has come yet, so registers are zero and need no zeros written.
    """

    def __init__(self) -> None:
        self._tables = _tables()
        self.fresh = True
        self._lines: list[str] = []
        self._handles: Counter[str] = Counter()
        self._nodes: set[int] = set()  # switches give the least handle that is free

    def take(self) -> list[str]:
        """Lines written since the last call."""
        lines, self._lines = self._lines, []
        return lines

    def run(self, commands: Sequence[str]) -> list[str]:
        return [self._say(command.split()) for command in commands]

    def _say(self, words: list[str]) -> str:
        name = words[0]
        if name == "table_add":
            return self._add(words[1], words[2], words[3 : words.index("=>")], words[words.index("=>") + 1 :])
        if name == "table_delete":
            self._lines.append(f"remove {_label(words[1], int(words[2]))}")
            return ""
        if name == "mc_node_create":
            handle = next(number for number in count() if number not in self._nodes)
            self._nodes.add(handle)
            self._lines.append(" ".join(words))
            return f"node was created with handle {handle}"
        if name == "mc_node_destroy":
            self._nodes.remove(int(words[1]))
        if not (self.fresh and name == "register_write" and words[-1] == "0"):
            self._lines.append(" ".join(words))
        return ""

    def _add(self, table_name: str, action_name: str, keys: list[str], data: list[str]) -> str:
        table = self._tables[table_name]
        action = table.actions[action_names(table.actions)[action_name]]
        matches = " ".join(f"{key.name}:{word}" for key, word in zip(table.keys, keys, strict=True))
        words = zip(action.data, data, strict=True)
        arguments = ", ".join(f"{parameter.variable.name}:{word}" for parameter, word in words)
        handle = self._handles[table_name]
        self._handles[table_name] += 1
        label = _label(table_name, handle)
        self._lines.append(f"add {table_name} {matches} {action.name}({arguments}) = {label}")
        return f"Entry has been added with handle {handle}"


@cache
def _tables() -> "dict[str, ir.Table]":
    """The program's, by name: the same for every E."""
    from p4vm.compile import front_end
    from p4vm.source import P4vmError

    try:
        program = front_end(PROGRAMS / "v1model" / "switchagg.p4", defines=defines(1, SLOTS_DEFAULT))
    except P4vmError as error:
        raise SwitchaggError(str(error)) from error
    return {table.name: table for table in program.tables}


def _label(table: str, handle: int) -> str:
    return f"{table.rsplit('.', 1)[1]}_{handle}"
