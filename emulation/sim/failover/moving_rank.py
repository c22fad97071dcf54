"""One rank of a job that may lose its switch, in virtual time: as events what `transport/group/moving_session.py` does
in threads. What ranks decide, hold and sum is `switchagg.failover`'s, as there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from emulation.sim.failover.control_member import ControlMember, MemberPhase
from emulation.sim.network.aggregation_host import AggregationHost, SimulatedCall
from emulation.sim.network.host_uplink import Done
from switchagg.calls.call_request import CallRequest, own_shard
from switchagg.calls.chunked_call import ArrayCall
from switchagg.calls.member_calls import CallPlace
from switchagg.calls.round_calls import Ended, RoundCalls
from switchagg.codecs.array_codec import Reduction
from switchagg.errors import AggregationFailed
from switchagg.failover.agreement import Agreement, CallPath, MemberRow, Mover, NextMove, Stage
from switchagg.failover.part_rows import PartRows, RetainedParts
from switchagg.failover.recovery_rounds import host_rounds, recovery_rounds
from switchagg.membership import Departure
from switchagg.native.native_codec import begin_in_c
from switchagg.priority import class_of
from transport.control.heartbeats import AGAIN_NS
from transport.group.host_path import round_key
from transport.group.moving_session import LOOK_S, MEET_DEAD_S, MEET_S
from transport.group.way_back import LOOK_S as LOOK_FOR_S
from transport.group.way_back import NONE, PROBE_S, REJOIN_S, STANDBY_S
from transport.worker.session_membership import GOES_ON

if TYPE_CHECKING:
    from emulation.sim.failover.failover_simulation import FailoverSimulation

LOOK_NS, MEET_NS, MEET_DEAD_NS = (round(limit_s * 1e9) for limit_s in (LOOK_S, MEET_S, MEET_DEAD_S))
LOOK_FOR_NS, PROBE_NS, REJOIN_NS = (round(limit_s * 1e9) for limit_s in (LOOK_FOR_S, PROBE_S, REJOIN_S))
STANDBY_NS = round(STANDBY_S * 1e9)
EXCHANGES = 1 << 60
"""Keys of the exchanges between ranks lie above those of calls."""


class HostCall(NamedTuple):
    """A part on its way over hosts."""

    place: CallPlace
    priority: int


class MovingRank:
    """One rank. `over`: why the job has ended for it, or None."""

    def __init__(self, world: FailoverSimulation, rank: int, host: AggregationHost, member: ControlMember) -> None:
        self.world, self.rank, self.host = world, rank, host
        self.over: AggregationFailed | None = None
        self.counts = {"moves_to_hosts": 0, "moves_to_switch": 0, "recoveries": 0, "recovered_calls": 0}
        self.member: ControlMember | None = member
        """The stay at the switch that has, or had, this rank's parts."""
        self.switch_job = world.job
        self._mover = Mover(place_of(member))
        self._first = [0] * len(world.job.streams)
        self._retain()
        self._lost: AggregationFailed | None = None
        self._busy = False
        self._look_due = False
        self._exchanges = 0
        self._rounds: RoundCalls[HostCall] = RoundCalls(self._begin_round, self._end_here)
        host.carry = self.carry

    @property
    def stage(self) -> Stage:
        """See `Mover`."""
        return self._mover.stage

    @property
    def target(self) -> int:
        """The switch of the list that this rank tries to join."""
        return self._mover.target

    # Parts of calls

    def carry(self, place: CallPlace, part: ArrayCall, done: Done) -> None:
        """Begin a part; see `Carry`."""
        if self.over is not None:
            return
        job = self.world.job
        match self._mover.path_of(*place):
            case CallPath.SWITCH:
                self.host.submit(place, part, partial(self._finished_at_switch, place, part, done))
            case CallPath.HOSTS:
                self._step(place, host_rounds(part, self.rank, job, begin_in_c), done)
            case CallPath.RECOVERY:
                self._recover_part(place, PartRows(part, self.rank, job), done)

    def _finished_at_switch(self, place: CallPlace, part: ArrayCall, done: Done) -> None:
        self._retained[place[0]].keep(place[1], part)
        done()

    def _retain(self) -> None:
        self._retained = [
            RetainedParts(stream.window_slots, self.rank, self.switch_job, first)
            for stream, first in zip(self.switch_job.streams, self._first, strict=True)
        ]

    def _step(self, place: CallPlace, rounds: Iterator[Reduction], done: Done) -> None:
        self._rounds.step(self._host_call(place), 0, rounds, self._ended(done))

    def _recover_part(self, place: CallPlace, part: PartRows, done: Done) -> None:
        self._rounds.take_turn(place[0], self._host_call(place), recovery_rounds(part, begin_in_c), self._ended(done))

    def _host_call(self, place: CallPlace) -> HostCall:
        return HostCall(place, class_of(self.switch_job.streams[place[0]].priority))

    def _ended(self, done: Done) -> Ended:
        def ended(failure: BaseException | None) -> None:
            if failure is None and self.over is None:
                done()

        return ended

    def _begin_round(self, call: HostCall, number: int, reduction: Reduction | None, ended: Ended) -> None:
        assert reduction is not None
        request = CallRequest(
            reduction.kind, reduction.op, round_key(call.place, number), call.priority, reduction.root
        )
        self._on_hosts(request, reduction.array, partial(ended, None))

    def _on_hosts(self, request: CallRequest, array: Any, done: Done) -> None:
        """A collective of all ranks; its result is seen once this rank's process runs."""
        if self.world.hosts_failure:
            self.hosts_failed()
            return
        awake = partial(self.world.when_awake, self.rank, done)
        self.world.on_hosts(self.rank, SimulatedCall(array, request, awake))

    # What the membership tells

    def on_admitted(self, member: ControlMember) -> None:
        """It has joined again (L7)."""
        self.look()

    def on_refused(self, member: ControlMember, reason: str) -> None:
        """A join has failed."""
        self.world.ways_back[self.rank].refused(member, reason)

    def on_departed(self, member: ControlMember, departed: Sequence[Departure]) -> None:
        """As `SessionMembership.check_departures`."""
        gone_on = [member for member in departed if member.reason.startswith(GOES_ON)]
        if self.world.has_fallback and gone_on:
            self._fail(member, f"{gone_on[0].member} {gone_on[0].reason}", ())
        elif leavers := [member for member in departed if not member.reason.startswith(GOES_ON) and member.reason]:
            who = "; ".join(f"{other.member} left after {sum(other.calls)} calls: {other.reason}" for other in leavers)
            self._fail(member, who, tuple(other.member.rank for other in leavers))

    def on_asked_to_leave(self, member: ControlMember) -> None:
        """The switch drains, or has a more urgent job (C21)."""
        self.look()

    def on_end(self, member: ControlMember, dead: tuple[int, ...], reason: str) -> None:
        """The membership has ended."""
        if self.rank in dead:
            reason += "; this rank was taken for dead: was it stopped, or cut off?"
        self._fail(member, reason, dead)

    def _fail(self, member: ControlMember, reason: str, missing: tuple[int, ...]) -> None:
        """A stay at a switch has ended: the one with this rank's parts, or one that it could go back to."""
        failure = AggregationFailed(
            f"rank {self.rank}: {reason}", job=self.world.name, generation=member.generation, missing=missing
        )
        if member.has_failed:
            return
        member.has_failed = True
        goes_on = GOES_ON if self.world.has_fallback else ""
        member.leave(self.host.calls.ledger.finished(), f"{goes_on}{failure}")
        if member is not self.member:
            self.look()
        elif not self.world.has_fallback:
            self.end(failure)
        else:
            self._lost = self._lost or failure
            self._mover.session_lost(place_of(member))
            self._follow()
            self.look()

    def _follow(self) -> None:
        """New calls wait while the mover says so."""
        if self._mover.frozen:
            self.host.hold()
        else:
            self.host.release()

    # Moving

    def look(self) -> None:
        """Move, or tell the others where this rank is, as far as there is anything to do now."""
        if self._busy or self.over is not None or not self.world.is_awake(self.rank):
            return
        mover = self._mover
        if mover.stage is Stage.AWAY:
            self._see_to_the_way_back()
        if mover.stage is Stage.AT_SWITCH and self.member is not None and self.member.asked_to_leave:
            if not self.world.has_fallback:
                return
            mover.asked_to_leave()
        if mover.stage is Stage.AT_SWITCH:
            return
        self._busy = True
        if self.world.has_met:
            self._exchange()
        else:
            limit_ns = self._meet_ns if mover.stage is Stage.LOST else MEET_NS
            self.world.meet(self.rank, limit_ns, self._exchange, self._did_not_meet)

    @property
    def _meet_ns(self) -> int:
        if self._lost is None or not self._lost.missing:
            return MEET_NS
        return max(MEET_DEAD_NS, self.world.lease_ns)

    def _did_not_meet(self, error: str) -> None:
        """The ranks can't go on without the switch."""
        lost = self._lost
        detail = f"{lost.detail}; and the ranks can't go on with {self.world.fallback}: {error}" if lost else error
        self.end(AggregationFailed(detail, job=self.world.name, missing=lost.missing if lost else ()))

    def _exchange(self) -> None:
        """Tell the others of this rank."""
        if self.over is not None:
            return
        is_lost, ledger = self._mover.stage is Stage.LOST, self.host.calls.ledger
        lowest = [parts.tell_lowest() if is_lost else parts.lowest for parts in self._retained] or self._first
        if not self.rank:
            self._mover.target = self.world.ways_back[0].target
        words = self._mover.row(ledger.call_counts(), lowest).words()
        table = np.zeros(len(words) * self.world.config.workers, np.int64)
        own_shard(table, self.rank, self.world.config.workers)[:] = words
        self._exchanges += 1
        number = self._exchanges
        if is_lost:
            self.world.after(self.rank, self._meet_ns, partial(self._check_exchange, number, self._meet_ns))
        request = CallRequest("all_gather", key=EXCHANGES + number)
        self._on_hosts(request, table, partial(self._exchanged, number, table))

    def _check_exchange(self, number: int, limit_ns: int) -> None:
        if not self._busy or self._exchanges != number or self.over is not None:
            return
        if self.world.is_worth_waiting(self.world.out_of_reach()):
            self.world.after(self.rank, limit_ns, partial(self._check_exchange, number, limit_ns))
        else:
            self._did_not_meet(f"a rank did not come within {limit_ns / 1e9:g} s")

    def _exchanged(self, number: int, table: Any) -> None:
        if self.over is not None:
            return
        rows = [MemberRow.of_words(row) for row in table.reshape(self.world.config.workers, -1).tolist()]
        agreement = self._mover.apply(rows)
        if agreement.move not in (NextMove.RECOVER, NextMove.TO_HOSTS, NextMove.TO_SWITCH):
            self._follow()
        self.world.ways_back[self.rank].follow(agreement.target)
        again = self._do(agreement)
        self._busy = False
        if again:
            self.look()
        self._look_later()

    def _look_later(self) -> None:
        """Away from the switch a rank looks again and again."""
        if self._look_due or self.over is not None or self._mover.stage is Stage.AT_SWITCH:
            return
        self._look_due = True
        self.world.after(self.rank, LOOK_NS, self._look_again)

    def _look_again(self) -> None:
        self._look_due = False
        self.look()
        self._look_later()

    def _do(self, agreement: Agreement) -> bool:
        """Do what all ranks do now; whether there may be more to do at once."""
        match agreement.move:
            case NextMove.WAIT | NextMove.STAY:
                return False
            case NextMove.LOSE:
                self._lost = self._lost or AggregationFailed("another rank has lost the switch", job=self.world.name)
            case NextMove.RECOVER:
                self._recover(agreement)
            case NextMove.TO_HOSTS:
                self.counts["moves_to_hosts"] += 1
                self._follow()
            case NextMove.TO_SWITCH:
                member = self.world.ways_back[self.rank].take()
                assert member is not None
                self.member, self._first = member, list(agreement.first)
                self.switch_job = self.world.job_of(member.generation)
                self._use(self.world.endpoint_of(self.rank, self.switch_job))
                self._retain()
                self.counts["moves_to_switch"] += 1
                self._follow()
        return True

    def _use(self, endpoint: Any) -> None:
        self.world.retransmitted(self.rank)
        self.host.readmit(endpoint)

    def _recover(self, agreement: Agreement) -> None:
        """Complete what the switch has left undone (L6), and go on with the hosts."""
        member, lost = self.member, self._lost
        self.host.hold()  # what ends now may begin calls
        left = {place: (part, held, done) for place, part, done, held in self.host.take_back()}
        if member is not None:
            member.leave(self.host.calls.ledger.finished(), f"{GOES_ON}{lost}")
            self._use(self.world.idle_endpoint(self.rank))
        self.member = None
        ledger, disputed = self.host.calls.ledger, []
        for stream in range(len(self.switch_job.streams)):
            end = min(ledger.call_counts()[stream], agreement.first[stream])  # later ones are recovered when made
            for number in range(agreement.lowest[stream], end):
                place = stream, number
                if place in left:
                    part, held, done = left.pop(place)
                    rows = PartRows(part, self.rank, self.world.job, held)
                    disputed.append((place, rows, done))
                else:
                    retained = self._retained[stream].of(number)
                    assert retained is not None, f"call {number} of stream {stream} isn't retained"  # L2 says why it is
                    disputed.append((place, retained, _nothing))
        assert not left, f"unfinished parts {sorted(left)} are not disputed"
        self._lost = None
        for place, rows, done in disputed:
            self._recover_part(place, rows, done)
        self.counts["recovered_calls"] += len(disputed)
        if member is not None or lost is not None:
            self.counts["recoveries"] += 1
            self.counts["moves_to_hosts"] += 1
        self._follow()
        self.world.ways_back[self.rank].begin()

    def _see_to_the_way_back(self) -> None:
        """As of MovingSession: leave the switch once it has ended the calls that were begun there, and join again."""
        mover, way_back, over = self._mover, self.world.ways_back[self.rank], None
        joined = way_back.joined
        finished = map(max, self._first, self.host.calls.ledger.finished())
        if all(mover.path_of(stream, number) is CallPath.HOSTS for stream, number in enumerate(finished)):
            mover.drained()
            over, self.member = self.member, None
        if joined is not None and (joined.has_failed or joined.phase is MemberPhase.ENDED or joined.asked_to_leave):
            mover.session_lost(place_of(joined))
            over = way_back.take() or over
        elif joined is not None:
            mover.joined(place_of(joined))
        if over is not None:
            over.leave(self.host.calls.ledger.finished(), "")
            way_back.begin()

    # The end

    def hosts_failed(self) -> None:
        """The ranks can't reach each other any more; at a switch this ends nothing yet."""
        if self._mover.stage is not Stage.AT_SWITCH or self._busy:
            self._did_not_meet(self.world.hosts_failure)

    def close(self) -> None:
        """The rank makes no more calls."""
        if self.over is None:
            self.over = AggregationFailed("the session was closed", job=self.world.name)
            if self.member is not None:
                self.member.leave(self.host.calls.ledger.finished(), "")
            self.world.ways_back[self.rank].give_up()

    def _end_here(self, reason: str) -> None:
        self.end(AggregationFailed(f"rank {self.rank}: {reason}", job=self.world.name))

    def end(self, failure: AggregationFailed) -> None:
        """The job has ended for this rank."""
        if self.over is None:
            self.over = failure
            self.host.take_back()
            self._use(self.world.idle_endpoint(self.rank))
            if self.member is not None:
                self.member.leave(self.host.calls.ledger.finished(), str(failure))
            self.world.rank_ended(self.rank, failure)


class VirtualWayBack:
    """As `transport/group/way_back.py`: a rank away from the switch looks for one and joins it (L8)."""

    def __init__(self, world: FailoverSimulation, rank: int) -> None:
        self.target = 0
        self._world, self._rank = world, rank
        self._member: ControlMember | None = None
        self._runs = False

    @property
    def joined(self) -> ControlMember | None:
        """The stay at a switch where all ranks are."""
        member = self._member
        return member if member is not None and member.phase is not MemberPhase.JOINING else None

    def begin(self) -> None:
        """Look for a switch from now on, until one is joined."""
        if not self._runs and self._member is None:
            self._runs = True
            self._look(max(0, self.target))

    def follow(self, target: int) -> None:
        """Join this one, as rank 0 has chosen."""
        if target != self.target and self._rank:
            self.target = target
            member = self._member
            if member is not None and member.phase is MemberPhase.JOINING:
                self.refused(member, "")

    def take(self) -> ControlMember | None:
        """The stay that was joined, from now on the caller's."""
        member = self.joined
        if member is not None:
            self._member = None
        return member

    def refused(self, member: ControlMember, _reason: str) -> None:
        """The switch doesn't take this rank: try again, or the next."""
        if member is self._member:
            self._member = None
            member.leave([], "")
            self._runs = True
            self._world.after(self._rank, REJOIN_NS, partial(self._look, member.process.number + 1))

    def give_up(self) -> None:
        """Join nothing any more."""
        self._runs = False
        if self._member is not None:
            self._member.leave([], "")

    def _look(self, candidate: int) -> None:
        if not self._runs or self._world.ranks[self._rank].over is not None:
            return
        if self._rank:
            self._join(self.target)
        else:
            self._probe(candidate, len(self._world.processes), 0)

    def _probe(self, candidate: int, left: int, tries: int) -> None:
        """Rank 0 asks the switches of the list, one after the other; a request is sent again until PROBE_S are over."""
        if not self._runs or self._world.ranks[self._rank].over is not None:
            return
        world, number = self._world, candidate % len(self._world.processes)
        if not left:
            self.target = NONE
            world.after(self._rank, LOOK_FOR_NS, partial(self._look, candidate))
            return
        answered = False

        def answer() -> None:
            nonlocal answered
            if not answered:
                answered, self.target = True, number
                self._join(number)

        def unanswered() -> None:
            if not answered:
                over = (tries + 1) * AGAIN_NS >= PROBE_NS
                self._probe(candidate + over, left - over, 0 if over else tries + 1)

        path = world.paths[self._rank]
        process = world.processes[number]
        path.send(process, lambda: path.give(process, answer))
        world.after(self._rank, AGAIN_NS, unanswered)

    def _join(self, number: int) -> None:
        if number == NONE:
            self._world.after(self._rank, LOOK_FOR_NS, partial(self._look, 0))
        elif self._runs and self._member is None:
            self._runs = False
            member = self._member = self._world.member(self._rank, self._world.processes[number])
            member.start()
            if len(self._world.processes) > 1:
                self._world.after(self._rank, STANDBY_NS, partial(self._give_up_joining, member))

    def _give_up_joining(self, member: ControlMember) -> None:
        """The others don't come."""
        if member is self._member and member.phase is MemberPhase.JOINING:
            self.refused(member, "")


def place_of(member: ControlMember) -> int:
    """The place of a stay, for a `Mover`."""
    return member.generation + 1


def _nothing() -> None:
    """Nobody waits for a call that is finished here."""
