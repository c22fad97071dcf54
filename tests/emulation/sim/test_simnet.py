"""The network in virtual time: exact serialisation, queues, seeded faults, and whole allreduces against closed form."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulation.sim.network.host_uplink import Alarm
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.switch_simulation import SwitchSimulation
from emulation.sim.network.timing import AllreduceTiming, time_allreduce
from emulation.sim.network.virtual_clock import SimulationError, VirtualClock
from switchagg.description import Kind
from switchagg.errors import AggregationFailed
from tests.oracles.oracle_links import BURST_BITS_MAX, CorruptedFrame, OracleLink, internet_checksum
from tests.oracles.oracle_network import oracle
from transport.meshes.reliable import ReliableConfig

LOSS_WINDOW = Path(__file__).with_name("loss_window.txt")
MEGABYTE = 1_000_000


class Sink:
    """Notes when which frame arrives."""

    def __init__(self, config: LinkConfig, seed: str = "1") -> None:
        self.network = VirtualClock()
        self.arrivals: list[tuple[int, Any]] = []
        self.link = OracleLink(self.network, config, self.receive, seed)

    def receive(self, frame: Any, sender: int, to: int) -> None:
        self.arrivals.append((self.network.now_ns, frame))

    def drain(self) -> None:
        with pytest.raises(SimulationError, match="nothing is left"):
            self.network.run()


def test_events_happen_in_order_of_time_and_then_of_scheduling() -> None:
    network, happened = VirtualClock(), []
    for name, time_ns in (("c", 7), ("a", 3), ("d", 7), ("b", 3)):
        network.schedule(time_ns, lambda frame, _sender, _to: happened.append((network.now_ns, frame)), name)
    network.schedule(8, lambda *_: network.stop())
    network.schedule(9, lambda *_: pytest.fail("after stop"))
    network.run()
    assert happened == [(3, "a"), (3, "b"), (7, "c"), (7, "d")]


def test_a_run_without_an_end_is_an_error() -> None:
    network = VirtualClock(events_max=100)

    def again(_frame: None, _sender: int, _to: int) -> None:
        network.schedule(network.now_ns + 1, again)

    network.schedule(0, again)
    with pytest.raises(SimulationError, match=r"waiting for godot.*100 events happened"):
        network.run("godot")


def test_an_alarm_fires_once_at_the_earliest_time_set() -> None:
    network, rung = VirtualClock(), []
    alarm = Alarm(network, lambda: rung.append(network.now_ns))
    for time_ns in (50, 30, None, 40):
        alarm.set(time_ns)
    with pytest.raises(SimulationError):
        network.run()
    assert rung == [30]


@pytest.mark.parametrize(
    "rate_bps", [1_000_000, 200_000_000, 999_999_937, 7_000_000_001, 100_000_000_000, 400_000_000_000]
)
@pytest.mark.parametrize("size_bytes", [64, 66, 1501, 1514])
def test_back_to_back_frames_take_exactly_their_bits_over_the_rate(rate_bps: int, size_bytes: int) -> None:
    sink = Sink(LinkConfig(rate_bps, delay_ns=11, queue_bytes=1 << 40))
    for _ in range(1000):
        assert sink.link.send(b"", size_bytes, 5)
    sink.drain()
    expected = [5 + 11 - (-count * size_bytes * 8_000_000_000 // rate_bps) for count in range(1, 1001)]
    assert [time_ns for time_ns, _ in sink.arrivals] == expected


def test_an_idle_link_starts_at_once() -> None:
    sink = Sink(LinkConfig(400_000_000_000))
    for ready_ns in (0, 31, 100):  # a frame of 1514 B lasts 30.28 ns: the second finds the link idle
        sink.link.send(b"", 1514, ready_ns)
    sink.drain()
    assert [time_ns for time_ns, _ in sink.arrivals] == [31, 62, 131]


def test_a_link_that_becomes_idle_within_this_nanosecond_is_still_busy() -> None:
    sink = Sink(LinkConfig(400_000_000_000))
    for ready_ns in (0, 30):  # 1545 B last 30.9 ns: two of them 61.8
        sink.link.send(b"", 1545, ready_ns)
    sink.drain()
    assert [time_ns for time_ns, _ in sink.arrivals] == [31, 62]


def test_every_link_of_a_star_has_faults_of_its_own_that_follow_from_the_seed() -> None:
    def first_draws(seed: int) -> list[float]:
        network = SwitchSimulation(oracle(SimulationConfig(3, LinkConfig(10**9, loss=0.1), seed=seed)))
        return [link._random() for link in network.uplinks + network.downlinks if link._random is not None]

    assert len({*first_draws(1), *first_draws(2)}) == 2 * 6
    assert first_draws(1) == first_draws(1)


def test_the_queue_drops_what_does_not_fit_and_counts_it() -> None:
    sink = Sink(LinkConfig(1_000_000_000, queue_bytes=5000))
    accepted = [sink.link.send(number, 1000, 0) for number in range(7)]
    assert accepted == [True] * 5 + [False] * 2
    assert sink.link.backlog_bytes(0) == 5000
    assert sink.link.backlog_bytes(4000) == 4500  # 8 ns per byte: half a frame has left
    assert sink.link.time_at_backlog_ns(4500) == 4000
    assert not sink.link.send(7, 1000, 7999)
    assert sink.link.send(8, 1000, 8000)
    assert sink.link.faults["drop_queue"] == 3
    assert sink.link.sent_bytes == 6000
    sink.drain()
    assert [frame for _, frame in sink.arrivals] == [0, 1, 2, 3, 4, 8]
    assert sink.link.backlog_bytes(sink.network.now_ns) == 0


def faulty_arrivals(seed: str, **faults: float) -> tuple[Sink, list[tuple[int, Any]]]:
    sink = Sink(LinkConfig(1_000_000_000, queue_bytes=1 << 40, **faults), seed)  # type: ignore[arg-type]
    for number in range(20_000):
        sink.link.send(number.to_bytes(4, "big") * 8, 74, 0)
    sink.drain()
    return sink, sink.arrivals


@pytest.mark.parametrize(
    ("knob", "counter"),
    [("loss", "lost"), ("duplicate", "duplicated"), ("reorder", "held_back"), ("corrupt", "corrupted")],
)
def test_each_fault_has_its_configured_rate_and_causes_no_other(knob: str, counter: str) -> None:
    sink, arrivals = faulty_arrivals("a", **{knob: 0.1})
    assert 1800 < sink.link.faults[counter] < 2200
    assert sum(sink.link.faults.values()) == sink.link.faults[counter]
    assert len(arrivals) == 20_000 + {"lost": -1, "duplicated": 1}.get(counter, 0) * sink.link.faults[counter]
    corrupted = sum(isinstance(frame, CorruptedFrame) for _, frame in arrivals)
    assert corrupted == sink.link.faults["corrupted"]
    numbers = [int.from_bytes(frame[:4], "big") for _, frame in arrivals if isinstance(frame, bytes)]
    assert (numbers != sorted(numbers)) == (knob in ("duplicate", "reorder"))
    assert len(set(numbers)) == 20_000 - sink.link.faults["lost"] - corrupted


def test_the_same_seed_gives_the_same_faults_and_another_seed_others() -> None:
    knobs = {"loss": 0.05, "duplicate": 0.05, "reorder": 0.05}
    assert faulty_arrivals("a", **knobs)[1] == faulty_arrivals("a", **knobs)[1]
    assert faulty_arrivals("a", **knobs)[1] != faulty_arrivals("b", **knobs)[1]


def test_the_faults_of_a_seed_are_the_same_on_every_machine() -> None:
    """Written down once: a change of Python, NumPy or platform that changed a trace would be seen here."""
    sink, arrivals = faulty_arrivals("golden", loss=0.01, duplicate=0.01, reorder=0.01, corrupt=0.01)
    lost_first = min(set(range(20_000)) - {int.from_bytes(f[:4], "big") for _, f in arrivals if isinstance(f, bytes)})
    assert (sink.link.faults, lost_first, arrivals[-1][0]) == GOLDEN_FAULTS


def test_the_internet_checksum_is_rfc_1071s() -> None:
    example = bytes.fromhex("0001f203f4f5f6f7")
    assert internet_checksum(example) == 0xDDF2 ^ 0xFFFF
    assert internet_checksum(example + b"\xab") == internet_checksum(example + b"\xab\x00")
    assert internet_checksum(b"\xff" * 2000) == 0


def test_the_checksum_finds_every_burst_the_links_make() -> None:
    chance = random.Random(3)
    for size in (21, 66, 1460):
        frame = chance.randbytes(size)
        for _ in range(1000):
            length = 1 + chance.randrange(BURST_BITS_MAX)
            burst = chance.getrandbits(length) | 1 | 1 << (length - 1)
            damaged = CorruptedFrame(frame, burst, chance.randrange(8 * size - length + 1))
            assert damaged.data != frame
            assert damaged.received() is None


def test_the_checksum_is_really_computed() -> None:
    """Two flips that cancel in the sum get through, as they would in a network; a frame damaged back is intact."""
    frame = bytes.fromhex("0001f203f4f5f6f7")
    swapped = CorruptedFrame(CorruptedFrame(frame, 0b11, 0), 0b1, 16)
    assert swapped.received() is None
    restored = CorruptedFrame(CorruptedFrame(frame, 0b1011, 9), 0b1011, 9)
    assert restored.received() == frame
    words = CorruptedFrame(CorruptedFrame(b"\0\0\0\1", 1, 0), 1, 16)
    assert words.received() == b"\0\1\0\0"
    row = np.arange(40, dtype=np.uint8).reshape(1, 40)
    again = CorruptedFrame(CorruptedFrame(row, 1, 3), 1, 3).received()
    assert np.array_equal(again, row)


@pytest.mark.parametrize(
    "values", [{"rate_bps": 0}, {"delay_ns": -1}, {"queue_bytes": 0}, {"loss": 1.1}, {"corrupt": -0.1}]
)
def test_impossible_links_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        LinkConfig(**{"rate_bps": 1000, **values})


def star(workers: int, rate_bps: int, delay_ns: int = 0, **values: Any) -> SimulationConfig:
    """In C where that is built, whose events are Python's (test_compiled_engine.py, test_compiled_members.py)."""
    return SimulationConfig(workers=workers, link=LinkConfig(rate_bps, delay_ns=delay_ns), **values)


@pytest.mark.parametrize("rate_bps", [10_000_000, 200_000_000, 10_000_000_000, 400_000_000_000])
@pytest.mark.parametrize(("dtype", "scale_chunks"), [("int32", 0), ("float32", 1)])
@pytest.mark.parametrize("workers", [2, 4])
def test_the_switch_takes_the_time_of_its_closed_form(
    rate_bps: int, dtype: str, scale_chunks: int, workers: int
) -> None:
    """Description and chunks once through a link, framed, plus the first one's way through the second: within 1 %."""
    size_bytes = 2 * MEGABYTE
    timing = time_allreduce(star(workers, rate_bps), "switch", size_bytes, dtype)
    data_chunks = -(-size_bytes // 1440)
    chunks = 1 + data_chunks + scale_chunks * -(-data_chunks // 360)
    assert timing.wrong_elements == 0
    assert timing.retransmissions == 0
    assert timing.wire_tx_bytes == timing.wire_rx_bytes == (chunks * (1440 + 20 + 42),) * workers
    bound_ns = (chunks + 1) * 1502 * 8e9 / rate_bps
    round_trip_ns = 2 * 1502 * 8e9 / rate_bps  # data wait for the first scale chunk
    assert bound_ns <= timing.duration_ns <= bound_ns * 1.01 + scale_chunks * round_trip_ns


@pytest.mark.parametrize("rate_bps", [10_000_000, 200_000_000, 10_000_000_000, 400_000_000_000])
@pytest.mark.parametrize("workers", [2, 4, 5])
def test_the_ring_takes_the_time_of_its_closed_form(rate_bps: int, workers: int) -> None:
    """2(n-1)/n of the array through each link, framed as TCP frames it, acknowledgements included. Within 1 %."""
    size_bytes = 4 * MEGABYTE
    timing = time_allreduce(star(workers, rate_bps), "ring", size_bytes, "float32")
    share = 2 * (workers - 1) / workers * size_bytes
    wire_bytes = share / 1448 * (1514 + 66 / 2)  # a segment, and half an acknowledgement in the same direction
    bound_ns = wire_bytes * 8e9 / rate_bps
    assert timing.wrong_elements == 0
    assert timing.retransmissions == 0
    for sent, received in zip(timing.wire_tx_bytes, timing.wire_rx_bytes, strict=True):
        assert wire_bytes <= sent <= wire_bytes * 1.005
        assert abs(sent - received) <= 66 * 4
    assert bound_ns <= timing.duration_ns <= bound_ns * 1.01


@pytest.mark.parametrize("method", ["switch", "ring"])
def test_delay_adds_latency_and_a_window_that_covers_it_costs_no_rate(method: str) -> None:
    near = time_allreduce(star(4, 10_000_000_000), method, MEGABYTE)
    far = time_allreduce(star(4, 10_000_000_000, delay_ns=20_000, switch_latency_ns=1000), method, MEGABYTE)
    latency_ns = 2 * 20_000 + 1000  # pipelined, the ring shows it once, too, and not in each of its 2(n-1) steps
    assert latency_ns * 0.9 <= far.duration_ns - near.duration_ns <= latency_ns * 1.1


def test_connections_that_share_a_port_one_after_the_other_fill_a_long_way() -> None:
    """Three send to each rank, at different times: what the way holds is theirs, too. The ring's bytes, fewer steps;
    acknowledgements wait behind data in more queues."""
    config = star(8, 1_000_000_000, delay_ns=1_000_000)
    times_ns = [time_allreduce(config, name, 4 * MEGABYTE).duration_ns for name in ("halving_doubling", "ring")]
    assert times_ns[0] <= 1.1 * times_ns[1]


@pytest.mark.parametrize(
    ("kind", "delay_ns", "windows", "gain"),
    [
        ("allreduce", 5_000_000, (64, 64), 1.6),
        ("allreduce", 5_000_000, (32, 96), 3.0),
        ("allreduce", 10_000, (64, 64), 0.999),
        ("reduce_scatter", 5_000_000, (64, 64), 1.6),
        ("all_gather", 5_000_000, (64, 64), 1.6),
    ],
)
def test_w11_a_split_call_has_the_windows_of_all_its_streams(
    kind: Kind, delay_ns: int, windows: tuple[int, int], gain: float
) -> None:
    """Where the way is longer than a window; elsewhere it takes no longer than on one."""
    times, bits = [], []
    for split_calls in (False, True):
        link = LinkConfig(1_000_000_000, delay_ns)
        config = SimulationConfig(2, link, streams=2, window_slots=windows, split_calls=split_calls)
        star = SwitchSimulation(config)
        arrays = [np.sin(np.arange(200_000) * (rank + 1)).astype(np.float32) for rank in range(2)]
        left = [2]

        def done(star: Any = star, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                star.network.stop()

        for rank, array in enumerate(arrays):
            star.launch(rank, array, "sum", done, kind=kind)
        star.run("the call")
        times.append(star.network.now_ns)
        bits.append([array.tobytes() for array in arrays])
    assert times[0] >= gain * times[1]
    assert bits[0] == bits[1]


def test_a_window_smaller_than_the_round_trip_takes_window_over_round_trip() -> None:
    config = star(2, 10_000_000_000, delay_ns=100_000, window_slots=8, streams=1)
    timing = time_allreduce(config, "switch", 1440 * 399)  # and the description
    frame_ns = 1502 * 8 / 10
    round_trip_ns = 2 * 100_000 + 2 * frame_ns
    assert timing.duration_ns == pytest.approx(400 / 8 * round_trip_ns, rel=0.01)


@pytest.mark.parametrize("method", ["switch", "ring"])
@pytest.mark.parametrize("seed", [1, 2])
def test_sums_stay_exact_under_every_fault(method: str, seed: int) -> None:
    link = LinkConfig(1_000_000_000, 5_000, loss=0.02, duplicate=0.02, reorder=0.05, corrupt=0.02)
    timing = time_allreduce(SimulationConfig(workers=3, link=link, seed=seed), method, MEGABYTE // 2, "float32")
    assert timing.wrong_elements == 0
    assert all(timing.faults[name] > 0 for name in ("lost", "duplicated", "held_back", "corrupted"))
    assert timing.retransmissions > 0
    assert timing.drop_checksum == pytest.approx(timing.faults["corrupted"], abs=10)  # some are still under way


@pytest.mark.parametrize("dataplane", ["reference", "native"])
def test_data_planes_give_the_same_trace(dataplane: str) -> None:
    link = LinkConfig(1_000_000_000, loss=0.01, reorder=0.01)
    traces = {
        time_allreduce(SimulationConfig(3, link, dataplane=name, trace=True), "switch", 300_000, "float32").trace
        for name in ("reference", dataplane)
    }
    assert len(traces) == 1


def test_the_switch_gives_up_and_names_the_rank_whose_cable_is_cut() -> None:
    config = star(3, 1_000_000_000, retry_limit=4)
    network = SwitchSimulation(oracle(config))
    network.uplinks[1].config = replace(config.link, loss=1.0)
    network.uplinks[1]._random = random.Random(1).random

    def launch(_frame: None, _sender: int, _to: int) -> None:
        for rank in range(3):
            network.launch(rank, np.ones(1000, np.int32), "sum", lambda: pytest.fail("can't complete"))

    network.network.schedule(0, launch)
    with pytest.raises(AggregationFailed, match="missing ranks: 1") as failure:
        network.run("a failure")
    assert failure.value.missing == (1,)


def test_the_ring_gives_up_and_names_the_neighbour() -> None:
    link = LinkConfig(1_000_000_000, loss=1.0)
    config = SimulationConfig(workers=3, link=link, retry_limit=3)
    with pytest.raises(AggregationFailed, match=r"no acknowledgement from rank [012] after 3 timeouts"):
        time_allreduce(config, "ring", 1000)


TRACE_PROGRAM = """
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
link = LinkConfig(10**10, 1000, loss=0.01, duplicate=0.01, reorder=0.02, corrupt=0.01)
for method in ("switch", "ring"):
    print(time_allreduce(SimulationConfig(4, link, seed=7, trace=True), method, 400_000, "float32"))
"""


def test_two_processes_with_different_hash_seeds_give_the_same_trace() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", TRACE_PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert outputs.pop().count("trace=") == 2


def loss_window_table() -> str:
    """Goodput (gradient bits of one rank over time, % of the link rate) by loss and window; 1 Gb/s, 4 ranks, 1 MB."""
    lines = [
        "# Goodput in % of the link rate: 1 MB of int32, 4 ranks, 1 Gb/s, 50 us per link, loss per packet and link.",
        "# Rows: loss. Columns: window in KiB (switch: slots of one stream; ring: bytes in flight). Seed 1.",
        f"{'method':<8}{'loss':>8}" + "".join(f"{window:>8}" for window in (32, 64, 128, 256)),
    ]
    for method in ("switch", "ring"):
        for loss in (0.0, 0.0001, 0.001, 0.01, 0.05):
            cells = []
            for window_kib in (32, 64, 128, 256):
                config = SimulationConfig(
                    workers=4,
                    link=LinkConfig(1_000_000_000, 50_000, loss=loss),
                    window_slots=window_kib * 1024 // 1440,
                    streams=1,
                    reliable=ReliableConfig(window_bytes=window_kib * 1024),
                )
                timing = time_allreduce(config, method, MEGABYTE)
                assert timing.wrong_elements == 0
                cells.append(100 * timing.algbw_bps / 1e9)
            lines.append(f"{method:<8}{loss:>8}" + "".join(f"{cell:>8.1f}" for cell in cells))
    return "\n".join(lines) + "\n"


def test_goodput_by_loss_and_window_has_not_changed() -> None:
    """A change of performance is a diff: review it, then write it down with SNAPSHOT_UPDATE=1."""
    table = loss_window_table()
    if os.environ.get("SNAPSHOT_UPDATE") == "1":
        LOSS_WINDOW.write_text(table)
    assert table == LOSS_WINDOW.read_text(), (
        "goodput changed; if that is meant: SNAPSHOT_UPDATE=1 pytest tests/emulation/sim/test_simnet.py"
    )


def test_a_timing_has_its_bandwidth() -> None:
    timing = AllreduceTiming(1000, 8000, (), (), 0, {}, {}, 0, 0, None)
    assert timing.algbw_bps == 1e9


GOLDEN_FAULTS = (
    {"drop_queue": 0, "drop_first": 0, "lost": 215, "duplicated": 160, "held_back": 198, "corrupted": 199},
    12,
    11_869_502,
)
