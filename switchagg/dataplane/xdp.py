"""The switch in the kernel: `KernelSwitch` puts jobs into the maps of xdp.bpf.c and reads them; `XdpPlane` drives the
program packet by packet with no network, for tests that hold it to the reference.

A slot version is written and read under its lock, and carries its owner's job and generation, so that a program that is
still at work for an evicted job can't touch a slot that was given away (S8).
"""

import ctypes
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from switchagg.aggregator import Parent, SlotView, check_admission, first_held
from switchagg.dataplane.contract import Output
from switchagg.dataplane.plane_kinds import check_partial
from switchagg.errors import JobError, SwitchaggError
from switchagg.job import JobConfig
from switchagg.native import bpf, headers
from switchagg.native.headers import SA_XDP_ADDRESSES, SA_XDP_ELEMENTS_JUMBO, SA_XDP_ELEMENTS_MTU_1500
from switchagg.native.library import LEAF_OUTCOMES, OUTCOMES, PARTIAL_OUTCOMES
from switchagg.wire import HEADER_BYTES, ROUTE_BITS, Bundle, frame_bytes
from switchagg.wire import headers as packet_headers

JOBS_MAX = 4096

EXTRA_COUNTERS = headers.names("sa_xdp_extra", "SA_XDP_")
"""Counters beyond those of packets' outcomes."""

COUNTERS = (*OUTCOMES, *LEAF_OUTCOMES, *PARTIAL_OUTCOMES, *EXTRA_COUNTERS)

_Slot = headers.struct("sa_xdp_slot")  # the sums follow
_Job = headers.struct("sa_xdp_job")
_Impairment = headers.struct("sa_xdp_impairment")

_HEADERS_BYTES = 42
_RECEIVER = slice(18, 20)
"""Where sa_switch tells sa_deliver who gets a result: all (0), or one rank, counted from 1."""

Address = tuple[str, int]


@dataclass(frozen=True)
class ParentEnd:
    """The parent of a job (H1): its data address, this switch's rank there, and how frames reach it.

    macs: the parent's, and that of our interface, 6 bytes each. local_host: our IPv4 address. ifindex: the interface.
    """

    address: Address
    rank: int
    macs: bytes
    local_host: str
    ifindex: int


class KernelSwitch:
    """The programs and maps of one switch, attached to nothing yet.

    slots: how many; elements: the largest E, up to 2240. addresses, port: where datagrams must be sent to. jumbo: take
    the object for MTUs beyond 3 kB; None: where elements ask for it. impaired: `impair` may be used.
    partial_accepted: a port may carry checksums that are not yet complete, as veth does between namespaces. Raises
    SwitchaggError where the kernel, the privileges or the build don't allow it.
    """

    def __init__(
        self,
        slots: int,
        elements: int,
        addresses: Sequence[str],
        port: int,
        *,
        jumbo: bool | None = None,
        impaired: bool = False,
        partial_accepted: bool = True,
    ) -> None:
        if elements > SA_XDP_ELEMENTS_JUMBO:
            raise SwitchaggError(
                f"{elements} elements per packet: the data plane xdp takes up to {SA_XDP_ELEMENTS_JUMBO}"
            )
        if not 1 <= len(addresses) <= SA_XDP_ADDRESSES:
            raise SwitchaggError(f"{len(addresses)} addresses: the data plane xdp takes 1 to {SA_XDP_ADDRESSES}")
        self.jumbo = elements > SA_XDP_ELEMENTS_MTU_1500 if jumbo is None else jumbo
        room = SA_XDP_ELEMENTS_JUMBO if self.jumbo else SA_XDP_ELEMENTS_MTU_1500
        configuration = bpf.XdpConfiguration(
            port=socket.htons(port),
            ticket=struct.unpack("=3H", os.urandom(6)),
            partial_accepted=partial_accepted,
            impaired=impaired,
            owner_pid=os.getpid(),
            owner_start=bpf.started(os.getpid()),
            address_count=len(addresses),
            addresses=tuple(map(bpf.packed_address, addresses)),
        )
        self.object = bpf.BpfObject(
            bpf.JUMBO if self.jumbo else bpf.MTU_1500,
            entries={"slots": 2 * slots, "jobs": min(slots, JOBS_MAX)},
            configuration=bytes(configuration),
            values={
                "slots": ctypes.sizeof(_Slot) + 4 * room,
                "jobs": ctypes.sizeof(_Job),
                "impairments": ctypes.sizeof(_Impairment),
            },
        )
        self._slots, self._elements = slots, elements
        self._jobs: dict[int, JobConfig] = {}
        self._map_slots = self.object.map("slots")
        self._map_jobs = self.object.map("jobs")
        self._map_counts = self.object.map("counts")
        self._empty = bytes(4 * room)

    def admit(self, job: JobConfig, addresses: Sequence[Address], parent: ParentEnd | None = None) -> None:
        """Take a job, or a new generation of one; addresses[rank]: IPv4 literal and UDP port. Raises JobError (S7)."""
        jobs = list(self._jobs.values())
        up = Parent(len(addresses), parent.rank) if parent else None
        check_admission(job, range(len(addresses)), jobs, self._slots, self._elements, up)
        ends = [*addresses, parent.address] if parent else list(addresses)
        if len(set(ends)) != len(ends):
            raise JobError(f"job {job.job_id}: its {len(ends)} ends need as many different addresses, got {ends}")
        if job.job_id not in self._jobs and len(jobs) >= JOBS_MAX:
            raise JobError(f"job {job.job_id}: this switch holds {JOBS_MAX} jobs at most")
        ranks = len(addresses)
        entry = _Job(job.generation, ranks, job.elements, len(job.streams), (1 << ranks) - 1)
        for rank, (host, port) in enumerate(ends):
            entry.members[rank].address, entry.members[rank].port = bpf.packed_address(host), socket.htons(port)
        if parent:
            entry.parent, end = parent.rank + 1, entry.members[ranks]
            end.ethernet[:] = struct.unpack("=6H", parent.macs)
            end.switch_address, end.ifindex = bpf.packed_address(parent.local_host), parent.ifindex
        for place, stream in enumerate(job.streams):
            entry.streams[place] = stream.first_slot, stream.window_slots
        # Slots first: until the job's entry is there, its packets are unknown, and those of its earlier
        # generation no longer own a slot.
        for stream in job.streams:
            for offset in range(stream.window_slots):
                for version in (0, 1):
                    held = first_held(offset, version, stream.window_slots)
                    value = bytes(_Slot(job=job.job_id, generation=job.generation, held=held)) + self._empty
                    self._map_slots.update(2 * (stream.first_slot + offset) + version, value, flags=bpf.F_LOCK)
        self._map_jobs.update(job.job_id, bytes(entry))
        self._jobs[job.job_id] = job

    def evict(self, job_id: int) -> None:
        """Forget a job; unknown ones are ignored (S8)."""
        self._jobs.pop(job_id, None)
        self._map_jobs.delete(job_id)

    def seen(self, slot: int, version: int) -> SlotView:
        """The contents of a slot version of an admitted job. Raises KeyError for a slot no job owns."""
        for job in self._jobs.values():
            if any(s.first_slot <= slot < s.first_slot + s.window_slots for s in job.streams):
                return self._view(slot, version)
        raise KeyError(slot)

    def slots_of(self, job: JobConfig) -> dict[tuple[int, int], SlotView]:
        """(slot, version) -> what it holds, for the versions of the job that have seen any rank."""
        views = {}
        for stream in job.streams:
            for slot in range(stream.first_slot, stream.first_slot + stream.window_slots):
                for version in (0, 1):
                    view = self._view(slot, version)
                    if view.ranks:
                        views[slot, version] = view
        return views

    def _view(self, slot: int, version: int) -> SlotView:
        value = self._map_slots.lookup(2 * slot + version, flags=bpf.F_LOCK)
        assert value is not None
        entry = _Slot.from_buffer_copy(value)
        return SlotView(entry.held, tuple(rank for rank in range(entry.seen.bit_length()) if entry.seen >> rank & 1))

    def ports_of(self, job_id: int) -> list[int]:
        """Index of the interface by which each rank's last packet came; 0: none yet. Empty for an unknown job."""
        value = self._map_jobs.lookup(job_id)
        job = self._jobs.get(job_id)
        if value is None or job is None:
            return []
        entry = _Job.from_buffer_copy(value)
        return [entry.members[rank].ifindex for rank in range(entry.workers)]

    def lose(self, index: int) -> None:
        """An interface was removed or is down: its workers are learnt again from their next packets, on any
        interface."""
        for job_id in self._jobs:
            value = self._map_jobs.lookup(job_id)
            if value is None:
                continue
            entry = _Job.from_buffer_copy(value)
            behind = [member for member in entry.members if member.ifindex == index]
            for member in behind:
                member.lost = 1
            if behind:  # what is learnt of others between the two calls is learnt again from their next packets
                self._map_jobs.update(job_id, bytes(entry))

    @property
    def jobs(self) -> Mapping[int, JobConfig]:
        """The admitted jobs, by their id."""
        return self._jobs

    def counters(self) -> dict[str, int]:
        """Packets by what became of them: outcomes that are not zero, and all of EXTRA_COUNTERS."""
        value = self._map_counts.lookup(0, per_cpu=True) or b""
        totals = np.frombuffer(value, np.uint64).reshape(bpf.cpus(), -1).sum(axis=0)
        named = dict(zip(COUNTERS, totals.tolist(), strict=True))
        return {name: packets for name, packets in named.items() if packets or name in EXTRA_COUNTERS}

    def impair(self, index: int, place: int, seed: int, loss_in: float, loss_out: float, mark_out: float) -> None:
        """Let a port lose packets and mark ECN-capable results with CE. place: the port's number in our list.

        Each CPU draws from a generator of its own, seeded by (seed, place, CPU): which packets a CPU meets, and in what
        order, is the kernel's choice, so what repeats from run to run is the rate, not the packets.
        """
        values = [
            _Impairment(
                loss_in=bpf.threshold(loss_in),
                loss_out=bpf.threshold(loss_out),
                mark_out=bpf.threshold(mark_out),
                state=bpf.seeded(seed, place, cpu),
            )
            for cpu in range(bpf.cpus())
        ]
        self.object.map("impairments").update(index, b"".join(map(bytes, values)))

    def close(self) -> None:
        """Unload; again is allowed."""
        self.object.close()


class XdpPlane:
    """A data plane as the contract has it, over BPF_PROG_TEST_RUN: every packet goes through the kernel's program.

    Results of a route go through sa_deliver too, for each receiver by itself, whose copies the loopback interface then
    drops. Ports are turned into addresses. Not a plane for simulations: a system call per packet, and a kernel object
    for each instance. jumbo: as for KernelSwitch; the program for MTU 1500 takes frames up to about 3.4 kB.
    """

    name = "xdp"
    SWITCH: Address = ("10.255.255.254", 5556)

    def __init__(self, slots: int, elements: int, *, jumbo: bool | None = None, partial: bool = False) -> None:
        self._switch = KernelSwitch(slots, elements, [self.SWITCH[0]], self.SWITCH[1], jumbo=jumbo)
        self._program = self._switch.object.program("sa_switch")
        self._deliver = self._switch.object.program("sa_deliver")
        self._ports: dict[int, tuple[tuple[int, ...], int]] = {}  # of the ranks, of the parent
        self._partial = partial

    def admit(self, job: JobConfig, ports: Sequence[int], parent: Parent | None = None) -> None:
        check_partial(self.name, job)
        end = ParentEnd(address_of(parent.port), parent.rank, bytes(12), self.SWITCH[0], 1) if parent else None
        self._switch.admit(job, [address_of(port) for port in ports], end)
        self._ports[job.job_id] = tuple(ports), parent.port if parent else -1

    def evict(self, job_id: int) -> None:
        self._switch.evict(job_id)
        self._ports.pop(job_id, None)

    def seen(self, slot: int, version: int) -> SlotView:
        return self._switch.seen(slot, version)

    @property
    def counters(self) -> dict[str, int]:
        """As the contract has it; a fresh dict each time."""
        uncompared = ("results_sent", "send_errors")
        return {
            name: packets for name, packets in self._switch.counters().items() if packets and name not in uncompared
        }

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        outputs = []
        for row in bundle:
            packet = frame_of(row.tobytes(), address_of(port), self.SWITCH, partial=self._partial)
            verdict, frame, _ = bpf.run(self._program, packet)
            if verdict == bpf.XDP_DROP:
                continue
            assert verdict == bpf.XDP_PASS, verdict
            header = packet_headers(np.frombuffer(frame, np.uint8)[np.newaxis, _HEADERS_BYTES:])[0]
            (ports, above), (to,) = self._ports[header["job"]], struct.unpack("!H", frame[_RECEIVER])
            if not header["kind"] & ROUTE_BITS:
                outputs.append(Output(_payload(frame), (*ports, above)[to - 1 : to] if to else ports))
                continue
            for rank in (to - 1,) if to else range(len(ports)):
                outputs.append(Output(self._delivered(frame, rank), (ports[rank],)))
        return outputs

    def _delivered(self, frame: bytes, rank: int) -> Bundle:
        """The payload that sa_deliver makes for one rank of a result of a route."""
        copy = frame[: _RECEIVER.start] + struct.pack("!H", rank + 1) + frame[_RECEIVER.stop :]
        room = _HEADERS_BYTES + frame_bytes(SA_XDP_ELEMENTS_JUMBO)
        verdict, delivered, _ = bpf.run(self._deliver, copy[: _HEADERS_BYTES + HEADER_BYTES], room=room)
        assert verdict == bpf.TC_SHOT, verdict
        return _payload(delivered)

    def close(self) -> None:
        """Unload; it is also done with the last reference."""
        self._switch.close()

    def __del__(self) -> None:
        if hasattr(self, "_switch"):
            self._switch.close()


def address_of(port: int) -> Address:
    """An address for each port number below 2**32: its address in frames."""
    return f"10.{port >> 16 & 255}.{port >> 8 & 255}.{port & 255}", 10_000 + (port >> 24)


def _payload(frame: bytes) -> Bundle:
    return np.frombuffer(bytearray(frame[_HEADERS_BYTES:]), np.uint8)[np.newaxis, :]


def frame_of(datagram: bytes, sender: Address, to: Address, *, partial: bool = False) -> bytes:
    """The datagram in Ethernet, IPv4 and UDP. partial: its checksum as before completion, the pseudo-header's sum."""
    source, target = socket.inet_aton(sender[0]), socket.inet_aton(to[0])
    length = 8 + len(datagram)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + length, 0, 0x4000, 64, 17, 0, source, target)
    ip = ip[:10] + struct.pack("!H", ~_sum(ip) & 0xFFFF) + ip[12:]
    pseudo = source + target + struct.pack("!HH", 17, length)
    udp = struct.pack("!HHHH", sender[1], to[1], length, 0)
    check = _sum(pseudo) if partial else (~_sum(pseudo + udp + datagram) & 0xFFFF) or 0xFFFF
    ethernet = b"\x02\0\0\0\0\xfe" + b"\x02" + bytes(1) + source + struct.pack("!H", 0x0800)
    return ethernet + ip + udp[:6] + struct.pack("!H", check) + datagram


def _sum(data: bytes) -> int:
    """The Internet's checksum before its complement."""
    total = int(np.frombuffer(data + bytes(len(data) % 2), ">u2").sum(dtype=np.uint64))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
