"""Timelines: the Chrome trace, and the one iteration that is drawn."""

import dataclasses
import json
from pathlib import Path

from example_results import SCENARIO, result

from emulation.report import comparison_figures
from emulation.results.results import document
from emulation.results.timeline import (
    COMPUTE,
    NETWORK,
    Span,
    chrome_trace,
    is_recorded,
    nearest_median,
    of_one_iteration,
    with_median,
    write_trace,
)
from transport.group.method_name import parse

SPANS = [
    Span(0, COMPUTE, "forward", 5, 1_000_000, 3_000_000),
    Span(0, NETWORK, "bucket 0", 5, 2_000_000, 6_000_000, 4096, 1),
    Span(0, NETWORK, "bucket 1", 5, 3_000_000, 5_000_000, 1024, 0),
    Span(1, COMPUTE, "forward", 5, 1_500_000, 3_000_000),
    Span(0, COMPUTE, "forward", 6, 7_000_000, 9_000_000),
    Span(0, NETWORK, "bucket 0", 6, 8_000_000, 12_000_000, 4096, 1),
]


def test_a_trace_names_methods_and_ranks_and_keeps_times_in_microseconds() -> None:
    events = chrome_trace({parse("ring"): SPANS, parse("switch+p3"): SPANS[:1]})["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["ring", "switch+p3"]
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1]
    assert names == ["rank 0 compute", "rank 0 network", "rank 1 compute", "rank 1 network"]
    computed = [e for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert [(e["tid"], e["ts"], e["dur"]) for e in computed] == [(0, 1e3, 2e3), (2, 1.5e3, 1.5e3), (0, 7e3, 2e3)]


def test_overlapping_transfers_are_async_events_that_begin_and_end_once() -> None:
    events = chrome_trace({parse("ring"): SPANS})["traceEvents"]
    begun = {e["id"]: e for e in events if e["ph"] == "b"}
    ended = {e["id"]: e for e in events if e["ph"] == "e"}
    assert len(begun) == len(ended) == 3
    assert all(begun[number]["name"] == ended[number]["name"] for number in begun)
    assert all(begun[number]["ts"] < ended[number]["ts"] for number in begun)
    assert begun[2]["args"] == {"iteration": 5, "size_bytes": 1024, "priority": 0}


def test_the_file_is_json(tmp_path: Path) -> None:
    write_trace(tmp_path / "timeline.json", {parse("ring"): SPANS})
    assert json.loads((tmp_path / "timeline.json").read_text())["displayTimeUnit"] == "ms"
    assert [path.name for path in tmp_path.iterdir()] == ["timeline.json"]


def test_one_iteration_begins_at_zero() -> None:
    chosen = of_one_iteration(SPANS, 6)
    assert {span.iteration for span in chosen} == {6}
    assert [(span.start_ns, span.end_ns) for span in chosen] == [(0, 2_000_000), (1_000_000, 5_000_000)]
    assert of_one_iteration(SPANS, 5, rank=1)[0].end_ns == 1_500_000
    assert of_one_iteration([], 5) == []


def test_a_few_iterations_after_the_warm_up_are_kept_and_of_rank_0_the_median_one() -> None:
    assert [iteration for iteration in range(12) if is_recorded(iteration, 5, 1)] == [5, 6, 7, 8]
    assert [iteration for iteration in range(12) if is_recorded(iteration, 5, 0)] == [5, 6, 7, 8, 9, 10, 11]
    spans = [Span(0, COMPUTE, "forward", iteration, iteration, iteration + 1) for iteration in range(5, 12)]
    durations_ns = dict.fromkeys(range(5), 10**9) | {5: 70, 6: 90, 7: 91, 8: 99, 9: 50, 10: 81, 11: 80}
    assert [span.iteration for span in with_median(spans, durations_ns, 5)] == [5, 6, 7, 8, 10]
    assert with_median(spans, {}, 12) == spans


def test_the_iteration_nearest_to_the_median_is_the_first_of_those() -> None:
    durations_ns = {5: 10, 6: 30, 7: 20, 8: 20, 9: 40}
    assert nearest_median(durations_ns, durations_ns) == 7
    assert nearest_median(durations_ns, [4, 5, 9]) == 5
    assert nearest_median(durations_ns, [4]) is None


def test_the_figure_shows_each_method_s_own_median_iteration_and_says_which() -> None:
    methods = [result("ring", 150_000_000), result("switch", 100_000_000)]
    slow = dataclasses.replace(methods[0].iterations[3], duration_ns=900_000_000)
    quick = dataclasses.replace(methods[0].iterations[1], duration_ns=100_000_000)
    methods[0] = dataclasses.replace(
        methods[0], iterations=[methods[0].iterations[0], quick, methods[0].iterations[2], slow]
    )
    spans = [
        dataclasses.replace(span, iteration=iteration) for iteration in range(4) for span in SPANS[: 1 + iteration]
    ]
    built = document(SCENARIO, "sim", methods)
    drawn = comparison_figures.timeline(built, {parse("ring"): spans, parse("switch"): spans})
    assert drawn is not None
    assert [axes.get_title(loc="left") for axes in drawn.axes] == [
        "ring: iteration 2, 160 ms (median 160 ms)",
        "switch: iteration 1, 110 ms (median 110 ms)",
    ]
    assert [len(axes.patches) for axes in drawn.axes] == [3, 2], "of rank 0 in that iteration"
    assert comparison_figures.timeline(built, {}) is None
