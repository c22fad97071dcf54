"""What a trial says: step times in turns, speed-ups, losses step by step. Pure: plain values in, plain values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, quantiles
from typing import Any

from emulation.results.speedups import interval, resolved
from emulation.scenario.errors import ScenarioError

WARM_UP = 5
"""Steps of which no time counts: DDP lays out its buckets anew after the first, optimizers make their state."""
TURNS = 5
COUNTED_LEAST, TURNS_LEAST = 3, 3
STEPS_LEAST = WARM_UP + TURNS_LEAST * (1 + COUNTED_LEAST)
LAST_STEPS = 5
"""The final loss is the mean over so many steps."""


@dataclass(frozen=True)
class TurnPlan:
    """holds: steps after which a method gives way to the next one. blocks: [first, end) of those that count, from 0:
    not the first one after a pause, when TCP's windows are small."""

    holds: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...]


def turn_plan(steps: int) -> TurnPlan:
    """Raises ScenarioError where so few steps can't be divided."""
    if steps < STEPS_LEAST:
        raise ScenarioError(f"--steps {steps}: at least {STEPS_LEAST}, of which {WARM_UP} don't count")
    turns = min(TURNS, (steps - WARM_UP) // (1 + COUNTED_LEAST))
    ends = [WARM_UP + (steps - WARM_UP) * number // turns for number in range(turns + 1)]
    return TurnPlan(tuple(ends), tuple((begin + 1, end) for begin, end in pairwise(ends)))


def slowest_ns(per_rank: Sequence[Sequence[int]]) -> list[int]:
    """What each step took the slowest rank."""
    return [max(step) for step in zip(*per_rank, strict=True)]


def mean_losses(per_rank: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Each step's loss, mean over the ranks that know it."""
    known = [[loss for loss in step if loss is not None] for step in zip(*per_rank, strict=True)]
    return [fmean(step) if step else None for step in known]


def step_summary(durations_ns: Sequence[int], plan: TurnPlan) -> dict[str, Any]:
    """Median and quartiles of the steps that count, and each block's median."""
    blocks = [list(durations_ns[begin:end]) for begin, end in plan.blocks]
    low, middle, high = quantiles([ns for block in blocks for ns in block], n=4, method="inclusive")
    return {"median_ns": middle, "p25_ns": low, "p75_ns": high, "blocks_ns": [median(block) for block in blocks]}


def compared(baseline: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """How much faster `other` is than the baseline: ratio of median steps, its 95 % interval over the turns, and
    whether that lies on one side of 1; and what was forecast."""
    before, after = baseline["step"], other["step"]
    speedup = before["median_ns"] / after["median_ns"]
    ratios = [above / below for above, below in zip(before["blocks_ns"], after["blocks_ns"], strict=True)]
    of_turns = interval(speedup, ratios)
    forecasts = baseline["forecast_ns"], other["forecast_ns"]
    return {
        "method": other["method"],
        "speedup": speedup,
        "interval": of_turns,
        "resolved": resolved(of_turns),
        "forecast": forecasts[0] / forecasts[1] if all(forecasts) else None,
        "losses": compared_losses(baseline["losses"], other["losses"]),
    }


def compared_losses(before: Sequence[float | None], after: Sequence[float | None]) -> dict[str, Any]:
    """The largest difference at any step, with its step from 1, and the losses at the end. Values are None where no
    step's loss is known."""
    pairs = [
        (step, first, second)
        for step, (first, second) in enumerate(zip(before, after, strict=True), 1)
        if first is not None and second is not None
    ]
    if not pairs:
        return {"steps": 0, "largest": None, "largest_at": None, "last": None, "all_steps": len(before)}
    step, first, second = max(pairs, key=lambda pair: abs(pair[1] - pair[2]))
    last = pairs[-LAST_STEPS:]
    ends = [fmean(first for _, first, _ in last), fmean(second for _, _, second in last)]
    apart = {"largest": abs(first - second), "largest_at": step}
    return {"steps": len(pairs), **apart, "last": ends, "all_steps": len(before)}


def forecast_of(document: Mapping[str, Any] | None, method: str) -> float | None:
    """A method's iteration as a document of `whatif` has it. Gloo sums over a ring, in the script's own type."""
    names = ("ring", "ring~bf16", "ring~fp16") if method == "gloo" else (method,)
    rows = [] if document is None else document["links"][0]["rows"]
    return next((float(row["iteration_ns"]) for row in rows if row["method"] in names), None)
