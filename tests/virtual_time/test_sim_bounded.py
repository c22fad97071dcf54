"""Methods with bounded loss in virtual time: what they lose is reported, everything else is exact."""

from pathlib import Path

import numpy as np
import pytest

from emulation.results import document, unequal_ranks
from emulation.scenario import ScenarioError, canonical, from_canonical, parse
from emulation.sim.network.link import LinkConfig, Tail
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from emulation.sim.run import run_method
from transport.bounded.table import BOUNDED
from transport.group.method_name import METHODS
from transport.group.method_name import parse as parse_method

LINK = LinkConfig(10**9, 10_000, loss=0.02, corrupt=0.001, duplicate=0.001, tail=Tail(3.0, 200_000, 5_000_000))
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
        ("dgt_share = 0.0", 'divide = "all"', "[bounded] divide: 'all' is unknown; allowed: paper, arrived, workers"),
    ):
        with pytest.raises(ScenarioError) as refused:
            parse(SCENARIO.replace(old, new), "lost.toml")
        assert words in str(refused.value)
    fsdp = SCENARIO.replace("[workload]", '[workload]\nname = "fsdp"')
    with pytest.raises(ScenarioError, match=r"mlt: not with \[workload\] name = 'fsdp'.*any other method"):
        parse(fsdp.replace('"ring", ', ""), "lost.toml")
    assert str(parse_method("ltp+p3")) == "ltp+p3"
    assert np.isclose(parse(SCENARIO, "lost.toml").bounded.options("mlt")["tolerance"], 0.1)
