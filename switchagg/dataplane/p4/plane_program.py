"""What the data planes that run programs/v1model share: jobs, the program, its control plane in commands, frames.

The engine and bmv2 understand the same commands, so jobs are admitted by the same commands.
"""

import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import switchagg
from switchagg.aggregator import Parent, SlotView, check_admission, first_held
from switchagg.dataplane.plane_kinds import DATAPLANES, check_parent, check_partial
from switchagg.errors import JobError, SwitchaggError
from switchagg.job import JobConfig
from switchagg.native.library import LEAF_OUTCOMES, OUTCOMES

PROGRAMS = Path(switchagg.__file__).parent / "programs"
"""The P4 programs: v1model/ for bmv2 and our engine, tna/ for Tofino."""

LANES = 32
"""Values that one pass of a packet sums."""

SLOTS = (4096, 65536)
"""Numbers of slots that programs are compiled for: the least that suffices is taken."""

PROGRAM_VARIABLE = "SWITCHAGG_P4_PROGRAM"
"""Environment variable: path of the P4 program to run in place of ours."""

COUNTERS = (*OUTCOMES, "drop_checksum", "drop_truncated", "", *LEAF_OUTCOMES)
"""Names of the programs' outcomes (programs/outcomes.p4), by their index; "" for what was not for the switch."""

Variant = tuple[int, bool]
"""The choice of a program: the elements in a packet of its jobs, and whether it serves a switch below another."""

SWITCH_ADDRESS = 0x0AFFFFFE
SWITCH_MAC = 0x0200000000FE
AGGREGATION_PORT = 5556
GROUPS_MOST = 0xFFFF
HEADERS_BYTES = 42
"""Ethernet, IPv4 and UDP."""

Address = tuple[int, int]
"""IPv4 address and UDP port."""

_PACKETS = re.compile(r"(\d+) packets|packets=(\d+)")  # as bmv2 of today, of some years ago, prints a counter

Run = Callable[[Sequence[str]], list[str]]
"""Carries out commands in the words of bmv2's command line; what each prints. Raises SwitchaggError."""


def program_path(program: Path | None = None, *, leaf: bool = False) -> Path:
    """The program to run: `program`, else $SWITCHAGG_P4_PROGRAM, else our own. What it includes and hasn't beside it
    is ours.

    leaf: below another switch. Raises JobError: it isn't there, or a leaf is asked for and the program has a rule of
    one switch.
    """
    named = str(program or os.environ.get(PROGRAM_VARIABLE, ""))
    if not named:
        return PROGRAMS / "v1model" / ("leaf.p4" if leaf else "switchagg.p4")
    words = f"program {named}" if program else f"{PROGRAM_VARIABLE} is {named}"
    if leaf:
        raise JobError(f"{words}: our program for switches below another may not fit its rule")
    path = Path(named).absolute()
    if not path.is_file():
        raise JobError(f"{words}: there is no such file")
    return path


def defines(elements: int, slots: int) -> dict[str, str]:
    """The macros of the program for jobs of so many elements, on a switch of so many slots."""
    return {"ELEMENTS": str(elements), "SLOTS": str(room(slots)), "AGGREGATION_PORT": str(AGGREGATION_PORT)}


def room(slots: int) -> int:
    """The least size of `SLOTS` that holds so many slots."""
    return next(size for size in SLOTS if size >= slots)


def check_elements(job: JobConfig, plane: str) -> None:
    """Raise JobError unless the program can be compiled for the job's E."""
    most = DATAPLANES[plane].fitting(job.elements)
    if job.elements > most:
        raise JobError(
            f"job {job.job_id}: {job.elements} elements per packet; the program of data plane {plane} holds "
            f"{most} ({most // LANES} passes of {LANES}); choose fewer, or another data plane"
        )


def address_of(port: int) -> Address:
    """An address for each port number below 2**32: what stands for it in frames."""
    return 0x0A000000 | port & 0xFFFFFF, 10_000 + (port >> 24)


def port_of(address: int, udp_port: int) -> int:
    """The port whose address this is."""
    return udp_port - 10_000 << 24 | address & 0xFFFFFF


def mac_of(port: int) -> int:
    return 0x020000000000 | address_of(port)[0]


def headers_of(port: int, size: int) -> bytes:
    """Ethernet, IPv4 and UDP of a datagram of `size` bytes from a port to the switch; without UDP's checksum."""
    address, udp_port = address_of(port)
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 28 + size, 0, 0x4000, 64, 17, 0, address, SWITCH_ADDRESS)
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    check = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    ethernet = SWITCH_MAC.to_bytes(6, "big") + mac_of(port).to_bytes(6, "big") + b"\x08\x00"
    udp = struct.pack("!HHHH", udp_port, AGGREGATION_PORT, 8 + size, 0)
    return ethernet + ip[:10] + struct.pack("!H", check) + ip[12:] + udp


def receiver_of(frame: bytes) -> int:
    """The port that a frame from the switch is addressed to."""
    address, udp_port = struct.unpack_from("!I2xH", frame, 30)
    return port_of(address, udp_port)


class PlaneControl:
    """The control plane of one running program.

    run: carries out commands. ports: physical ports of the switch, 0 to ports - 1; behind which one a worker is
    follows from its port number.
    """

    def __init__(self, run: Run, elements: int, slots: int, ports: int) -> None:
        self._run = run
        self._ports = ports
        self._room = room(slots)
        self._passes = -(-elements // LANES)
        self._entries: dict[int, list[tuple[str, int]]] = {}
        self._nodes: dict[int, list[int]] = {}
        self._groups: dict[int, int] = {}
        run([f"table_add {ADDRESSES} NoAction {SWITCH_ADDRESS:#x} =>"])

    def physical(self, port: int) -> int:
        """The physical port behind which a port is."""
        return port % self._ports

    def admit(self, job: JobConfig, ports: Sequence[int], parent: Parent | None = None) -> None:
        """Fill the tables and the registers for a job (S7). Raises JobError where there is no room for it."""
        self.evict(job.job_id)
        try:
            self._set_registers(job)
            group = self._make_group(job.job_id, ports)
            self._add_entries(job, ports, group, parent)
        except SwitchaggError as error:
            self.evict(job.job_id)
            raise JobError(f"job {job.job_id}: {error}") from error

    def evict(self, job_id: int) -> None:
        """Take a job out of the tables; unknown ones are ignored (S8)."""
        self._run([f"table_delete {table} {handle}" for table, handle in reversed(self._entries.pop(job_id, []))])
        nodes = self._nodes.pop(job_id, [])
        self._run([f"mc_node_destroy {node}" for node in nodes])
        if job_id in self._groups:
            self._run([f"mc_mgrp_destroy {self._groups.pop(job_id)}"])

    def copies(self, job_id: int) -> int:
        """How many frames a BROADCAST sends."""
        return len(self._nodes.get(job_id, []))

    def seen(self, slot: int, version: int) -> SlotView:
        """What a slot version holds: as the last pass has it, which a packet reaches when all others have taken it."""
        index = self._index(self._passes - 1, slot, version)
        lines = self._run([f"register_read {name} {index}" for name in (HELD, SEEN_LOW, SEEN_HIGH)])
        chunk, low, high = (int(line.rsplit("=", 1)[1]) for line in lines)
        bitmap = (high & 0xFFFFFFFF) << 32 | low  # the mark stands above
        return SlotView(chunk, tuple(rank for rank in range(bitmap.bit_length()) if bitmap >> rank & 1))

    def counters(self) -> dict[str, int]:
        """Packets by what became of them, without zeros."""
        read = [(name, f"counter_read {OUTCOME_COUNTER} {index}") for index, name in enumerate(COUNTERS) if name]
        matches = [_PACKETS.search(line) for line in self._run([command for _, command in read])]
        counts = [int(match[1] or match[2]) if match else 0 for match in matches]
        return {name: packets for (name, _), packets in zip(read, counts, strict=True) if packets}

    def _index(self, number: int, slot: int, version: int) -> int:
        return 2 * (number * self._room + slot) + version

    def _set_registers(self, job: JobConfig) -> None:
        writes = []
        for stream in job.streams:
            for offset in range(stream.window_slots):
                for version in (0, 1):
                    held = first_held(offset, version, stream.window_slots)
                    for number in range(self._passes):
                        index = self._index(number, stream.first_slot + offset, version)
                        writes.append(f"register_write {HELD} {index} {held}")
                        writes += [f"register_write {seen} {index} 0" for seen in (SEEN_LOW, SEEN_HIGH)]
        self._run(writes)

    def _make_group(self, job_id: int, ports: Sequence[int]) -> int:
        """A multicast group with a copy for each rank, whose egress_rid is the rank."""
        used_groups = set(self._groups.values())
        group = next((number for number in range(1, GROUPS_MOST + 1) if number not in used_groups), 0)
        if not group:
            raise JobError(f"all {GROUPS_MOST} multicast groups are taken")
        self._run([f"mc_mgrp_create {group}"])
        self._groups[job_id] = group
        printed = self._run([f"mc_node_create {rank} {self.physical(port)}" for rank, port in enumerate(ports)])
        self._nodes[job_id] = [int(text.rsplit("handle", 1)[1]) for text in printed]
        self._run([f"mc_node_associate {group} {node}" for node in self._nodes[job_id]])
        return group

    def _add_entries(self, job: JobConfig, ports: Sequence[int], group: int, parent: Parent | None) -> None:
        number, full = job.job_id, (1 << len(ports)) - 1
        added = self._entries.setdefault(number, [])
        adds = []
        for rank, port in enumerate(ports):
            address, udp_port = address_of(port)
            adds += [
                (WORKERS, "to_worker", f"{number} {rank}", f"{mac_of(port):#x} {address:#x} {udp_port}"),
                (
                    MEMBERS,
                    "set_rank",
                    f"{number} {rank} {self.physical(port)} {address:#x} {udp_port}",
                    f"{1 << rank:#x}",
                ),
            ]
        for place, stream in enumerate(job.streams):
            adds.append((STREAMS, "set_range", f"{number} {place}", f"{stream.first_slot} {stream.window_slots - 1}"))
        if parent is not None:
            address, udp_port = address_of(parent.port)
            where = f"{self.physical(parent.port)} {mac_of(parent.port):#x} {address:#x} {udp_port}"
            adds.append((PARENTS, "set_parent", f"{number}", f"{full + 1:#x} {parent.rank} {where}"))
        data = f"{job.generation} {len(ports)} {full:#x} {job.elements} {group}"
        adds.append((JOBS, "set_job", f"{number}", data))  # the last: until then its packets are unknown senders
        for table, action, keys, data in adds:
            (text,) = self._run([f"table_add {table} {action} {keys} => {data}"])
            added.append((table, int(text.rsplit("handle", 1)[1])))


class RunningProgram(Protocol):
    """A program that runs."""

    @property
    def control(self) -> PlaneControl: ...


Program = TypeVar("Program", bound=RunningProgram)


class ProgramPlane(Generic[Program]):
    """A switch of `slots` slots that runs a program for each E of its jobs, and another for those with a parent;
    `process` is its subclasses' own."""

    name: str

    def __init__(self, slots: int, elements: int) -> None:
        self._slots, self._elements = slots, elements
        self._jobs: dict[int, tuple[JobConfig, Variant]] = {}
        self._programs: dict[Variant, Program] = {}

    def _start(self, variant: Variant) -> Program:
        raise NotImplementedError

    def _program(self, variant: Variant) -> Program:
        if variant not in self._programs:
            self._programs[variant] = self._start(variant)
        return self._programs[variant]

    def prepare(self) -> None:
        """Compile and start for the largest E now: the first job of that E doesn't wait."""
        self._program((DATAPLANES[self.name].fitting(self._elements), False))

    @property
    def counters(self) -> dict[str, int]:
        """A fresh dict each time, of all programs together."""
        total: Counter[str] = Counter()
        for program in self._programs.values():
            total.update(program.control.counters())
        return dict(total)

    def admit(self, job: JobConfig, ports: Sequence[int], parent: Parent | None = None) -> None:
        check_parent(self.name, parent)
        check_partial(self.name, job)
        check_admission(job, ports, [other for other, _ in self._jobs.values()], self._slots, self._elements, parent)
        check_elements(job, self.name)
        variant = (job.elements, parent is not None)
        program = self._program(variant)
        self.evict(job.job_id)
        program.control.admit(job, ports, parent)
        self._jobs[job.job_id] = (job, variant)

    def evict(self, job_id: int) -> None:
        if job_id in self._jobs:
            _, variant = self._jobs.pop(job_id)
            self._programs[variant].control.evict(job_id)

    def seen(self, slot: int, version: int) -> SlotView:
        for job, variant in self._jobs.values():
            if any(s.first_slot <= slot < s.first_slot + s.window_slots for s in job.streams):
                return self._programs[variant].control.seen(slot, version)
        raise KeyError(slot)


HELD = "SwitchIngress.held.held"
SEEN_LOW = "SwitchIngress.seen.low"
SEEN_HIGH = "SwitchIngress.seen.high"
ADDRESSES = "SwitchIngress.layout.addresses"
OUTCOME_COUNTER = "SwitchIngress.counters.outcomes"
PARENTS = "SwitchIngress.admission.parents"
JOBS = "SwitchIngress.admission.jobs"
STREAMS = "SwitchIngress.admission.streams"
MEMBERS = "SwitchIngress.admission.members"
WORKERS = "SwitchEgress.results.workers"
