"""A schedule: its name, the syntax of its options, its plans and its text in reports. This module is pure.

A policy is written as in a method's name, `p3` or `bytescheduler:partition=1MB,credit=4MB`; `parse_policy` reads
it. `switchagg.option_syntax` has the syntax of options.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from transport.schedule.profile import LinearCost, Profile
from transport.schedule.schedule_plan import Transfer


@dataclass(frozen=True)
class TuningPoint:
    """A trial of tuning; both fields are in bytes."""

    partition_bytes: int
    credit_bytes: int


class Tunable(NamedTuple):
    """steps: how many points may be tried while training runs. first: where that begins. at: the policy of a point."""

    steps: int
    first: TuningPoint
    at: Callable[[TuningPoint], "Policy"]


@dataclass(frozen=True)
class Policy(ABC):
    """A schedule. A subclass is a frozen dataclass: its fields are its options, made by
    `switchagg.option_syntax.option`.

    name: as in a method's name. label, summary: how reports name it, and what they say it does, as a clause. urgent:
    whether its transfers differ in priority. reads_graph: whether its plan needs the inputs of the profile's layers.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    summary: ClassVar[str]
    urgent: ClassVar[bool] = False
    reads_graph: ClassVar[bool] = False

    @abstractmethod
    def plan(self, profile: Profile, cost: LinearCost | None) -> tuple[Transfer, ...]:
        """The transfers of one iteration, in order of their keys; every element of every tensor is in one of them.

        cost: of a transfer, if it is known. Raises ValueError where there is no plan without one.
        """

    @property
    def needs_cost(self) -> bool:
        """Whether its plan depends on a transfer's cost that its options leave open."""
        return False

    def with_cost(self, fit: Callable[[], LinearCost]) -> "Policy":
        """With options of a transfer's cost that were left open, as `fit` finds them; called only if there are any."""
        return self

    @property
    def credit_bytes(self) -> int | None:
        """How many bytes may lie below its queue; None: it bounds nothing."""
        return None

    @property
    def cycle_ns(self) -> int:
        """Ready transfers start only at the end of a cycle of this length; 0: at once."""
        return 0

    @property
    def tuning(self) -> Tunable | None:
        """The options that are tuned while training runs, if any."""
        return None
