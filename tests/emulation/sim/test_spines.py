"""Several spines in virtual time: flows spread over them, a job's trees have a root each, and sums stay exact."""

from typing import Any

import numpy as np
import pytest

from emulation.scenario.bounds import NetworkParameters, algbw_bound
from emulation.scenario.topologies.topology import Fabric, LinkSettings, Topology, TopologyLink
from emulation.scenario.topologies.topology_kinds import seen_by, topology, trees
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.network.switch_simulation import SwitchSimulation
from emulation.sim.network.timing import time_allreduce
from emulation.sim.spines.spine_trees import TreeEndpoints, jobs_of
from switchagg.errors import AggregationFailed
from switchagg.wire import HEADER_BYTES
from tests.oracles.oracle_network import oracle
from transport.group.method_name import parse as parse_method

RATE_BPS = 200_000_000
SIZE = 20_000
LINK = LinkConfig(RATE_BPS)


def config(spines: int = 2, oversubscription: float = 4, **values: Any) -> SimulationConfig:
    fabric = Fabric(
        values.pop("kind", "leaf_spine"), values.pop("racks", 2), oversubscription, values.pop("placement", "every"),
        spines, values.pop("paths", "spray"),
    )  # fmt: skip
    given = {"dataplane": "reference", "streams": 4, "split_calls": True, "window_slots": 16, "link": LINK, **values}
    return SimulationConfig(given.pop("workers", 8), given.pop("link"), fabric, **given)


def test_up_links_divide_their_rate_and_every_top_joins_all() -> None:
    links = topology(Fabric("leaf_spine", 2, 2.0, spines=4), 8, 0, LinkSettings(RATE_BPS))
    assert [links.settings(("leaf1", top)).rate_bps for top in links.tops] == [RATE_BPS // 2] * 4
    assert links.next_hops("leaf1", "h8") == ("spine1", "spine2", "spine3", "spine4")
    assert [view.path("h1", "h5")[1] for view in links.views] == [("leaf1", top) for top in links.tops]
    pods = topology(Fabric("fat_tree", 8, spines=2), 16, 0, LinkSettings(RATE_BPS))
    assert [tree.root for tree in trees(pods, "every", 0, 1)] == ["core2", "core1"]
    assert {pods.settings(("pod1", core)).rate_bps for core in pods.tops} == {2 * RATE_BPS}
    assert [tree.root for tree in trees(seen_by(pods, ("h1", "h2"), "every"), "every")] == ["leaf1"]
    ends = (TopologyLink(a, b, LinkSettings(1)) for a, b in (("h1", "s3"), ("s1", "s3"), ("s2", "s1")))
    with pytest.raises(ValueError, match="links must form a tree over all nodes below s2"):
        Topology(("h1",), (), ("s1", "s2", "s3"), "s1", tuple(ends), tops=("s1", "s2"))


@pytest.mark.parametrize(
    ("spines", "most", "placement", "share"),
    [(2, 0, "every", 1), (4, 1, "every", 4), (2, 0, "one", 4)],
)
def test_each_tree_carries_its_part_over_a_spine_of_its_own(spines: int, most: int, placement: str, share: int) -> None:
    """share: how often an array's bytes pass the slowest link, at the rate of a host's."""
    given = config(spines, trees=most, placement=placement)
    network = NetworkParameters(8, RATE_BPS, 1500, 360, fabric=given.fabric, trees=most)
    limit = algbw_bound(parse_method("switch"), "int32", network)
    assert limit == pytest.approx(RATE_BPS / 8 * 1440 / 1502 / share)
    found = time_allreduce(given, "switch", 120_000)
    assert (found.wrong_elements, found.retransmissions, found.faults["drop_queue"]) == (0, 0, 0)
    assert 0.75 * limit < found.algbw_bps / 8 <= limit


def test_a_tree_s_packets_cross_its_own_spine_alone() -> None:
    simulation = SwitchSimulation(config(4, trees=2, job_id=3))
    arrays = [np.arange(SIZE, dtype=np.int32) * rank for rank in range(8)]
    waiting = 8

    def done() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            simulation.network.stop()

    for rank, array in enumerate(arrays):
        simulation.launch(rank, array, "sum", done)
    simulation.run("a sum")
    assert all(np.array_equal(array, np.arange(SIZE, dtype=np.int32) * 28) for array in arrays)
    assert simulation.shared.users == {3: "job", 3 + 4096: "job"}
    sent = [simulation.shared.links["leaf1", top].sent_bytes for top in simulation.topology.tops]
    assert sent[:2] == [0, 0]
    assert sent[2] == pytest.approx(sent[3], rel=0.05)
    for tree, job in zip(simulation.trees, jobs_of(simulation.job, 2), strict=True):
        plane = simulation.shared.switches[tree.root].dataplane
        assert plane is not None
        assert plane.counters["broadcast"] == simulation.shared.links["leaf1", tree.root].sent_frames > 0
        assert [stream.window_slots for stream in job.streams] == [16, 16]


@pytest.mark.parametrize(("kind", "racks", "placement"), [("leaf_spine", (5, 2, 1), "every"), ("fat_tree", 4, "one")])
def test_losses_change_no_sum_over_several_trees(kind: str, racks: Any, placement: str) -> None:
    link = LinkConfig(RATE_BPS, loss=0.01, duplicate=0.01, reorder=0.01, corrupt=0.01)
    given = config(3, kind=kind, racks=racks, placement=placement, link=link, strict_priority=kind == "fat_tree")
    found = time_allreduce(given, "switch", 60_000, "float32")
    assert found.wrong_elements == 0 < found.faults["lost"]
    assert 0 < found.retransmissions < 20 * found.faults["lost"]


def test_a_failure_names_the_stream_of_the_job_and_the_rank_in_its_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = SwitchSimulation(oracle(config(2, retry_limit=3)))
    silent = simulation.hosts[5].endpoint
    assert isinstance(silent, TreeEndpoints)
    monkeypatch.setattr(silent._endpoints[1], "frames_to_send", lambda *_: np.empty((0, HEADER_BYTES), np.uint8))
    for rank in range(8):
        for _ in range(4):
            simulation.launch(rank, np.zeros(360, np.int32), "sum", lambda: None)
    with pytest.raises(AggregationFailed) as failed:
        simulation.run("sums")
    assert (failed.value.job, failed.value.stream) == (1, 1)
    assert failed.value.missing == (5,)


def chosen(seed: int, spines: int = 4) -> list[str]:
    """The spines of eight flows from one rack to the other."""
    simulation = SIMULATIONS["ring"](config(spines, paths="hash", seed=seed))
    return [simulation.shared.path(f"h{1 + n % 4}", "h8", (n % 4, 7), n // 4)[1][1] for n in range(8)]


def test_a_flow_takes_the_spine_that_its_hash_and_the_seed_say() -> None:
    assert chosen(1) == chosen(1) != chosen(2)
    counts = [chosen(seed).count("spine1") for seed in range(20)]
    assert 20 < sum(counts) < 60  # 40 of 160
    assert len(set(counts)) > 2  # a hash is uneven


@pytest.mark.parametrize(("method", "tcp"), [("ring", ""), ("ring", "cubic"), ("ps", "")])
def test_host_methods_are_exact_over_hashed_and_sprayed_paths(method: str, tcp: str) -> None:
    took = {}
    for paths in ("spray", "hash"):
        found = time_allreduce(config(4, paths=paths, tcp=tcp), method, 60_000)
        assert found.wrong_elements == 0
        took[paths] = found.algbw_bps / 8
    network = NetworkParameters(8, RATE_BPS, 1500, 360, fabric=config(4).fabric)
    assert took["hash"] < took["spray"] <= algbw_bound(parse_method(method), "int32", network)


def test_what_a_hashed_ring_sends_is_on_the_links_that_it_was_told() -> None:
    simulation = SIMULATIONS["ring"](config(4, paths="hash"))
    done = [0]

    def finished() -> None:
        done[0] += 1
        if done[0] == 8:
            simulation.network.stop()

    for rank in range(8):
        simulation.launch(rank, np.zeros(20_000, np.int32), "sum", finished)
    simulation.run("a sum")
    hop = simulation.shared.path("h4", "h5", (simulation.first + 3, simulation.first + 4))[1]
    carried = {top: simulation.shared.links["leaf1", top].sent_bytes for top in simulation.topology.tops}
    assert carried.pop(hop[1]) > 80_000 * 1.75
    assert max(carried.values()) < 10_000  # acknowledgements of the way back
