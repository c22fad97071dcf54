"""Switches below switches in virtual time: two racks of four workers, whose leaf switches sum for a spine."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulation.scenario.bounds import NetworkParameters, algbw_bound
from emulation.scenario.topologies.topology import Fabric, Hop
from emulation.sim.engine.links import SimulatedLink
from emulation.sim.lossless.lossless_network import LosslessNetwork
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.switch_simulation import SwitchSimulation
from emulation.sim.network.switched_network import SwitchedNetwork
from emulation.sim.network.timing import time_allreduce
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import AggregationFailed
from transport.group.method_name import parse as parse_method

RATE_BPS = 200_000_000
PLANES = [name for name, kind in DATAPLANES.items() if kind.leaf and kind.make and not kind.program]


def config(fabric: Fabric, **values: Any) -> SimulationConfig:
    values = {"dataplane": PLANES[0], **values}
    return SimulationConfig(8, values.pop("link", LinkConfig(RATE_BPS)), fabric=fabric, **values)


def test_hundreds_of_workers_lose_packets_and_nothing_of_the_sum() -> None:
    fabric = Fabric("fat_tree", 16)
    found = time_allreduce(
        SimulationConfig(512, LinkConfig(RATE_BPS, loss=0.001), fabric, dataplane=PLANES[0]), "switch", 7_200
    )
    assert found.wrong_elements == 0 < found.faults["lost"]
    assert found.switch_counters["up_again"] > 0 < found.switch_counters["reply"]


def near(workers: int, racks: int, host_ns: int, link_ns: int = 20, switch_ns: int = 100) -> SimulationConfig:
    """100 Gb/s over short links. host_ns: from a host's program to its link, and back."""
    link = LinkConfig(100_000_000_000, link_ns, 4_000_000)
    plain = SimulationConfig(workers, link, Fabric("leaf_spine", racks), switch_latency_ns=switch_ns)
    built = plain.built()
    links = tuple(
        replace(each, settings=replace(each.settings, delay_ns=link_ns + host_ns))
        if {each.a, each.b} & set(built.hosts)
        else each
        for each in built.links
    )
    return replace(plain, place=replace(built, links=links))


@pytest.mark.parametrize(("method", "steps"), [("switch", 1), ("recursive_doubling", 5)])
def test_a_small_sum_passes_so_many_hosts_one_after_the_other(method: str, steps: int) -> None:
    """So a switch is faster by the logarithm of 32 where hosts are slow; `docs/results/methods.md` has 128."""
    fast, slow = (time_allreduce(near(32, 4, host_ns), method, 8) for host_ns in (300, 1_300))
    assert fast.wrong_elements == slow.wrong_elements == 0
    assert slow.duration_ns - fast.duration_ns == 2 * steps * 1_000


@pytest.mark.parametrize(
    ("method", "oversubscription", "placement", "arrays"),
    [  # the arrays that the busiest link carries at RATE_BPS
        ("switch", 1, "every", 1),
        ("switch", 4, "every", 1),
        ("switch", 4, "one", 4),
        ("ring", 1, "every", 1.75),
        ("ring", 4, "every", 1.75),
    ],
)
def test_a_megabyte_takes_as_long_as_its_bound(
    method: str, oversubscription: float, placement: str, arrays: float
) -> None:
    fabric = Fabric("leaf_spine", 2, oversubscription, placement)
    found = time_allreduce(config(fabric, window_slots=64), method, 1_000_000)
    share = 1440 / 1502 if method == "switch" else 1448 / 1514
    limit = RATE_BPS / 8 * share / arrays
    assert algbw_bound(
        parse_method(method), "int32", NetworkParameters(8, RATE_BPS, 1500, 360, fabric=fabric)
    ) == pytest.approx(limit)
    assert (found.wrong_elements, found.retransmissions, found.faults["drop_queue"]) == (0, 0, 0)
    assert 0.95 * limit < found.algbw_bps / 8 <= limit
    if method == "switch":
        chunks = -(-250_000 // 360) + 1  # one describes the call
        counted = {name: count for name, count in found.switch_counters.items() if count}
        assert counted == (
            {"absorbed": 7 * chunks, "broadcast": chunks}
            if placement == "one"
            else {"absorbed": (3 + 3 + 1) * chunks, "up": 2 * chunks, "broadcast": 3 * chunks}
        )


class LossyNetwork(SwitchedNetwork):
    """losses: what links between these nodes lose, either way."""

    losses: dict[frozenset[str], float]

    def _joined(self, config: LinkConfig, seed: str, hop: Hop) -> SimulatedLink:
        return super()._joined(replace(config, loss=self.losses.get(frozenset(hop), 0.0)), seed, hop)


def lose(monkeypatch: pytest.MonkeyPatch, losses: dict[frozenset[str], float]) -> None:
    """Let networks be such ones."""
    kinds = type("Lossy", (LossyNetwork,), {"losses": losses}), LosslessNetwork
    monkeypatch.setattr(SimulationConfig, "network_kinds", kinds)


UPLINKS = {frozenset(("leaf1", "spine1")): 0.02, frozenset(("leaf2", "spine1")): 0.02}


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("where", ["all links", "up-links"])
def test_losses_at_any_level_change_no_sum(plane: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    link = LinkConfig(RATE_BPS)
    if where == "all links":
        link = LinkConfig(RATE_BPS, loss=0.01, duplicate=0.01, reorder=0.01, corrupt=0.01)
    else:
        lose(monkeypatch, UPLINKS)
    fabric = Fabric("fat_tree" if where == "all links" else "leaf_spine", (5, 3))
    found = time_allreduce(config(fabric, link=link, dataplane=plane, window_slots=32), "switch", 200_000, "float32")
    assert found.wrong_elements == 0
    assert found.faults["lost"] > 0
    assert found.switch_counters["up_again"] > 0
    assert 0 < found.retransmissions < 20 * found.faults["lost"]


def test_a_failure_names_the_worker_behind_another_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, {frozenset(("h6", "leaf2")): 1.0})
    with pytest.raises(AggregationFailed) as failed:
        time_allreduce(config(Fabric("leaf_spine", 2), retry_limit=3), "switch", 4_000)
    assert failed.value.missing == (5,)


def test_a_failure_names_a_whole_rack_whose_leaf_still_holds_an_older_chunk() -> None:
    simulation = SwitchSimulation(config(Fabric("leaf_spine", 2), retry_limit=3, streams=1, window_slots=2))
    waiting = 8

    def done() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            for rank in range(4):
                simulation.launch(rank, np.zeros(360, np.int32), "sum", done)

    for rank in range(8):
        simulation.launch(rank, np.zeros(10 * 360, np.int32), "sum", done)
    with pytest.raises(AggregationFailed) as failed:
        simulation.run("the first rack's second sum")
    assert failed.value.missing == (4, 5, 6, 7)
