"""A tail of a link's delay: its distribution, order, rate, seeds; in scenarios."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from emulation.scenario.scenario import ScenarioError, canonical, parse
from emulation.sim.network.simulated_link import LinkConfig, Tail
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from emulation.sim.network.virtual_clock import VirtualClock
from emulation.sim.simulated_run import simulation_config
from tests.oracles.oracle_links import OracleLink, TailDelays
from tests.oracles.oracle_network import oracle
from tests.oracles.strict_link import OracleStrictLink
from tests.shared.canonical_scenario import from_canonical

TAIL = Tail(3.0, 1_000_000, 100_000)
SCENARIO = """
name = "late"
title = "Late"
[methods]
mininet = []
sim = ["switch"]
[topology]
workers = 2
[faults]
tail = {ratio = 3, p50_ns = 1_000_000, rank = 1}
"""


def test_an_idle_link_has_the_median_and_the_ratio_asked_for() -> None:
    delays = TailDelays(Tail(3.0, 1_000_000, 5_000_000), "a")
    times_ns = range(0, 200_000_000_000, 20_000_000)  # farther apart than delays
    extra = [delays.arrival_ns(at, 0) - at for at in times_ns]
    p50, p99 = np.percentile(extra, [50, 99])
    assert p50 == pytest.approx(1_000_000, rel=0.03)
    assert p99 / p50 == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("kind", [OracleLink, OracleStrictLink])
def test_frames_keep_their_order_and_never_beat_the_rate(kind: type[OracleLink]) -> None:
    arrived: list[tuple[int, int]] = []
    network = VirtualClock()
    config = LinkConfig(1_000_000_000, queue_bytes=10**8, tail=TAIL)
    link = kind(network, config, lambda frame, sender, to: arrived.append((network.now_ns, sender)), "seed")
    for number in range(2000):
        link.send(b"", 1500, 0, number)
    network.schedule(10**9, lambda *_: network.stop())
    network.run("the frames")
    assert [sender for _, sender in arrived] == list(range(2000))
    gaps_ns = [late - early for (early, _), (late, _) in pairwise(arrived)]
    assert min(gaps_ns) >= 12_000
    assert max(gaps_ns) > 100_000, "no burst began"


def test_one_host_alone_is_late_and_a_seed_repeats() -> None:
    def config(**more: Any) -> SimulationConfig:
        return SimulationConfig(3, LinkConfig(10**9, tail=TAIL), trace=True, **more)

    first, again, other = (time_allreduce(config(tail_rank=1, seed=seed), "ring", 100_000) for seed in (1, 1, 2))
    assert first == again
    # ratio, medians and bursts of every size are drawn as Python's `random` draws them
    assert time_allreduce(oracle(config(tail_rank=1)), "ring", 100_000) == first
    for tail in (Tail(100.0, 1, 1_000), Tail(1.5, 999_999_999, 60_000)):
        late = replace(config(), link=LinkConfig(10**7, tail=tail))
        assert time_allreduce(late, "ring", 10_000) == time_allreduce(oracle(late), "ring", 10_000)
    assert first.trace != other.trace
    assert first.wrong_elements == 0
    everywhere = time_allreduce(config(), "ring", 100_000)
    assert (
        everywhere.duration_ns
        > first.duration_ns
        > time_allreduce(SimulationConfig(3, LinkConfig(10**9)), "ring", 100_000).duration_ns
    )


def test_a_scenario_names_it() -> None:
    scenario = parse(SCENARIO, "late.toml")
    config = simulation_config(scenario)
    assert (config.link.tail, config.tail_rank) == (Tail(3.0, 1_000_000, 10_000_000), 1)
    assert from_canonical(canonical(scenario)).faults == scenario.faults
    for old, new, words in (
        ("rank = 1", "rank = 2", "[faults] tail: rank: 2 is out of range; allowed: -1 … 1"),
        ("ratio = 3", "ratio = 0.5", "[faults] tail: ratio: 0.5 is out of range"),
        ("{ratio = 3, p50_ns = 1_000_000, rank = 1}", "3", "[faults] tail: 3 is not allowed; allowed: a table"),
        ("mininet = []", 'mininet = ["switch"]', "[faults] tail: there is none in Mininet"),
    ):
        with pytest.raises(ScenarioError) as refused:
            parse(SCENARIO.replace(old, new), "late.toml")
        assert words in str(refused.value)
