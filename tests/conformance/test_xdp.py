"""The kernel's program against the golden packets and the reference, a packet at a time (BPF_PROG_TEST_RUN).

Both objects, and both forms of checksum that a port may carry: complete, and left to be completed (veth). What these
runs can't show (several CPUs, real interfaces) is in tests/system/test_xdp_veth.py.
"""

import functools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.xdp import XdpPlane, address_of, frame_of
from switchagg.job import JobConfig, StreamConfig
from switchagg.native import bpf
from switchagg.wire import Op, Packet, Route, decode, encode
from tests.conformance.test_random_traffic import PARENT, check_agreement
from tests.conformance.test_vectors import VECTORS
from transport.testing.vectors import PlaneTarget, run_vector, suits

pytestmark = pytest.mark.usefixtures("requires_bpf")

SEEDS = 6
"""Each packet is a system call."""

CHUNKS = 2400
"""Without the lock a sum in about a thousand is wrong."""

FORMS = [(jumbo, partial) for jumbo in (False, True) for partial in (False, True)]
NAMES = [f"{'jumbo' if jumbo else 'mtu1500'}-{'partial' if partial else 'complete'}" for jumbo, partial in FORMS]
JOB = JobConfig(job_id=5, generation=9, workers=2, elements=8, streams=(StreamConfig(0, 2),))


@functools.cache
def loaded(slots: int, elements: int, jumbo: bool | None) -> XdpPlane:
    """Takes the kernel's verifier half a second of processor time."""
    return XdpPlane(slots, elements, jumbo=jumbo)


def fresh(slots: int, elements: int, *, jumbo: bool | None = None, partial: bool = False) -> XdpPlane:
    """A plane without jobs or counts, that no earlier one of this size is used beside; slots keep what they held."""
    plane = loaded(slots, elements, jumbo)
    for job_id in list(plane._switch.jobs):
        plane.evict(job_id)
    counts = plane._switch.object.map("counts")
    counts.update(0, bytes(len(counts.lookup(0, per_cpu=True) or b"")))
    plane._partial = partial
    assert plane.counters == {}
    return plane


@pytest.mark.parametrize(("jumbo", "partial"), FORMS, ids=NAMES)
@pytest.mark.parametrize(
    "vector", [each for each in VECTORS if suits(each.read_text(), "xdp")], ids=lambda path: path.stem
)
def test_vector(vector: Path, jumbo: bool, partial: bool) -> None:
    target = PlaneTarget(functools.partial(fresh, jumbo=jumbo, partial=partial))
    packets = run_vector(vector.read_text(), target, vector.name)
    assert packets == sum(target.plane.counters.values())


@pytest.mark.parametrize(("jumbo", "partial"), FORMS, ids=NAMES)
def test_agrees_with_the_reference(jumbo: bool, partial: bool) -> None:
    def make(slots: int, elements: int) -> DataPlane:
        return fresh(slots, elements, jumbo=jumbo, partial=partial)

    for seed in range(SEEDS):
        check_agreement(make, seed, packets=400)
        check_agreement(make, seed, packets=200, parent=PARENT)


@pytest.mark.parametrize("elements", [1, 7, 8, 361, 2200, 2240])
def test_any_number_of_elements(elements: int) -> None:
    """Whole blocks or not, one buffer or several: sums, maxima and results are exact, both versions and all chunks."""
    values = np.random.default_rng(elements)
    job = JobConfig(1, 2, 3, elements, (StreamConfig(1, 2),))
    plane = fresh(4, elements)
    plane.admit(job, [7, 8, 9])
    for chunk in range(6):
        rows = values.integers(-(2**31), 2**31, (3, elements)).astype(np.int32)
        op = Op.MAX if chunk % 3 == 0 else Op.SUM
        slot, version = 1 + chunk % 2, chunk // 2 % 2
        for rank, row in enumerate(rows):
            data = encode(Packet(1, 2, 0, rank, op, slot, version, chunk, row))
            outputs = plane.process(np.frombuffer(data, np.uint8)[np.newaxis, :], 7 + rank)
        (output,) = outputs
        assert output.ports == (7, 8, 9)
        expected = rows.max(axis=0) if op is Op.MAX else rows.sum(axis=0, dtype=np.int64).astype(np.int32)
        assert np.array_equal(output.bundle[0, 20:].view(">i4"), expected)


@pytest.fixture
def plane() -> XdpPlane:
    plane = fresh(2, 8)
    plane.admit(JOB, [1, 2])
    return plane


def packet(rank: int = 0) -> bytes:
    return encode(Packet(5, 9, 0, rank, Op.SUM, 0, 0, 0, np.arange(8, dtype=np.int32)))


def run(plane: XdpPlane, frame: bytes) -> int:
    return bpf.run(plane._switch.object.program("sa_switch"), frame)[0]


def test_a_flipped_bit_is_dropped_by_checksum(plane: XdpPlane) -> None:
    """P5: in the values, and in what is not looked at before; a broken layout is dropped as such."""
    whole = frame_of(packet(), address_of(1), plane.SWITCH)
    for bit in range(8 * 42 + 8 * 20, 8 * len(whole)):  # the values
        frame = bytearray(whole)
        frame[bit // 8] ^= 1 << bit % 8
        assert run(plane, bytes(frame)) == bpf.XDP_DROP
    assert plane.counters == {"drop_checksum": 8 * 32}
    for place in (26, 34, 40, 48, 50, 55):  # source address, source port, checksum, job, slot, stream
        frame = bytearray(whole)
        frame[place] ^= 1
        assert run(plane, bytes(frame)) == bpf.XDP_DROP
    assert plane.counters == {"drop_checksum": 8 * 32 + 6}
    assert run(plane, whole) == bpf.XDP_DROP
    assert plane.counters == {"drop_checksum": 8 * 32 + 6, "absorbed": 1}


def test_a_datagram_without_a_checksum_is_taken(plane: XdpPlane) -> None:
    """P5"""
    frame = bytearray(frame_of(packet(), address_of(1), plane.SWITCH))
    frame[40:42] = bytes(2)
    assert run(plane, bytes(frame)) == bpf.XDP_DROP
    assert plane.counters == {"absorbed": 1}


def test_congestion_of_any_contribution_marks_the_result(plane: XdpPlane) -> None:
    """G2 to G4: its CE becomes a mark; the result leaves as ECN-capable as what caused it came."""
    program = plane._switch.object.program("sa_switch")
    for chunk, congested in enumerate((0, 1, None)):
        for rank in (0, 1):
            data = encode(replace(decode(packet(rank)), slot=chunk % 2, version=chunk // 2, chunk=chunk))
            frame = bytearray(frame_of(data, address_of(rank + 1), plane.SWITCH))
            frame[15] = 0x28 | (3 if rank == congested else 2)
            verdict, after, _ = bpf.run(program, bytes(frame))
        assert verdict == bpf.XDP_PASS
        assert (after[15], decode(after[42:]).marked) == (0x2A, congested is not None)


def test_other_traffic_passes(plane: XdpPlane) -> None:
    """Another address or port, options, fragments, other protocols, cut off: the stack's business, unchanged."""
    whole = frame_of(packet(), address_of(1), plane.SWITCH)
    host, port = plane.SWITCH
    others = [
        frame_of(packet(), address_of(1), ("10.255.255.253", port)),
        frame_of(packet(), address_of(1), (host, port + 1)),
        whole[:14] + b"\x46" + whole[15:],
        whole[:20] + b"\x20\x00" + whole[22:],  # more fragments
        whole[:20] + b"\x00\x01" + whole[22:],  # a later fragment
        whole[:23] + b"\x06" + whole[24:],
        whole[:12] + b"\x86\xdd" + whole[14:],
        whole[:12] + b"\x08\x06" + whole[14:],
        b"\x03" + whole[1:],  # to a group
        whole[:12] + b"\x81\0\0\x05" + whole[12:],  # in a VLAN
        whole[:-1],
        whole[:38] + b"\x00\x07" + whole[40:],  # UDP length below its header's
        bytes(14),
    ]
    program = plane._switch.object.program("sa_switch")
    for frame in others:
        verdict, after, _ = bpf.run(program, frame)
        assert (verdict, after) == (bpf.XDP_PASS, frame)
    assert plane.counters == {}


def test_padding_of_a_short_frame_is_not_payload(plane: XdpPlane) -> None:
    frame = frame_of(packet(), address_of(1), plane.SWITCH) + bytes(11)
    assert run(plane, frame) == bpf.XDP_DROP
    assert plane.counters == {"absorbed": 1}


def test_a_padded_header_only_packet_causes_results_without_padding(plane: XdpPlane) -> None:
    """S6: sa_deliver gives frames the size that they say they have, here the header-only one that it sends last."""
    given = Packet(5, 9, 0, 0, Op.SUM, 0, 0, 0, np.arange(8, dtype=np.int32), route=Route.FROM_OWNER)
    header_only = replace(given, rank=1, values=given.values[:0])
    assert run(plane, frame_of(encode(given), address_of(1), plane.SWITCH)) == bpf.XDP_DROP
    program, deliver = (plane._switch.object.program(name) for name in ("sa_switch", "sa_deliver"))
    verdict, frame, _ = bpf.run(program, frame_of(encode(header_only), address_of(2), plane.SWITCH) + bytes(11))
    assert (verdict, len(frame)) == (bpf.XDP_PASS, 62 + 11)
    _, made, _ = bpf.run(deliver, frame, room=200)
    assert made[42:] == encode(replace(header_only, result=True))
    assert (made[16:18], made[38:40]) == (b"\0\x30", b"\0\x1c")


def test_a_slot_given_to_another_job_is_not_touched(plane: XdpPlane) -> None:
    """S1 is checked again under the lock: the job's entry may be older than the slot's owner (S8)."""
    switch = plane._switch
    slots = switch.object.map("slots")
    for job_id, generation, reason in ((5, 10, "generation"), (6, 9, "job")):
        value = slots.lookup(0, flags=bpf.F_LOCK)
        assert value is not None
        words = np.frombuffer(value, np.uint32).copy()
        words[1:3] = job_id, generation
        slots.update(0, words.tobytes(), flags=bpf.F_LOCK)
        assert run(plane, frame_of(packet(), address_of(1), plane.SWITCH)) == bpf.XDP_DROP
        assert plane.counters[f"drop_{reason}"] == 1
        assert slots.lookup(0, flags=bpf.F_LOCK) == words.tobytes()


def test_random_numbers_follow_the_generator() -> None:
    assert bpf.seeded(1, 0) != bpf.seeded(1, 1) != bpf.seeded(2, 1)
    assert bpf.threshold(0) == 0
    assert bpf.threshold(0.5) == 2**31
    assert bpf.threshold(1) == 2**32 - 1
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="0 to 1"):
            bpf.threshold(wrong)


def drive(plane: XdpPlane, job: JobConfig, rank: int, chunks: int) -> int:
    """One worker, a packet at a time, which asks until it has the result; how many were wrong or never came."""
    wrong = 0
    ranks = np.arange(job.workers, dtype=np.int64)[:, np.newaxis]
    places = np.arange(job.elements, dtype=np.int64)
    window = job.streams[0].window_slots
    program = plane._switch.object.program("sa_switch")
    for chunk in range(chunks):
        rows = (chunk * 1_000_003 + places * 7919 * (ranks + 1)).astype(np.int32)
        slot, version = chunk % window, chunk // window % 2
        data = encode(Packet(job.job_id, job.generation, 0, rank, Op.SUM, slot, version, chunk, rows[rank]))
        sent = frame_of(data, address_of(rank), plane.SWITCH, partial=True)
        for _ in range(100_000):
            verdict, frame, _ = bpf.run(program, sent)
            if verdict == bpf.XDP_PASS:
                break
            os.sched_yield()  # whoever it waits for may need this CPU
        else:
            return wrong + 1
        got = np.frombuffer(frame[62:], ">i4")
        wrong += not np.array_equal(got, rows.sum(axis=0, dtype=np.int64).astype(np.int32))
    return wrong


def test_few_slots_and_all_cpus() -> None:
    """A process for each of 4 workers, all at the same chunk: without the lock, sums come out wrong.

    Long packets hold the lock for long: more of them meet.
    """
    job = JobConfig(1, 2, 4, 2200, (StreamConfig(0, 2),))
    plane = fresh(2, job.elements)
    plane.admit(job, range(4))
    workers = []
    for rank in range(4):
        pid = os.fork()
        if pid == 0:  # nothing of pytest's may run in here
            failed = 255
            try:
                failed = min(drive(plane, job, rank, CHUNKS), 254)
            finally:
                os._exit(failed)
        workers.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers] == [0] * 4
    counters = plane.counters
    assert counters["broadcast"] == CHUNKS
    assert counters["absorbed"] == 3 * CHUNKS
