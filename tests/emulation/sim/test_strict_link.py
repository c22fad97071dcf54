"""Strict priority in virtual time: exact against a model, and what an urgent call waits for on a star full of bulk."""

import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from emulation.scenario.scenario import parse
from emulation.sim.network.host_uplink import CREDIT_BYTES_MAX
from emulation.sim.network.simulated_link import CE, ECT, LinkConfig, addressed
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.network.switch_simulation import SwitchSimulation
from emulation.sim.network.virtual_clock import SimulationError, VirtualClock
from emulation.sim.simulated_run import simulation_config
from switchagg.wire import STREAM_OFFSET
from tests.oracles.oracle_links import OracleLink
from tests.oracles.oracle_network import oracle
from tests.oracles.strict_link import OracleStrictLink
from transport.worker.join_options import JoinOptions

FRAME = 1502  # E = 360: 1460 B of packet, 42 B of framing
RATE = 199_999_999  # so that a frame takes no whole number of nanoseconds


class Wire:
    """A link and what comes out of it."""

    def __init__(self, made: type[OracleLink], config: LinkConfig) -> None:
        self.network = VirtualClock()
        self.arrivals: list[tuple[int, Any, int]] = []
        self.link = made(self.network, config, self._receive, "seed")

    def _receive(self, frame: Any, sender: int, to: int) -> None:
        self.arrivals.append((self.network.now_ns, frame, to))

    def run(self, sends: list[tuple[int, int, int, int]]) -> None:
        """sends: (time_ns, latency_ns, size_bytes, to), in the order of their times; frames are named by number."""
        for number, (time_ns, latency_ns, size_bytes, to) in enumerate(sends):
            self.network.schedule(time_ns, self._sender(bytes([number % 256]), size_bytes, latency_ns, to))
        with pytest.raises(SimulationError, match="nothing is left"):
            self.network.run()

    def _sender(self, frame: bytes, size_bytes: int, latency_ns: int, to: int) -> Any:
        return lambda *_: self.link.send(frame, size_bytes, self.network.now_ns + latency_ns, 1, to)


def random_sends(
    chance: random.Random, count: int, classes: list[int], latency_ns: int
) -> list[tuple[int, int, int, int]]:
    time_ns, sends = 0, []
    for _ in range(count):
        time_ns += chance.choice([0, 0, 1, 20_000, 61_000, 400_000])
        sends.append((time_ns, latency_ns, chance.randint(60, FRAME), addressed(3, chance.choice(classes))))
    return sends


def test_with_one_class_it_does_what_a_plain_link_does(seed: int) -> None:
    latency_ns = 700 * (seed % 2)
    faults = dict.fromkeys(("loss", "duplicate", "reorder", "corrupt"), 0.1) if seed % 3 == 0 else {}
    config = LinkConfig(RATE, delay_ns=5, queue_bytes=6 * FRAME, ecn_bytes=FRAME, **faults)
    sends = random_sends(random.Random(seed), 200, [seed % 8], latency_ns)
    sends = [(*send, to | ECT * (number % 3 > 0)) for number, (*send, to) in enumerate(sends)]
    plain, strict = Wire(OracleLink, config), Wire(OracleStrictLink, config)
    plain.run(sends)
    strict.run(sends)
    assert [(at, to) for at, _, to in strict.arrivals] == [(at, to) for at, _, to in plain.arrivals]
    assert strict.link.faults == plain.link.faults
    assert strict.link.marked_frames == plain.link.marked_frames
    if not faults:
        assert plain.link.marked_frames == sum(to & CE > 0 for _, _, to in plain.arrivals)
        assert strict.arrivals == plain.arrivals
    assert (strict.link.sent_bytes, strict.link.delivered_bytes) == (plain.link.sent_bytes, plain.link.delivered_bytes)


def model(sends: list[tuple[int, int, int, int]]) -> list[tuple[int, int]]:
    """(arrival_ns, number) of a strict queue without limit, by exact fractions."""
    waiting = [(time_ns + latency_ns, number) for number, (time_ns, latency_ns, _, _) in enumerate(sends)]
    idle, left = Fraction(0), []
    while waiting:
        idle = max(idle, Fraction(waiting[0][0]))
        ready = [entry for entry in waiting if entry[0] <= idle]
        number = max(ready, key=lambda entry: (sends[entry[1]][3], -entry[1]))[1]
        waiting.remove(next(entry for entry in waiting if entry[1] == number))
        idle += Fraction(sends[number][2] * 8_000_000_000, RATE)
        left.append((-(-idle.numerator // idle.denominator), number))
    return left


def test_the_order_and_the_instants_are_exact(seed: int) -> None:
    sends = random_sends(random.Random(seed), 100, list(range(8)), 700 * (seed % 2))
    # Instants that no fraction of a frame can hit: ties are the events' order, which the model knows nothing of.
    sends = [(at + 3 * number, latency, size, to) for number, (at, latency, size, to) in enumerate(sends)]
    wire = Wire(OracleStrictLink, LinkConfig(RATE))
    wire.run(sends)
    assert [(at, frame[0]) for at, frame, _ in wire.arrivals] == model(sends)


def test_each_class_has_a_queue_of_its_own() -> None:
    wire = Wire(OracleStrictLink, LinkConfig(RATE, queue_bytes=3 * FRAME))
    bulk = [(0, 0, FRAME, addressed(3, 7))] * 5
    wire.run([*bulk, (1, 0, FRAME, addressed(3, 0))])
    assert wire.link.faults["drop_queue"] == 2
    assert [frame[0] for _, frame, _ in wire.arrivals] == [0, 5, 1, 2]


@pytest.mark.parametrize("made", [OracleLink, OracleStrictLink])
def test_frames_behind_more_than_the_threshold_are_marked(made: type[OracleLink]) -> None:
    wire = Wire(made, LinkConfig(RATE, ecn_bytes=2 * FRAME))
    wire.run([(0, 0, FRAME, addressed(3, 7) | ECT * (number != 4)) for number in range(6)])
    assert [(to & CE > 0, to & ECT > 0) for _, _, to in wire.arrivals] == [
        *[(False, True)] * 3,  # the third has exactly the threshold before it
        (True, True),
        (False, False),
        (True, True),
    ]
    assert wire.link.marked_frames == 2
    with pytest.raises(ValueError, match="ecn_bytes must be 0 or more"):
        LinkConfig(RATE, ecn_bytes=-1)


def test_the_backlog_is_that_of_all_classes() -> None:
    network = VirtualClock()
    link = OracleStrictLink(network, LinkConfig(8_000_000_000), lambda *_: None)  # a byte per nanosecond
    for priority in (7, 0, 3):
        link.send(b"", 1000, 0, 0, addressed(0, priority))
    assert link.backlog_bytes(0) == 3000
    assert link.time_at_backlog_ns(500) == 2500


# ---- an urgent call on a star that is full of bulk

BULK_VALUES = 40_000
STAR = SimulationConfig(
    4, LinkConfig(200_000_000, delay_ns=10_000), streams=2, priorities=(0, 7), window_slots=64, strict_priority=True
)
FRAME_NS = -(-FRAME * 8_000_000_000 // 200_000_000)
CREDIT_NS = 1_000_000  # what a host keeps on its link: 1 ms at rates up to 524 Mb/s
assert CREDIT_BYTES_MAX > 200_000_000 // 8 // 1000


def urgent_ns(config: SimulationConfig, launch_ns: int, elements: int = 360) -> int:
    """How long a call of one chunk takes that all ranks make at launch_ns, in the midst of a long one."""
    star = SwitchSimulation(config)
    took: list[int] = []
    waiting = [2 * config.workers]

    def done(*, urgent: bool) -> None:
        if urgent:
            took.append(star.network.now_ns - launch_ns)
        waiting[0] -= 1
        if not waiting[0]:
            star.network.stop()

    bulk = [np.full(BULK_VALUES, rank, np.int32) for rank in range(config.workers)]
    small = [np.full(elements, 10 + rank, np.int32) for rank in range(config.workers)]
    most = max(config.priorities)

    def launch(frame: Any, _sender: int, _to: int) -> None:
        urgent = frame is not None
        for rank, array in enumerate(small if urgent else bulk):
            star.launch(rank, array, "sum", lambda: done(urgent=urgent), min(config.priorities) if urgent else most)

    star.network.schedule(0, launch)
    star.network.schedule(launch_ns, launch, b"urgent")
    star.run("both calls")
    assert all(set(array) == {6} for array in bulk)
    assert all(set(array) == {46} for array in small)
    return max(took)


@pytest.mark.parametrize("launch_ns", [2_000_000, 2_013_777, 3_333_333, 4_999_999])
def test_an_urgent_call_waits_for_one_frame_on_each_link_and_no_longer(launch_ns: int) -> None:
    alone_ns = 2 * (FRAME_NS + STAR.link.delay_ns)
    assert urgent_ns(STAR, launch_ns) <= alone_ns + 2 * FRAME_NS
    # In order, it waits for what the host had handed over, its credit and a frame, and goes ahead of the rest.
    fifo_ns = urgent_ns(replace(STAR, strict_priority=False), launch_ns)
    assert alone_ns + 2 * FRAME_NS < fifo_ns <= alone_ns + 2 * (CREDIT_NS + FRAME_NS)
    # Without classes it shares the link with the bulk, and its results wait with the others'.
    assert urgent_ns(replace(STAR, priorities=(7, 7)), launch_ns) > alone_ns + 2 * FRAME_NS


def test_an_urgent_call_takes_as_long_as_alone_but_for_one_frame_on_each_link() -> None:
    chunks = 50
    alone_ns = urgent_ns(STAR, 500_000_000, 360 * chunks)
    assert alone_ns == (chunks + 2) * FRAME_NS + 2 * STAR.link.delay_ns  # with the description, over both links
    assert urgent_ns(STAR, 2_000_000, 360 * chunks) <= alone_ns + 2 * FRAME_NS


@pytest.mark.parametrize("window", [1, 4, 64])
def test_w10_a_class_s_slots_are_its_own_and_its_share_bounds_how_often_a_call_waits(window: int) -> None:
    """Bulk never takes them: the call waits for one frame on each link, once for each window that it fills."""
    chunks = 24
    star = replace(STAR, window_slots=(window, 128 - window))
    alone_ns = urgent_ns(star, 500_000_000, 360 * chunks)
    windows = -(-(chunks + 1) // window)  # with the description
    assert urgent_ns(star, 2_013_777, 360 * chunks) <= alone_ns + windows * 2 * FRAME_NS


def test_the_default_windows_make_an_urgent_call_of_up_to_180_kb_wait_once() -> None:
    windows = JoinOptions(priorities=STAR.priorities).windows
    assert windows == (128, 256)
    star, chunks = replace(STAR, window_slots=windows), 127  # with the description 128
    alone_ns = urgent_ns(star, 500_000_000, 360 * chunks)
    assert alone_ns == (chunks + 2) * FRAME_NS + 2 * STAR.link.delay_ns  # the link is full all the time
    assert urgent_ns(star, 2_013_777, 360 * chunks) <= alone_ns + 2 * FRAME_NS


def host_call_ns(method: str, *, strict: bool, bulk: bool) -> int:
    """How long an urgent call of 10 kB takes by a host method, 20 ms after the beginning of a long one, if there is."""
    link = LinkConfig(200_000_000, delay_ns=10_000, queue_bytes=1 << 18)
    star = SIMULATIONS[method](SimulationConfig(4, link, servers=1, strict_priority=strict))
    left = [4]

    def end() -> None:
        left[0] -= 1
        if not left[0]:
            star.network.stop()

    long = [np.ones(2_500_000 if bulk else 1, np.float32) for _ in range(4)]
    short = [np.full(2500, rank, np.float32) for rank in range(4)]
    for rank in range(4):
        star.launch(rank, long[rank], "sum", lambda: None, 7, 1)
    launch_ns = 20_000_000

    def launch(*_: Any) -> None:
        for rank in range(4):
            star.launch(rank, short[rank], "sum", end, 0, 2)

    star.network.schedule(launch_ns, launch)
    star.run("the urgent call")
    assert all(set(array) == {6.0} for array in short)
    return star.network.now_ns - launch_ns


@pytest.mark.parametrize(("method", "steps"), [("ring", 6), ("halving_doubling", 4), ("ps", 2)])
def test_a_host_method_s_urgent_call_waits_for_one_frame_on_each_link_in_each_of_its_steps(
    method: str, steps: int
) -> None:
    frame_ns = -(-1514 * 8_000_000_000 // 200_000_000)
    alone_ns = host_call_ns(method, strict=True, bulk=False)
    bound_ns = alone_ns + 2 * steps * frame_ns
    assert host_call_ns(method, strict=True, bulk=True) <= bound_ns
    assert host_call_ns(method, strict=False, bulk=True) > 5 * bound_ns


def test_s6_results_have_the_class_of_what_they_answer() -> None:
    star = SwitchSimulation(oracle(replace(STAR, priorities=(3, 7))))
    found: list[tuple[int, int]] = []
    downlink = star.downlinks[2]
    receive = downlink.receive

    def note(frame: Any, sender: int, to: int) -> None:
        found.append((int(frame[0, STREAM_OFFSET]), to))
        receive(frame, sender, to)

    downlink.receive = note
    waiting = [2 * STAR.workers]

    def done() -> None:
        waiting[0] -= 1
        if not waiting[0]:
            star.network.stop()

    for rank in range(STAR.workers):
        for priority in (7, 3):
            star.launch(rank, np.ones(720, np.int32), "sum", done, priority)
    star.run("both calls")
    assert sorted(found) == [(0, addressed(2, 3))] * 3 + [(1, 2)] * 3  # a description and two chunks each


def test_w2_classes_never_choose_slots() -> None:
    """The same calls leave the same sums in the same slots, whatever the classes."""
    views = []
    for priorities in ((0, 7), (3, 4), (5, 2)):
        star = SwitchSimulation(replace(STAR, priorities=priorities))
        waiting = [2 * STAR.workers]

        def done(star: SwitchSimulation = star, waiting: list[int] = waiting) -> None:
            waiting[0] -= 1
            if not waiting[0]:
                star.network.stop()

        for rank in range(STAR.workers):
            order = list(enumerate(priorities))
            random.Random(rank).shuffle(order)
            for stream, priority in order:
                call = np.arange(5000, dtype=np.int32) * (stream + 1) + rank
                star.launch(rank, call, "sum", done, priority)
        star.run("all calls")
        plane = star.switches["s1"].dataplane
        views.append([plane.seen(slot, version) for slot in range(128) for version in (0, 1)])
    assert views[0] == views[1] == views[2]


def test_a_scenario_s_priority_queues_make_the_links_strict() -> None:
    head = 'name = "n"\ntitle = "t"\n[switch]\ndataplane = "reference"\n[topology]\n'
    assert simulation_config(parse(head + "priority_queues = 8\n", "x.toml")).strict_priority
    assert not simulation_config(parse(head, "x.toml")).strict_priority
