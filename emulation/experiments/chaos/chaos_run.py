"""A chaos run: an undisturbed lap of training first, then the job again, which the events of the schedule meet.

What each event must come to is said by its kind; whatever else happens is a fault of the run, and is told with event,
job start and rank. Every wait has a bound.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from emulation.experiments.chaos.chaos_options import ChaosOptions, FaultOutcome
from emulation.experiments.chaos.chaos_result import COST_A_STEP, ENDED, HUNG, WENT_ON, ChaosResult, EventRecord
from emulation.experiments.chaos.chaos_site import ChaosSite
from emulation.experiments.chaos.event_schedule import groups
from emulation.experiments.chaos.fault_kinds.fault_kind import ChaosEvent, is_named
from emulation.experiments.chaos.fault_kinds.fault_table import FAULT_KINDS
from emulation.experiments.chaos.rank_reports import (
    CheckpointSaved,
    LapReplayed,
    RankFailed,
    RankLeft,
    StepDone,
    StepFailed,
    SumWrong,
)
from emulation.experiments.chaos.step_ledger import LapHistory, Members, StepLedger
from emulation.experiments.progress_text import Passing
from emulation.scenario.errors import RunFailed
from emulation.testbed.children import ChildFailed, ChildListener, CommandFailed
from emulation.testbed.patience import Patience

LOOK_S = 0.02
GRACE_S = 10.0
"""How long beyond a fault's own duration and two leases a job may take to end, or to go on."""

START_S = 60.0
ATTEMPTS = 3
SHOWN_ERRORS = 4
REPLAYED_LAPS = 30
"""How many laps of an elastic job are trained again to compare them, at most."""

LATE = "no heartbeat for|has not answered for|taken for dead"
"""What errors say where a lease has ended."""


class ChaosRun:
    """One run. say: gets a line for each event as it is over. logs: where those of surprises are kept, or None."""

    def __init__(self, options: ChaosOptions, say: Callable[[str], None], logs: Path | None = None) -> None:
        self.options, self._say, self._logs = options, say, logs
        self.result = ChaosResult(options)
        self._ledger = StepLedger(options.workers, options.lap_steps, options.repeats, options.elastic)
        self._checkpoint = 0
        self._undos: list[tuple[float, ChaosEvent]] = []
        self._undone_ns = 0
        self._restarting = False
        self._starved_s = 0.0
        self._learning = self._takes_back = False
        self._faults_before = 0
        self._errors: dict[int, str] = {}
        self._left: set[int] = set()
        self._astray: set[tuple[int, int]] = set()
        self._fallen: set[int] = set()
        self._lap_plans: list[LapHistory] = []
        self._right: dict[Members, list[str]] = {}
        self._where = "before any event"

    def run(self) -> ChaosResult:
        """Raises RunFailed where not even the undisturbed run comes to its end."""
        with self._open_site() as site:
            self._site = site
            self._undisturbed_lap()
            self._zero_s = self._now_s()
            self._start_job(0)
            self._await_first_step()
            first, self._takes_back = self.result.starts, self.options.elastic
            for group in groups(self.options):
                self._wait_for(lambda: self._over, group[0].gap_s)
                if 0 < self.options.seconds <= self._now_s() - self._zero_s:
                    break
                self._meet(group)
            self.result.seconds = self._now_s() - self._zero_s
            self._takes_back = False
            self._end_job()
            laps = [lap for lap in self._ledger.laps() if lap.start >= first]
            if self.options.elastic and self.options.repeats:
                self._compare_laps(laps)
            site.stop_packets()
            self.result.not_as_expected += site.end_switches()
            self.result.bad_packets = site.bad_packets
        ledger, result = self._ledger, self.result
        result.steps, result.steps_discarded = ledger.steps, ledger.steps_discarded
        result.sums_checked, result.parameters_checked = ledger.sums, ledger.parameters
        self.result.leftovers = [f"left behind: {line}" for line in site.leftovers.found_after()]
        return self.result

    # ---- the job

    def _undisturbed_lap(self) -> None:
        """Trains once with nothing in the way; again, where a busy machine was."""
        self._learning = True
        for _ in range(ATTEMPTS):
            self._say(Passing(f"undisturbed: {self.options.lap_steps} steps of {self.options.workers} ranks"))
            failure = self._train_alone(self.options.lap_steps)
            if not failure:
                self._learning = False
                return
            if not (self._starved_s and re.search(LATE, failure)):
                break
        raise RunFailed(f"the undisturbed run failed: {failure}")

    def _train_alone(self, steps: int, lap_plans: Sequence[LapHistory] = ()) -> str:
        """Trains so many steps, or laps again, without any event. Why that failed, or ""."""
        self._start_job(0, 0 if lap_plans else steps, lap_plans)
        in_time = self._wait_for(lambda: self._over, START_S + steps)
        failure = "" if in_time else f"no end within {START_S + steps:g} s"
        if not failure and self._errors:
            failure = self._errors[min(self._errors)]
        early = next((self._end_of(rank) for rank in range(self.options.workers) if rank not in self._left), "")
        failure = failure or "; ".join(self.result.faults[self._faults_before :][:SHOWN_ERRORS]) or early
        self._end_start()
        return failure

    def _start_job(self, first: int, last: int = -1, lap_plans: Sequence[LapHistory] = ()) -> None:
        self._errors, self._left, self._fallen = {}, set(), set()
        self._faults_before = len(self.result.faults)
        self._ledger.restart(self.result.starts)
        self._site.start_ranks(self.result.starts, first, last, lap_plans)
        self._listen()

    def _end_start(self) -> None:
        """Ends what is left of the ranks; the next ones belong to another start of the job."""
        self._listen_no_more()
        self._site.end_ranks()
        if len(self.result.faults) > self._faults_before and self._logs is not None:
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
        self.result.not_as_expected += [f"{self._where}, start {self.result.starts}, {fault}" for fault in faults]
        self._end_start()

    def _compare_laps(self, laps: Sequence[LapHistory]) -> None:
        """Trains laps of an elastic job again, without faults: as many ranks in each step must give the same bits."""
        undisturbed = self._ledger.undisturbed or {}
        right = self._right = {((self.options.workers, self.options.lap_steps),): list(undisturbed.values())}
        self._lap_plans = list({lap.members: lap for lap in laps if lap.members not in right}.values())[:REPLAYED_LAPS]
        if self._lap_plans:
            self._where = "while laps were trained again"
            self._say(Passing(f"without faults: {len(self._lap_plans)} laps again, with as many ranks in each step"))
            if failure := self._train_alone(len(self._lap_plans) * self.options.lap_steps, self._lap_plans):
                self.result.not_as_expected.append(f"{self._where}: {failure}")
        comparable = [lap for lap in laps if lap.members in right]
        self.result.laps, self.result.laps_compared = len(laps), len(comparable)
        for lap in comparable:
            pairs = zip(lap.sha256, right[lap.members], strict=True)
            if (
                step := next((step for step, (bits, bits_again) in enumerate(pairs) if bits != bits_again), None)
            ) is not None:
                members = ", ".join(f"{steps} steps of {number}" for number, steps in lap.members)
                self.result.wrong_sums.append(
                    f"start {lap.start}, step {lap.first + step}: parameters aren't those of a run without faults that "
                    f"had as many ranks in each step since step {lap.first}: {members}"
                )

    # ---- events

    def _meet(self, group: list[ChaosEvent]) -> None:
        """An event and those that come within a second, until the job goes on, or has ended and started again."""
        if self._over:  # It ended before.
            self._surprise(group[0], "the job ended before it", self._errors)
            self._restart(group[0])
            return
        generation = self._ledger.generation
        records, hits_ns = [], []
        for event in group:
            if event.second:
                self._wait_for(lambda: False, event.gap_s)
            hits_ns.append(self._now_ns())
            records.append(self._begin(event))
        limit_s = sum(event.duration_s for event in group) + 2 * self.options.lease_s + GRACE_S
        outcome = self._settle_within(self._now_ns(), limit_s)
        if outcome == WENT_ON and self._ledger.generation != generation:
            outcome = COST_A_STEP
        if outcome == HUNG:
            self._note_hangs(limit_s)
        else:
            self._judge(group, outcome)
        ended_s = self._now_s()
        ends = outcome in (ENDED, HUNG)
        if ends:
            self._restart(group[0])
        for record, hit_ns in zip(records, hits_ns, strict=True):
            record.outcome = outcome
            record.ended_s = ended_s - hit_ns / 1e9 if outcome == ENDED else None
            done_ns = None if ends else self._ledger.first_done_ns(hit_ns)
            record.recovery_s = ((done_ns or self._now_ns()) - hit_ns) / 1e9
        line = self._progress(records)
        self._say(line if self.result.faults else Passing(line))
        self._starved_s = 0.0

    def _begin(self, event: ChaosEvent) -> EventRecord:
        kind = FAULT_KINDS[event.kind]
        self._where = f"event {event.number} ({event})"
        at_s = self._now_s() - self._zero_s
        record = EventRecord(event, at_s, kind.outcome(event, self.options).value, self.result.starts)
        self.result.records.append(record)
        kind.begin(self._site, event)
        if event.duration_s:
            self._undos.append((self._now_s() + event.duration_s, event))
        return record

    def _settle_within(self, hit_ns: int, limit_s: float) -> str:
        """Waits for the job's end, or for a step that all ranks began after all that happens was over."""

        def settled() -> bool:
            if not self.options.elastic and (self._errors or any(self._status(rank) is not None for rank in ranks)):
                return self._over
            since_ns = max(hit_ns, self._undone_ns)
            all_back = self._quiet and self._ledger.first_done_ns(since_ns, self.options.workers) is not None
            return all_back or (self._over and self._quiet)  # an elastic job whose ranks are all dead begins anew

        ranks = range(self.options.workers)
        if not self._wait_for(settled, limit_s):
            return HUNG
        return ENDED if self._over else WENT_ON

    def _judge(self, group: list[ChaosEvent], outcome: str) -> None:
        """Compares what came of an event, or of several that met each other, with what their kinds promise."""
        kinds = [FAULT_KINDS[event.kind] for event in group]
        expected = {kind.outcome(event, self.options) for kind, event in zip(kinds, group, strict=True)}
        if outcome == WENT_ON and FaultOutcome.ENDS in expected:
            self._surprise(group[0], "the job went on", {})
        if outcome == COST_A_STEP and expected == {FaultOutcome.SAME_BITS}:
            self._surprise(group[0], "the ranks formed a new generation", {}, is_late=True)
        if outcome != ENDED:
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

    def _restart(self, event: ChaosEvent) -> None:
        """Starts the job again from its checkpoint, once what the event did is undone."""
        if not self._wait_for(lambda: self._quiet, event.duration_s + GRACE_S):
            raise RunFailed(f"event {event.number}: {event} couldn't be undone")
        self._end_start()
        for number in range(self.options.switches):
            self._site.start_switch(number)
        if not self.options.repeats:
            self._ledger.undisturbed = None
        self._start_job(self._checkpoint)
        self._await_first_step()

    def _await_first_step(self) -> None:
        """Raises RunFailed if a start has none: nothing could be tested then."""
        if not self._wait_for(lambda: self._over or self._ledger.first_done_ns(0) is not None, START_S):
            self._note_hangs(START_S)
        elif self._over:
            self.result.not_as_expected.append(
                f"{self._where}: start {self.result.starts} failed: {self._errors or self._end_of(0)}"
            )
        else:
            return
        raise RunFailed(f"{self.result.faults[-1]} (nothing more was tried)")

    # ---- what a run in virtual time has otherwise

    def _open_site(self) -> ChaosSite:
        return ChaosSite(self.options)

    def _now_ns(self) -> int:
        return time.monotonic_ns()

    def _now_s(self) -> float:
        return self._now_ns() / 1e9

    def _listen(self) -> None:
        self._children = self._site.ranks
        self._listener = ChildListener(self._children)

    def _listen_no_more(self) -> None:
        self._listener.__exit__()

    def _reports(self) -> list[tuple[int, Any]]:
        """What ranks have reported by now, after a short wait."""
        if self._children is not self._site.ranks:  # some have started again
            self._listen_no_more()
            self._listen()
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
        for rank in [rank for rank in self._fallen if self._status(rank) is not None]:
            self._fallen.remove(rank)
            self._site.start_rank(rank)
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
            case StepFailed(step, generation):
                self._ledger.note_failed(step, generation)
            case CheckpointSaved(step):
                self._checkpoint = step
            case SumWrong(step, what):
                self.result.wrong_sums.append(f"{where}, rank {rank}, step {step}: {what}")
            case LapReplayed(number, sha256):
                self._right[self._lap_plans[number].members] = sha256
            case RankFailed(error) if self._takes_back:
                self.result.not_as_expected.append(f"{where}: rank {rank} ended: {error}")
                self._fallen.add(rank)
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
        names += "".join(f" ({self._end_of(rank)})" for rank in range(self.options.workers) if rank not in silent)
        self.result.hangs.append(
            f"{self._where}, start {self.result.starts}: rank {names} neither went on nor ended within {limit_s:.0f} s"
        )

    def _surprise(self, event: ChaosEvent, what: str, errors: dict[int, str], is_late: bool = False) -> None:
        """is_late: a machine that is too busy could be why, whatever the errors say."""
        texts = [f"rank {rank}: {error}" for rank, error in sorted(errors.items())][:SHOWN_ERRORS]
        line = f"event {event.number} ({event}), start {self.result.starts}: {what}"
        is_late = is_late or any(re.search(LATE, error) for error in errors.values())
        if is_late and self._starved_s >= self.options.lease_s / 2:
            line += f" (processors or disks kept threads waiting for {self._starved_s:.1f} s)"
            lines = self.result.disturbed
        else:
            lines = self.result.not_as_expected
        lines.append(": ".join([line, *(["; ".join(texts)] if texts else [])]))

    def _progress(self, records: list[EventRecord]) -> str:
        words = ", ".join(str(record.event) for record in records)
        first = records[0]
        ended = f" after {first.ended_s:.1f} s" if first.ended_s is not None else ""
        faults = f"; {len(self.result.faults)} FAULTS" if self.result.faults else ""
        return (
            f"{first.at_s:6.1f} s  event {first.event.number}: {words}: {first.outcome}{ended}, recovered after "
            f"{first.recovery_s:.1f} s; {self._ledger.steps} steps{faults}"
        )
