"""MovingSession: a job whose calls go through a switch while there is one, and by a host method while there is not.

A switch that dies in mid-call costs no bit (L1 to L9): the ranks meet at the hosts, decide alike from one row of each,
complete what the switch has left undone, and go on there, until all are in a switch again, the same or another of a
list. To leave a switch for a more urgent job, and to come back, is the same with nothing left undone (C22).

Calls are numbered on each stream, alike on all ranks; `Mover` says which path carries a number, and what this rank
tells the others. The thread here exchanges rows and does what all ranks have decided.
"""

import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from switchagg.calls.call_request import CallRequest
from switchagg.calls.chunked_call import ArrayCall
from switchagg.calls.member_calls import CallPlace
from switchagg.endpoint import NO_BETTER
from switchagg.errors import AggregationFailed, JobError, SwitchaggError
from switchagg.failover.agreement import Agreement, CallPath, MemberRow, Mover, NextMove, Stage
from switchagg.failover.part_rows import PartRows
from switchagg.priority import class_of
from transport.contracts.group_contract import Array, Group, Matching
from transport.group.host_path import HostPath, Meet
from transport.group.switch_parts import SwitchParts
from transport.group.way_back import WayBack
from transport.meshes.mesh_opening import BoundPlace
from transport.worker.call_future import all_of
from transport.worker.codec_thread import ended_future
from transport.worker.join_options import JoinOptions
from transport.worker.session import Stay, SwitchSession, chosen_core
from transport.worker.session_calls import Entered, SessionCalls

logger = logging.getLogger(__name__)

LOOK_S = 0.1
"""How often a rank looks whether it shall move, and away from the switch tells the others where it is."""

MEET_S = 10.0
"""How long ranks that have lost a switch wait for the others."""

MEET_DEAD_S = 2.0
"""How long they wait for one that the switch takes for dead, which may have lost it alone; at least a lease."""

CLOSE_S = 2.0
"""How long a rank that closes waits until the others know."""

WRONG_SUM = NO_BETTER.partition(",")[0]

Join = Callable[[str, Stay, JoinOptions, threading.Event], SwitchSession]
"""join(switch, stay, options, cancelled): a stay at a switch. Raises JobError."""


class SessionPaths(NamedTuple):
    """The ways that calls can go. switches: control addresses, the first of which the job begins at, unless it is known
    that none `answers`. meet: opens the host method's group, whose sums are of whole numbers alone. fallback: its name.
    place: the port that this will take; closed if it never does. sleeper_s: how long the ranks wait for one whose
    process was stopped; 0: as for a dead one."""

    switches: Sequence[str]
    join: Join
    meet: Meet
    fallback: str
    place: BoundPlace | None
    answers: bool = True
    sleeper_s: float = 0.0


class MovingSession:
    """One rank's. Made like a `SwitchSession`, of which a `SwitchGroup` can't tell it; `close` it.

    closing: once it is set, nothing is waited for any more.
    """

    method = "switch"
    matching: Matching = "class"

    def __init__(
        self,
        paths: SessionPaths,
        name: str,
        rank: int,
        workers: int,
        options: JoinOptions,
        closing: threading.Event | None = None,
    ) -> None:
        """Join the switch, or where it has no room, or doesn't answer and isn't alone, begin without it. Raises
        JobError."""
        self._pid = os.getpid()
        self.name, self.rank, self.workers = name, rank, workers
        self._options = replace(options, can_fall_back=True)
        self._paths, self._fallback = paths, paths.fallback
        self._calls = SessionCalls(rank, workers, self._options, self._carry, self._fail)
        self.compression = self._calls.compression
        self._lock = self._calls.lock
        """It guards the mover, and what is in order of number."""
        self._failure: BaseException | None = None
        self._lost: AggregationFailed | None = None
        self._moves = {"moves_to_hosts": 0, "moves_to_switch": 0, "recoveries": 0, "recovered_calls": 0}
        self._given_up = self._closed = False
        self._closing = closing or threading.Event()
        self._wake = threading.Event()
        self._hosts = HostPath(paths.meet, paths.place, rank, workers, self._closing)
        self._over = threading.Event()
        self._way_back = WayBack(paths.switches, name, rank, self._options, self._join_at, self._over)
        self._session: SwitchSession | None = None
        self._session = session = self._first_stay()
        if session is None:
            terms = options.resolved_terms(name, workers)
            self.job = replace(terms, elements=options.packet_elements).job_config(0, 0, workers)
            self._calls.take_job(self.job, routed=True)
            self._open_hosts(options.timeout_s, 0.0)
        else:
            self.job = session.job
        self._parts = SwitchParts(rank, len(self.job.streams))
        if session is not None:
            self._parts.begin(session.job, self._parts.first)
        self._mover = Mover(0 if session is None else place_of(session))
        self._follow()
        self._core = session.core if session else chosen_core(options)
        self.classes = self._calls.of_job.ledger.turns.classes
        self._thread = threading.Thread(target=self._run, name=f"mover-{name}-{rank}", daemon=True)
        self._wake.set()  # a job without a switch tells the others at once
        self._thread.start()
        self._close_first()

    def _first_stay(self) -> SwitchSession | None:
        """The stay at the first switch, or None where the job begins without one."""
        if not self._paths.answers:
            self._say(f"begins with {self._fallback}: no switch answers")
            return None
        try:
            return self._join_at(self._paths.switches[0], self._options, self._closing)
        except JobError as error:
            if not error.lacks_room and (len(self._paths.switches) == 1 or self._way_back.answers(0)):
                raise
            self._say(f"begins with {self._fallback}, without the switch: {error}")
            return None

    def _join_at(self, switch: str, options: JoinOptions, cancelled: threading.Event) -> SwitchSession:
        return self._paths.join(switch, Stay(self._calls, self._on_failure, self._on_finish), options, cancelled)

    def call(self, array: Array, request: CallRequest) -> "Future[Any]":
        """See `SwitchSession.call`."""
        if os.getpid() != self._pid:
            raise SwitchaggError(
                f"job {self.name}, rank {self.rank}: this session belongs to process {self._pid}; a forked child must "
                f"join on its own"
            )
        return self._calls.call(array, request)

    def finished_without(self, sizes: Sequence[int]) -> bool:
        """False: there are no partial sums (see `SwitchSession`)."""
        return False

    @property
    def link(self) -> str:
        """The link of the present path."""
        return self._options.link if (hosts := self._present_hosts) is None else hosts.link

    @property
    def core(self) -> str:
        """The core of the present path."""
        return self._core if (hosts := self._present_hosts) is None else hosts.core

    @property
    def _present_hosts(self) -> Group | None:
        """The group of the host method, unless the switch is the present path."""
        return None if self._mover.stage is Stage.AT_SWITCH else self._hosts.group

    @property
    def counters(self) -> dict[str, int]:
        """Of the present path, and how often the job moved and recovered."""
        path: Mapping[str, int] = {}
        if (carrier := self._session or self._hosts.group) is not None:
            path = carrier.counters
        return {**path, **self._moves}

    @property
    def failure(self) -> BaseException | None:
        """Why the job works no more; None while it does."""
        hosts = self._hosts.group if self._mover.stage is Stage.AWAY else None
        return self._failure or (None if hosts is None else hosts.failure)

    def set_credit(self, credit_bytes: int | None) -> None:
        """See `Group`."""
        if self._hosts.group is not None:
            self._hosts.group.set_credit(credit_bytes)

    def give_up(self, reason: str) -> None:
        """See `Group`."""
        self._given_up = True
        self._closing.set()
        if self._session is not None:
            self._session.give_up(reason)
        self._hosts.give_up(reason)

    def status(self) -> Any:
        """See `Group`; of the present path."""
        carrier = self._session or self._hosts.group
        assert carrier is not None
        return carrier.status()

    def close(self) -> None:
        """Leave. Again, or in a forked child, it does nothing."""
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._closing.set()
        self._over.set()
        self._wake.set()
        if self._mover.stage is Stage.LOST:
            self._hosts.give_up(f"rank {self.rank} was closed")  # it waits for others
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)
        self._end(AggregationFailed("the session was closed", job=self.name))
        self._calls.close()
        self._way_back.close()
        if self._session is not None:
            self._session.close()
        self._hosts.close()

    # Calls, under the lock

    def _carry(self, entered: Entered, request: CallRequest, array: Array) -> "Future[Any]":
        """See `CallCarrier`."""
        if self._failure is not None:
            future, ended = ended_future(array)
            ended(self._failure)
            return future
        futures = [self._begin(place, call, request) for place, call in entered]
        return futures[0] if len(futures) == 1 else all_of(futures, array)

    def _begin(self, place: CallPlace, call: ArrayCall, request: CallRequest) -> "Future[Any]":
        path = self._mover.path_of(*place)
        if path is CallPath.SWITCH:
            assert self._session is not None
            return self._session.carry([(place, call)], request, call.array)
        finish = partial(self._finished, place)
        if path is CallPath.HOSTS:
            return self._hosts.carry(place, call, self.job, request, finish)
        future, ended = ended_future(call.array, finish)
        self._hosts.recover(place, PartRows(call, self.rank, self.job), ended, request.priority)
        return future

    def _finished(self, place: CallPlace) -> None:
        with self._lock:
            self._calls.of_job.ledger.finish(place)

    def _on_finish(self, place: CallPlace, call: ArrayCall) -> None:
        """The switch has finished a call."""
        self._parts.keep(place, call)
        self._calls.of_job.ledger.finish(place)

    def _follow(self) -> None:
        """New calls wait while the mover says so; under the lock."""
        if self._mover.frozen:
            self._calls.hold()
        else:
            self._calls.release()

    # Failures, by any thread

    def _on_failure(self, failure: AggregationFailed, recoverable: bool) -> None:
        """A stay at a switch has ended."""
        with self._lock:
            session = self._session
            if session is None or session.failure is not failure:  # it has no calls, and the thread sees to it
                self._wake.set()
                return
            moves = not (self._given_up or self._over.is_set())  # else nobody would see to it
            if recoverable and moves and self._failure is None:
                self._lost = self._lost or failure
                self._mover.session_lost(place_of(session))
                self._follow()
                self._wake.set()
                return
        self._end(failure)

    def _fail(self, reason: str) -> None:
        """End the job on all ranks."""
        self._hosts.give_up(reason)
        self._end(AggregationFailed(f"rank {self.rank}: {reason}", job=self.name))
        if self._session is not None:
            self._session.fail(reason)

    def _end(self, failure: AggregationFailed) -> None:
        """Every held and later call fails with this, and those of a switch that nobody has completed."""
        with self._lock:
            self._failure = self._failure or failure
            self._closing.set()
            self._over.set()
            self._calls.release()
            session = self._session
        if session is not None:
            session.fail_calls(failure)
        self._wake.set()

    # Methods that run in the mover's thread

    @property
    def _is_over(self) -> bool:
        return self._mover.stays or self._closing.is_set() or self._failure is not None

    def _run(self) -> None:
        try:
            while not self._is_over:
                self._wake.wait(LOOK_S)
                self._wake.clear()
                self._look()
            if self._present_hosts is not None and not (self._mover.stays or self._failure or self._given_up):
                self._mover.close()
                self._exchange()  # the others shall wait for this rank no more
        except Exception as error:
            logger.info("job %s, rank %d: moves no more: %s", self.name, self.rank, error)
            if self._lost is not None or self._mover.stage is Stage.LOST:
                self._end(self._because(error))
        finally:
            with self._lock:
                self._over.set()  # a job that moves no more needs no slots
                lost = self._lost
            if lost is not None:
                self._end(lost)
            self._way_back.close()
            if self._failure is not None:
                self._hosts.close()
            with self._lock:
                self._calls.release()

    def _because(self, error: BaseException) -> AggregationFailed:
        """The loss of the switch, and why the job can't go on without it."""
        lost = self._lost or AggregationFailed("it has no switch", job=self.name)
        failure = AggregationFailed(
            f"{lost.detail}; and the ranks can't go on with {self._fallback}: {error}",
            job=self.name,
            generation=lost.generation,
            missing=lost.missing,
        )
        failure.__cause__ = error
        return failure

    def _look(self) -> None:
        """Move, or tell the others where this rank is, as far as there is anything to do now."""
        again = True
        while again and not self._is_over:
            session, mover = self._session, self._mover
            if session is not None and session.failure is not None and self._lost is None:
                self._on_failure(session.failure, session.is_outlived)  # it may have failed before it was ours
            if mover.stage is Stage.AWAY:
                self._see_to_the_way_back()
            with self._lock:
                if mover.stage is Stage.AT_SWITCH and session is not None and session.asked_to_leave:
                    mover.asked_to_leave()
                stage = mover.stage
            if stage is Stage.AT_SWITCH or self._is_over:
                return
            self._open_hosts(self._meet_s if stage is Stage.LOST else self._options.timeout_s, self._paths.sleeper_s)
            again = self._do(self._exchange())

    @property
    def _meet_s(self) -> float:
        if self._lost is None or not self._lost.missing:
            return min(self._options.timeout_s, MEET_S)
        lease_s = 0.0 if self._session is None else self._session.lease_s
        return min(self._options.timeout_s, max(MEET_DEAD_S, lease_s))

    def _open_hosts(self, timeout_s: float, sleeper_s: float) -> None:
        if self._hosts.group is None:
            self._hosts.open(timeout_s, sleeper_s)
            self._close_first()

    def _exchange(self) -> Agreement:
        """Tell the others of this rank; the decision of all."""
        with self._lock:
            ledger = self._calls.of_job.ledger
            is_lost = self._mover.stage is Stage.LOST
            self._mover.target = self._way_back.target
            row = self._mover.row(ledger.call_counts(), self._parts.lowest(is_lost))
        limit_s = max(self._meet_s, self._paths.sleeper_s) if row.stage is Stage.LOST else None
        table = self._hosts.exchange(row.words(), limit_s)
        with self._lock:
            agreement = self._mover.apply([MemberRow.of_words(words) for words in table])
            if agreement.move not in (NextMove.RECOVER, NextMove.TO_HOSTS, NextMove.TO_SWITCH):
                self._follow()
        self._way_back.follow(agreement.target)
        return agreement

    def _do(self, agreement: Agreement) -> bool:
        """Do what all ranks do now; whether there may be more to do at once."""
        match agreement.move:
            case NextMove.WAIT | NextMove.STAY:
                return False
            case NextMove.LOSE:
                self._lost = self._lost or AggregationFailed("another rank has lost the switch", job=self.name)
            case NextMove.RECOVER:
                self._recover(agreement)
            case NextMove.TO_HOSTS:
                with self._lock:
                    self._moves["moves_to_hosts"] += 1
                    self._follow()
                self._say(f"leaves the switch and goes on with {self._fallback}")
            case NextMove.TO_SWITCH:
                session = self._way_back.take()
                assert session is not None
                with self._lock:
                    self._session = session
                    session.begin_at(agreement.first)
                    self._parts.begin(session.job, agreement.first)
                    self._moves["moves_to_switch"] += 1
                    self._follow()
                self._say("goes through the switch again")
        return True

    def _recover(self, agreement: Agreement) -> None:
        """Complete what the switch has left undone (L6), and go on with the hosts."""
        session, lost = self._session, self._lost
        left = session.stop(lost or AggregationFailed("the switch is lost", job=self.name)) if session else []
        with self._lock:
            self._session = None
            try:
                disputed = self._parts.disputed(agreement, self._calls.of_job.ledger, self._mover, left, self.job)
            except BaseException as error:  # `_run` ends the job
                for call in left:
                    call.ended(error)
                raise
            self._lost = None
            for place, part, ended in disputed:
                self._hosts.recover(place, part, ended, class_of(self.job.streams[place[0]].priority))
            self._moves["recovered_calls"] += len(disputed)
            if session is not None or lost is not None:
                self._moves["recoveries"] += 1
                self._moves["moves_to_hosts"] += 1
            self._follow()
        if lost is not None:
            if WRONG_SUM in lost.detail:
                self._way_back.distrust()
            self._say(f"goes on with {self._fallback}, without the switch: {lost.detail}")
        self._way_back.begin()

    def _see_to_the_way_back(self) -> None:
        """Away from the switch: leave it once it has ended the calls that were begun there, and join again."""
        mover, joined, over = self._mover, self._way_back.joined, None
        with self._lock:
            finished = map(max, self._parts.first, self._calls.of_job.ledger.finished())
            if all(mover.path_of(stream, number) is CallPath.HOSTS for stream, number in enumerate(finished)):
                mover.drained()
                over, self._session = self._session, None
            if joined is not None and (joined.failure is not None or joined.asked_to_leave):
                mover.session_lost(place_of(joined))
                over = self._way_back.take()
            elif joined is not None:
                mover.joined(place_of(joined))
        if over is not None:
            over.close()
            self._way_back.begin()

    def _close_first(self) -> None:
        """At the program's end, before the groups in use."""
        atexit.unregister(self.close)
        if not self._closed:
            atexit.register(self.close)

    def _say(self, words: str) -> None:
        if self.rank == 0:
            logger.warning("switchagg: job %s %s", self.name, words)


def place_of(session: SwitchSession) -> int:
    """The place of a stay, for a `Mover`."""
    return session.job.generation + 1
