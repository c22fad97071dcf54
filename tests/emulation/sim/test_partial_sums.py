"""Method `switch` with partial sums in virtual time: a slow rank holds up nobody, all keep the same bits."""

from pathlib import Path

import pytest

from emulation.results.results import MethodResult
from emulation.scenario.scenario import Scenario, ScenarioError, parse
from emulation.sim.simulated_run import run_method
from transport.group import method_name

SCENARIO = """
name = "slow"
title = "a slow rank"
seed = {seed}
[methods]
mininet = []
sim = ["switch"]
[topology]
workers = 3
rate_bps = 1_000_000_000
[switch]
{switch}
[faults]
stragglers = [{{ rank = 2, factor = 3 }}]
[workload]
name = "images"
iterations = 3
warmup_iterations = 1
batch_per_worker = 4
evaluate_every = 3
compute_ns = 60_000_000
"""


def scenario(switch: str, seed: int = 1) -> Scenario:
    return parse(SCENARIO.format(switch=switch, seed=seed), "slow.toml")


def trained(one: Scenario, method: str) -> MethodResult:
    return run_method(one, method_name.parse(method), Path(), lambda *_: None)


def mean_ns(result: MethodResult) -> float:
    return sum(record.duration_ns for record in result.iterations[1:]) / (len(result.iterations) - 1)


def test_nobody_waits_for_a_slow_rank() -> None:
    """A full sum would take three times what the others compute."""
    result = trained(scenario("backups = 1"), "switch~lanes8+ef")
    assert 60_000_000 < mean_ns(result) < 1.5 * 60_000_000
    assert len(set(result.parameter_hash_per_rank)) == 1
    assert result.switch_counters["abstained"] > 0
    held = result.partial_sums
    assert (held["ranks_mean"], held["ranks_least"]) == (2, 2)


def test_a_chunk_is_closed_on_request() -> None:
    result = trained(scenario("close_after_ns = 3_000_000"), "switch~rotated8+ef")
    assert len(set(result.parameter_hash_per_rank)) == 1
    assert result.switch_counters["drop_late"] > 0


def test_a_packet_lost_on_its_way_up_is_missing_once_its_chunk_is_closed() -> None:
    """Bounded loss through the switch: nobody waits for it longer than that; with what is lost down all wait."""
    text = SCENARIO.format(switch="close_after_ns = 400_000", seed=1)
    lossy = text.replace("stragglers = [{ rank = 2, factor = 3 }]", "loss = 0.02")
    result = trained(parse(lossy, "slow.toml"), "switch~lanes8+ef")
    assert 2.5 < result.partial_sums["ranks_mean"] < 3 - 0.005
    assert len(set(result.parameter_hash_per_rank)) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"backups": 3}, "fewer than there are"),
        ({"backups": 1, "dataplane": "p4"}, "not with dataplane"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_line(change: dict[str, object], words: str) -> None:
    text = "\n".join(f"{name} = {value!r}" for name, value in change.items())
    with pytest.raises(ScenarioError, match=words):
        scenario(text)


@pytest.mark.parametrize(("method", "words"), [("switch~lanes8+ef21", "ef21"), ("switch~topk", "codecs of rows")])
def test_codecs_that_need_all_ranks_are_refused(method: str, words: str) -> None:
    text = SCENARIO.format(switch="backups = 1", seed=1).replace('sim = ["switch"]', f'sim = ["{method}"]')
    with pytest.raises(ScenarioError, match=words):
        parse(text, "slow.toml")


def test_trees_and_links_whose_packets_have_one_size_are_refused() -> None:
    text = SCENARIO.format(switch="backups = 1", seed=1)
    for wrong, words in (
        (text.replace("workers = 3", 'workers = 4\nkind = "leaf_spine"\nracks = 2'), "a tree of switches"),
        (text.replace("mininet = []", 'mininet = ["switch@rdma"]'), r"mininet: switch@rdma: .*allowed: zeromq, udp"),
    ):
        with pytest.raises(ScenarioError, match=words):
            parse(wrong, "slow.toml")
