"""A plan: what one member sends and receives in one collective, as a list of operations on ranges of its array.

Algorithms are functions that return plans; `execution.py` runs any plan. So the exact number of messages and bytes of
an algorithm can be read off its plan, and nothing but the plan differs between algorithms.

Program order is the order of the list. An operation depends on the earlier ones on elements of its own range: a value
is sent once everything listed before has been received into it, and overwritten once everything listed before has been
sent from it. Nothing else is waited for, and both sides cut a range into the same segments, so long messages pipeline.
An empty range carries a message without data and is ordered among the empty ranges that begin where it does.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Send(NamedTuple):
    """Send elements low … high-1 to a member. step: unique among what this member sends to that one."""

    step: int
    to: int
    low: int
    high: int


class Receive(NamedTuple):
    """Receive elements low … high-1 from a member: combine them with ours (sum, max), or overwrite ours.

    step: that of the Send on the other side, whose range has the same length.
    """

    step: int
    sender: int
    low: int
    high: int
    combine: bool


class LocalCombine(NamedTuple):
    """Combine elements source … with elements low … high-1, both our own and disjoint; no message."""

    low: int
    high: int
    source: int


Operation = Send | Receive | LocalCombine


@dataclass(frozen=True)
class CollectivePlan:
    """The operations of one member. Empty ranges are allowed (a barrier consists of them).

    scratch: elements of memory beyond the array, numbered from `elements` on. No range lies in both.
    """

    member: int
    members: int
    elements: int
    operations: tuple[Operation, ...]
    scratch: int = 0


class Draft:
    """A plan in the making: the k-th `send` of a member to another is met by the other's k-th `receive` from it."""

    def __init__(self, member: int, members: int, elements: int, scratch: int = 0) -> None:
        self.member = member
        self._members = members
        self._elements = elements
        self._scratch = scratch
        self._operations: list[Operation] = []
        self._sends: dict[int, int] = {}  # to -> how many so far
        self._receives: dict[int, int] = {}

    def send(self, to: int, low: int, high: int) -> None:
        step = self._sends.get(to, 0)
        self._sends[to] = step + 1
        self._operations.append(Send(step, to, low, high))

    def receive(self, sender: int, low: int, high: int, combine: bool) -> None:
        step = self._receives.get(sender, 0)
        self._receives[sender] = step + 1
        self._operations.append(Receive(step, sender, low, high, combine))

    def combine(self, low: int, high: int, source: int) -> None:
        self._operations.append(LocalCombine(low, high, source))

    def plan(self) -> CollectivePlan:
        """The plan of the operations added so far."""
        return CollectivePlan(self.member, self._members, self._elements, tuple(self._operations), self._scratch)
