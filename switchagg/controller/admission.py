"""Controller: admits jobs, gives out slots and generations, keeps leases. Rules C1 to C10.

Pure, like the rest of the core: its inputs are requests and the time (`now_ns`, any monotonic clock), its outputs
events. The methods come in four families: inputs from members (`join`, `heartbeat`, `leave`), inputs from the host
(`fail`, `stop`, `handle_timer`), outputs (`next_event`, `next_deadline_ns`), getters (`membership_state`, `free_slots`,
`jobs`). After any input: execute every `next_event` in order, then wait until `next_deadline_ns`.

A job's life: *gathering* under its name, until all ranks are there; *running*, from its admission to its eviction.
A name may have both: the next start gathers while the last one ends (C4). `preempting_controller` adds jobs that
leave for more urgent ones, `rebalancing_controller` jobs that move to share slots anew, `tree_controller` switches
below.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from switchagg.controller.job_members import GatheringJob, Jobs, MemberRecord, RunningJob, members_of
from switchagg.controller.job_numbers import Generations, JobIds
from switchagg.controller.quota import Holding, PeerQuota
from switchagg.controller.slot_allocator import Range, ReservedRange, SwitchOccupancy, fitted, overlap
from switchagg.controller.switch_registry import Switches, limits
from switchagg.job import MAX_CHILDREN, MAX_ELEMENTS, MAX_SLOTS, MAX_WORKERS
from switchagg.join import ROOT, Join
from switchagg.membership import (
    Departure,
    Event,
    JobAdmitted,
    JobEvicted,
    JobFailed,
    JoinRefused,
    Member,
    MemberLeft,
    MembershipState,
    Running,
    Share,
    Waiting,
)

WAITING_MAX = 1024
"""Most members that gather at one time: foreign joins can't grow the switch's memory without bound."""

STANDINGS_KEPT = 4096
"""How many ended members are remembered, so that each can get the reason again (C9)."""

ROOM_LEASES = 2
"""How long a complete gathering waits for slots, in leases: those of a job that died come free within one (C6)."""


class Controller:
    """The control plane's decisions for one switch.

    slots: how many the switch has, 1 to 65536. elements_max: the largest E it can hold. draw_generation: gives a random
    number below 2**32 that nobody can foresee (C5). lease_ns: time without a message after which a member is dead (C6).
    claim_ns: how long after a join for a held rank its holder's heartbeat may still be an old one (C4). quota: of each
    address (C16). packets_held: how many packets of so many elements its receive buffer holds, 0: enough (C17).
    """

    def __init__(
        self,
        slots: int,
        elements_max: int,
        draw_generation: Callable[[], int],
        lease_ns: int = 4_000_000_000,
        claim_ns: int = 1_000_000_000,
        quota: PeerQuota | None = None,
        packets_held: Callable[[int], int] = lambda elements: 0,
    ) -> None:
        assert 1 <= slots <= MAX_SLOTS, slots
        assert 1 <= elements_max <= MAX_ELEMENTS, elements_max
        assert 0 < claim_ns < lease_ns, (claim_ns, lease_ns)
        self.slots = slots
        self.elements_max = elements_max
        self.lease_ns = lease_ns
        self.counters = dict.fromkeys(("joins", "admitted", "refused", "failed", "ended", "left", "unknown_senders"), 0)
        self._claim_ns = claim_ns
        self._packets_held = packets_held
        self._quota = quota or PeerQuota()
        self.switches = Switches(lease_ns)
        self._generations = Generations(draw_generation)
        self._job_ids = JobIds()
        self._stopped = ""
        self._draining = ""
        self._gatherings: dict[str, GatheringJob] = {}
        self._jobs: dict[str, RunningJob] = {}
        self._reserved: dict[str, ReservedRange] = {}
        self._now_ns = 0
        self._home: dict[int, GatheringJob | RunningJob] = {}
        self._ended: dict[int, JoinRefused | JobFailed] = {}
        self._events: deque[Event] = deque()

    # Inputs from members

    def join(self, request: Join, now_ns: int) -> None:
        """A worker asks to join; the answer comes as an event, and as its `membership_state` until then (C1 to C5)."""
        self._now_ns = now_ns
        if request.incarnation in self._home or request.incarnation in self._ended:
            self.heartbeat(request.incarnation, now_ns)  # C2: asked again
            return
        self.counters["joins"] += 1
        record = MemberRecord(request, now_ns, now_ns)
        if reason := self._fault(request):
            self._refuse(request.job, [record], reason, self._may_go_elsewhere(request))
            return
        self._place(record)
        self._admit_what_can_be()

    def heartbeat(self, incarnation: int, now_ns: int) -> None:
        """A member lives: its lease is renewed (C6). An unknown incarnation is counted and changes nothing."""
        home = self._home.get(incarnation)
        if home is None:
            self.counters["unknown_senders"] += incarnation not in self._ended
            return
        record = home.member_of(incarnation)
        record.heard_ns = now_ns
        self._settle_claims(home, record, now_ns)

    def leave(self, incarnation: int, calls: Sequence[int], reason: str) -> None:
        """A member goes on its own. calls: how many it has finished, by stream; reason: why, or "" (C7)."""
        home = self._home.get(incarnation)
        if home is None:
            self.counters["unknown_senders"] += incarnation not in self._ended
            return
        record = home.member_of(incarnation)
        if isinstance(home, GatheringJob):
            self._forget(home, [record])
        else:
            self.counters["left"] += 1
            departure = Departure(record.member, tuple(calls), reason)
            home.departures.append(departure)
            del home.members[record.request.rank], self._home[incarnation]
            if home.members:
                stay = tuple(other.member for other in home.members.values())
                self._events.append(MemberLeft(home.admitted.name, departure, stay))
            else:
                self._evict(home)
        self._admit_what_can_be()

    # Inputs from the host

    def fail(self, name: str, reason: str) -> None:
        """The host can't serve this running job (its data plane refused it): it ends for all its members."""
        if name in self._jobs:
            self._fail(self._jobs[name], (), reason)
            self._admit_what_can_be()

    def stop(self, reason: str) -> None:
        """The switch stops: every job fails and every join, also a later one, is refused with this reason (C10)."""
        self._stopped = reason
        for gathering in list(self._gatherings.values()):
            self._drop(gathering, gathering.all_members, reason)
        for job in list(self._jobs.values()):
            self._fail(job, (), reason)

    def handle_timer(self, now_ns: int) -> None:
        """Ends what is over at now_ns: leases (C6) and gatherings (C5). Call it after the messages that have come."""
        self._now_ns = now_ns
        self.switches.expire(now_ns)
        self._end_jobs_of_lost()
        for job in list(self._jobs.values()):
            dead = tuple(record.member for record in job.members.values() if self._silent(record, now_ns))
            if dead:
                names = ", ".join(map(str, dead))
                self._fail(job, dead, f"{names}: no heartbeat for {self.lease_ns / 1e9:g} s (dead, stopped or cut off)")
        for gathering in list(self._gatherings.values()):
            self._forget(gathering, [record for record in gathering.all_members if self._silent(record, now_ns)])
        self._admit_what_can_be()
        for gathering in list(self._gatherings.values()):
            if self._deadline_ns(gathering) <= now_ns:
                reason = gathering.timeout_reason("" if gathering.missing else self._obstacle(gathering))
                self._drop(gathering, gathering.all_members, reason, self._lacks_room(gathering))

    # Outputs

    def next_event(self) -> Event | None:
        """The oldest event not yet taken, or None."""
        return self._events.popleft() if self._events else None

    def next_deadline_ns(self) -> int | None:
        """When `handle_timer` has something to do, if no message comes before; None: never."""
        deadlines = self.switches.deadlines_ns()
        deadlines += [record.heard_ns + self.lease_ns for job in self._jobs.values() for record in job.members.values()]
        for gathering in self._gatherings.values():
            deadlines.append(self._deadline_ns(gathering))
            deadlines += [record.heard_ns + self.lease_ns for record in gathering.all_members]
        return min(deadlines, default=None)

    # Getters

    def membership_state(self, incarnation: int) -> MembershipState | None:
        """The status of a member, also after its end (C9); None for an unknown one."""
        home = self._home.get(incarnation)
        if home is None:
            return self._ended.get(incarnation)
        if isinstance(home, RunningJob):
            if home.awaited:
                awaited = ", ".join(map(repr, sorted(home.awaited)))
                return Waiting(home.admitted.name, home.admitted.members, (), f"switches {awaited} have yet to take it")
            return home.membership_state
        reason = home.claim_on(incarnation) or (home.contradicted if home.missing else self._obstacle(home))
        return Waiting(home.name, members_of(home.members), home.missing, reason)

    def jobs(self) -> Iterator[Running]:
        """The running jobs, oldest first."""
        for job in self._jobs.values():
            yield job.membership_state

    def waiting(self) -> Iterator[Waiting]:
        """The gatherings, oldest first."""
        for gathering in self._gatherings.values():
            yield Waiting(gathering.name, members_of(gathering.members), gathering.missing, self._obstacle(gathering))

    def free_slots(self) -> int:
        """Slots of the controller's own switch that belong to no job."""
        return self.slots - sum(job.holding.slots for job in self._jobs.values() if job.admitted.is_at(ROOT))

    # Private

    def _fault(self, request: Join) -> str:
        """Why this request can never be served, or "" (C1)."""
        if self._stopped or self._draining:
            return self._stopped or self._draining
        if fault := request.fault(self.slots, self.elements_max, self._workers_max):
            return fault
        hosts = [record.request.address[0] for job in self._gatherings.values() for record in job.all_members]
        if len(hosts) >= WAITING_MAX:
            return f"{WAITING_MAX} members are waiting already"
        return self._quota.joins_fault(request.address[0], hosts.count(request.address[0]), request.stream_count)

    def _may_go_elsewhere(self, request: Join) -> bool:
        """Whether all that is wrong with a refused request is that it wants more slots than there are, or comes while
        the switch drains."""
        most = max(self.slots, request.requested_slots)
        sound = not self._stopped and not request.fault(most, self.elements_max, self._workers_max)
        return sound and (bool(self._draining) or request.requested_slots > self.slots)

    @property
    def _workers_max(self) -> int:
        """Most workers of a job: more than one switch has ports for only where there are others below."""
        return MAX_WORKERS if len(self.switches) else MAX_CHILDREN

    def _place(self, record: MemberRecord) -> None:
        """Give a member its place in the gathering: its rank, or a claim on it behind who has it (C3)."""
        request = record.request
        gathering = self._gatherings.setdefault(request.job, GatheringJob(request.job))
        if reason := gathering.contradiction_of(request):
            self._refuse(request.job, [record], reason)
            return
        gathering.add(record, self._now_ns)
        self._home[request.incarnation] = gathering

    def _place_again(self, claims: Iterable[MemberRecord]) -> None:
        for claim in claims:
            del self._home[claim.request.incarnation]
            self._place(claim)

    def _settle_claims(self, home: GatheringJob | RunningJob, holder: MemberRecord, now_ns: int) -> None:
        """A heartbeat that a rank's holder can't have sent before a later join for it refuses that join (C3, C4)."""
        kind = "running" if isinstance(home, RunningJob) else "gathering"
        gathering = self._gatherings.get(holder.request.job)
        if gathering and (claims := gathering.claims_behind(holder, now_ns - self._claim_ns)):
            held = f"{holder.member} holds that rank of {kind} job {gathering.name!r} and is alive"
            self._drop(gathering, claims, f"{held}; start each rank once, or choose another job name")

    def _admit_what_can_be(self) -> None:
        """Admits every gathering that is complete, whose name is free and for which there are slots (C5); the most
        urgent first, and none less urgent while others leave for one (C21)."""
        for gathering in sorted(self._gatherings.values(), key=lambda gathering: gathering.request.job_priority):
            if not gathering.missing and not self._obstacle(gathering):
                self._admit(gathering)
            elif gathering.leavers and self._waits_for_room(gathering):
                break

    def _admit(self, gathering: GatheringJob) -> None:
        shares = self.switches.tree(gathering.vias)
        assert not isinstance(shares, str)
        request, narrowed = self._fitted(gathering, shares)
        first, end = self._range(gathering, shares) or (0, 0)  # there is a range: the gathering has no obstacle
        count = end - first
        if count < (requested := request.requested_slots) and not request.sparing:
            narrowed = f"windows have {count} slots in all, not {requested}: its share, or what the switch has free"
        generation = self._generations.new(job.admitted.job.generation for job in self._jobs.values())
        job_id = self._job_ids.new({job.admitted.job.job_id for job in self._jobs.values()})
        job = (terms := request.narrowed(count).terms).job_config(job_id, generation, request.workers, first)
        below = {share.switch for share in shares} - {ROOT}
        shares, members = shares if below else (), members_of(gathering.members)
        admitted = JobAdmitted(gathering.name, job, terms, members, narrowed, shares)
        running = RunningJob(admitted, gathering.members, request, self._now_ns, awaited=below)
        self._jobs[gathering.name] = running
        self._reserved.pop(gathering.name, None)
        del self._gatherings[gathering.name]
        for record in running.members.values():
            self._home[record.request.incarnation] = running
        self._place_again(chain.from_iterable(gathering.claims.values()))  # they gather for the next start (C4)
        self.counters["admitted"] += 1
        self._events.append(admitted)

    def _range(self, gathering: GatheringJob, shares: Sequence[Share], leaving: Jobs = ()) -> Range | None:
        """The slots that it would get at all its switches, once some jobs are gone; None: no room."""
        request, switches = self._fitted(gathering, shares)[0], frozenset(share.switch for share in shares)
        jobs = [job for job in self._jobs.values() if job not in leaving and job.switches & switches]
        reserved = self._reserved.get(gathering.name)
        if reserved is not None and reserved.fits(request, switches):
            return None if any(overlap(reserved.slots, job.admitted.job.slots) for job in jobs) else reserved.slots
        waiting = (other.request for other in self._gatherings.values() if self._waits_for_room(other))
        rivals = chain(gathering.leavers, waiting, (job.request for job in leaving))  # looked at only if need be
        slots = limits(shares, self.slots, self.elements_max)[0]
        room = self._quota.room(self.slots, gathering.holding.hosts, self._holdings)
        occupancy = SwitchOccupancy(jobs, switches, slots, self._reserved)
        return occupancy.range_for(request, rivals, self._quota.job_slots, room)

    def _fitted(self, gathering: GatheringJob, shares: Sequence[Share]) -> tuple[Join, str]:
        return fitted(gathering, shares, self._packets_held(gathering.request.elements), self._quota.job_slots)

    @property
    def _holdings(self) -> list[Holding]:
        return [job.holding for job in self._jobs.values()]

    def _obstacle(self, gathering: GatheringJob) -> str:
        """The reason that keeps a complete gathering from being admitted, or ""."""
        earlier = self._jobs.get(gathering.name)
        if earlier is not None:
            who = ", ".join(str(record.member) for record in earlier.members.values())
            return f"job {gathering.name!r} still runs, with {who}"
        shares = self._shares(gathering)
        if isinstance(shares, str):
            return shares
        place = self._range(gathering, shares)
        if place is not None:
            wanted = gathering.holding.of(place[1] - place[0])
            return self._quota.fault(self.slots, wanted, self._holdings)
        if gathering.name in self._reserved:
            return str(self._reserved[gathering.name])
        return (
            f"{gathering.holding.slots} slots in a row are needed and {self.free_slots()} of {self.slots} are free, "
            f"beside {len(self._jobs)} jobs; wait for one to end, ask for a smaller window, or give the switch more"
        )

    def _shares(self, gathering: GatheringJob) -> tuple[Share, ...] | str:
        """The shares of a complete gathering's job at each switch, or why that can't be (C20)."""
        return self.switches.tree_for(gathering.vias, gathering.holding.slots, gathering.request.elements)

    def _end_jobs_of_lost(self) -> None:
        """Ends the jobs of switches that have died, stopped or been restarted, at all levels (H6)."""
        for name, reason in self.switches.lost():
            for job in [job for job in self._jobs.values() if job.admitted.is_at(name)]:
                self._fail(job, (), reason)

    def _lacks_room(self, gathering: GatheringJob) -> bool:
        return self._waits_for_room(gathering) and not isinstance(self._shares(gathering), str)

    def _deadline_ns(self, gathering: GatheringJob) -> int:
        """When the gathering is given up: at its first member's timeout, or earlier if all it lacks is room (C5)."""
        end_ns = min(record.joined_ns + record.request.timeout_ns for record in gathering.members.values())
        if not self._waits_for_room(gathering) or gathering.request.wait_for_slots:
            return end_ns
        return min(end_ns, gathering.complete_ns + ROOM_LEASES * self.lease_ns)

    def _waits_for_room(self, gathering: GatheringJob) -> bool:
        return not gathering.missing and gathering.name not in self._jobs

    def _silent(self, record: MemberRecord, now_ns: int) -> bool:
        return now_ns - record.heard_ns >= self.lease_ns

    def _drop(self, job: GatheringJob, records: list[MemberRecord], reason: str, lacks_room: bool = False) -> None:
        """Refuses these waiting members."""
        self._forget(job, records)
        self._refuse(job.name, records, reason, lacks_room)

    def _forget(self, gathering: GatheringJob, records: Iterable[MemberRecord]) -> None:
        """Removes these waiting members without notifying them."""
        for record in reversed(list(records)):
            del self._home[record.request.incarnation]
            self._place_again(gathering.remove(record))
        if not gathering.members:
            del self._gatherings[gathering.name]

    def _refuse(self, name: str, records: list[MemberRecord], reason: str, lacks_room: bool = False) -> None:
        self.counters["refused"] += len(records)
        if lacks_room:
            self.counters["refused_no_room"] = self.counters.get("refused_no_room", 0) + len(records)
        refused = JoinRefused(name, tuple(record.member for record in records), reason, lacks_room)
        self._remember(refused)
        self._events.append(refused)

    def _fail(self, job: RunningJob, dead: tuple[Member, ...], reason: str) -> None:
        """Evicts, then notifies all members, also the dead: they may only have been cut off (C6, C8)."""
        self.counters["failed"] += 1
        admitted = job.admitted
        failed = JobFailed(admitted.name, admitted.job.generation, members_of(job.members), dead, reason)
        for record in job.members.values():
            del self._home[record.request.incarnation]
        self._evict(job)
        self._remember(failed)
        self._events.append(failed)

    def _evict(self, job: RunningJob) -> None:
        del self._jobs[job.admitted.name]
        self.counters["ended"] += 1
        self._events.append(JobEvicted(job.admitted.name, job.admitted.job, job.admitted.shares))

    def _remember(self, end: JoinRefused | JobFailed) -> None:
        for member in end.members:
            self._ended[member.incarnation] = end
        while len(self._ended) > STANDINGS_KEPT:
            del self._ended[next(iter(self._ended))]
