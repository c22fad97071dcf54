"""A chaos run: an undisturbed lap of training first, then the job again, which the events of the schedule meet.

What each event must come to is said by its kind; whatever else happens is a fault of the run, and is told with event,
job start and rank. Every wait has a bound.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulation.experiments.chaos.chaos_options import ChaosOptions, FaultOutcome
from emulation.experiments.chaos.chaos_site import ChaosSite
from emulation.experiments.chaos.event_schedule import events
from emulation.experiments.chaos.fault_kinds.fault_kind import ChaosEvent, is_named
from emulation.experiments.chaos.fault_kinds.fault_table import FAULT_KINDS
from emulation.experiments.chaos.rank_reports import CheckpointSaved, RankFailed, RankLeft, StepDone, SumWrong
from emulation.experiments.chaos.step_ledger import StepLedger
from emulation.scenario.errors import RunFailed
from emulation.testbed.children import ChildFailed, ChildListener, CommandFailed
from emulation.testbed.patience import Patience

LOOK_S = 0.02
GRACE_S = 10.0
"""How long beyond a fault's own duration and two leases a job may take to end, or to go on."""

START_S = 60.0
ATTEMPTS = 3
SHOWN_ERRORS = 4

LATE = "no heartbeat for|has not answered for|taken for dead"
"""What errors say where a lease has ended."""

WENT_ON, ENDED, HUNG = "went on", "ended", "hung"


@dataclass
class EventRecord:
    """What came of an event. at_s: since the start of the events. recovery_s: until the first step that began after it,
    or after the job's new start, was done by all; None: of a second event, which recovers with the first."""

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
    wrong_sums, hangs, surprises (something else than what the event's kind promises) or leftovers."""

    options: ChaosOptions
    records: list[EventRecord] = field(default_factory=list)
    seconds: float = 0.0
    starts: int = 0
    steps: int = 0
    sums: int = 0
    bad_packets: int = 0
    wrong_sums: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    disturbed: list[str] = field(default_factory=list)
    """Ends that a machine explains which gave threads no CPU for half a lease: no faults."""
    leftovers: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        return [*self.wrong_sums, *self.hangs, *self.surprises, *self.leftovers]

    def recoveries(self) -> dict[str, list[float]]:
        """Seconds, by kind; of events that no other met."""
        times: dict[str, list[float]] = {}
        for record in self.records:
            if record.recovery_s is not None:
                times.setdefault(record.event.kind, []).append(record.recovery_s)
        return {kind: sorted(times[kind]) for kind in FAULT_KINDS if kind in times}


def quantiles(times_s: list[float]) -> tuple[float, float, float]:
    """Median, p99 and worst of sorted times."""
    rank = min(len(times_s) - 1, -(-99 * len(times_s) // 100) - 1)
    return statistics.median(times_s), times_s[max(0, rank)], times_s[-1]


class ChaosRun:
    """One run. say: gets a line for each event as it is over. logs: where those of surprises are kept, or None."""

    def __init__(self, options: ChaosOptions, say: Callable[[str], None], logs: Path | None = None) -> None:
        self.options, self._say, self._logs = options, say, logs
        self.result = ChaosResult(options)
        self._ledger = StepLedger(options.workers, options.lap_steps, options.repeats)
        self._checkpoint = 0
        self._undos: list[tuple[float, ChaosEvent]] = []
        self._undone_ns = 0
        self._restarting = False
        self._starved_s = 0.0
        self._learning = False
        self._errors: dict[int, str] = {}
        self._left: set[int] = set()
        self._astray: set[tuple[int, int]] = set()
        self._where = "before any event"

    def run(self) -> ChaosResult:
        """Raises RunFailed where not even the undisturbed run comes to its end."""
        with self._open_site() as site:
            self._site = site
            self._undisturbed_lap()
            began_s = self._zero_s = self._now_s()
            self._start_job(0)
            self._settle(self._now_ns(), began_s)
            for group in self._groups():
                self._wait_for(lambda: self._over, group[0].gap_s)
                if self._now_s() - began_s >= self.options.seconds:
                    break
                self._meet(group)
            self.result.seconds = self._now_s() - began_s
            self._end_job()
            site.stop_packets()
            self.result.surprises += site.end_switches()
            self.result.bad_packets = site.bad_packets
        self.result.steps, self.result.sums = self._ledger.steps, self._ledger.sums
        self.result.leftovers = [f"left behind: {line}" for line in site.leftovers.found_after()]
        return self.result

    # ---- the job

    def _undisturbed_lap(self) -> None:
        """Trains once with nothing in the way; again, where a busy machine was."""
        self._learning = True
        for _ in range(ATTEMPTS):
            self._say(f"undisturbed: {self.options.lap_steps} steps of {self.options.workers} ranks")
            failure = self._lap()
            self._end_start()
            if not failure:
                self._learning = False
                return
            if not (self._starved_s and re.search(LATE, failure)):
                break
        raise RunFailed(f"the undisturbed run failed: {failure}")

    def _lap(self) -> str:
        """Why the undisturbed run failed, or ""."""
        limit_s = START_S + self.options.lap_steps
        self._start_job(0, self.options.lap_steps)
        if not self._wait_for(lambda: self._over, limit_s):
            return f"no end within {limit_s:g} s"
        if self._errors:
            return self._errors[min(self._errors)]
        early = next((self._end_of(rank) for rank in range(self.options.workers) if rank not in self._left), "")
        return "; ".join(self.result.faults[:SHOWN_ERRORS]) or early

    def _start_job(self, first: int, last: int = -1) -> None:
        self._errors, self._left = {}, set()
        self._ledger.restart()
        self._site.start_ranks(self.result.starts, first, last, self.options.lap_steps)
        self._listen()

    def _end_start(self, keep_logs: bool = False) -> None:
        """Ends what is left of the ranks; the next ones belong to another start of the job."""
        self._listen_no_more()
        self._site.end_ranks()
        if keep_logs and self._logs is not None:
            self._site.keep_logs(self.result.starts, self._logs / f"start{self.result.starts}")
        self._site.drop_logs(self.result.starts)
        self.result.starts += 1

    def _end_job(self) -> None:
        self._where = "at the end of the job"
        self._site.ask_to_stop()
        limit_s = 2 * self.options.lease_s + GRACE_S
        if not self._wait_for(lambda: self._over, limit_s):
            self._note_hangs(limit_s)
        faults = [f"rank {rank}: {error}" for rank, error in self._errors.items()]
        faults += [f"rank {rank}: status {status}" for rank in self._left if (status := self._status(rank))]
        self.result.surprises += [f"{self._where}, start {self.result.starts}, {fault}" for fault in faults]
        self._end_start(keep_logs=bool(faults))

    # ---- events

    def _groups(self) -> Iterator[list[ChaosEvent]]:
        """Events, each with the second ones that meet it."""
        group: list[ChaosEvent] = []
        for event in events(self.options):
            if group and not event.second:
                yield group
                group = []
            if 0 < self.options.events <= event.number:
                break
            group.append(event)
        if group:
            yield group

    def _meet(self, group: list[ChaosEvent]) -> None:
        """An event and those that come within a second, until the job goes on, or has ended and started again."""
        if self._over:  # It ended before.
            self._surprise(group[0], "the job ended before it", self._errors)
            self._restart(group[0], self._now_s())
            return
        begun_s = self._now_s()
        records = []
        for event in group:
            if event.second:
                self._wait_for(lambda: False, event.gap_s)
            records.append(self._begin(event))
        hit_ns = self._now_ns()
        limit_s = sum(event.duration_s for event in group) + 2 * self.options.lease_s + GRACE_S
        outcome = self._settle_within(hit_ns, limit_s)
        for record in records:
            record.outcome = outcome
        faults = len(self.result.faults)
        if outcome == HUNG:
            self._note_hangs(limit_s)
        else:
            self._judge(group, outcome)
        if outcome == ENDED:
            records[0].ended_s = self._now_s() - begun_s
        if outcome != WENT_ON:
            self._restart(group[0], begun_s, keep_logs=len(self.result.faults) > faults)
            done_s = self._now_s()
        else:
            done_s = (self._ledger.first_done_ns(hit_ns) or self._now_ns()) / 1e9
        records[0].recovery_s = done_s - begun_s
        self._say(self._progress(records))
        self._starved_s = 0.0

    def _begin(self, event: ChaosEvent) -> EventRecord:
        kind = FAULT_KINDS[event.kind]
        self._where = f"event {event.number} ({event})"
        at_s = self._now_s() - self._zero_s
        record = EventRecord(event, at_s, kind.outcome(event, self.options.survival).value, self.result.starts)
        self.result.records.append(record)
        kind.begin(self._site, event)
        if event.duration_s:
            self._undos.append((self._now_s() + event.duration_s, event))
        return record

    def _settle_within(self, hit_ns: int, limit_s: float) -> str:
        """Waits for the job's end, or for a step that all ranks began after all that happens was over."""

        def settled() -> bool:
            if self._errors or any(self._status(rank) is not None for rank in range(self.options.workers)):
                return self._over
            return self._quiet and self._ledger.first_done_ns(self._quiet_ns(hit_ns)) is not None

        if not self._wait_for(settled, limit_s):
            return HUNG
        return ENDED if self._over else WENT_ON

    def _quiet_ns(self, hit_ns: int) -> int:
        return max(hit_ns, self._undone_ns)

    def _judge(self, group: list[ChaosEvent], outcome: str) -> None:
        """Compares what came of an event, or of several that met each other, with what their kinds promise."""
        kinds = [FAULT_KINDS[event.kind] for event in group]
        expected = [kind.outcome(event, self.options.survival) for kind, event in zip(kinds, group, strict=True)]
        if outcome == WENT_ON:
            if FaultOutcome.ENDS in expected:
                self._surprise(group[0], "the job went on", {})
            return
        if {FaultOutcome.ENDS, FaultOutcome.EITHER}.isdisjoint(expected):
            self._surprise(group[0], "the job ended", self._errors)
            return
        for rank in range(self.options.workers):
            error = self._errors.get(rank)
            if error is None:
                killed = any(event.kind == "worker-kill" and event.place == rank for event in group)
                if not killed:
                    self._surprise(group[0], f"rank {rank} ended without an error: {self._end_of(rank)}", {})
            elif not any(is_named(kind, event, rank, error) for kind, event in zip(kinds, group, strict=True)):
                self._surprise(group[0], f"rank {rank} names another cause", {rank: error})

    def _restart(self, event: ChaosEvent, begun_s: float, keep_logs: bool = False) -> None:
        """Starts the job again from its checkpoint, once what the event did is undone."""
        if not self._wait_for(lambda: self._quiet, event.duration_s + GRACE_S):
            raise RunFailed(f"event {event.number}: {event} couldn't be undone")
        self._end_start(keep_logs)
        for number in range(self.options.switches):
            self._site.start_switch(number)
        if not self.options.repeats:
            self._ledger.forget()
        self._start_job(self._checkpoint)
        self._settle(self._now_ns(), begun_s)

    def _settle(self, since_ns: int, begun_s: float) -> None:
        """Waits for the first step of a start. Raises RunFailed if there is none: nothing could be tested then."""
        if not self._wait_for(lambda: self._over or self._ledger.first_done_ns(since_ns) is not None, START_S):
            self._note_hangs(START_S)
        elif self._over:
            self.result.surprises.append(
                f"{self._where}: start {self.result.starts} failed: {self._errors or self._end_of(0)}"
            )
        else:
            return
        raise RunFailed(f"{self.result.faults[-1]} (after {self._now_s() - begun_s:.0f} s; nothing more was tried)")

    # ---- what a run in virtual time has otherwise

    def _open_site(self) -> ChaosSite:
        return ChaosSite(self.options)

    def _now_ns(self) -> int:
        return time.monotonic_ns()

    def _now_s(self) -> float:
        return self._now_ns() / 1e9

    def _listen(self) -> None:
        self._listener = ChildListener(self._site.ranks)

    def _listen_no_more(self) -> None:
        self._listener.__exit__()

    def _reports(self) -> list[tuple[int, Any]]:
        """What ranks have reported by now, after a short wait."""
        return self._listener.hear(LOOK_S)

    # ---- watching

    @property
    def _over(self) -> bool:
        """Whether the processes of all ranks have ended."""
        return all(child.ended for child in self._site.ranks) and all(
            self._status(rank) is not None for rank in range(self.options.workers)
        )

    def _status(self, rank: int) -> int | None:
        return self._site.ranks[rank].process.poll()

    def _end_of(self, rank: int) -> str:
        return self._site.ranks[rank].why_it_ended()

    def _wait_for(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Whether it held within that time, as `Patience` counts it."""
        patience = Patience(limit_s, self._site.pids, f"chaos: {self._where}", lambda _line: None)
        while not condition():
            if patience.over():
                return False
            self._hear()
        self._starved_s = max(self._starved_s, patience.starved_s)
        return True

    def _hear(self) -> None:
        """Takes the ranks' reports, and undoes what is due."""
        for rank, report in self._reports():
            self._note(rank, report)
        now_s = self._now_s()
        for due in [undo for undo in self._undos if undo[0] <= now_s]:
            self._undos.remove(due)
            FAULT_KINDS[due[1].kind].undo(self._site, due[1])
            self._undone_ns = self._now_ns()
        restarting = self._restarting
        self._restarting = self._site.start_ended_switches()
        if restarting and not self._restarting:
            self._undone_ns = self._now_ns()

    @property
    def _quiet(self) -> bool:
        """Whether all that happened is undone."""
        return not self._undos and not self._site.start_ended_switches()

    def _note(self, rank: int, report: object) -> None:
        where = f"{self._where}, start {self.result.starts}"
        match report:
            case StepDone():
                if self._learning and rank == 0:
                    self._ledger.learn(report.step, report.sha256)
                fault = self._ledger.note(rank, report)
                if fault and (self.result.starts, rank) not in self._astray:
                    self._astray.add((self.result.starts, rank))  # and later steps follow from this one
                    self.result.wrong_sums.append(f"{where}, rank {rank}: {fault}")
            case CheckpointSaved(step):
                self._checkpoint = step
            case SumWrong(step, what):
                self.result.wrong_sums.append(f"{where}, rank {rank}, step {step}: {what}")
            case RankFailed(error):
                self._errors[rank] = error
            case RankLeft():
                self._left.add(rank)
            case CommandFailed(message):
                raise ChildFailed(f"rank {rank}: {message}")

    def _note_hangs(self, limit_s: float) -> None:
        """Which ranks have neither ended nor gone on, and where they are."""
        silent = [rank for rank in range(self.options.workers) if self._status(rank) is None]
        for rank in silent:
            self._site.ask_where(rank)
        time.sleep(0.5)
        names = ", ".join(map(str, silent))
        self.result.hangs.append(
            f"{self._where}, start {self.result.starts}: rank {names} neither went on nor ended within {limit_s:.0f} s"
        )

    def _surprise(self, event: ChaosEvent, what: str, errors: dict[int, str]) -> None:
        texts = [f"rank {rank}: {error}" for rank, error in sorted(errors.items())][:SHOWN_ERRORS]
        line = f"event {event.number} ({event}), start {self.result.starts}: {what}"
        late = any(re.search(LATE, error) for error in errors.values())
        if late and self._starved_s >= self.options.lease_s / 2:
            line += f" (processors or disks kept threads waiting for {self._starved_s:.1f} s)"
            surprises = self.result.disturbed
        else:
            surprises = self.result.surprises
        surprises.append(": ".join([line, *(["; ".join(texts)] if texts else [])]))

    def _progress(self, records: list[EventRecord]) -> str:
        words = ", ".join(str(record.event) for record in records)
        first = records[0]
        ended = f" after {first.ended_s:.1f} s" if first.ended_s is not None else ""
        faults = f"; {len(self.result.faults)} FAULTS" if self.result.faults else ""
        return (
            f"{first.at_s:6.1f} s  event {first.event.number}: {words}: {first.outcome}{ended}, recovered after "
            f"{first.recovery_s:.1f} s; {self._ledger.steps} steps{faults}"
        )
