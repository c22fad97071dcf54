"""What collectives cost: the model against virtual time, ring against halving–doubling, and what `auto` chooses."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.host_simulation import HostSimulation
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.network.timing import time_allreduce
from switchagg.calls.call_request import CallRequest
from transport.collectives.choice import CANDIDATES, AlgorithmChoice, fit, to_words
from transport.collectives.collective import LinkCost
from transport.collectives.collective_party import HEAD_BYTES
from transport.collectives.cost import predict, switch_seconds, textbook, traffic_factor
from transport.collectives.halving import blocks
from transport.group.method_name import host_methods

GIGABIT = 1_000_000_000
MILLISECOND_NS = 1_000_000


def star(workers: int, delay_ns: int, **values: Any) -> SimulationConfig:
    return SimulationConfig(workers, LinkConfig(GIGABIT, delay_ns), **values)


def link_cost(config: SimulationConfig) -> LinkCost:
    """In closed form: two links and a switch, and the last frame once more on the second link; TCP's framing."""
    frame_s = 1514 * 8 / config.link.rate_bps
    framing = (1514 + 66 / 2) / (1448 * (1 - HEAD_BYTES / config.message_bytes))
    return LinkCost(2 * config.link.delay_ns / 1e9 + frame_s, 8 / config.link.rate_bps * framing)


def measured_s(config: SimulationConfig, method: str, size_bytes: int) -> float:
    timing = time_allreduce(config, method, size_bytes, "float32")
    assert timing.wrong_elements == 0
    return timing.duration_ns / 1e9


# ---- the model


TEXTBOOK = {
    # name: (messages one after the other, bytes over n, bytes added over n) of 8 workers
    "ring": (14, 14 / 8, 7 / 8),
    "naive_ring": (7, 7, 7),
    "halving_doubling": (6, 14 / 8, 7 / 8),
    "recursive_doubling": (3, 3, 3),
    "tree": (6, 6, 3),
    "double_tree": (6, 2, 1),
    "torus": (2 * 3 + 2 * 1, 2 * 3 / 4 + 2 / 8, 7 / 8),
    "hierarchical": (2 * 1 + 2 * 3, 2 * 1 / 2 + 2 * 3 / 8, 7 / 8),
    "direct": (2, 14 / 8, 7 / 8),
}


@pytest.mark.parametrize("algorithm", TEXTBOOK)
def test_the_formulas_are_those_of_the_textbooks(algorithm: str) -> None:
    cost = textbook(algorithm, 8, 1000.0)
    steps, size, reduced = TEXTBOOK[algorithm]
    assert cost == (steps, pytest.approx(size * 1000), pytest.approx(reduced * 1000))
    assert cost.seconds(LinkCost(1.0, 0.001, 0.0001)) == pytest.approx(steps + size + reduced / 10)
    assert textbook(algorithm, 1, 1000.0).seconds(LinkCost(1.0, 1.0)) == 0


def test_more_roots_share_the_load() -> None:
    assert [traffic_factor("direct", 8, roots) for roots in (1, 2, 4, 8)] == [7, 4, 2.5, 1.75]


def halving_doubling_traffic(workers: int) -> Fraction:
    """Two halves inside a block of s ranks, and s-ths of the array with the next larger and the next smaller block."""
    sizes = [size for _, size in blocks(workers)]
    neighbours = [(index > 0) + (index + 1 < len(sizes)) for index in range(len(sizes))]
    return max(Fraction(2 * (size - 1) + more, size) for size, more in zip(sizes, neighbours, strict=True))


TRAFFIC = {
    **dict.fromkeys(("ring", "torus", "hierarchical", "direct"), lambda n: Fraction(2 * (n - 1), n)),
    "naive_ring": lambda n: n - 1,
    "halving_doubling": halving_doubling_traffic,
    "recursive_doubling": lambda n: (n - 1).bit_length(),
    "tree": lambda n: (n - 1).bit_length(),
    "double_tree": lambda n: {1: 0, 2: 1, 3: Fraction(3, 2)}.get(n, 2),
}


@pytest.mark.parametrize("algorithm", TRAFFIC)
def test_the_busiest_port_carries_what_the_closed_form_says(algorithm: str) -> None:
    for workers in range(1, 65):
        assert traffic_factor(algorithm, workers) == TRAFFIC[algorithm](workers), workers  # type: ignore[no-untyped-call]


def test_halving_doubling_on_other_numbers_than_powers_of_two_costs_at_most_twice_the_array() -> None:
    """By hand: of 3 ranks the first two swap halves, and each has half of the third's array to add and give back."""
    assert [traffic_factor("halving_doubling", n) for n in (3, 6, 7)] == [Fraction(3, 2), Fraction(7, 4), 2]


@pytest.mark.parametrize("algorithm", TEXTBOOK)
@pytest.mark.parametrize("workers", [2, 3, 8, 13, 64])
def test_the_model_is_the_textbook_where_messages_are_short_and_the_bound_where_they_are_long(
    algorithm: str, workers: int
) -> None:
    latency = LinkCost(1.0, 0.0)
    if workers in (2, 8, 64):
        assert predict(algorithm, workers, 1000, latency) == pytest.approx(textbook(algorithm, workers, 1000).steps)
    rate = LinkCost(0.0, 1.0)
    per_byte = predict(algorithm, workers, 1e12, rate) / 1e12
    assert per_byte >= float(traffic_factor(algorithm, workers)) * 0.999
    assert per_byte <= max(textbook(algorithm, workers, 1.0).size_bytes, 2.01) * 1.001


STEPWISE = ("ring", "naive_ring", "halving_doubling", "recursive_doubling", "torus", "hierarchical", "direct")


@pytest.mark.parametrize("method", STEPWISE)
@pytest.mark.parametrize(
    ("workers", "size_bytes", "delay_ns"),
    [(8, 65_536, MILLISECOND_NS), (8, 262_144, MILLISECOND_NS), (4, 2_000_000, 0), (8, 65_536, 0)],
)
def test_the_model_agrees_with_virtual_time(method: str, workers: int, size_bytes: int, delay_ns: int) -> None:
    """Within 5 %."""
    config = star(workers, delay_ns)
    model_s = predict(method, workers, size_bytes, link_cost(config))
    assert measured_s(config, method, size_bytes) == pytest.approx(model_s, rel=0.05)


@pytest.mark.parametrize("workers", [3, 5, 6, 7, 12, 64])
@pytest.mark.parametrize("method", [*host_methods(), "ps"])
def test_short_messages_cost_their_latency_on_any_number_of_workers(method: str, workers: int) -> None:
    """Within 5 %, where the delay rules."""
    config = star(workers, 10 * MILLISECOND_NS)
    algorithm = "direct" if method == "ps" else method
    model_s = predict(algorithm, workers, 1000, link_cost(config))
    assert measured_s(config, method, 1000) == pytest.approx(model_s, rel=0.05)


@pytest.mark.parametrize("method", ["tree", "double_tree"])
def test_where_streams_meet_at_a_port_the_model_is_looser(method: str) -> None:
    config = star(4, 0)
    model_s = predict(method, 4, 2_000_000, link_cost(config))
    assert measured_s(config, method, 2_000_000) == pytest.approx(model_s, rel=0.35)


def test_halving_doubling_beats_the_ring_by_the_models_ratio_where_latency_dominates() -> None:
    """64 KB, 8 ranks, 1 ms of delay per link: 14 messages one after the other against 6, the bytes alike."""
    config = star(8, MILLISECOND_NS)
    link = link_cost(config)
    measured = measured_s(config, "ring", 65_536) / measured_s(config, "halving_doubling", 65_536)
    model = textbook("ring", 8, 65_536).seconds(link) / textbook("halving_doubling", 8, 65_536).seconds(link)
    assert model > 2
    assert measured == pytest.approx(model, rel=0.2)
    counts = [time_allreduce(config, method, 65_536).wire_tx_bytes for method in ("ring", "halving_doubling")]
    assert sum(counts[0]) == pytest.approx(sum(counts[1]), rel=0.05)  # heads and acknowledgements apart


def test_halving_doubling_and_ring_are_alike_where_the_rate_dominates() -> None:
    config = star(8, 0)
    assert measured_s(config, "halving_doubling", 2_000_000) == pytest.approx(
        measured_s(config, "ring", 2_000_000), rel=0.03
    )


def test_the_switch_needs_no_more_time_for_more_workers() -> None:
    packet = LinkCost(1502 * 8 / 1e9, 8e-9)
    model_s = switch_seconds(1_440_000, packet, 1502 / 1440)
    for workers in (2, 8):
        assert measured_s(star(workers, 0), "switch", 1_440_000) == pytest.approx(model_s, rel=0.02)


# ---- auto


def test_the_fit_finds_latency_and_rate_despite_outliers() -> None:
    exact = [(size, 50e-6 + size * 8e-9) for size in (0, 1000, 65_536, 1_000_000)]
    assert fit(exact) == (pytest.approx(50e-6), pytest.approx(8e-9), 0)
    noisy = [(size, seconds * factor) for size, seconds in exact for factor in (0.97, 1.0, 1.03, 1.0, 40.0)]
    link = fit(noisy)
    assert link.alpha_s == pytest.approx(50e-6, rel=0.05)
    assert link.beta_s == pytest.approx(8e-9, rel=0.05)
    assert to_words(link) == (round(link.alpha_s * 1e9), round(link.beta_s * 1e15))
    assert fit([(0, 1e-6), (100, 1e-6)]).beta_s > 0
    for bad in ([(0, 1.0)], [(0, 1.0), (8, -1.0)], [(0, 1.0), (8, math.nan)]):
        with pytest.raises(ValueError, match=r"measure"):
            fit(bad)


def test_auto_chooses_by_the_model_and_reports_why() -> None:
    choice = AlgorithmChoice(8, 1_000_000, 8_000_000)
    chosen = [choice.algorithm(size) for size in (100, 500_000, 100_000_000)]
    assert chosen == ["recursive_doubling", "halving_doubling", "ring"]
    assert choice.words(500_000).startswith("auto: halving_doubling for 500000 bytes on 8 workers: 11 ms by the model")
    assert "latency of 1000 us and 1 Gb/s (ring " in choice.words(500_000)
    assert AlgorithmChoice(1, 0, 1).algorithm(1000) == "ring"


@pytest.mark.parametrize("workers", [3, 8])
@pytest.mark.parametrize("size_bytes", [2_000, 300_000])
def test_auto_is_never_much_slower_than_the_best(workers: int, size_bytes: int) -> None:
    config = star(workers, 100_000)
    best_s = min(measured_s(config, name, size_bytes) for name in CANDIDATES)
    assert measured_s(config, "auto", size_bytes) <= 1.1 * best_s


def test_auto_measures_once_at_the_start_and_remembers_its_choices() -> None:
    config = star(4, 100_000)
    auto = SIMULATIONS["auto"](config)
    assert isinstance(auto, HostSimulation)
    assert auto.choice is not None
    assert auto.choice.link.alpha_s == pytest.approx(2 * 100e-6, rel=0.1)
    assert auto.choice.link.beta_s == pytest.approx(link_cost(config).beta_s, rel=0.05)
    for rank in range(4):
        auto.launch(rank, np.ones(100), "sum", lambda: None)
    auto.launch(0, np.ones(1 << 20), "sum", lambda: None)
    assert [note.split(" bytes")[0] for note in auto.notes()] == [
        "auto: recursive_doubling for 800",
        f"auto: ring for {8 << 20}",
    ]


# ---- the star of host methods


@pytest.mark.parametrize("method", [*host_methods(), "ps", "auto"])
def test_a_faulty_network_changes_no_sum_and_the_same_seed_gives_the_same_trace(method: str) -> None:
    link = LinkConfig(GIGABIT, 5_000, loss=0.02, duplicate=0.02, reorder=0.05, corrupt=0.02)
    config = SimulationConfig(workers=5, link=link, seed=3, trace=True, servers=2 if method == "ps" else 0)
    timings = [time_allreduce(config, method, 60_000, "float32") for _ in range(2)]
    assert timings[0] == timings[1]
    assert timings[0].wrong_elements == 0
    assert timings[0].retransmissions > 0
    assert len(timings[0].wire_tx_bytes) == 5


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather", "broadcast", "barrier", "reduce"])
def test_other_collectives_run_in_virtual_time(kind: Any) -> None:
    network = SIMULATIONS["halving_doubling"](star(4, 1000))
    assert isinstance(network, HostSimulation)
    arrays = [np.full(8, float(rank)) for rank in range(4)]
    done: list[int] = []
    for rank, array in enumerate(arrays):
        given = array if kind != "barrier" else array[:0]
        done_by = lambda rank=rank: (done.append(rank), len(done) == 4 and network.network.stop())  # noqa: E731
        network.begin(rank, SimulatedCall(given, CallRequest(kind, root=2), done_by))  # type: ignore[arg-type]
    network.run(kind)
    assert sorted(done) == [0, 1, 2, 3]
    expected = {"reduce_scatter": [6.0, 6.0], "all_gather": [1.0, 1.0], "broadcast": [2.0, 2.0], "barrier": [1.0, 1.0]}
    assert kind == "reduce" or arrays[1][2:4].tolist() == expected[kind]
    assert kind != "reduce" or arrays[2].tolist() == [6.0] * 8


def test_an_urgent_call_overtakes_within_the_credit() -> None:
    """A long call first, then a short urgent one: it waits for the credit and one message, not for the long call."""
    size, credit_bytes = 4_000_000, 131_072
    times: dict[str, int] = {}
    for priority in (None, 0):
        network = SIMULATIONS["ring"](replace(star(2, 0), credit_bytes=credit_bytes))
        arrays = [np.ones(size // 4, np.float32) for _ in range(4)]
        ends: list[int] = []

        def end(network: Any = network, ends: list[int] = ends) -> None:
            ends.append(network.network.now_ns)
            if len(ends) == 2:
                network.network.stop()

        for rank in range(2):
            network.launch(rank, arrays[rank], "sum", lambda: None, key=1)
            network.launch(rank, arrays[2 + rank][:250], "sum", end, priority, 2)
        network.run("the short call")
        times["urgent" if priority == 0 else "in turn"] = max(ends)
    message_ns = 8 * (65_160 + credit_bytes) * 1547 / 1448
    latency_ns = 4 * 1514 * 8
    assert times["urgent"] <= 2 * message_ns + latency_ns  # once for each of its two messages
    assert times["in turn"] > 5 * times["urgent"]


@pytest.mark.parametrize("loss", [0.0, 0.01])
def test_strict_links_carry_an_urgent_call_past_the_queue_of_a_servers_port(loss: float) -> None:
    """Four workers send to one server, whose port is the bottleneck: there, too, the urgent call goes first."""
    ends: dict[bool, int] = {}
    for strict in (False, True):
        link = LinkConfig(GIGABIT, 0, loss=loss)
        network = SIMULATIONS["ps"](SimulationConfig(4, link, servers=1, credit_bytes=65_536, strict_priority=strict))
        arrays = [np.ones(500_000 if number < 4 else 250, np.float32) for number in range(8)]
        left = 4

        def end(network: Any = network) -> None:
            nonlocal left
            left -= 1
            if not left:
                network.network.stop()

        for rank in range(4):
            network.launch(rank, arrays[rank], "sum", lambda: None, 7, 1)
        network.network.schedule(
            10_000_000,
            lambda *_, network=network, end=end, arrays=arrays: [  # type: ignore[misc]
                network.launch(rank, arrays[4 + rank], "sum", end, 0, 2) for rank in range(4)
            ],
        )
        network.run("the urgent call")
        left = 4
        assert all(set(array) == {4.0} for array in arrays[4:])
        ends[strict] = network.network.now_ns - 10_000_000
    assert ends[True] * 2 < ends[False]
    if not loss:
        assert ends[True] < 2 * 8 * (2 * 65_536 + 65_160) * 1.1  # out of each host: its credit, twice, and a message
