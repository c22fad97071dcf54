"""Results: derived numbers on exact examples, bounds, and bytes that never change."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_results import SCENARIO, FakeCertificate, result

from emulation.report import wording
from emulation.results.results import IterationRecord, codec_notes, document, percentile, summary, write_json
from emulation.results.speedups import comparison, interval, resolved
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario, parse
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
    assert compared["communication_speedup_bound"] == pytest.approx(1.5 * 1514 / 1448 / (1502 / 1428 * 361 / 360))
    assert compared["beyond_bound"] is True
    assert compared["relative_efficiency"] == pytest.approx(
        switch["share_of_bound"] / slow_baseline["share_of_bound"], rel=1e-12
    )
    assert comparison(summary(SCENARIO, result("ring", 140_000_000)), switch)["beyond_bound"] is False


def test_document_compares_with_the_baseline_of_the_same_run() -> None:
    built = document(SCENARIO, "sim", [result("ring", 150_000_000), result("switch", 100_000_000)])
    assert str(built["baseline"]) == "ring"
    assert built["verdict"] is None
    assert [str(entry["method"]) for entry in built["methods"]] == ["ring", "switch"]
    assert built["methods"][0]["comparison"] is None
    assert built["methods"][1]["comparison"]["communication_speedup"] == 1.5
    assert built["scenario"].topology.workers == 4


def test_document_is_invalid_if_one_certificate_is() -> None:
    good, bad = FakeCertificate(True, []), FakeCertificate(False, ["gap p99 40 %, bound 10 %"])
    gloo = result("gloo", 150_000_000, "mininet", certificate=good)
    assert document(SCENARIO, "mininet", [gloo])["verdict"] == "VALID"
    switch = result("switch", 100_000_000, "mininet", certificate=bad)
    assert document(SCENARIO, "mininet", [gloo, switch])["verdict"] == "INVALID"


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


# ---- what may be quoted


def computing(summary_: dict[str, Any], compute_ms: float, exposed_ms: float) -> dict[str, Any]:
    """A summary with these medians."""
    times = {"compute_ns": compute_ms, "exposed_communication_ns": exposed_ms, "iteration_ns": compute_ms + exposed_ms}
    return {**summary_, **{name: {"median": 1e6 * time} for name, time in times.items()}}


RECORDED_GLOO = (493.0, 128.0)
"""As recorded, in ms: compute and exposed communication with another program busy beside Gloo, and of the switch alone:
1.77 times as fast and VALID, as the iteration was measured."""
RECORDED_SWITCH = (269.0, 82.0)


def test_a_speed_up_that_another_program_made_is_not_quoted() -> None:
    gloo, switch = (summary(SCENARIO, result(name, 10**8, "mininet")) for name in ("gloo", "switch"))
    as_recorded = comparison(computing(gloo, *RECORDED_GLOO), computing(switch, *RECORDED_SWITCH))
    assert as_recorded["iteration_speedup"] == pytest.approx(1.77, abs=0.01)
    nothing = {"at_equal_compute": True, "speedup": None, "limit": None, "interval": None}
    assert as_recorded["headline"] == nothing
    nearer = comparison(computing(gloo, 130, 120), computing(switch, 100, 60))["headline"]
    assert nearer["at_equal_compute"] is True
    assert (nearer["speedup"], nearer["limit"]) == (250 / 190, 250 / 130), "both of equal compute"
    alike = comparison(computing(gloo, 105, 120), computing(switch, 100, 60))["headline"]
    assert (alike["at_equal_compute"], alike["speedup"], alike["limit"]) == (False, 225 / 160, 225 / 105)


def test_a_run_whose_compute_was_disturbed_is_not_valid() -> None:
    good, bad = FakeCertificate(True, []), FakeCertificate(False, ["late"])

    def verdicts(certificate: FakeCertificate, took_ns: int, **workload: Any) -> list[str]:
        scenario = dataclasses.replace(SCENARIO, workload=dataclasses.replace(SCENARIO.workload, **workload))
        gloo = result("gloo", 150_000_000, "mininet", certificate=good)
        switch = result("switch", 100_000_000, "mininet", certificate=certificate)
        slower = [dataclasses.replace(one, compute_ns=took_ns) for one in switch.iterations]
        built = document(scenario, "mininet", [gloo, dataclasses.replace(switch, iterations=slower)])
        return [entry["verdict"] for entry in built["methods"]] + [built["verdict"]]

    assert verdicts(good, 10_900_000) == ["VALID", "VALID", "VALID"]
    assert verdicts(good, 11_100_000) == ["VALID", "DISTURBED", "DISTURBED"]
    assert verdicts(bad, 11_100_000) == ["VALID", "INVALID", "INVALID"]
    assert verdicts(good, 10_000_000, compute_ns=9_200_000, paced=1) == ["VALID"] * 3
    assert verdicts(good, 10_000_000, compute_ns=9_000_000, paced=1) == ["DISTURBED"] * 3, "slower than the pace"
    assert verdicts(good, 10_000_000, compute_ns=9_000_000) == ["VALID"] * 3


# ---- intervals


def test_an_interval_is_student_s_over_the_logarithms_of_paired_ratios() -> None:
    """Five ratios whose logarithms are −0.2 … 0.2: s = 0.158, t(4) = 2.776."""
    ratios = [math.exp(step / 10) for step in (-2, -1, 0, 1, 2)]
    found = interval(1.0, ratios)
    assert found == pytest.approx([math.exp(-2.776 * 0.1 * math.sqrt(2.5 / 5)), math.exp(2.776 * 0.1 * math.sqrt(0.5))])
    assert interval(2.0, ratios) == pytest.approx([2 * end for end in found or ()])
    assert interval(1.3, [1.3] * 8) == pytest.approx([1.3, 1.3])
    assert interval(1.3, [1.3, 1.2]) is None, "two ratios have no spread worth an interval"
    assert interval(1.3, [1.3, 1.2, 1.4, None]) is None
    assert [resolved(each) for each in ([0.99, 1.2], [1.01, 1.2], [0.8, 0.97], None)] == [False, True, True, True]


def test_what_meets_both_methods_widens_the_interval_and_is_no_speed_up() -> None:
    """Recorded blocks, in ms, of one method against itself; in two of them another program was busy for one half."""
    before, after = [
        [[329, 331, 327], [333, 480, 330], [328, 326, 330], [470, 335, 331], [327, 330, 329]],
        [[331, 328, 326], [330, 331, 329], [331, 333, 465], [329, 328, 334], [326, 331, 330]],
    ]
    blocks = [(3 * k, 3 * k + 3) for k in range(5)]
    found = []
    for method, times in (("gloo", before), ("switch", after)):
        flat = [1_000_000 * time for block in times for time in block]
        records = [IterationRecord(k, 0, ns, 100_000_000, ns - 150_000_000, 1.0) for k, ns in enumerate(flat)]
        run = result(method, 1, "mininet", iterations=records, blocks=blocks, certificate=FakeCertificate(True, []))
        found.append(dataclasses.replace(run, in_turn_with=[parse_method("gloo")] if method == "switch" else []))
    built = document(SCENARIO, "mininet", found)
    quoted = built["methods"][1]["comparison"]["headline"]
    assert quoted["interval"][0] <= 1 <= quoted["interval"][1]
    assert built["methods"][1]["summary"]["blocks"][0]["iteration_ns"] == 328_000_000
    assert wording.finding(built) == "No difference beyond noise"
    assert "showed no difference from Gloo beyond noise (95 % interval" in wording.headline(built)
    alone = document(SCENARIO, "mininet", [dataclasses.replace(each, in_turn_with=[]) for each in found])
    assert alone["methods"][1]["comparison"]["headline"]["interval"] is None, "blocks of different times are no pairs"
