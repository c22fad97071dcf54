"""A job in virtual time that loses its switch: every sum is exact, and it goes over hosts and back."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from emulation.scenario.scenario_tables import LostSwitch
from emulation.scenario.topologies.topology import Fabric
from emulation.sim.failover.failover_simulation import FailoverSimulation
from emulation.sim.failover_terms import FailoverTerms
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from switchagg.errors import AggregationFailed

LEASE_NS = 1_000_000_000
ELEMENTS = 30_000


def config(*losses: LostSwitch, fallback: str = "ring", **changes: object) -> SimulationConfig:
    """A job of three on slow links: a call takes about 60 ms."""
    terms = FailoverTerms(fallback, 0, LEASE_NS, losses)
    job = SimulationConfig(3, LinkConfig(20_000_000, 10_000), window_slots=16, dataplane="native", failover=terms)
    return replace(job, **changes)  # type: ignore[arg-type]


class Summing:
    """Ranks that sum floats until `until_ns`, two arrays in flight. sums: each rank's bytes, by a call's number."""

    def __init__(self, job: SimulationConfig, until_ns: int) -> None:
        self.simulation = SIMULATIONS["switch"](job)
        self.sums: list[dict[int, bytes]] = [{} for _ in range(job.workers)]
        self.ended_ns: list[list[int]] = [[] for _ in range(job.workers)]
        self._until_ns, self._last, self._open = until_ns, 0, 0
        for rank in range(job.workers):
            self.simulation.network.schedule(0, lambda _f, rank, _t: self._begin(rank), None, rank)
        self.simulation.run("sums")

    def _begin(self, rank: int) -> None:
        first = len(self.sums[rank])
        for number in (first, first + 1):
            array = given(rank, number)
            self._open += 1
            self.simulation.launch(rank, array, "sum", partial(self._ended, rank, number, array))

    def _ended(self, rank: int, number: int, array: NDArray[np.float32]) -> None:
        now_ns, sums = self.simulation.network.now_ns, self.sums[rank]
        self._open -= 1
        sums[number] = array.tobytes()
        self.ended_ns[rank].append(now_ns)
        if len(sums) % 2 == 0:
            if now_ns < self._until_ns or len(sums) < self._last:
                self._last = max(self._last, len(sums) + 2)
                self._begin(rank)
            elif not self._open:
                self.simulation.network.stop()


def given(rank: int, number: int) -> NDArray[np.float32]:
    """What a rank gives to a call."""
    return np.random.default_rng((rank, number)).normal(size=ELEMENTS).astype(np.float32)


def assert_as_undisturbed(run: Summing, job: SimulationConfig) -> None:
    """Its sums have the bits of a job whose switch lives."""
    whole = replace(job, failover=None, link=replace(job.link, loss=0, duplicate=0, reorder=0, corrupt=0))
    other = Summing(whole, run.ended_ns[0][-1] // 4).sums[0]
    common = other.keys() & run.sums[0].keys()
    assert len(common) >= 4
    for rank, sums in enumerate(run.sums):
        assert all(sums[number] == other[number] for number in common), f"rank {rank}"


@pytest.mark.parametrize("at_ns", [212_345_678, 230_000_000, 271_828_182])
def test_a_job_goes_over_hosts_and_back_with_the_same_bits(at_ns: int) -> None:
    job = config(LostSwitch(at_ns, at_ns + 1_800_000_000), seed=at_ns)
    run = Summing(job, 4_000_000_000)
    simulation = run.simulation
    assert isinstance(simulation, FailoverSimulation)
    for rank in simulation.ranks:
        assert rank.counts["recoveries"] == rank.counts["moves_to_switch"] == 1
        assert rank.counts["recovered_calls"] > 0
    for ended_ns in run.ended_ns:
        assert LEASE_NS < min(ns - at_ns for ns in ended_ns if ns > at_ns + LEASE_NS // 2) < 2 * LEASE_NS
    assert_as_undisturbed(run, job)


def test_links_that_lose_and_repeat_packets_change_no_bit() -> None:
    link = LinkConfig(20_000_000, 10_000, loss=0.02, duplicate=0.02, reorder=0.02, corrupt=0.01)
    job = config(LostSwitch(250_000_000, 2_000_000_000), link=link)
    assert_as_undisturbed(Summing(job, 3_500_000_000), job)


def test_a_leaf_that_dies_ends_no_job() -> None:
    job = config(LostSwitch(300_000_000, 2_500_000_000, "leaf1"), workers=4, fabric=Fabric("leaf_spine", 2))
    run = Summing(job, 6_000_000_000)
    assert isinstance(run.simulation, FailoverSimulation)
    assert [rank.counts["moves_to_switch"] for rank in run.simulation.ranks] == [1] * 4
    assert_as_undisturbed(run, job)


def test_an_undisturbed_run_takes_as_long_as_without_a_fallback() -> None:
    runs = [Summing(job, 300_000_000) for job in (config(), config(failover=None))]
    assert runs[0].ended_ns == runs[1].ended_ns
    assert runs[0].sums == runs[1].sums


def test_without_a_fallback_the_job_ends_and_names_the_switch() -> None:
    with pytest.raises(AggregationFailed, match=r"switch tcp://switch0 has not answered for 1\.\d s"):
        Summing(config(LostSwitch(250_000_000), fallback=""), 3_000_000_000)


def test_a_switch_that_was_restarted_at_once_does_not_know_the_job() -> None:
    with pytest.raises(AggregationFailed, match="does not know this job any more: it was restarted"):
        Summing(config(LostSwitch(250_000_000, 260_000_000), fallback=""), 3_000_000_000)
