"""One method against another: speed-ups with their limits and intervals, which of them may be quoted, and verdicts.

Everything is derived from two summaries of `results.py`. A summary's `blocks` are medians over the blocks of
iterations in which methods took turns; block k of one method ran beside block k of the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import stdev
from typing import Any

from emulation.scenario.scenario import Scenario
from transport.group.method_name import METHODS

Medians = Mapping[str, float]
"""By name of a time: `TIMES`."""

TIMES = ("iteration_ns", "compute_ns", "communication_ns", "exposed_communication_ns")
COMPUTE_ALIKE = 1.1  # compute times closer than this factor count as the same
COMPUTE_COMPARABLE = 1.5  # farther apart, computing hides other parts of the communication: no speed-up is quoted
BEYOND_BOUND_FACTOR = 1.01  # closer to the bound than this is on it: medians aren't sharper
ACCURACY_LOST = 0.01  # a method that ends farther below the baseline's accuracy is no finding, however fast it was
NOTABLY_FASTER = 1.01  # a method without a switch that beats the baseline by so much takes its place in the finding
BLOCKS_LEAST = 3  # fewer ratios have no spread worth an interval
STUDENT_T = (
    12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95 % quantiles of Student's distribution with 1, 2, … degrees of freedom; beyond the last: that one."""

VALID, DISTURBED, INVALID = "VALID", "DISTURBED", "INVALID"
"""Verdicts on a run in real time. DISTURBED: links were right, but computing was not alike, or slower than its pace."""


def ratio(above: float, below: float) -> float | None:
    """above / below, or None where that means nothing."""
    return above / below if below > 0 else None


def interval(speedup: float | None, ratios: Sequence[float | None]) -> list[float] | None:
    """The 95 % interval of a speed-up: Student's t over the logarithms of its paired blocks' ratios, around it.

    None with fewer than BLOCKS_LEAST blocks, or where one has no ratio.
    """
    logarithms = [math.log(ratio) for ratio in ratios if ratio]
    if not speedup or len(logarithms) < max(BLOCKS_LEAST, len(ratios)):
        return None
    quantile = STUDENT_T[min(len(logarithms) - 1, len(STUDENT_T)) - 1]
    factor = math.exp(quantile * stdev(logarithms) / math.sqrt(len(logarithms)))
    return [speedup / factor, speedup * factor]


def comparison(
    baseline: Mapping[str, Any], other: Mapping[str, Any], *, same_wait: bool = True, paired: bool = False
) -> dict[str, Any]:
    """Speed-ups of `other` over `baseline` (two summaries), and what the communication speed-up consists of. same_wait:
    the sums of both wait for as many ranks; else compute, of those that are waited for, differs since this does.
    paired: both were measured in turn, so their blocks give intervals.

    communication speed-up = bound speed-up × relative efficiency, where relative efficiency is the ratio of the shares
    of their own bounds that the two methods reach. It exceeds the bound exactly when the baseline wastes more.

    A method doesn't change compute, but workers that share CPUs with the network compute longer beside some: at equal
    compute both take the baseline's, each with its own exposed communication.
    """
    before, after = _medians(baseline), _medians(other)
    blocks = list(zip(baseline["blocks"], other["blocks"], strict=True)) if paired else []

    def measured(speedup_of: Callable[[Medians, Medians], float | None]) -> tuple[float | None, list[float] | None]:
        speedup = speedup_of(before, after)
        return speedup, interval(speedup, [speedup_of(*pair) for pair in blocks])

    iteration, iteration_interval = measured(_iteration)
    at_equal, at_equal_interval = measured(_at_equal_compute)
    communication, communication_interval = measured(_communication)
    apart = max(before["compute_ns"], after["compute_ns"]) / max(1e-9, min(before["compute_ns"], after["compute_ns"]))
    alike = not same_wait or before["compute_ns"] == after["compute_ns"] or apart <= COMPUTE_ALIKE
    bound = ratio(baseline["bound"]["communication_ns"], other["bound"]["communication_ns"])
    free = ratio(before["iteration_ns"], before["compute_ns"])
    headline: dict[str, Any] = {"at_equal_compute": not alike, "speedup": None, "limit": None, "interval": None}
    if alike:
        headline |= {"speedup": iteration, "limit": free, "interval": iteration_interval}
    elif apart <= COMPUTE_COMPARABLE:
        limit = ratio(before["compute_ns"] + before["exposed_communication_ns"], before["compute_ns"])
        headline |= {"speedup": at_equal, "limit": limit, "interval": at_equal_interval}
    return {
        "headline": headline,
        "iteration_speedup": iteration,
        "iteration_speedup_at_equal_compute": at_equal,
        "iteration_speedup_if_communication_were_free": free,
        "compute_ratio": ratio(after["compute_ns"], before["compute_ns"]),
        "compute_alike": alike,
        **({} if same_wait else {"same_wait": False}),
        "communication_speedup": communication,
        "communication_speedup_interval": communication_interval,
        "communication_speedup_bound": bound,
        "relative_efficiency": ratio(communication, bound) if communication is not None and bound else None,
        "beyond_bound": communication is not None and bound is not None and communication > bound * BEYOND_BOUND_FACTOR,
        "wire_bytes_ratio": ratio(
            baseline["wire_tx_bytes_per_rank_iteration"], other["wire_tx_bytes_per_rank_iteration"]
        ),
    }


def _medians(summary: Mapping[str, Any]) -> Medians:
    return {name: summary[name]["median"] for name in TIMES}


def _iteration(before: Medians, after: Medians) -> float | None:
    return ratio(before["iteration_ns"], after["iteration_ns"])


def _communication(before: Medians, after: Medians) -> float | None:
    return ratio(before["communication_ns"], after["communication_ns"])


def _at_equal_compute(before: Medians, after: Medians) -> float | None:
    compute = before["compute_ns"]
    return ratio(compute + before["exposed_communication_ns"], compute + after["exposed_communication_ns"])


def resolved(speedup_interval: Sequence[float] | None) -> bool:
    """Whether a speed-up differs from 1 beyond noise; so does one without an interval, as in virtual time."""
    return speedup_interval is None or not speedup_interval[0] <= 1 <= speedup_interval[1]


def slower_than_pace(entry: Mapping[str, Any], pace_ns: int | None) -> bool:
    """Whether a method's ranks computed for longer than they were to. pace_ns: None: as fast as they could."""
    return pace_ns is not None and entry["summary"]["compute_ns"]["median"] > COMPUTE_ALIKE * pace_ns


def verdict(entry: Mapping[str, Any], pace_ns: int | None) -> str | None:
    """On one method of a document, which has been compared; None in virtual time."""
    if entry["certificate"] is None:
        return None
    if not entry["certificate"]["valid"]:
        return INVALID
    compared = entry["comparison"]
    disturbed = slower_than_pace(entry, pace_ns) or (compared is not None and not compared["compute_alike"])
    return DISTURBED if disturbed else VALID


def between(scenario: Scenario, baseline: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The `comparison` of two methods of one document."""
    same_wait = len({scenario.backups_of(entry["method"]) or 0 for entry in (baseline, other)}) == 1
    paired = str(baseline["method"]) in map(str, other.get("in_turn_with", ()))
    return comparison(baseline["summary"], other["summary"], same_wait=same_wait, paired=paired)


def inexact(scenario: Scenario, entry: Mapping[str, Any]) -> bool:
    """Whether a method's sums may differ from those of all ranks' gradients: rounded, with gaps, or of some ranks."""
    method, codec = entry["method"], entry["summary"].get("codec", {})
    return bool(codec.get("lossy") or METHODS[method.method].loses or scenario.backups_of(method) is not None)


def finding(scenario: Scenario, first: Mapping[str, Any] | None, methods: Sequence[Any]) -> dict[str, Any] | None:
    """What may be quoted of all: the fastest method that learned as much as the baseline `first`, compared with the
    fastest of these without a switch; None where nothing was compared. `worse`: faster methods that learned less."""

    def learned(entry: Mapping[str, Any]) -> bool:
        before, after = (method["summary"]["final_accuracy"] for method in (first or entry, entry))
        no_score = before is None or after is None
        return not inexact(scenario, entry) or no_score or after >= before - ACCURACY_LOST

    def speedup(entry: Mapping[str, Any]) -> float:
        return entry["comparison"]["headline"]["speedup"] or 0.0

    ranked = sorted((entry for entry in methods if entry["comparison"]), key=speedup, reverse=True)
    if first is None or not ranked or scenario.topology.workers == 1:  # one worker exchanges nothing
        return None
    place = next((place for place, entry in enumerate(ranked) if learned(entry)), None)
    chosen, over = ranked[place or 0], first
    if chosen["method"].in_packets:
        hosts = (entry for entry in ranked if not entry["method"].in_packets and (place is None or learned(entry)))
        over = next((entry for entry in hosts if speedup(entry) >= NOTABLY_FASTER), first)
    return {
        "method": chosen["method"],
        "over": over["method"],
        "learned": place is not None,
        "worse": [entry["method"] for entry in ranked[:place]],
        "comparison": chosen["comparison"] if over is first else between(scenario, over, chosen),
    }


def worst(verdicts: Iterable[str | None]) -> str | None:
    """The verdict on all together; None if there is none."""
    there = set(verdicts)
    return next((verdict for verdict in (INVALID, DISTURBED, VALID) if verdict in there), None)
