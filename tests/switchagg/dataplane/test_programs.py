"""What programs/v1model does beyond the packets of the conformance tests: everything around a chunk in its frame, other
traffic, congestion marks, and passes that overtake each other or are lost. And whether the real compiler takes it.
"""

import json
import random
import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from p4vm.architectures.description import PacketPath
from p4vm.commands.line import run_command
from p4vm.compile import front_end
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.fit.fit_program import fit
from p4vm.fit.report import summary, text
from p4vm.ir import ir_nodes as ir
from p4vm.python.python_engine import PythonEngine
from p4vm.python.python_pipeline import Burst
from p4vm.python.runtime import PacketBits as Arriving
from switchagg.aggregator import Parent
from switchagg.dataplane.p4.plane_program import (
    AGGREGATION_PORT,
    HEADERS_BYTES,
    PROGRAMS,
    SWITCH_ADDRESS,
    SWITCH_MAC,
    PlaneControl,
    address_of,
    defines,
    headers_of,
    mac_of,
    room,
)
from switchagg.job import MODULUS, JobConfig, StreamConfig
from switchagg.wire import Op, Packet, Values, decode, encode

ELEMENTS = 4
PORTS = 4
ONE = JobConfig(2, 7, 1, ELEMENTS, (StreamConfig(0, 2),))
JOB = JobConfig(1, 7, 3, ELEMENTS, (StreamConfig(0, 2),))
BROADCAST_MAC = 0xFFFFFFFFFFFF


@cache
def program(elements: int, source: str) -> ir.ProgramIr:
    return front_end(PROGRAMS / "v1model" / source, defines=defines(elements, 256))


def switch_for(job: JobConfig, parent: Parent | None = None) -> tuple[ControlledSwitch, PlaneControl]:
    """The program on the readable engine; rank r at port r."""
    switch = ControlledSwitch(PythonEngine(program(job.elements, "leaf.p4" if parent else "switchagg.p4")))
    control = PlaneControl(lambda lines: [run_command(switch, line) for line in lines], job.elements, 256, PORTS)
    control.admit(job, range(job.workers), parent)
    return switch, control


@pytest.fixture
def switch() -> ControlledSwitch:
    return switch_for(JOB)[0]


def chunk(rank: int, number: int = 0, values: list[int] | None = None, job: JobConfig = JOB) -> bytes:
    slot, version = job.place(0, number)
    sent = np.array(values or [rank + 1] * job.elements, np.int64).astype(np.int32)
    return encode(Packet(job.job_id, job.generation, 0, rank, Op.SUM, slot, version, number, sent))


def frame(data: bytes, port: int, tos: int = 0) -> bytearray:
    """As a worker's kernel sends it, with both checksums."""
    made = bytearray(headers_of(port, len(data)) + data)
    made[15], made[22] = tos, 9
    made[24:26] = bytes(2)
    made[24:26] = internet_checksum(made[14:34])
    made[40:42] = udp_checksum(made)
    return made


def internet_checksum(data: bytes) -> bytes:
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", bytes(data) + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)


def udp_checksum(made: bytes) -> bytes:
    """Of the datagram in a frame, as if the field were zero; a sum of zero is sent as ones."""
    pseudo = bytes(made[26:34]) + b"\0\x11" + bytes(made[38:40])
    sum_of = internet_checksum(pseudo + bytes(made[34:40]) + bytes(2) + bytes(made[42:]))
    return b"\xff\xff" if sum_of == bytes(2) else sum_of


def outcome(switch: ControlledSwitch, index: int) -> int:
    return switch.counter_read("SwitchIngress.counters.outcomes", index)[0]


UNKNOWN_JOB, CHECKSUM, TRUNCATED, NOT_OURS = 13, 21, 22, 23


# ---- a chunk in its frame


def test_results_are_addressed_to_each_worker(switch: ControlledSwitch) -> None:
    """S6: back from the address it was sent to; the datagram's DSCP and ECN bits stay; checksums are right."""
    for rank in (0, 1):
        assert switch.process(rank, bytes(frame(chunk(rank), rank))) == []
    sent = switch.process(2, bytes(frame(chunk(2), 2, tos=0xA2)))
    assert [port for port, _ in sent] == [0, 1, 2]
    for rank, (_, result) in enumerate(sent):
        address, udp_port = address_of(rank)
        assert result[:12] == mac_of(rank).to_bytes(6, "big") + SWITCH_MAC.to_bytes(6, "big")
        assert result[26:38] == struct.pack("!IIHH", SWITCH_ADDRESS, address, AGGREGATION_PORT, udp_port)
        assert result[15] == 0xA2
        assert result[22] == 64
        assert internet_checksum(result[14:34]) == bytes(2)
        assert result[40:42] == udp_checksum(result) != bytes(2)
        assert np.frombuffer(result[62:], ">i4").tolist() == [6] * ELEMENTS
    ((port, reply),) = switch.process(1, bytes(frame(chunk(1), 1)))
    assert port == 1
    assert reply[:12] == sent[1][1][:12]
    assert reply[26:40] == sent[1][1][26:40]
    assert reply[40:42] == udp_checksum(reply)


def test_a_datagram_without_a_checksum_is_taken(switch: ControlledSwitch) -> None:
    """P5: and its result has one."""
    for rank in (0, 1):
        assert switch.process(rank, headers_of(rank, 36) + chunk(rank)) == []
    sent = switch.process(2, headers_of(2, 36) + chunk(2))
    assert [port for port, _ in sent] == [0, 1, 2]
    assert all(result[40:42] == udp_checksum(result) for _, result in sent)


def test_a_result_s_checksum_of_zero_is_sent_as_ones(switch: ControlledSwitch) -> None:
    """RFC 768: zero would mean that there is none."""
    (plain,) = switch_for(ONE)[0].process(0, bytes(frame(chunk(0, values=[0] * ELEMENTS, job=ONE), 0)))
    for last in (int.from_bytes(plain[1][40:42], "big") + more for more in (-1, 0, 1)):
        ((_, result),) = switch_for(ONE)[0].process(0, bytes(frame(chunk(0, values=[0, 0, 0, last], job=ONE), 0)))
        assert result[40:42] == udp_checksum(result)
        assert (result[40:42] == b"\xff\xff") == (last == int.from_bytes(plain[1][40:42], "big"))


def test_a_flipped_bit_is_dropped_by_checksum(switch: ControlledSwitch) -> None:
    """P5: in the values, addresses, header; IPv4's own header too."""
    whole = frame(chunk(0), 0)
    places = [*range(8 * (HEADERS_BYTES + 20), 8 * len(whole), 5), 8 * 27, 8 * 35, 8 * 40, 8 * 46, 8 * 50, 8 * 22]
    for bit in places:
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 0x80 >> bit % 8
        assert switch.process(0, bytes(flipped)) == []
    assert outcome(switch, CHECKSUM) == len(places)
    assert outcome(switch, 0) == 0
    switch.process(0, bytes(whole))
    assert outcome(switch, 0) == 1


def test_both_zeros_are_right_checksums(switch: ControlledSwitch) -> None:
    """Values chosen so that the sum is zero: it is sent as ones, and must not be taken for wrong."""
    for last in range(1 << 16):
        data = chunk(0, values=[0, 0, 0, last])
        made = frame(data, 0)
        if made[40:42] == b"\xff\xff":
            break
    switch.process(0, bytes(made))
    assert (outcome(switch, 0), outcome(switch, CHECKSUM)) == (1, 0)


def test_lengths_that_contradict_each_other_are_no_datagrams(switch: ControlledSwitch) -> None:
    whole = frame(chunk(0), 0)
    cut = whole[:-1]
    too_long, too_short = bytearray(whole), bytearray(whole)
    too_long[38:40] = struct.pack("!H", 8 + 37)
    too_short[38:40] = struct.pack("!H", 7)
    for wrong in (cut, too_long, too_short):
        assert switch.process(0, bytes(wrong)) == []
    assert outcome(switch, TRUNCATED) == 3
    switch.process(0, bytes(whole) + bytes(11))  # a frame may be longer: Ethernet pads
    assert outcome(switch, 0) == 1


def test_a_job_without_its_entry_is_unknown(switch: ControlledSwitch) -> None:
    """S8: the control plane empties the tables, and a packet of an evicted job changes nothing."""
    run_command(switch, "table_delete SwitchIngress.admission.jobs 0")
    switch.process(0, bytes(frame(chunk(0), 0)))
    assert outcome(switch, UNKNOWN_JOB) == 1
    assert switch.register_read("SwitchIngress.seen.low", 0) == 0


# ---- other traffic


def ethernet(target: int, source: int, kind: int, rest: bytes) -> bytes:
    return target.to_bytes(6, "big") + source.to_bytes(6, "big") + struct.pack("!H", kind) + rest


def arp(operation: int, target: int) -> bytes:
    body = struct.pack("!HHBBH6sI6sI", 1, 0x0800, 6, 4, operation, b"\x02\0\0\0\0\x07", 0x0A000007, bytes(6), target)
    return ethernet(BROADCAST_MAC, 0x020000000007, 0x0806, body)


def test_arp_is_answered_for_own_addresses_only(switch: ControlledSwitch) -> None:
    run_command(switch, f"table_add SwitchIngress.arp.own answer {SWITCH_ADDRESS:#x} => {SWITCH_MAC:#x}")
    ((port, answer),) = switch.process(3, arp(1, SWITCH_ADDRESS))
    assert port == 3
    expected = struct.pack(
        "!HHBBH6sI6sI",
        *(1, 0x0800, 6, 4, 2, SWITCH_MAC.to_bytes(6, "big"), SWITCH_ADDRESS, b"\x02\0\0\0\0\x07", 0x0A000007),
    )
    assert answer == ethernet(0x020000000007, SWITCH_MAC, 0x0806, expected)
    assert switch.process(3, arp(1, SWITCH_ADDRESS - 1)) == []
    assert switch.process(3, arp(2, SWITCH_ADDRESS)) == []
    assert outcome(switch, NOT_OURS) == 3


def test_frames_are_bridged_flooded_or_dropped_as_the_tables_say(switch: ControlledSwitch) -> None:
    known = ethernet(0x02AA, 0x02BB, 0x88B5, b"anything at all")
    assert switch.process(0, known) == []  # the default drops
    for line in (
        "table_add SwitchIngress.forwarding.bridged to_port 0x02aa => 2",
        "mc_mgrp_create 9",
        "mc_node_create 77 0 1 2 3",
        "mc_node_associate 9 3",  # nodes 0 to 2 are the job's
        "table_set_default SwitchIngress.forwarding.bridged flood 9",
    ):
        run_command(switch, line)
    assert switch.process(0, known) == [(2, known)]
    unknown = ethernet(0x02AC, 0x02BB, 0x88B5, b"to all but the port it came from")
    assert switch.process(1, unknown) == [(0, unknown), (2, unknown), (3, unknown)]
    for cut in range(14):
        assert switch.process(1, unknown[:cut]) == []
    whole = bytes(frame(chunk(0), 0))
    for cut in range(14, 42):  # a header cut short is passed on as it is
        assert switch.process(1, whole[:cut]) == [(port, whole[:cut]) for port in (0, 2, 3)]
    other_address = bytearray(whole)
    other_address[33] ^= 1
    assert [out for _, out in switch.process(0, bytes(other_address))] == [bytes(other_address)] * 3


def test_packets_are_routed(switch: ControlledSwitch) -> None:
    for line in (
        "table_add SwitchIngress.forwarding.routers NoAction 0x0200000000fe =>",
        "table_add SwitchIngress.forwarding.routed to_next_hop 192.168.0.0/16 => 1 0x02f1 0x02f2",
        "table_add SwitchIngress.forwarding.routed to_next_hop 192.168.7.0/24 => 2 0x02f1 0x02f3",
    ):
        run_command(switch, line)

    def routed(address: int, ttl: int, spoil: int = 0) -> bytes:
        made = frame(b"to somebody else", 0)
        made[22], made[30:34], made[24:26] = ttl, struct.pack("!I", address), bytes(2)
        made[24:26] = internet_checksum(made[14:34])
        made[25] ^= spoil
        return bytes(made)

    for address, port, mac in ((0xC0A80101, 1, 0x02F2), (0xC0A80701, 2, 0x02F3)):
        before = routed(address, 9)
        ((out, after),) = switch.process(0, before)
        assert out == port
        assert after[:12] == mac.to_bytes(6, "big") + 0x02F1.to_bytes(6, "big")
        assert after[22] == 8
        assert internet_checksum(after[14:34]) == bytes(2)
        assert after[26:] == before[26:]
    assert switch.process(0, routed(0x08080808, 9)) == []  # no route
    assert switch.process(0, routed(0xC0A80101, 1)) == []
    assert switch.process(0, routed(0xC0A80101, 9, spoil=1)) == []


def test_long_queues_mark_what_can_be_marked(switch: ControlledSwitch) -> None:
    """Only ECN-capable packets, only at ports whose queue is at the depth or above."""
    run_command(switch, "table_set_default SwitchEgress.ecn.marking mark_at 20")
    switch.engine.set_queue_depths({0: 19, 1: 20, 2: 30})
    for ecn, marked in ((0, 0), (1, 3), (2, 3)):
        for rank in range(3):
            sent = switch.process(rank, bytes(frame(chunk(rank, ecn), rank, tos=0x28 | ecn)))
        assert [result[15] for _, result in sent] == [0x28 | ecn, 0x28 | marked, 0x28 | marked]
        assert all(internet_checksum(result[14:34]) == bytes(2) for _, result in sent)


@pytest.mark.parametrize("elements", [ELEMENTS, 33])
def test_congestion_of_any_contribution_marks_its_results(elements: int) -> None:
    """G2 to G4: its CE becomes a mark of all results; in two passes, too."""
    switch, _ = switch_for(replace(JOB, elements=elements))
    for number, congested in ((0, 0), (1, 2), (2, None), (4, 1)):
        for rank in range(3):
            data = chunk(rank, number, [1] * elements, replace(JOB, elements=elements))
            sent = switch.process(rank, bytes(frame(data, rank, tos=0x28 | (3 if rank == congested else 2))))
        assert [port for port, _ in sent] == [0, 1, 2]
        for _, result in sent:
            assert (result[15], decode(result[42:]).marked) == (0x2A, congested is not None)
            assert internet_checksum(result[14:34]) == bytes(2)
            assert result[40:42] == udp_checksum(result)


def test_a_leaf_keeps_the_congestion_bits_of_its_parent_s_results() -> None:
    """G4: they are of the way down; what goes up is a contribution."""
    switch, _ = switch_for(ONE, Parent(3, 6))
    ((port, up),) = switch.process(0, bytes(frame(chunk(0, job=ONE), 0, tos=3)))
    assert (port, up[15], decode(up[42:])) == (3, 2, replace(decode(chunk(0, job=ONE)), rank=6, marked=True))
    result = encode(replace(decode(chunk(0, job=ONE)), rank=6, result=True))
    ((port, down),) = switch.process(3, bytes(frame(result, 3, tos=3)))
    assert (port, down[15], down[42:]) == (0, 3, result)


# ---- passes


class Disorder:
    """The program in two passes, whose recirculated packets wait: the next to go in is drawn, or is lost."""

    def __init__(self, seed: int, parent: Parent | None = None) -> None:
        self.job = JobConfig(1, 7, 3, 33, (StreamConfig(0, 1),))
        self.switch, _ = switch_for(self.job, parent)
        engine = self.switch.engine
        assert isinstance(engine, PythonEngine)
        self.pipeline = engine.pipeline
        self.chance = random.Random(seed)
        self.values = np.random.default_rng(seed).integers(-(2**31), 2**31, (6, 3, 33))
        self.results = 0

    def arrive(self, rank: int, number: int) -> None:
        """A first pass, and no more."""
        self.enter(chunk(rank, number, self.values[number, rank].tolist(), self.job), rank)

    def enter(self, data: bytes, port: int) -> None:
        packet = Arriving(self.pipeline.shared, bytes(frame(data, port)), 0, 0)
        self.run(Burst(packet, self.pipeline.zeros(), PacketPath.NORMAL, port))

    def again(self) -> None:
        """A further pass of one that waits, not the first in the queue by any rule."""
        waiting = self.pipeline.waiting
        place = self.chance.randrange(len(waiting))
        burst = waiting[place]
        del waiting[place]
        if self.chance.random() >= 0.1:  # else lost between two passes
            self.run(burst)

    def run(self, burst: Burst) -> None:
        """One pass through ingress, and egress after it."""
        pipeline = self.pipeline
        pipeline.runs = pipeline.caused = 0
        pipeline.outputs = outputs = list[tuple[int, bytes]]()
        pipeline.run(pipeline.ingress, burst.packet, burst.state, burst.path, burst.port)
        while pipeline.bursts:
            pipeline.leave(pipeline.bursts.popleft())
        for port, data in outputs:
            self.results += 1
            self.check(port, int.from_bytes(data[58:62], "big"), np.frombuffer(data[62:], ">i4"))

    def check(self, port: int, number: int, values: Values) -> None:
        assert np.array_equal(values, self.values[number].sum(axis=0).astype(np.int32)), f"chunk {number}"


class DisorderBelow(Disorder):
    """The program of a leaf; its parent answers some of what comes up, later."""

    PARENT = Parent(3, 6)

    def __init__(self, seed: int) -> None:
        super().__init__(seed, self.PARENT)
        self.answered: set[int] = set()
        self.asked: list[int] = []

    def check(self, port: int, number: int, values: Values) -> None:
        """Before the parent has a result it needs exact sums; from then on it only needs to be asked."""
        if port != self.PARENT.port:
            assert number in self.answered
            assert (values == 100 + number).all(), f"chunk {number}"
        else:
            self.asked.append(number)
            if number not in self.answered:
                super().check(port, number, values)

    def arrive(self, rank: int, number: int) -> None:
        if self.asked and self.chance.random() < 0.2:
            asked = self.asked.pop(self.chance.randrange(len(self.asked)))
            self.answered.add(asked)
            packet = replace(decode(chunk(0, asked, [100 + asked] * 33, self.job)), rank=self.PARENT.rank, result=True)
            self.enter(encode(packet), self.PARENT.port)
        super().arrive(rank, number)


@pytest.mark.parametrize("kind", [Disorder, DisorderBelow])
def test_no_order_or_loss_of_passes_makes_a_sum_wrong(kind: Callable[[int], Disorder]) -> None:
    """Workers repeat what isn't answered, and one of them chunks long over, while packets wait between passes."""
    results = 0
    for seed in range(12):
        world = kind(seed)
        for number in range(6):
            for _ in range(30):
                late = world.chance.random() < 0.1
                world.arrive(world.chance.randrange(3), max(0, number - 2) if late else number)
                while world.pipeline.waiting and world.chance.random() < 0.6:
                    world.again()
        results += world.results
    assert results > 500


def test_every_pass_asks_again_whose_packet_it_is() -> None:
    """S8: the job ends while its packet waits for the second pass, which then changes nothing."""
    world = Disorder(1)
    world.arrive(0, 0)
    run_command(world.switch, "table_delete SwitchIngress.admission.jobs 0")
    while world.pipeline.waiting:
        world.again()
    second = 2 * room(1)
    assert world.switch.register_read("SwitchIngress.seen.low", 0) == 1
    assert world.switch.register_read("SwitchIngress.seen.low", second) == 0
    assert world.switch.register_read("SwitchIngress.held.held", second) == MODULUS - 2
    assert outcome(world.switch, UNKNOWN_JOB) == 1


# ---- the real compiler


@pytest.mark.parametrize("elements", [1, 33])
@pytest.mark.parametrize("source", ["switchagg.p4", "leaf.p4"])
def test_p4c_takes_it(source: str, elements: int, tmp_path: Path) -> None:
    if shutil.which("p4c-bm2-ss") is None:
        pytest.skip("needs p4c-bm2-ss on PATH")
    words = [f"-D{name}={value}" for name, value in defines(elements, 256).items()]
    made = tmp_path / "switchagg.json"
    command = ["p4c-bm2-ss", *words, "-o", str(made), str(PROGRAMS / "v1model" / source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert made.stat().st_size > 10_000


def test_outcomes_are_those_of_all_data_planes() -> None:
    """The numbers in outcomes.p4 are the places in COUNTERS."""
    from switchagg.dataplane.p4.plane_program import COUNTERS

    text = (PROGRAMS / "outcomes.p4").read_text()
    for index, name in enumerate(name or "not_ours" for name in COUNTERS):
        (line,) = (line for line in text.splitlines() if f" {name.upper()} " in line)
        assert int(line.partition("=")[2].partition(";")[0]) == index


def test_our_own_program_fits() -> None:
    result = fit(PROGRAMS / "tna/switchagg.p4")
    assert not result.faults, text(result)
    values = summary(result)
    assert json.loads(json.dumps(values)) == values
    assert values["stages"]["used"] <= 12
    assert values["stateful_alus"]["used"] == len(values["registers"])
    assert f"stages                {values['stages']['used']} of 12" in text(result)
