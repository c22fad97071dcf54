"""A controller that shares its slots anew while jobs run (rule C24).

`rebalancing` decides which jobs move, and to which ranges. This module decides when, and keeps slots until their jobs
have come.
"""

from typing import Any

from switchagg.controller.admission import ROOM_LEASES
from switchagg.controller.job_members import RunningJob
from switchagg.controller.preempting_controller import PreemptingController
from switchagg.controller.rebalancing import Rebalance, SlotDistribution, best_rebalance
from switchagg.controller.slot_allocator import ReservedRange, overlap
from switchagg.controller.switch_registry import limits
from switchagg.join import Join

SETTLED_LEASES = 2
"""How long a job runs, at least, before it is asked to move; four times as long for each rebalancing in a row that
it moved for and that failed, since a job was late."""

FREE_LEASES = 1
"""How long slots that came free are left to the job that had them, or to a new one, before running jobs move there."""

KEPT_LEASES = 3
"""How long slots are kept for jobs that move, and for those that they move for."""

FAILED_KEPT = 4096
"""How many jobs are remembered that moved for a rebalancing that failed."""

Switches = frozenset[str]


class RebalancingController(PreemptingController):
    """See `Controller`. Jobs that can go on without the switch, and with other numbers of slots, are asked to leave and
    come back; there is one rebalancing at a time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._failed: dict[str, int] = {}
        self._freed_ns = -FREE_LEASES * self.lease_ns
        self._movers: tuple[str, ...] = ()
        self._seen: dict[Switches, SlotDistribution] = {}  # where nothing was worth moving

    def next_deadline_ns(self) -> int | None:
        """See `Controller`."""
        deadlines = [reserved.until_ns for reserved in self._reserved.values()]
        if not self._reserved:
            settled = [self._settled_ns(job) for job in self._jobs.values() if job.can_rebalance]
            deadlines += [due_ns for due_ns in (self._free_ns, *settled) if settled and due_ns > self._now_ns]
        first = super().next_deadline_ns()
        return min(deadlines if first is None else [*deadlines, first], default=None)

    # Private

    def _admit_what_can_be(self) -> None:
        """See `Controller`; before that it begins a rebalancing, where one is worth it."""
        self._end_rebalance()
        if not self._reserved:
            places = dict.fromkeys(job.switches for job in self._jobs.values() if job.can_rebalance)
            self._seen = {switches: distribution for switches, distribution in self._seen.items() if switches in places}
            for switches in places:
                if (rebalance := self._rebalance_at(switches)) is not None:
                    self._begin(rebalance, switches)
                    break
        super()._admit_what_can_be()

    def _end_rebalance(self) -> None:
        """Keeps slots no longer: after a time, or where a more urgent job took some."""
        stay = [job for job in self._jobs.values() if not job.asked_to_leave]
        for name, reserved in list(self._reserved.items()):
            if any(
                job.switches & reserved.switches and overlap(job.admitted.job.slots, reserved.slots) for job in stay
            ):
                del self._reserved[name]
        if self._movers and not self._reserved:  # all that moved are there
            for name in self._movers:
                self._failed.pop(name, None)
            self._movers = ()
        if any(reserved.until_ns <= self._now_ns for reserved in self._reserved.values()):
            self._reserved.clear()
            for name in self._movers:
                self._failed[name] = self._failed.pop(name, 0) + 1
            self._movers = ()
            while len(self._failed) > FAILED_KEPT:
                del self._failed[next(iter(self._failed))]

    def _evict(self, job: RunningJob) -> None:
        """See `Controller`."""
        super()._evict(job)
        self._freed_ns = self._now_ns

    @property
    def _free_ns(self) -> int:
        return self._freed_ns + FREE_LEASES * self.lease_ns

    def _rebalance_at(self, switches: Switches) -> Rebalance | None:
        """The rebalancing of jobs that have exactly these switches; None if there is none to do."""
        neighbours = [job for job in self._jobs.values() if job.switches & switches]
        move = [
            job
            for job in neighbours
            if job.can_rebalance and job.switches == switches and self._settled_ns(job) <= self._now_ns
        ]
        waiting = self._waiting_at(switches) if move else {}
        if not move or (self._now_ns < self._free_ns and not waiting):
            return None
        shares = move[0].admitted.shares
        distribution = SlotDistribution(
            limits(shares, self.slots, self.elements_max)[0] if shares else self.slots,
            [job.admitted.job.slots for job in neighbours if job not in move],
            {job.admitted.name: (job.request, job.admitted.job.slots) for job in move},
            waiting,
            self._quota.job_slots,
        )
        if self._seen.get(switches) == distribution:
            return None
        rebalance = best_rebalance(distribution)
        if rebalance is None or not self._within_quota(rebalance):
            self._seen[switches] = distribution
            return None
        return rebalance

    def _waiting_at(self, switches: Switches) -> dict[str, tuple[Join, int]]:
        """By job: the request of a gathering that lacks only slots there, and its slots without rebalancing."""
        requests = {}
        for gathering in self._gatherings.values():
            shares = self._shares(gathering) if self._waits_for_room(gathering) and not gathering.leavers else ""
            if isinstance(shares, str) or frozenset(share.switch for share in shares) != switches:
                continue
            least = gathering.holding
            if self._quota.room(self.slots, least.hosts, self._holdings) >= least.slots:
                first, end = self._range(gathering, shares) or (0, 0)
                requests[gathering.name] = (self._fitted(gathering, shares)[0], end - first)
        return requests

    def _within_quota(self, rebalance: Rebalance) -> bool:
        """Whether no host has more than its quota after the rebalancing (C16)."""
        counts = {name: end - first for name, (first, end) in rebalance.ranges.items()}
        stay = [job.holding for name, job in self._jobs.items() if name not in rebalance.movers]
        for name, slots in counts.items():
            owner = self._jobs[name] if name in self._jobs else self._gatherings[name]
            holding = owner.holding.of(slots)
            if self._quota.fault(self.slots, holding, stay):
                return False
            stay.append(holding)
        return True

    def _begin(self, rebalance: Rebalance, switches: Switches) -> None:
        """Asks the movers to leave, and keeps the ranges that they shall come back to."""
        until_ns = self._now_ns + KEPT_LEASES * self.lease_ns
        self._movers = rebalance.movers
        for name, place in rebalance.ranges.items():
            owner = self._jobs[name] if name in self._jobs else self._gatherings[name]
            self._reserved[name] = ReservedRange(place, switches, owner.request.job_priority, until_ns)
            if name in self._gatherings:  # it is refused a lease later, for it may find other slots then
                self._gatherings[name].complete_ns = until_ns + (1 - ROOM_LEASES) * self.lease_ns
        for name in rebalance.movers:
            job, (first, end) = self._jobs[name], rebalance.ranges.get(name, (0, 0))
            job.asked_to_leave = f"slots are rebalanced: {end - first} are its share, it has {job.holding.slots}"

    def _settled_ns(self, job: RunningJob) -> int:
        """When a job may be asked to move."""
        again: int = 4 ** self._failed.get(job.admitted.name, 0)
        return job.since_ns + SETTLED_LEASES * self.lease_ns * again
