"""Slots of a network's data planes, divided anew among its jobs whenever one begins or ends: new generations of all."""

from collections.abc import Callable, Sequence
from functools import partial

from emulation.sim.network.switch_simulation import SwitchSimulation
from emulation.sim.network.virtual_clock import VirtualClock
from switchagg.controller.slot_shares import SlotDemand, first_come, max_min

DIVISIONS: dict[str, Callable[[int, Sequence[SlotDemand]], list[int]]] = {"max_min": max_min, "first_come": first_come}
"""By name: policy(slots, demands), the slots of each."""


class SlotDivision:
    """slots: of every data plane. Jobs have ranges side by side, in the order in which they came.

    At a change all jobs finish the calls that any of their ranks has begun, and then have new ranges; one without slots
    waits. Admission itself takes no virtual time. history: by job_id, (since when, slots).
    """

    def __init__(self, time: VirtualClock, slots: int, policy: str) -> None:
        self.history: dict[int, list[tuple[int, int]]] = {}
        self._time = time
        self._slots = slots
        self._policy = DIVISIONS[policy]
        self._jobs: dict[SwitchSimulation, SlotDemand] = {}
        self._busy: set[SwitchSimulation] = set()  # that have still to finish calls
        self._due = False

    def enter(self, job: SwitchSimulation, demand: SlotDemand) -> None:
        """A job begins; it has to wait for its slots."""
        self._jobs[job] = demand
        self.history[job.job.job_id] = []
        self._change()

    def leave(self, job: SwitchSimulation) -> None:
        """A job has ended, all its calls complete."""
        del self._jobs[job]
        self._busy.discard(job)
        job.evict()
        self._note(job, 0)
        self._change()

    def _change(self) -> None:
        """Jobs that begin or end at the same instant make one change."""
        if not self._due:
            self._due = True
            self._time.schedule(self._time.now_ns, self._begin)

    def _begin(self, _frame: None, _sender: int, _to: int) -> None:
        self._due = False
        self._busy = set(self._jobs)
        for job in list(self._jobs):
            job.suspend(partial(self._quiet, job))

    def _quiet(self, job: SwitchSimulation) -> None:
        self._busy.discard(job)
        if not self._busy and not self._due:
            self._divide()

    def _divide(self) -> None:
        for job in self._jobs:
            job.evict()
        first = 0
        shares = self._policy(self._slots, list(self._jobs.values()))
        for job, slots in zip(list(self._jobs), shares, strict=True):
            self._note(job, slots)
            if slots:
                job.resume(first, slots)
                first += slots

    def _note(self, job: SwitchSimulation, slots: int) -> None:
        history = self.history[job.job.job_id]
        if not history or history[-1][1] != slots:
            history.append((self._time.now_ns, slots))
