"""A controller that asks jobs to leave, so that a more urgent one fits (rule C21)."""

from collections.abc import Callable, Sequence
from functools import partial

from switchagg.controller.admission import ROOM_LEASES, Controller
from switchagg.controller.job_members import GatheringJob, Jobs, RunningJob
from switchagg.join import Join

Fits = Callable[[Jobs], object]
"""The slots that are free for a job once these jobs are gone; None if it doesn't fit."""


class PreemptingController(Controller):
    """See `Controller`. A `membership_state` asks the members of jobs that can go on without the switch to leave."""

    def join(self, request: Join, now_ns: int) -> None:
        """See `Controller`."""
        super().join(request, now_ns)
        self._make_room(now_ns)

    def handle_timer(self, now_ns: int) -> None:
        """See `Controller`; also ends jobs that were asked to leave and haven't."""
        for job in list(self._jobs.values()):
            if job.leaves_by_ns is not None and now_ns >= job.leaves_by_ns:
                self._fail(job, (), f"it has not left within {ROOM_LEASES} leases: {job.asked_to_leave}")
        self._make_room(now_ns)
        super().handle_timer(now_ns)

    def next_deadline_ns(self) -> int | None:
        """See `Controller`."""
        deadlines = [job.leaves_by_ns for job in self._jobs.values() if job.leaves_by_ns is not None]
        first = super().next_deadline_ns()
        return min(deadlines if first is None else [*deadlines, first], default=None)

    # Private

    def _deadline_ns(self, gathering: GatheringJob) -> int:
        """See `Controller`; the deadline is past if the gathering lacks only slots and waits for them in vain (C5)."""
        end_ns = super()._deadline_ns(gathering)
        return min(end_ns, gathering.complete_ns) if self._waits_in_vain(gathering) else end_ns

    def _waits_in_vain(self, gathering: GatheringJob) -> bool:
        request, shares = gathering.request, self._shares(gathering) if self._waits_for_room(gathering) else ""
        if isinstance(shares, str) or request.wait_for_slots or gathering.leavers or gathering.name in self._reserved:
            return False
        switches = frozenset(share.switch for share in shares)
        neighbours = (job for job in self._jobs.values() if job.switches & switches)
        return request.can_fall_back or not any(self._may_end(job) or job.can_rebalance for job in neighbours)

    def _may_end(self, job: RunningJob) -> bool:
        """Whether a job leaves, or has a rank that may be dead: its last heartbeat, of two a second, is long ago."""
        quiet = any(self._now_ns - record.heard_ns >= self._claim_ns for record in job.members.values())
        return bool(quiet or job.asked_to_leave or job.departures)

    def _make_room(self, now_ns: int) -> None:
        """Asks less urgent jobs to leave for each complete gathering that lacks only slots."""
        running = list(self._jobs.values())
        for gathering in self._gatherings.values():
            shares = self._shares(gathering) if self._waits_for_room(gathering) else ""
            if isinstance(shares, str) or gathering.name in self._reserved:
                continue
            holding = gathering.holding
            fits = partial(self._range, gathering, shares)
            if fits([]) is not None or self._quota.fault(self.slots, holding, [job.holding for job in running]):
                continue
            for job in jobs_to_preempt(gathering.request.job_priority, running, fits):
                job.asked_to_leave = f"more urgent job {gathering.name!r} needs its slots"
                job.leaves_by_ns = now_ns + ROOM_LEASES * self.lease_ns
                gathering.leavers.append(job.request)
                gathering.complete_ns = now_ns + self.lease_ns


def jobs_to_preempt(priority: int, running: Sequence[RunningJob], fits: Fits) -> list[RunningJob]:
    """The further jobs to ask, so that a job of this priority fits; [] where asking wouldn't help.

    The result has less urgent jobs that can go on without the switch, the least urgent first, of these the youngest,
    and no job that isn't needed. running: the oldest comes first.
    """
    leaving = [job for job in running if job.leaves_by_ns is not None]
    candidates = [job for job in reversed(running) if _may_be_asked(job, priority)]
    candidates.sort(key=lambda job: job.request.job_priority, reverse=True)
    chosen: list[RunningJob] = []
    for job in candidates:
        if fits([*leaving, *chosen]) is not None:
            break
        chosen.append(job)
    if fits([*leaving, *chosen]) is None:
        return []
    for job in tuple(chosen):
        remaining = [other for other in chosen if other is not job]
        if fits([*leaving, *remaining]) is not None:
            chosen = remaining
    return chosen


def _may_be_asked(job: RunningJob, priority: int) -> bool:
    return job.leaves_by_ns is None and job.request.can_fall_back and job.request.job_priority > priority
