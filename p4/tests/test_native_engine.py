"""The native back end: it does what the Python one does, at every width and bit; large tables; batches; sanitizers."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import everything
import native_programs
import numpy as np
import programs
import pytest
from differential import compare
from native_programs import compile_many

from p4vm.engine import CAUSED_BYTES_MAX, PACKET_BYTES_MAX, ActionCall, MeterRate, PacketReplica, TableEntry
from p4vm.native import build
from p4vm.native.native_engine import NativeEngine
from p4vm.python.python_engine import PythonEngine
from p4vm.source import P4Error

MAKERS = {
    "bits": lambda: native_programs.numbers(native_programs.WIDTHS, signed=False),
    "ints": lambda: native_programs.numbers(native_programs.WIDTHS, signed=True),
    "tables": native_programs.tables,
    "anywhere": native_programs.anywhere,
    "passes": native_programs.passes,
    "everything": everything.program,
    "forwarder": programs.forwarder,
    "counter": programs.counter_of_ports,
}
PACKETS = {"bits": 50, "ints": 50}


@cache
def engines() -> dict[str, NativeEngine]:
    """Compiled once, in one library."""
    return dict(zip(MAKERS, compile_many([make() for make in MAKERS.values()]), strict=True))


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    if build.compiler() is None:
        pytest.skip("needs a C compiler")


def fresh(name: str) -> NativeEngine:
    """A new engine of a program of MAKERS."""
    made = engines()[name]
    return NativeEngine(made.program, made.library, made.layout, str(list(MAKERS).index(name)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", list(MAKERS))
def test_does_what_the_python_engine_does(name: str, seed: int) -> None:
    engine = fresh(name)
    assert compare(PythonEngine(engine.program), engine, seed=seed, packets=PACKETS.get(name, 200)) > 0 or seed


def test_passes_are_bounded_and_leave_in_the_same_order() -> None:
    engine = fresh("passes")
    twins = [engine, PythonEngine(engine.program)]
    for twin in twins:
        twin.set_group(3, [PacketReplica(1, 7), PacketReplica(600, 70_000), PacketReplica(2, 9)])
        twin.set_group(9, [PacketReplica(port, port) for port in range(40)])
        twin.set_mirror(5, [PacketReplica(4, 1), PacketReplica(5, 2)], group=3)
        twin.set_mirror(6, [PacketReplica(6)], truncate=13)
        twin.set_queue_depths({4: 1 << 18})
    for what in (*range(17), 20, 7, 0):
        for port in (0, 1, 511):
            packet = bytes([what, 0]) + port.to_bytes(2, "big") + bytes(range(30))
            native, python = (twin.process(2, packet, 1000 * what) for twin in twins)
            assert native == python, what
            assert twins[0].counters == twins[1].counters, what
    assert engine.counters.too_many_passes > 3
    assert engine.counters.too_many_turns == 6
    assert engine.take_log() == twins[1].take_log()


def test_bytes_that_one_packet_causes_are_bounded() -> None:
    twins = [fresh("passes"), PythonEngine(fresh("passes").program)]
    for twin in twins:
        twin.set_group(9, [PacketReplica(1)] * 2000)
    for what in (1, 3, 12):
        packet = bytes([what, 0, 0, 1]) + bytes(120_000)
        native, python = (twin.process(2, packet) for twin in twins)
        assert native == python, what
        assert twins[0].counters == twins[1].counters, what
    # 12: 2000 copies ask to go round; 559 may, and none of them again
    assert twins[0].counters.names["too_many_bytes"] == 2000
    twins[1].set_group(9, [])
    twins[1].set_group(3, [PacketReplica(1)] * 2000)
    assert sum(len(data) for _, data in twins[1].process(2, b"\6" + bytes(120_003))) <= CAUSED_BYTES_MAX


def frame(destination: int) -> bytes:
    return destination.to_bytes(6, "big") + bytes(6) + b"\x08\x00payload"


def test_a_table_of_100_000_entries() -> None:
    engine = fresh("forwarder")
    entries = [TableEntry(((at * 7, None),), ActionCall(0, (at % 500,)), 0, at) for at in range(100_000)]
    engine.set_table("MyIngress.forwarding", entries, ActionCall(1))
    for at in (0, 1, 4_321, 99_999):
        assert [port for port, _ in engine.process(1, frame(at * 7))] == [at % 500]
    assert engine.process(1, frame(8)) == []
    engine.set_table("MyIngress.forwarding", [], ActionCall(0, (9,)))
    assert [port for port, _ in engine.process(1, frame(7))] == [9]


def test_a_batch_is_its_packets_one_by_one() -> None:
    one, many, batch = (fresh("counter") for _ in range(3))
    packets = [frame(at) + bytes(at) for at in range(300)] + [b"", b"short", bytes(PACKET_BYTES_MAX + 1)]
    ports = [at % 7 for at in range(len(packets))]
    expected = [one.process(port, packet) for port, packet in zip(ports, packets, strict=True)]
    assert many.process_many(ports, packets) == expected
    offsets = np.cumsum([0, *map(len, packets)]).astype(np.uint32)
    made = batch.run_batch(np.array(ports, np.uint16), offsets, np.frombuffer(b"".join(packets), np.uint8))
    sent = [(port, made.data[at : at + size].tobytes()) for port, size, at in made.outputs.tolist()]
    assert [sent[a:b] for a, b in zip(made.firsts[:-1], made.firsts[1:], strict=True)] == expected
    assert one.counters == many.counters == batch.counters
    assert one.counters.names == {"oversize": 1}


def test_a_batch_may_be_empty_but_not_beyond_its_data() -> None:
    engine = fresh("counter")
    nothing = np.zeros(0, np.uint8)
    assert len(engine.run_batch(np.zeros(0, np.uint16), np.zeros(1, np.uint32), nothing).outputs) == 0
    assert engine.process_many([], []) == []
    for offsets in ([0, 1], [1, 0], [0]):
        with pytest.raises(ValueError, match="offsets"):
            engine.run_batch(np.zeros(1, np.uint16), np.array(offsets, np.uint32), nothing)
    with pytest.raises(ValueError, match="as many ports"):
        engine.process_many([1], [])


def test_what_packets_grow_to_is_bounded() -> None:
    engine = fresh("counter")
    most = frame(1) + bytes(PACKET_BYTES_MAX - len(frame(1)))
    assert len(engine.process(1, most)[0][1]) == PACKET_BYTES_MAX
    assert engine.process(1, most + b"x") == []


def test_cells_of_direct_counters_and_meters_follow_their_handles() -> None:
    engine = fresh("tables")
    key = ((0, None), (0, 128))
    table, counter, meter = "In.longest", "In.hits", "In.police"
    engine.set_table(table, [TableEntry(key, ActionCall(1, (5,)), 0, 70)], ActionCall(2))
    engine.meter_set_rates(meter, 70, [MeterRate(0.0, 0), MeterRate(0.0, 0)])
    red = engine.process(1, bytes(60))[0][1]
    engine.set_table(table, [TableEntry(key, ActionCall(1, (5,)), 0, 71)], ActionCall(2))
    green = engine.process(1, bytes(60))[0][1]
    assert red != green
    exact = tuple((0, None) for _ in range(4))
    engine.set_table("In.exactly", [TableEntry(exact, ActionCall(2), 0, 9)], ActionCall(2))
    engine.process(1, bytes(60))
    assert engine.counter_read(counter, 9) == (1, 60)
    engine.set_table("In.exactly", [TableEntry(exact, ActionCall(2), 0, handle) for handle in (8, 9)], ActionCall(2))
    assert engine.counter_read(counter, 9) == (1, 60)
    engine.set_table("In.exactly", [TableEntry(exact, ActionCall(2), 0, 8)], ActionCall(2))
    assert engine.counter_read(counter, 9) == (0, 0)


def test_groups_and_sessions_come_and_go() -> None:
    engine = fresh("everything")
    for group in (9, 3, 7, 5):
        engine.set_group(group, [PacketReplica(group, 1)])
    engine.set_group(7, [])
    engine.set_mirror(2, [PacketReplica(3)], group=4)
    engine.set_mirror(2, [])
    engine.set_queue_depths({1: 5, 2: 6})
    engine.set_queue_depths({})
    engine.process(1, bytes(80))


def test_a_closed_engine_says_so() -> None:
    engine = fresh("counter")
    engine.close()
    engine.close()
    with pytest.raises(P4Error, match="was closed"):
        engine.process(1, b"")


# ---- sanitizers


@pytest.fixture(scope="module")
def asan() -> str:
    """Path of the runtime that must be in the process before Python's own libraries. Skips where there is none."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("needs gcc, for the sanitizers")
    command = [gcc, "-print-file-name=libasan.so"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout.strip()
    if not os.path.isabs(found):
        pytest.skip("needs libasan (it comes with Debian's gcc)")
    return found


def under_sanitizers(asan: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "LD_PRELOAD": asan,
        "CC": "gcc -fsanitize=address,undefined -fno-sanitize-recover=all",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python keeps much until its end
    }
    command = [sys.executable, native_programs.__file__, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_sanitizers_find_nothing(asan: str) -> None:
    done = under_sanitizers(asan)
    assert (done.returncode, done.stdout) == (0, "alike\n"), done.stderr[-4000:]


def test_sanitizers_see(asan: str, tmp_path: Path) -> None:
    shutil.copytree(build.RUNTIME, tmp_path / "runtime")
    source = tmp_path / "runtime/tables.c"
    right = "fresh.next = calloc(count + 1ull,"
    assert right in source.read_text(), "the bug has no place any more: plant another"
    source.write_text(source.read_text().replace(right, "fresh.next = calloc(count / 2,"))
    done = under_sanitizers(asan, str(tmp_path / "runtime"))
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr, done.stderr[-2000:]
