"""What the ranks of a job agree on when they leave a switch, lose it, or go back: rules L4 to L8. Pure.

Each exchange gives all ranks the same table, a row of each; `decide` is a function of the table alone, so all ranks
take the same decision. `Mover` is the stage of one rank between exchanges. It has no thread and no lock: whoever drives
it calls its methods one at a time, and begins no call while it is `frozen`.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

Numbers = tuple[int, ...]
"""A number of a part for each stream."""


class CallPath(IntEnum):
    """What carries a part."""

    SWITCH = 0
    HOSTS = 1
    RECOVERY = 2
    """The part is disputed: hosts end what a lost switch began."""


class Stage(IntEnum):
    """What carries a rank's new parts, as it tells the others."""

    AT_SWITCH = 0
    LEAVING = 1
    """The switch has asked it to leave."""
    LOST = 2
    """Its session has failed: parts are unfinished, and nothing carries new ones."""
    AWAY = 3
    """Hosts carry new parts; those that it began at a switch end there, if the ranks left it in order."""
    CLOSING = 4
    """It makes no more calls, and won't take part in another exchange."""


class NextMove(IntEnum):
    """What all ranks do next."""

    WAIT = 0
    """Nothing; calls that were held for an agreement begin."""
    STAY = 1
    """Nobody moves any more: some rank closes. Parts that a lost switch left unfinished fail."""
    LOSE = 2
    """Some rank is LOST: those that aren't stop their session, too, if they have parts there."""
    FREEZE = 3
    """New calls wait, so that the next table has counts that stay."""
    TO_HOSTS = 4
    """Parts below `first` end at the switch, where they were begun; hosts carry the others."""
    RECOVER = 5
    """Parts from `lowest` up to `first` are disputed and are recovered; hosts carry those from `first` on."""
    TO_SWITCH = 6
    """Parts below `first` end on hosts; the switch joined as `place` carries the others."""


class MemberRow(NamedTuple):
    """A rank's row of the table.

    place: of AT_SWITCH and LEAVING the place of the session; of AWAY that of the session to which the rank could go
    back, 0 while it has none or parts that it began at the last switch are unfinished. A place is a session's
    generation + 1. target: which of the job's switches this rank tries to join; that of rank 0 counts. frozen: new
    calls wait. made_parts: of each stream, how many parts this rank has made; once the ranks have left a switch, how
    many of them the switch had. lowest: of each stream, the number of the first unfinished part of the switch.
    """

    stage: Stage
    place: int
    target: int
    frozen: bool
    made_parts: Numbers
    lowest: Numbers

    def words(self) -> list[int]:
        """4 + 2 * streams integers, which fit 64 bits with a sign: the row as it travels."""
        return [int(self.stage), self.place, self.target, int(self.frozen), *self.made_parts, *self.lowest]

    @classmethod
    def of_words(cls, words: Sequence[int]) -> "MemberRow":
        """The row of `words`."""
        streams = (len(words) - 4) // 2
        numbers = tuple(map(int, words[4:]))
        return cls(
            Stage(int(words[0])), int(words[1]), int(words[2]), bool(words[3]), numbers[:streams], numbers[streams:]
        )


class Agreement(NamedTuple):
    """The decision of all ranks. first, lowest, place: of the moves that have them. target: rank 0's."""

    move: NextMove
    first: Numbers = ()
    lowest: Numbers = ()
    place: int = 0
    target: int = 0


def decide(rows: Sequence[MemberRow]) -> Agreement:
    """The decision that all ranks take from this table, in order of rank (L5)."""
    stages, target = {row.stage for row in rows}, rows[0].target
    frozen = all(row.frozen for row in rows)
    first = tuple(map(max, zip(*(row.made_parts for row in rows), strict=True)))
    if Stage.CLOSING in stages:
        return Agreement(NextMove.STAY, target=target)
    if Stage.LOST in stages:
        if len(stages) > 1:
            return Agreement(NextMove.LOSE, target=target)
        lowest = tuple(map(min, zip(*(row.lowest for row in rows), strict=True)))
        return _once(frozen, Agreement(NextMove.RECOVER, first, lowest, target=target))
    if stages == {Stage.LEAVING}:
        return _once(frozen, Agreement(NextMove.TO_HOSTS, first, target=target))
    places = {row.place for row in rows}
    if stages == {Stage.AWAY} and len(places) == 1 and 0 not in places:
        return _once(frozen, Agreement(NextMove.TO_SWITCH, first, place=rows[0].place, target=target))
    return Agreement(NextMove.WAIT, target=target)


def _once(frozen: bool, agreement: Agreement) -> Agreement:
    """The agreement, if no count of it can change any more."""
    return agreement if frozen else Agreement(NextMove.FREEZE, target=agreement.target)


class Mover:
    """The stage of one rank. place: of the session with which it begins; 0: it begins without, as one that has lost
    its switch before the first call (L4).

    `frozen` says whether new calls wait: who begins a call looks first, and numbers none while it is set. `stays`: no
    exchange follows.
    """

    def __init__(self, place: int = 0) -> None:
        self.stage = Stage.AT_SWITCH if place else Stage.LOST
        self.frozen = not place
        self.stays = False
        self.target = 0
        """The switch that all ranks try to join, as of the last exchange; may be set by rank 0."""
        self._place = place  # of the session that has, or had, this rank's parts
        self._joined = 0  # place of the session to which it could go back
        self._failed: set[int] = set()  # places of sessions that were lost
        self._begin: Numbers | None = None  # hosts have, or had, the parts below
        self._end: Numbers | None = None  # hosts have the parts from here on, since the ranks left the switch
        self._drained = False
        self._closing = False

    # events

    def session_lost(self, place: int) -> None:
        """The session of this place has failed: the one that this rank has parts at, or one it could go back to."""
        self._failed.add(place)
        if place == self._joined:
            self._joined = 0
        if place == self._place and (self.stage in (Stage.AT_SWITCH, Stage.LEAVING) or self._drains):
            self._lose()

    def asked_to_leave(self) -> None:
        """The switch with this rank's parts has asked it to leave (C21)."""
        if self.stage is Stage.AT_SWITCH:
            self.stage = Stage.LEAVING

    def joined(self, place: int) -> None:
        """The rank has joined a switch again, away from the last one."""
        self._joined = 0 if place in self._failed else place

    def drained(self) -> None:
        """All parts below `first` of the last TO_HOSTS or RECOVER, also those made since then, are finished."""
        self._drained = True

    def close(self) -> None:
        """The rank makes no more calls."""
        self._closing = True

    # exchanges

    def row(self, made_parts: Iterable[int], lowest: Iterable[int]) -> MemberRow:
        """This rank's row now. made_parts, lowest: as of `MemberRow`, where all parts that it has made count; they must
        stay as they are while it is frozen."""
        place = {Stage.AWAY: self._joined if self._drained else 0, Stage.LOST: 0}.get(self.stage, self._place)
        end = tuple(made_parts)
        if self._end is not None and self.stage is Stage.LOST:  # hosts have later parts
            end = self._end
        stage = Stage.CLOSING if self._closing else self.stage
        return MemberRow(stage, place, self.target, self.frozen, end, tuple(lowest))

    def apply(self, rows: Sequence[MemberRow]) -> Agreement:
        """Follow the table to which this rank's last row belongs; returns what to do.

        LOSE asks for a session's end only where this rank has unfinished parts there: `session_lost` needn't follow.
        """
        agreement = decide(rows)
        self.target = agreement.target
        match agreement.move:
            case NextMove.WAIT:
                self.frozen = self.stage is Stage.LOST
            case NextMove.STAY:
                self.stays, self.frozen = True, False
            case NextMove.LOSE:
                if self.stage is not Stage.LOST:
                    self._lose()
            case NextMove.FREEZE:
                self.frozen = True
            case NextMove.TO_HOSTS:
                self._go_away(agreement.first)
                if self._place in self._failed:
                    self._lose()
            case NextMove.RECOVER:
                self._go_away(agreement.first)
                self._place = 0  # nothing is at a switch any more
            case NextMove.TO_SWITCH:
                self._place, self._joined = agreement.place, 0
                self._begin, self._end = agreement.first, None
                self.stage, self.frozen = Stage.AT_SWITCH, False
                if self._place in self._failed:
                    self._lose()
        return agreement

    def path_of(self, stream: int, number: int) -> CallPath:
        """What carries this part; of one that is made while this rank isn't frozen, or that was made before."""
        if self._begin is not None and number < self._begin[stream]:
            return CallPath.HOSTS
        if self._end is not None and number >= self._end[stream]:
            return CallPath.HOSTS
        return CallPath.SWITCH if self._place else CallPath.RECOVERY

    @property
    def _drains(self) -> bool:
        """Whether parts may be unfinished at the switch that was left in order."""
        return self.stage is Stage.AWAY and self._place > 0 and not self._drained

    def _lose(self) -> None:
        self.stage, self.frozen = Stage.LOST, True

    def _go_away(self, first: Numbers) -> None:
        self.stage, self.frozen = Stage.AWAY, False
        self._end, self._drained = first, False
