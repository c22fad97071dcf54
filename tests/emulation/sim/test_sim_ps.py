"""Training with a scenario's parameter servers in virtual time: exact means, bytes of every link, bounds, modes."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch")

from test_sim_run import CountingReplicas, scenario

from emulation.results.results import document, summary
from emulation.scenario.compute import ComputeTimes
from emulation.scenario.scenario import Scenario
from emulation.sim.network.ps_simulation import PsSimulation
from emulation.sim.simulated_run import simulation_config
from emulation.sim.simulated_training import Training
from transport.group.method_name import parse
from transport.ps.sharding import Sharding

FRAMED = 1514 / 1448


def train(given: Scenario, *sizes: int) -> tuple[Any, CountingReplicas, PsSimulation]:
    """All buckets are ready at the end of the backward pass."""
    replicas = CountingReplicas(given.topology.workers, sizes, (1.0,) * len(sizes))
    simulation = PsSimulation(simulation_config(given))
    training = Training(given, simulation, replicas, ComputeTimes(given), lambda *_: None)  # type: ignore[arg-type]
    training.run()
    return training.result(parse("ps"), []), replicas, simulation


def means(replicas: CountingReplicas, iteration: int, ranks: tuple[int, ...]) -> list[np.ndarray]:
    """Of each bucket, over these ranks."""
    gradients = [replicas.gradients_of(rank, iteration) for rank in ranks]
    return [np.sum(parts, axis=0, dtype=np.float32) / np.float32(len(ranks)) for parts in zip(*gradients, strict=True)]


@pytest.mark.parametrize("servers", [0, 1, 2, 4])
def test_every_rank_applies_the_exact_mean_whatever_the_servers(servers: int) -> None:
    _, replicas, simulation = train(scenario(workers=4, loss=0.01, ps__servers=servers), 50_000, 1, 777)
    assert len(simulation.servers) == servers
    assert len(replicas.applied) == 4 * 4
    for (_, iteration), applied in replicas.applied.items():
        expected = means(replicas, iteration, (0, 1, 2, 3))
        assert all(np.array_equal(got, mean) for got, mean in zip(applied, expected, strict=True))


@pytest.mark.parametrize(
    ("servers", "factor", "least"), [(0, 1.5, 0.93), (1, 4.0, 0.93), (2, 2.0, 0.93), (4, 1.0, 0.87), (7, 1.0, 0.87)]
)
def test_the_bound_of_the_busiest_link_is_nearly_met_and_never_beaten(
    servers: int, factor: float, least: float
) -> None:
    given = scenario(workers=4, compute_ns=0, iterations=2, ps__servers=servers)
    result, _, _ = train(given, 1_000_000)
    numbers = summary(given, result)
    assert numbers["bound"]["traffic_factor"] == factor
    assert least < numbers["share_of_bound"] <= 1


@pytest.mark.parametrize("servers", [1, 2, 3, 4])
def test_each_link_carries_its_share(servers: int) -> None:
    """A worker pushes each byte once and gets it once; a server has its slices n times each way. Frames that are not
    full, heads and acknowledgements add a little."""
    given = scenario(workers=4, iterations=3, warmup_iterations=1, ps__servers=servers)
    sizes = (500_000, 100_000)
    result, _, simulation = train(given, *sizes)
    numbers = summary(given, result)
    framed = 4 * sum(sizes) * FRAMED
    assert numbers["bound"]["wire_bytes_per_rank"] == pytest.approx(framed, rel=1e-12)
    assert numbers["bound_wire_bytes_per_server"] == pytest.approx(framed * 4 / servers, rel=1e-12)
    for counted in (result.wire_tx_bytes_per_rank, result.wire_rx_bytes_per_rank):
        assert all(framed <= one / 2 <= 1.03 * framed for one in counted)
    sharding = Sharding(servers, simulation.workers[0].config.slice_elements)
    shares = [0] * servers
    for key, size in enumerate(sizes):
        for part in sharding.cut(key, size):
            shares[part.server] += 4 * (part.high - part.low)
    assert max(shares) <= 1.001 * 4 * sum(sizes) / servers, "long arrays are spread evenly"
    for counted in (result.wire_tx_bytes_per_server, result.wire_rx_bytes_per_server):
        for share, one in zip(shares, counted, strict=True):
            assert 4 * share * FRAMED <= one / 2 <= 1.03 * 4 * share * FRAMED


def test_results_speak_of_servers_only_where_there_are_any() -> None:
    without, with_two = (
        document(given, "sim", [train(given, 5000)[0]])["methods"][0]
        for given in (scenario(workers=3), scenario(workers=3, ps__servers=2))
    )
    assert not any("per_server" in key for key in (*without, *without["summary"]))
    assert len(with_two["wire_tx_bytes_per_server"]) == 2
    assert with_two["summary"]["wire_rx_bytes_per_server_iteration"] > 0


@pytest.mark.parametrize("servers", [0, 1, 2])
def test_backup_divides_by_the_workers_that_a_sum_holds_on_every_rank_alike(servers: int) -> None:
    """Each slice of a bucket is the mean of some three of four workers, the same on all ranks."""
    given = scenario(workers=4, ps__mode="backup", ps__backups=1, ps__servers=servers)
    _, replicas, simulation = train(given, 40_000, 9)
    assert simulation.mean_op == "avg"
    for iteration in range(4):
        threes = [means(replicas, iteration, tuple({0, 1, 2, 3} - {left})) for left in range(4)]
        for bucket, first in enumerate(replicas.applied[0, iteration]):
            for rank in range(1, 4):
                assert np.array_equal(replicas.applied[rank, iteration][bucket], first)
            matching = np.array([three[bucket] == first for three in threes])
            assert matching.any(axis=0).all(), "slice by slice"


@pytest.mark.parametrize("servers", [0, 2])
def test_a_steady_straggler_drops_its_stale_gradients_and_holds_up_nobody(servers: int) -> None:
    """A rank three times slower: its pushes stay off the wire, and all ranks apply the same."""
    how = {"ps__mode": "backup", "ps__backups": 1, "ps__servers": servers}
    given = scenario(workers=4, compute_ns=5_000_000, iterations=30, **how)
    even, _, other = train(given, 40_000, 9)
    even_end_ns = other.network.now_ns
    slow = [{"rank": 2, "factor": 3}]
    given = scenario(workers=4, compute_ns=5_000_000, iterations=30, faults__stragglers=slow, **how)
    result, replicas, simulation = train(given, 40_000, 9)
    counted = sum((Counter(one.counters) for one in (*simulation.workers, *simulation.servers)), Counter())
    assert counted["late_pushes"] == 0
    assert counted["pushes_saved"] >= counted["spared_pushes"] > 0, "the last heads may be on their way"
    for ours, theirs in zip(result.iterations[1:], even.iterations[1:], strict=True):
        assert ours.duration_ns <= 1.1 * theirs.duration_ns  # none of four is spare
        assert ours.compute_ns == 5_000_000
    times = [sum(record.communication_ns for record in each.iterations[1:]) for each in (even, result)]
    assert 0.5 * times[0] <= times[1] <= 1.1 * times[0]
    assert simulation.network.now_ns <= 1.1 * even_end_ns + 2 * 15_000_000, "the last gradient of the slow one is late"
    for iteration in range(30):
        expected = means(replicas, iteration, (0, 1, 3))
        for rank in range(4):
            assert all(map(np.array_equal, replicas.applied[rank, iteration], expected))


def test_backup_is_bounded_by_the_pushes_that_a_sum_waits_for() -> None:
    given = scenario(workers=4, compute_ns=0, iterations=2, ps__mode="backup", ps__backups=2, ps__servers=1)
    result, _, _ = train(given, 1_000_000)
    numbers = summary(given, result)
    assert numbers["bound"]["traffic_factor"] == 2.0
    assert numbers["share_of_bound"] <= 1
    assert 3.9 < result.wire_rx_bytes_per_server[0] / (4_000_000 * FRAMED) < 4.2, "what is late on the way crosses, too"
