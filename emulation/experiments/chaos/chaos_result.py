"""What a chaos run has found."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from emulation.experiments.chaos.chaos_options import ChaosOptions
from emulation.experiments.chaos.fault_kinds.fault_kind import ChaosEvent
from emulation.experiments.chaos.fault_kinds.fault_table import FAULT_KINDS

WENT_ON, COST_A_STEP, ENDED, HUNG = "went on", "cost a step", "ended", "hung"


@dataclass
class EventRecord:
    """What came of an event. at_s: since the start of the events. start: of the job, by number. recovery_s: until the
    first step that began after it, or after the job's new start, was done by all who are members then."""

    event: ChaosEvent
    at_s: float
    expected: str
    start: int
    outcome: str = ""
    ended_s: float | None = None
    recovery_s: float | None = None


@dataclass
class ChaosResult:
    """What a run has found. faults: a line each, with event, start of the job and rank. They are all counted under
    wrong_sums, hangs, not_as_expected (something else than what the event's kind promises) or leftovers."""

    options: ChaosOptions
    records: list[EventRecord] = field(default_factory=list)
    seconds: float = 0.0
    starts: int = 0
    steps: int = 0
    steps_discarded: int = 0
    """Of an elastic job: steps that were begun, and were done again by other ranks."""
    sums_checked: int = 0
    parameters_checked: int = 0
    bad_packets: int = 0
    laps: int = 0
    laps_compared: int = 0
    """Of an elastic job: laps whose parameters were compared with those of a run without faults."""
    wrong_sums: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    not_as_expected: list[str] = field(default_factory=list)
    disturbed: list[str] = field(default_factory=list)
    """Ends that a machine explains which gave threads no CPU for half a lease: no faults."""
    leftovers: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        return [*self.wrong_sums, *self.hangs, *self.not_as_expected, *self.leftovers]

    def recoveries(self) -> dict[str, list[EventRecord]]:
        """By kind, the quickest first."""
        times: dict[str, list[EventRecord]] = {}
        for record in sorted(self.records, key=lambda record: record.recovery_s or 0.0):
            if record.recovery_s is not None:
                times.setdefault(record.event.kind, []).append(record)
        return {kind: times[kind] for kind in FAULT_KINDS if kind in times}


def quantiles(times_s: list[float]) -> tuple[float, float, float]:
    """Median, p99 and worst of sorted times."""
    rank = min(len(times_s) - 1, -(-99 * len(times_s) // 100) - 1)
    return statistics.median(times_s), times_s[max(0, rank)], times_s[-1]
