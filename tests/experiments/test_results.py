"""Results: derived numbers on exact examples, bounds, and bytes that never change."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from example_results import SCENARIO, FakeCertificate, result

from emulation.errors import RunFailed
from emulation.results import codec_notes, comparison, document, percentile, summary, write_json
from emulation.scenario import Scenario, parse
from transport.group.method_name import parse as parse_method


def test_percentile_interpolates() -> None:
    assert percentile([3], 0.9) == 3
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert percentile(range(11), 0.1) == 1
    assert percentile(range(11), 0.9) == 9


def test_summary_leaves_warm_up_out() -> None:
    derived = summary(SCENARIO, result("ring", 200_000_000))
    assert derived["counted_iterations"] == 3
    assert derived["iteration_ns"] == {"median": 210_000_000, "p10": 210_000_000, "p90": 210_000_000}
    assert derived["exposed_communication_ns"]["median"] == 200_000_000
    assert derived["algbw_bytes_per_s"] == 5_000_000
    assert derived["wire_tx_bytes_per_rank_iteration"] == 1_100_000  # the rank that sent most
    assert derived["wire_rx_bytes_per_rank_iteration"] == 1_000_000
    assert derived["training_ns"] == 13 * 210_000_000
    assert (derived["final_accuracy"], derived["final_loss"], derived["final_training_loss"]) == (0.975, 0.25, 0.5)
    assert derived["share_of_bound"] == pytest.approx(1.5e6 * 1514 / 1448 * 80 / 200e6, rel=1e-12)
    assert derived["parameters_identical"] is True


def test_summary_shows_ranks_that_disagree() -> None:
    differing = result("ring", 1_000, parameter_hash_per_rank=["ab", "ab", "ac", "ab"])
    assert summary(SCENARIO, differing)["parameters_identical"] is False


def test_summary_without_counted_iterations_fails_by_name() -> None:
    with pytest.raises(RunFailed, match="ring: no iteration was measured"):
        summary(SCENARIO, result("ring", 1_000, iterations=result("ring", 1_000).iterations[:1]))


def test_iterations_of_a_training_method_are_means_over_its_rounds() -> None:
    """Two of five iterations, after the warm-up; what doesn't fill a round is left out, unless that is all."""
    base = result("ring", 1_000)
    warm_up, first = SCENARIO.workload.warmup_iterations, base.iterations[-1]
    takes = [(10, 0), (20, 6), (10, 0), (40, 18), (70, 70)]
    later = [
        dataclasses.replace(first, iteration=warm_up + i, duration_ns=d, communication_ns=c)
        for i, (d, c) in enumerate(takes)
    ]
    found = {}
    for of in (2, 10):
        here = dataclasses.replace(base, iterations=later, environment={"round_iterations": of})
        derived = summary(SCENARIO, here)
        assert derived["counted_iterations"] == 5
        found[of] = [derived[key]["median"] for key in ("iteration_ns", "communication_ns")]
    assert found == {2: [20, 6], 10: [30, 19]}


def test_a_baseline_that_computed_for_longer_is_compared_at_equal_compute() -> None:
    """Most of the 12.7 as measured is compute, which no method changes."""
    slow, switch = summary(SCENARIO, result("ring", 50_000_000)), summary(SCENARIO, result("switch", 5_000_000))
    slow["compute_ns"]["median"] += 130_000_000
    slow["iteration_ns"]["median"] += 130_000_000
    compared = comparison(slow, switch)
    assert compared["iteration_speedup"] == 190 / 15
    assert (compared["compute_ratio"], compared["compute_alike"]) == (1 / 14, False)
    assert compared["iteration_speedup_at_equal_compute"] == 190 / 145


def test_comparison_explains_a_speedup_beyond_the_bound() -> None:
    slow_baseline = summary(SCENARIO, result("ring", 250_000_000))
    switch = summary(SCENARIO, result("switch", 100_000_000))
    compared = comparison(slow_baseline, switch)
    assert compared["iteration_speedup"] == 260 / 110
    assert (compared["compute_ratio"], compared["compute_alike"]) == (1, True)
    assert compared["iteration_speedup_at_equal_compute"] == 260 / 110
    assert compared["communication_speedup"] == 2.5
    assert compared["iteration_speedup_if_communication_were_free"] == 26
    assert compared["communication_speedup_bound"] == pytest.approx(1.5 * 1514 / 1448 / (1502 / 1440 * 361 / 360))
    assert compared["beyond_bound"] is True
    assert compared["relative_efficiency"] == pytest.approx(
        switch["share_of_bound"] / slow_baseline["share_of_bound"], rel=1e-12
    )
    assert comparison(summary(SCENARIO, result("ring", 140_000_000)), switch)["beyond_bound"] is False


def test_document_compares_with_the_baseline_of_the_same_run() -> None:
    built = document(SCENARIO, "sim", [result("ring", 150_000_000), result("switch", 100_000_000)])
    assert str(built["baseline"]) == "ring"
    assert built["valid"] is None
    assert [str(entry["method"]) for entry in built["methods"]] == ["ring", "switch"]
    assert built["methods"][0]["comparison"] is None
    assert built["methods"][1]["comparison"]["communication_speedup"] == 1.5
    assert built["scenario"]["topology"]["workers"] == 4


def test_document_is_invalid_if_one_certificate_is() -> None:
    good, bad = FakeCertificate(True, []), FakeCertificate(False, ["gap p99 40 %, bound 10 %"])
    gloo = result("gloo", 150_000_000, "mininet", certificate=good)
    assert document(SCENARIO, "mininet", [gloo])["valid"] is True
    switch = result("switch", 100_000_000, "mininet", certificate=bad)
    assert document(SCENARIO, "mininet", [gloo, switch])["valid"] is False


def test_document_with_one_worker_has_no_bound_to_reach() -> None:
    alone: Scenario = parse(
        'name = "t"\ntitle = "t"\n[topology]\nworkers = 1\n[workload]\nwarmup_iterations = 1\n', "t"
    )
    built = document(alone, "sim", [result("ring", 0), result("switch", 100)])
    assert built["methods"][0]["summary"]["share_of_bound"] is None
    assert built["methods"][1]["comparison"]["communication_speedup_bound"] == 0


def test_same_document_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_json(tmp_path / name, document(SCENARIO, "sim", [result("switch", 100_000_000)]))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_json_is_sorted_finite_and_ends_with_a_newline(tmp_path: Path) -> None:
    value = {"b": math.nan, "a": np.float64(0.1), "c": np.arange(2), "d": (math.inf, 1)}
    write_json(tmp_path / "x.json", value)
    assert (tmp_path / "x.json").read_text() == (
        '{\n "a": 0.1,\n "b": null,\n "c": [\n  0,\n  1\n ],\n "d": [\n  null,\n  1\n ]\n}\n'
    )
    assert json.loads((tmp_path / "x.json").read_text())["a"] == 0.1


def test_a_codec_without_the_feedback_that_it_needs_is_noted() -> None:
    said = "Codec topk without error feedback: training may stall or diverge; with it: topk+ef."
    assert codec_notes(SCENARIO, parse_method("ring~topk"))[1:] == [said]
    assert all(len(codec_notes(SCENARIO, parse_method(name))) == 1 for name in ("ring~topk+ef", "ring~lanes8"))
