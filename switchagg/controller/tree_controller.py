"""A controller whose switch is the root of others (rules C18 to C20), and which may drain (C27)."""

from switchagg.controller.job_members import RunningJob
from switchagg.controller.rebalancing_controller import RebalancingController
from switchagg.controller.switch_registry import Held
from switchagg.join import ROOT
from switchagg.membership import JobAdmitted, JobReady, Share, SwitchOffer


class TreeController(RebalancingController):
    """See `RebalancingController`; from switches below: `register`, `beat`, `withdraw`; from the host: `drain`."""

    def drain(self, reason: str) -> None:
        """The switch is to stop: every join is refused with this reason, and jobs that can go on without the switch are
        asked to leave (C27)."""
        self._draining = reason
        for gathering in list(self._gatherings.values()):
            self._drop(gathering, gathering.all_members, reason, lacks_room=True)
        for job in self._jobs.values():
            _ask_to_leave(job, reason)

    def register(self, offer: SwitchOffer, now_ns: int) -> tuple[str, bool]:
        """A switch wants to serve below (C18); returns why it may not, and whether it may ask again."""
        answer = (self._stopped, False) if self._stopped else self.switches.register(offer, now_ns)
        self._end_jobs_of_lost()
        self._admit_what_can_be()
        return answer

    def beat(self, incarnation: int, held: Held, now_ns: int, draining: str = "") -> bool:
        """A switch lives and has these jobs (C19); False: it isn't known. draining: why it drains (C27), or ""."""
        name = self.switches.of(incarnation)
        if name is None:
            self.counters["unknown_senders"] += 1
            return False
        self.switches.beat(name, held, now_ns, draining)
        if draining:
            for running in self._jobs.values():
                if running.admitted.is_at(name):
                    _ask_to_leave(running, draining)
        for running in list(self._jobs.values()):
            job = running.admitted.job
            refusal = held.get((job.job_id, job.generation))
            if name not in running.awaited or refusal is None:
                continue
            running.awaited.discard(name)
            if refusal:
                self._fail(running, (), f"switch {name!r} refused the job: {refusal}")
            elif not running.awaited:
                self._events.append(JobReady(running.admitted))
        self._admit_what_can_be()
        return True

    def withdraw(self, incarnation: int, reason: str) -> None:
        """A switch stops in order: its jobs end (H6)."""
        if (name := self.switches.of(incarnation)) is not None:
            self.switches.withdraw(name, reason)
            self._end_jobs_of_lost()

    def shares(self, incarnation: int) -> list[tuple[JobAdmitted, Share]]:
        """The jobs that a switch below has to hold, each with the part there (C19)."""
        name = self.switches.of(incarnation)
        shares = ((job.admitted, share) for job in self._jobs.values() for share in job.admitted.shares)
        return [(admitted, share) for admitted, share in shares if share.switch == name and share.switch != ROOT]


def _ask_to_leave(job: RunningJob, reason: str) -> None:
    if job.request.can_fall_back:
        job.asked_to_leave = job.asked_to_leave or reason
