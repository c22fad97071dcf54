"""Methods with bounded loss in virtual time: what they lose is reported, everything else is exact."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emulation.results.results import document, unequal_ranks
from emulation.scenario.scenario import ScenarioError, canonical, parse
from emulation.scenario.topologies.topology import Fabric
from emulation.sim.network.bounded_simulation import BoundedSimulation
from emulation.sim.network.simulated_link import DROPPABLE, LinkConfig, Tail
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from emulation.sim.network.virtual_clock import VirtualClock
from emulation.sim.simulated_run import run_method
from tests.oracles.oracle_links import OracleLink
from tests.oracles.strict_link import OracleStrictLink
from tests.shared.canonical_scenario import from_canonical
from transport.bounded.bounded_packets import BoundedHeader
from transport.bounded.bounded_table import BOUNDED
from transport.bounded.transfers import OutgoingTransfer, SendPlan
from transport.group.method_name import METHODS
from transport.group.method_name import parse as parse_method

LINK = LinkConfig(10**9, 10_000, loss=0.02, corrupt=0.001, duplicate=0.001, tail=Tail(3.0, 200_000, 5_000_000))
METHODS_SIM = 'sim = ["ring", "mlt", "dgt"]\n[topology]'
SCENARIO = """
name = "lost"
title = "Lost"
[methods]
mininet = []
sim = ["ring", "mlt", "dgt"]
[topology]
workers = 2
rate_bps = 10_000_000_000
mtu_bytes = 9000
[faults]
loss = 0.02
[workload]
iterations = 2
warmup_iterations = 1
batch_per_worker = 16
bucket_bytes = 8_000_000
evaluate_every = 2
compute_ns = 1_000_000
[switch]
elements = 2000
[bounded]
dgt_share = 0.0
"""


@pytest.mark.parametrize("method", BOUNDED)
def test_integers_are_exact_and_two_runs_alike(method: str) -> None:
    config = SimulationConfig(3, LINK, trace=True)
    assert time_allreduce(config, method, 30_000, "int32").wrong_elements == 0
    first, again = (time_allreduce(config, method, 120_000, "float32") for _ in range(2))
    assert first == again
    assert first.drop_checksum + first.faults["corrupted"] > 0


@pytest.mark.parametrize("kind", [OracleLink, OracleStrictLink])
def test_a_queue_above_the_threshold_drops_what_may_go_first_and_nothing_else(kind: type[OracleLink]) -> None:
    network, came = VirtualClock(), []
    link = kind(network, LinkConfig(10**9, drop_bytes=2_500), lambda frame, _sender, _to: came.append(frame))
    for number, to in enumerate((0, 0, DROPPABLE, DROPPABLE, 0, DROPPABLE)):
        assert link.send(bytes([number]), 1_000, 0, 0, to) == (number not in (3, 5))
    network.schedule(10**6, lambda *_: network.stop())
    network.run()
    assert came == [b"\0", b"\1", b"\2", b"\4"]
    assert (link.faults["drop_first"], link.faults["drop_queue"]) == (2, 0)


def summed(simulation: BoundedSimulation, sizes: list[int]) -> list[list[np.ndarray]]:
    """Sums of ones of 4 ranks, each more urgent than the one before."""
    calls = [[np.ones(size, np.float32) for _ in range(4)] for size in sizes]
    left = [4 * len(calls)]

    def done() -> None:
        left[0] -= 1
        if not left[0]:
            simulation.network.stop()

    for number, arrays in enumerate(calls):
        for rank, array in enumerate(arrays):
            simulation.launch(rank, array, "sum", done, priority=3 * (len(calls) - number))
    simulation.run("the sums")
    return calls


@pytest.mark.parametrize(("method", "options"), [("mlt", {"tolerance": 0}), ("dgt", {})])
def test_what_is_queued_behind_more_urgent_packets_is_not_lost(method: str, options: dict[str, float]) -> None:
    """Without loss each packet leaves once, whatever overtakes it on an oversubscribed link."""
    racks = Fabric("leaf_spine", racks=2, oversubscription=4.0)
    config = SimulationConfig(4, LinkConfig(10**9, 10_000, queue_bytes=200_000), racks, strict_priority=True)
    simulation = BoundedSimulation(replace(config, bounded=options), method=method)
    calls = summed(simulation, [100_000, 100_000])
    assert all((array == 4).all() for arrays in calls for array in arrays)
    blocks = -(-25_000 * 4 // simulation._bounded[0].party.path.block_bytes)
    assert np.sum(simulation._packets()[0]) == 2 * 2 * 4 * 3 * blocks
    assert simulation._counted()["repeated"] == simulation.faults()["drop_queue"] == 0


@pytest.mark.parametrize("ecn_bytes", [None, 15_000])
def test_every_value_that_a_queue_dropped_is_counted(ecn_bytes: int | None) -> None:
    """Of sums of ones: what they lack was lost on its way up, and what is 0 was lost on its way down."""
    racks = Fabric("leaf_spine", racks=2, oversubscription=4.0)
    config = SimulationConfig(4, LinkConfig(10**9, 10_000, drop_bytes=20_000, ecn_bytes=ecn_bytes), racks)
    simulation = BoundedSimulation(replace(config, bounded={"tolerance": 0.3}), method="mlt")
    (arrays,) = summed(simulation, [60_000])
    simulation.network.schedule(simulation.network.now_ns + 10**9, lambda *_: simulation.network.stop())
    simulation.run("what is on its way")
    counted = sum((host.party.counters for host in simulation._bounded), Counter())
    own = [arrays[rank][rank * 15_000 : (rank + 1) * 15_000] for rank in range(4)]
    assert (counted["marked"] > 0) == (ecn_bytes is not None)
    assert counted["lost_up"] == sum(int((4 - sums).sum()) for sums in own) > 0
    assert counted["lost_down"] == sum(int(np.count_nonzero(array == 0)) for array in arrays)
    sums = np.concatenate(own)
    assert all(((array == sums) | (array == 0)).all() for array in arrays)
    left, came = (np.sum(each, axis=0) for each in simulation._packets())
    faults = simulation.faults()
    assert (left - came).tolist() == [0, faults["drop_first"]] == [faults["drop_queue"], faults["drop_first"]]
    told = simulation.gradient_loss()
    assert (told["kept"], told["droppable"]) == (0, (left[1] - came[1]) / left[1])
    assert told["droppable"] > 0
    assert {link.config.drop_bytes for link in simulation.uplinks} == {None}  # a host's own queue waits instead


def test_what_was_asked_for_again_is_kept() -> None:
    plan = SendPlan(np.zeros(2, np.bool_), np.arange(2), 7, np.array([True, False]), probes=True)
    out = OutgoingTransfer(1, BoundedHeader(0, 0, 0), plan, np.zeros(2, np.float32), 4, (0, 0))
    assert [out.may_drop(out.next_block()) for _ in range(2)] == [True, False]
    out.missing(0, b"\1")
    assert not out.may_drop(out.next_block())


@pytest.mark.parametrize("strict", [False, True])
def test_without_loss_only_mlt_gives_anything_away(strict: bool) -> None:
    config = SimulationConfig(3, LinkConfig(10**9, 10_000), strict_priority=strict)
    wrong = {method: time_allreduce(config, method, 120_000, "float32").wrong_elements for method in BOUNDED}
    assert wrong.pop("mlt") > 0
    assert not any(wrong.values())


def test_results_say_what_was_lost_and_ranks_may_differ_where_the_method_allows_it() -> None:
    scenario = parse(SCENARIO, "lost.toml")
    assert from_canonical(canonical(scenario)).bounded == scenario.bounded
    results = [run_method(scenario, method, Path(), lambda *_: None) for method in scenario.methods.sim]
    entries = {str(entry["method"]): entry for entry in document(scenario, "sim", results)["methods"]}
    assert "gradient_loss" not in entries["ring"]
    assert not any(map(unequal_ranks, entries.values()))
    for method in ("mlt", "dgt"):
        lost = entries[method]["gradient_loss"]
        assert 0 < lost["up"] < 0.2
        same = entries[method]["summary"]["parameters_identical"]
        assert same == (method == "dgt") == (lost["down"] == 0)
        assert METHODS[method].differ == (not same)
    entries["dgt"]["summary"]["parameters_identical"] = False
    assert unequal_ranks(entries["dgt"])


def test_what_they_cannot_be_is_refused_in_one_line() -> None:
    for old, new, words in (
        ('"ring"', '"optireduce~lanes8"', "method optireduce sends float32 and loses some of it: it takes no codec"),
        ("dgt_share = 0.0", "dgt_share = 2", "[bounded] dgt_share: 2 is out of range; allowed: 0 … 1 (of blocks)"),
        ("workers = 2", "workers = 2\ndrop_bytes = 1_000_000", "drop_bytes: 1000000 is out of range; allowed: below"),
        (
            f"[]\n{METHODS_SIM}",
            '["gloo"]\n[topology]\ndrop_bytes = 9',
            "drop_bytes: no queue in Mininet knows what may go",
        ),
        (
            METHODS_SIM,
            'sim = ["ltp"]\n[topology]\ndrop_bytes = 9',
            "none of the methods says what may go first; allowed: 0",
        ),
        ("dgt_share = 0.0", 'divide = "all"', "[bounded] divide: 'all' is unknown; allowed: paper, arrived, workers"),
    ):
        with pytest.raises(ScenarioError) as refused:
            parse(SCENARIO.replace(old, new), "lost.toml")
        assert len(str(refused.value).splitlines()) == 1
        assert words in str(refused.value)
    fsdp = SCENARIO.replace("[workload]", '[workload]\nname = "fsdp"')
    with pytest.raises(ScenarioError, match=r"mlt: not with \[workload\] name = 'fsdp'.*any other method"):
        parse(fsdp.replace('"ring", ', ""), "lost.toml")
    assert str(parse_method("ltp+p3")) == "ltp+p3"
    assert np.isclose(parse(SCENARIO, "lost.toml").bounded.options("mlt")["tolerance"], 0.1)
