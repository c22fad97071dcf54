"""A rank's end of the control plane in virtual time: joins, beats, notices that a switch is silent (C9, C12).

As `transport/control/control_client.py`, whose `Heartbeats` it has: what a thread does there, events do here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Protocol

from emulation.sim.failover.switch_process import SwitchProcess
from switchagg.join import Join
from switchagg.membership import Departure, JobFailed, JoinRefused, MembershipState, Running
from transport.control.heartbeats import Heartbeats
from transport.control.stalls import StallDetector


class Path(Protocol):
    """A rank's way to a switch."""

    def send(self, process: SwitchProcess, serve: Callable[[], None]) -> None:
        """Have the switch do this when the request has come."""

    def give(self, process: SwitchProcess, take: Callable[[], None]) -> None:
        """Have the rank do this when the answer has come."""

    def after(self, delay_ns: int, act: Callable[[], None]) -> None:
        """Later, or once the rank's process goes on."""

    @property
    def now_ns(self) -> int: ...


class MemberPhase(Enum):
    """Of a membership."""

    JOINING = auto()
    RUNNING = auto()
    ENDED = auto()


class MemberEvents(Protocol):
    """What a membership tells its rank."""

    def on_admitted(self, member: ControlMember) -> None: ...

    def on_refused(self, member: ControlMember, reason: str) -> None: ...

    def on_departed(self, member: ControlMember, departed: Sequence[Departure]) -> None: ...

    def on_asked_to_leave(self, member: ControlMember) -> None: ...

    def on_end(self, member: ControlMember, dead: tuple[int, ...], reason: str) -> None: ...


class ControlMember:
    """One membership, from its join to its end. lease_ns: how long the switch may be silent."""

    events: MemberEvents

    def __init__(self, path: Path, process: SwitchProcess, join: Join, lease_ns: int) -> None:
        self.process, self.join = process, join
        self.phase = MemberPhase.JOINING
        self.has_failed = False
        """Its rank has been told why the stay is over."""
        self.asked_to_leave = ""
        self.generation = 0
        self._path, self._lease_ns = path, lease_ns
        self._beats = Heartbeats()
        self._stalls = StallDetector(path.now_ns)
        self._departed = 0

    def start(self) -> None:
        """Join; also of one that was admitted before the run: it goes on with heartbeats."""
        self._ring()

    def leave(self, calls: Sequence[int], reason: str) -> None:
        """Tell the switch, and end. A message that is lost isn't repeated: then the lease ends (C6)."""
        if self.phase is MemberPhase.ENDED:
            return
        self.phase = MemberPhase.ENDED
        incarnation, finished = self.join.incarnation, list(calls)
        self._path.send(self.process, lambda: self.process.leave(incarnation, finished, reason))

    def answer(self, state: MembershipState | None) -> None:
        """The switch sends an answer."""
        self._path.give(self.process, lambda: self._take(state))

    def _take(self, state: MembershipState | None) -> None:
        if self.phase is MemberPhase.ENDED:
            return
        self._beats.note_answer()
        match state:
            case Running():
                self._take_running(state)
            case JoinRefused():
                self._end((), state.reason)
            case JobFailed():
                self._end(tuple(member.rank for member in state.dead), state.reason)
            case None:
                self._end((), f"switch {self.process.name} does not know this job any more: it was restarted")

    def _take_running(self, state: Running) -> None:
        if self.phase is MemberPhase.JOINING:
            self.phase, self.generation = MemberPhase.RUNNING, state.admitted.job.generation
            self.events.on_admitted(self)
        if state.asked_to_leave and not self.asked_to_leave:
            self.asked_to_leave = state.asked_to_leave
            self.events.on_asked_to_leave(self)
        if len(state.departed) > self._departed:
            self._departed = len(state.departed)
            self.events.on_departed(self, state.departed)

    def _ring(self) -> None:
        if self.phase is MemberPhase.ENDED:
            return
        now_ns = self._path.now_ns
        if self._stalls.ended(now_ns):
            self._beats.forgive(now_ns)
        silent_ns = self._beats.silent_ns(now_ns)
        if self.phase is MemberPhase.RUNNING and silent_ns >= self._lease_ns:
            silence = f"has not answered for {silent_ns / 1e9:.1f} s: it or the path is down"
            self._end((), f"switch {self.process.name} {silence}")
            return
        if now_ns >= self._beats.due_ns:
            self._path.send(self.process, self._request())
            self._beats.note_sent(now_ns)
        self._path.after(max(1, self._beats.due_ns - now_ns), self._ring)

    def _request(self) -> Callable[[], None]:
        process, join = self.process, self.join
        if self.phase is MemberPhase.JOINING:
            return lambda: process.join(join, self)
        return lambda: process.heartbeat(join.incarnation, self)

    def _end(self, dead: tuple[int, ...], reason: str) -> None:
        phase, self.phase = self.phase, MemberPhase.ENDED
        if phase is MemberPhase.JOINING:
            self.events.on_refused(self, reason)
        else:
            self.events.on_end(self, dead, reason)
