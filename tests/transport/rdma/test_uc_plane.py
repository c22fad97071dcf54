"""The switch's queue pairs in C, packet by packet: what is taken, what is refused, and how results are laid out."""

import ctypes
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from switchagg.dataplane.native import NativePlane
from switchagg.errors import JobError
from switchagg.job import JobConfig, StreamConfig
from switchagg.join import QueuePairEnd
from switchagg.native import headers, library
from switchagg.wire import Op, Packet, Route, decode, encode
from tests.transport.rdma import oracle
from transport.links.native_udp import native_address
from transport.rdma.places import elements_for, first_places, mtu_for, switch_ends
from transport.switch.rdma_switch import UC_COUNTERS, UcPeer

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")

SWITCH = ("10.0.0.9", 4791)
MTU = 256
JOB = JobConfig(7, 3000, 2, elements_for(MTU), (StreamConfig(10, 4), StreamConfig(20, 8)))
WORKERS = [
    QueuePairEnd(queue_pair=0x100 + rank, psn=0xFFFFFE + rank, rkey=0xA0 + rank, base=1 << 40 | rank << 20)
    for rank in range(2)
]


Message = headers.struct("sa_udp_message")


def host_of(rank: int) -> str:
    return f"10.0.0.{rank + 1}"


class Switch:
    """The queue pairs of JOB, and the packets they send."""

    def __init__(self, packets: int = 4, job: JobConfig = JOB, workers: list[QueuePairEnd] = WORKERS) -> None:
        self.library = library.load()
        self.job = job
        self.plane = NativePlane(512, job.elements)
        self.plane.admit(job, [end.queue_pair for end in switch_ends(job)])
        own = ctypes.byref(native_address(SWITCH))
        self.handle = self.library.sa_uc_plane_new(self.plane.handle, own, packets)
        peers = (UcPeer * job.workers)(
            *(
                UcPeer(native_address((host_of(r), 4791)), e.base, e.queue_pair, e.rkey, e.psn, e.any_identification)
                for r, e in enumerate(workers)
            )
        )
        assert self.library.sa_uc_plane_admit(self.handle, ctypes.byref(library.job_struct(job)), peers) == 0
        self._counts = self.library.sa_uc_plane_counters(self.handle)
        self.now_ns = 1

    @property
    def counters(self) -> dict[str, int]:
        counted = {name: self._counts[i] for i, name in enumerate(UC_COUNTERS)}
        return {**{name: value for name, value in counted.items() if value}, **self.plane.counters}

    def take(self, body: bytes, host: str, *, port: int = 4791, tos: int = 2, position: int = 0) -> bool:
        sender = native_address((host, port))
        room: bool = self.library.sa_uc_plane_take(
            self.handle,
            ctypes.create_string_buffer(body, len(body)),
            len(body),
            ctypes.byref(sender),
            tos,
            position,
            self.now_ns,
        )
        return room

    def out(self, segments: int = 16) -> list[tuple[str, int, int, bytes]]:
        """(host, TOS, place in its bundle, packet) of all that was laid out."""
        messages = ctypes.POINTER(Message)()
        count = self.library.sa_uc_plane_lay_out(self.handle, segments, ctypes.byref(messages))
        assert count <= 2048
        found = []
        for message in messages[:count]:
            assert 1 <= message.rows <= segments
            host = ".".join(map(str, headers.struct("sa_address").from_address(message.to).host[:4]))
            data = ctypes.string_at(message.bytes, message.rows * message.size)
            for row in range(message.rows):
                found.append((host, message.tos, row, data[row * message.size : (row + 1) * message.size]))
        return found

    def close(self) -> None:
        self.library.sa_uc_plane_free(self.handle)


@pytest.fixture
def switch() -> Iterator[Switch]:
    made = Switch()
    yield made
    made.close()


def frame_of(rank: int, chunk: int, stream: int = 0, job: JobConfig = JOB, value: int | None = None) -> bytes:
    """A worker's chunk, full of rank + 1 + chunk."""
    slot, version = job.place(stream, chunk)
    values = np.full(job.elements, rank + 1 + chunk if value is None else value, np.int32)
    return encode(Packet(job.job_id, job.generation, stream, rank, Op.SUM, slot, version, chunk, values))


def place_of(frame: bytes, job: JobConfig = JOB) -> int:
    packet = decode(frame)
    config = job.streams[packet.stream]
    offset = packet.slot - config.first_slot
    return first_places(job)[packet.stream] + packet.version * config.window_slots + offset


def sealed(rank: int, body: bytes, *, identification: int = 0, port: int = 4791, host: str = "") -> bytes:
    ends = (host or host_of(rank), SWITCH[0])
    return oracle.sealed(oracle.datagram(*ends, (port, SWITCH[1]), body + bytes(4), identification))[28:]


def request(rank: int, frame: bytes, name: str = "UC_WRITE_ONLY_IMM", psn: int = 0, **more: Any) -> bytes:
    """A packet with a chunk frame, as the worker's NIC would send it; fields of the packet may be given."""
    seal = {key: more.pop(key) for key in ("identification", "port", "host") if key in more}
    queue_pair = more.pop("queue_pair", switch_ends(JOB)[rank].queue_pair)
    fields = {"address": place_of(frame) * MTU, "rkey": JOB.generation, "length": MTU, **more}
    return sealed(rank, oracle.packet(name, queue_pair, psn, frame, **fields), **seal)


def message(rank: int, chunks: range, psn: int = 0, stream: int = 0) -> list[bytes]:
    """The packets of one message of several chunks."""
    frames = [frame_of(rank, chunk, stream) for chunk in chunks]
    names = ["UC_WRITE_FIRST", *["UC_WRITE_MIDDLE"] * (len(frames) - 2), "UC_WRITE_LAST_IMM"]
    if len(frames) == 1:
        names = ["UC_WRITE_ONLY_IMM"]
    return [
        request(rank, frame, name, psn + i, length=len(frames) * MTU)
        for i, (name, frame) in enumerate(zip(names, frames, strict=True))
    ]


def headers_of(body: bytes) -> tuple[str, int, int]:
    """(name, queue pair, PSN) of a packet."""
    names = {number: name for name, number in oracle.OPCODES.items()}
    queue_pair, psn = struct.unpack_from(">II", body, 4)
    return names[body[0]], queue_pair & 0xFFFFFF, psn & 0xFFFFFF


def intact(host: str, body: bytes, identification: int) -> bool:
    packet = oracle.datagram(SWITCH[0], host, (SWITCH[1], 4791), body, identification)
    return oracle.sealed(packet) == packet


# ---- what goes right


def test_a_result_goes_to_each_worker_s_buffer_at_the_place_of_its_slot_version(switch: Switch) -> None:
    """R2, R3, R6: address, key, PSN, immediate and ICRC of an ONLY packet."""
    chunk = 5  # slot 11, version 1
    for rank in range(2):
        assert switch.out() == []
        switch.take(request(rank, frame_of(rank, chunk)), host_of(rank))
    found = switch.out()
    assert len(found) == 2
    for rank, (host, tos, row, body) in enumerate(found):
        end = WORKERS[rank]
        assert (host, tos, row) == (host_of(rank), 2, 0)
        assert headers_of(body) == ("UC_WRITE_ONLY_IMM", end.queue_pair, 0)
        assert struct.unpack_from(">QIII", body, 12) == (end.base + 5 * MTU, end.rkey, MTU, 5)
        result = decode(body[32 : 32 + MTU])
        assert (result.result, result.slot, result.version, result.chunk) == (True, 11, 1, 5)
        assert result.values.tolist() == [1 + 5 + 2 + 5] * JOB.elements
        assert intact(host, body, row)


def test_results_that_complete_together_are_one_message(switch: Switch) -> None:
    """R6: at most k packets, consecutive places, PSNs that go on, the immediate on the last."""
    for packet in message(0, range(8), stream=1):
        switch.take(packet, host_of(0))
    for packet in message(1, range(6), stream=1):
        switch.take(packet, host_of(1))
    found = [entry for entry in switch.out() if entry[0] == host_of(0)]
    assert [headers_of(body) for *_, body in found] == [
        ("UC_WRITE_FIRST", 0x100, 0),
        ("UC_WRITE_MIDDLE", 0x100, 1),
        ("UC_WRITE_MIDDLE", 0x100, 2),
        ("UC_WRITE_LAST_IMM", 0x100, 3),
        ("UC_WRITE_FIRST", 0x100, 4),
        ("UC_WRITE_LAST_IMM", 0x100, 5),
    ]
    base = WORKERS[0].base
    assert struct.unpack_from(">QII", found[0][3], 12) == (base + 8 * MTU, 0xA0, 4 * MTU)
    assert struct.unpack_from(">QII", found[4][3], 12) == (base + 12 * MTU, 0xA0, 2 * MTU)
    assert struct.unpack_from(">I", found[3][3], 12) == (8,)
    assert struct.unpack_from(">I", found[5][3], 12) == (12,)
    assert [row for _, _, row, _ in found] == [0, 0, 1, 0, 0, 0], "packets of one size go in one send"
    assert all(intact(host, body, row) for host, _, row, body in found)


def test_a_message_ends_where_places_are_not_consecutive(switch: Switch) -> None:
    """R6: chunks 3 and 4 of stream 0 are at places 3 and 4; 7 and 0 at 7 and 0."""
    for rank in range(2):
        for chunk in (3, 4, 7):
            switch.take(request(rank, frame_of(rank, chunk)), host_of(rank))
        switch.take(request(rank, frame_of(rank, 0)), host_of(rank))
    names = [headers_of(body)[0] for host, *_, body in switch.out() if host == host_of(1)]
    assert names == ["UC_WRITE_FIRST", "UC_WRITE_LAST_IMM", "UC_WRITE_ONLY_IMM", "UC_WRITE_ONLY_IMM"]


def test_each_packet_counts_even_if_its_message_is_incomplete(switch: Switch) -> None:
    """R5: without its LAST, out of order, twice."""
    first, second, third, _ = message(0, range(4))
    for packet in (first, third, second, second):
        switch.take(packet, host_of(0))
    for packet in message(1, range(4))[:3]:
        switch.take(packet, host_of(1))
    names = [headers_of(body)[0] for host, *_, body in switch.out() if host == host_of(0)]
    assert names == ["UC_WRITE_FIRST", "UC_WRITE_MIDDLE", "UC_WRITE_LAST_IMM"]
    assert switch.counters["psn_gaps"] == 5  # two of rank 0's follow; rank 1's first doesn't, by its starting PSN
    assert switch.counters["broadcast"] == 3
    assert switch.counters["drop_duplicate"] == 1


def test_a_retransmission_is_answered_to_its_sender_alone(switch: Switch) -> None:
    for rank in range(2):
        switch.take(request(rank, frame_of(rank, 0)), host_of(rank))
    switch.out()
    switch.take(request(1, frame_of(1, 0)), host_of(1))
    (reply,) = switch.out()
    assert reply[0] == host_of(1)
    assert headers_of(reply[3]) == ("UC_WRITE_ONLY_IMM", 0x101, 1)


def test_a_psn_wraps(switch: Switch) -> None:
    counters = []
    for step in range(4):
        switch.take(request(0, frame_of(0, step), psn=(0xFFFFFE + step) % (1 << 24)), host_of(0))
        counters.append(switch.counters.get("psn_gaps", 0))
    assert counters == [0, 0, 0, 0]


def test_dscp_is_copied_to_results_and_ecn_marks_are_answered_by_a_cnp(switch: Switch) -> None:
    """R8: at most one CNP per queue pair in 50 us; the mark goes into the frame (G2)."""
    af41_marked = 34 << 2 | 3
    for rank in range(2):
        for chunk in range(3):
            switch.now_ns += 1000
            switch.take(request(rank, frame_of(rank, chunk)), host_of(rank), tos=af41_marked)
    found = switch.out()
    notices = [(host, tos, headers_of(body)) for host, tos, _, body in found if body[0] == 0x81]
    assert notices == [(host_of(rank), 192, ("CNP", 0x100 + rank, 0)) for rank in range(2)]
    assert all(body[4] & 0x40 and len(body) == 32 for *_, body in found[:2]), "BECN"
    results = [(tos, body[-4 - MTU :]) for _, tos, _, body in found if body[0] != 0x81]
    assert {(tos, decode(frame[:MTU]).marked) for tos, frame in results} == {(34 << 2 | 2, True)}
    assert all(intact(host, body, row) for host, _, row, body in found)
    assert (switch.counters["ecn_marked"], switch.counters["cnp_sent"]) == (6, 2)
    switch.now_ns += 50_000
    switch.take(request(0, frame_of(0, 3)), host_of(0), tos=3)
    assert [headers_of(body)[0] for *_, body in switch.out()] == ["CNP"]


def test_any_source_port_is_accepted_and_may_change(switch: Switch) -> None:
    """R4: NICs spread queue pairs over paths by it."""
    for chunk, port in enumerate((49152, 65535, 49152, 4791)):
        switch.take(request(0, frame_of(0, chunk), port=port), host_of(0), port=port)
    assert switch.counters["absorbed"] == 4


def test_many_workers_results_never_outgrow_a_layout() -> None:
    job = JobConfig(1, 1, 64, elements_for(256), (StreamConfig(0, 512),))
    ends = [QueuePairEnd(rank + 1, 0, rank, 0) for rank in range(64)]
    big = Switch(packets=1, job=job, workers=ends)
    sent = taken = full = 0
    for rank in range(64):
        for chunk in range(0, 80, 2):  # no two places follow each other
            body = oracle.packet(
                "UC_WRITE_ONLY_IMM",
                switch_ends(job)[rank].queue_pair,
                0,
                frame_of(rank, chunk, job=job),
                address=chunk * 256,
                rkey=1,
                length=256,
            )
            taken += 1
            if not big.take(sealed(rank, body), host_of(rank)):
                full += 1
                sent += len(big.out())
    sent += len(big.out())
    big.close()
    assert (taken, sent) == (2560, 64 * 40)
    assert full > 0


# ---- what doesn't


def wrong(**more: Any) -> bytes:
    return request(0, frame_of(0, 0), **more)


def test_refused_packets_change_nothing_and_are_counted_once(switch: Switch) -> None:
    """R4, in its order."""
    good, frame = wrong(), frame_of(0, 0)
    routed = frame[:2] + bytes([frame[2] | Route.TO_OWNER << 1]) + frame[3:]
    cases = [
        ("drop_roce_short", good[:15], {}),
        ("drop_roce_version", good[:1] + b"\x01" + good[2:], {}),
        ("drop_roce_opcode", b"\xff" + good[1:], {}),
        ("drop_roce_length", good + b"\0", {}),
        ("drop_roce_pad", sealed(0, oracle.bth(0x2A, 0x800007, 0, pad=3) + bytes(16)), {}),
        ("drop_queue_pair", wrong(queue_pair=7), {}),
        ("drop_queue_pair", wrong(queue_pair=0x820007), {}),
        ("drop_queue_pair", wrong(queue_pair=0x800008), {}),
        ("drop_unknown_sender", wrong(), {"host": host_of(1)}),
        ("drop_icrc", good[:-1] + bytes([good[-1] ^ 1]), {}),
        ("drop_icrc", good[:40] + bytes([good[40] ^ 4]) + good[41:], {}),
        ("drop_icrc", wrong(identification=64), {}),
        ("drop_icrc", good, {"port": 4792}),
        ("drop_operation", wrong(name="UC_SEND_ONLY_IMM"), {}),
        ("drop_operation", wrong(name="RC_WRITE_ONLY_IMM"), {}),
        ("drop_partition", wrong(partition=0x8001), {}),
        ("drop_key", wrong(rkey=JOB.generation + 1), {}),
        ("drop_key", wrong(name="UC_WRITE_MIDDLE"), {}),  # the last beginning named a wrong key
        ("drop_key", wrong(name="UC_WRITE_LAST_IMM"), {}),
        ("drop_address", wrong(address=MTU), {}),
        ("drop_address", wrong(address=1), {}),
        ("drop_address", wrong(address=24 * MTU), {}),
        ("drop_address", wrong(name="UC_WRITE_FIRST", length=25 * MTU), {}),
        ("drop_address", wrong(name="UC_WRITE_FIRST", length=(1 << 32) - MTU), {}),
        ("drop_address", wrong(length=0), {}),
        ("drop_address", wrong(length=2 * MTU), {}),
        ("drop_address", wrong(address=(1 << 64) - MTU), {}),
        ("drop_address", wrong(name="UC_WRITE_FIRST", length=2 * MTU + 4), {}),
        ("drop_route", request(0, routed), {}),
    ]
    for name, body, where in cases:
        before = switch.counters
        switch.take(body, where.get("host", host_of(0)), port=where.get("port", 4791))
        after = switch.counters
        changed = {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)}
        changed.pop("psn_gaps", None)
        assert changed == {name: 1}, name
    assert switch.plane.seen(10, 0).ranks == ()
    assert switch.out() == []
    switch.take(good, host_of(0))
    assert switch.plane.seen(10, 0).ranks == (0,)


def test_the_rest_of_a_refused_message_is_refused(switch: Switch) -> None:
    """R4: also after messages that were right."""
    switch.take(request(0, frame_of(0, 0)), host_of(0))
    switch.take(request(0, frame_of(0, 1), "UC_WRITE_MIDDLE"), host_of(0))
    assert switch.counters["absorbed"] == 2
    switch.take(request(0, frame_of(0, 2), "UC_WRITE_FIRST", rkey=1, length=2 * MTU), host_of(0))
    switch.take(request(0, frame_of(0, 3), "UC_WRITE_LAST_IMM"), host_of(0))
    assert switch.counters["drop_key"] == 2
    assert switch.plane.seen(13, 0).ranks == ()


def test_the_data_plane_decides_on_each_frame(switch: Switch) -> None:
    """S1 and P6 hold as they are; a queue pair takes the place of the port."""
    alien = bytearray(frame_of(1, 0))
    switch.take(request(0, bytes(alien)), host_of(0))  # rank 1's frame on rank 0's queue pair
    assert switch.counters["drop_port"] == 1
    shorter = frame_of(0, 0)[:-4]
    switch.take(sealed(0, oracle.packet("UC_WRITE_MIDDLE", 0x800007, 0, shorter)), host_of(0))
    assert switch.counters["drop_roce_length"] == 1
    old = JobConfig(7, JOB.generation - 1, 2, JOB.elements, JOB.streams)
    switch.take(request(0, frame_of(0, 0, job=old)), host_of(0))
    assert switch.counters["drop_generation"] == 1
    assert switch.plane.seen(10, 0).ranks == ()


def test_a_real_nic_may_use_any_identification() -> None:
    ends = [QueuePairEnd(1, 0, 0, 0, any_identification=True), WORKERS[1]]
    lenient = Switch(workers=ends)
    lenient.take(request(0, frame_of(0, 0), identification=54321), host_of(0))
    assert lenient.counters["absorbed"] == 1
    lenient.close()


def test_a_cnp_of_a_worker_is_counted(switch: Switch) -> None:
    switch.take(sealed(0, oracle.packet("CNP", 0x800007, 0, becn=1)), host_of(0))
    assert switch.counters == {"cnp_received": 1}


def test_garbage_changes_nothing(switch: Switch) -> None:
    rng = np.random.default_rng(5)
    good = wrong()
    for _ in range(3000):
        body = bytearray(good) if rng.random() < 0.7 else bytearray(rng.bytes(int(rng.integers(0, 400))))
        for _ in range(int(rng.integers(1, 4))):
            if body:
                body[int(rng.integers(len(body)))] ^= int(rng.integers(1, 256))
        if bytes(body) != good:
            switch.take(bytes(body), host_of(int(rng.integers(3))), tos=int(rng.integers(256)))
    assert switch.plane.seen(10, 0).ranks == ()
    assert all(headers_of(body)[0] == "CNP" for *_, body in switch.out())


def test_evicting_a_job_removes_its_queue_pairs_and_waiting_results(switch: Switch) -> None:
    for rank in range(2):
        switch.take(request(rank, frame_of(rank, 0)), host_of(rank), tos=3)
    switch.library.sa_uc_plane_evict(switch.handle, JOB.job_id)
    switch.library.sa_uc_plane_evict(switch.handle, JOB.job_id)
    switch.library.sa_uc_plane_evict(switch.handle, 1 << 20)
    assert switch.out() == []
    switch.take(wrong(), host_of(0))
    assert switch.counters["drop_queue_pair"] == 1


# ---- places


def test_places_follow_streams_versions_and_slots() -> None:
    """R1, R2."""
    assert first_places(JOB) == [0, 8, 24]
    assert [place_of(frame_of(0, chunk)) for chunk in range(9)] == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    assert [place_of(frame_of(0, chunk, 1)) for chunk in (0, 7, 8, 15, 16)] == [8, 15, 16, 23, 8]
    assert [elements_for(mtu) for mtu in (256, 512, 1024, 2048, 4096)] == [59, 123, 251, 507, 1019]
    assert [mtu_for(elements) for elements in (59, 123, 251, 507, 1019)] == [256, 512, 1024, 2048, 4096]
    with pytest.raises(JobError, match=r"elements 360: over RDMA a frame fills the path MTU, so one of 59 \(MTU 256\)"):
        mtu_for(360)
