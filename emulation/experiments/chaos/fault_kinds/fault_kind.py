"""The contract of a kind of fault: whom it hits, what it does, how that is undone, what the job shall make of it."""

from __future__ import annotations

import random
import re
import signal
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Protocol

from emulation.experiments.chaos.chaos_options import LOOPBACK, ChaosOptions, FaultOutcome, Promise

WORKER, SWITCH = "rank", "switch"
HARMLESS = Promise(nothing=FaultOutcome.SAME_BITS, fallback=FaultOutcome.SAME_BITS)


class ChaosEvent(NamedTuple):
    """An event of the schedule. gap_s: after the recovery from the one before, or if it is a `second`, after the first.

    target: "rank 2", "switch 0", "" for the network. duration_s: until it is undone; 0: at once, or never. detail:
    whatever else the kind has drawn. seed: of the kind's own random numbers.
    """

    number: int
    gap_s: float
    kind: str
    target: str
    duration_s: float
    detail: str
    seed: int
    second: bool = False

    @property
    def place(self) -> int:
        """The number of the rank or switch that it hits."""
        return int(self.target.split()[1])

    def __str__(self) -> str:
        length = f" for {self.duration_s:.2f} s" if self.duration_s else ""
        return " ".join(filter(None, (self.kind, self.target, self.detail))) + length


class Casualties(Protocol):
    """What faults act on: the processes and links of a run. A target is "rank 2" or "switch 0"."""

    def signal(self, target: str, number: int) -> None:
        """Nothing happens to a process that has ended."""

    def start(self, target: str) -> None:
        """A new process in the place of one that has ended. Nothing happens if it lives."""

    def restart_switch(self, switch: int) -> None:
        """Asks it to end (SIGTERM); once it has, another begins at its addresses."""

    def cut(self, target: str, end: str) -> None:
        """Takes its link down."""

    def restore(self, target: str) -> None: ...

    def send_packets(self, event: ChaosEvent) -> None:
        """Begins to send bad packets of the event's kind."""

    def stop_packets(self) -> None: ...


class FaultKind(ABC):
    """A kind of fault. `fault_table` has all of them."""

    name: ClassVar[str]
    summary: ClassVar[str]
    expected: ClassVar[Promise]
    needs_switch: ClassVar[bool] = False
    needs_network: ClassVar[bool] = False
    weight: ClassVar[int] = 1
    """How often it comes, beside the others."""
    leases: ClassVar[tuple[float, float]] = (0.0, 0.0)
    """Least and longest duration, in leases of the switch; `span` where it depends on the job."""

    def applies(self, options: ChaosOptions) -> bool:
        """Whether a run with these options has it."""
        return (options.switches > 0 or not self.needs_switch) and (options.place != LOOPBACK or not self.needs_network)

    def span(self, _options: ChaosOptions) -> tuple[float, float]:
        return self.leases

    def draw(self, chance: random.Random, options: ChaosOptions) -> tuple[str, str]:
        """Target and detail. By default a rank."""
        return f"{WORKER} {pick(chance, options.workers)}", ""

    @abstractmethod
    def begin(self, casualties: Casualties, event: ChaosEvent) -> None: ...

    def undo(self, casualties: Casualties, event: ChaosEvent) -> None:  # noqa: B027  # some need none
        """What happens duration_s later."""

    def outcome(self, _event: ChaosEvent, options: ChaosOptions) -> FaultOutcome:
        """What the job shall make of it."""
        return self.expected.for_job(options)

    def outcome_words(self, options: ChaosOptions) -> str:
        """For lists of kinds."""
        return self.expected.for_job(options).value

    def names(self, event: ChaosEvent, rank: int) -> str:
        """A regular expression that the error of this rank has somewhere, of an event that ends the job."""
        return rank_words(event.place) if event.target.startswith(WORKER) else switch_words()


class SwitchFault(FaultKind):
    """A fault of a switch."""

    needs_switch = True
    expected = Promise(nothing=FaultOutcome.ENDS, fallback=FaultOutcome.SAME_BITS)

    def draw(self, chance: random.Random, options: ChaosOptions) -> tuple[str, str]:
        return f"{SWITCH} {pick(chance, options.switches)}", ""


class KillFault(FaultKind):
    """SIGKILL: the process is gone, and the kernel closes what it had. A new one begins later in its place."""

    weight = 3
    leases = (0.2, 3.0)

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.signal(event.target, signal.SIGKILL)

    def undo(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.start(event.target)


class StopFault(FaultKind):
    """SIGSTOP, and SIGCONT later."""

    leases = (2.0, 3.0)

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.signal(event.target, signal.SIGSTOP)

    def undo(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.signal(event.target, signal.SIGCONT)


class PacketFault(FaultKind):
    """Bad packets to data ports, which change nothing. `bad_packets` makes them, by the kind's name."""

    needs_switch = True
    needs_network = True
    leases = (0.5, 1.5)
    expected = HARMLESS

    def draw(self, chance: random.Random, options: ChaosOptions) -> tuple[str, str]:
        return "", ""

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.send_packets(event)

    def undo(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.stop_packets()


def pick(chance: random.Random, count: int) -> int:
    """One of 0 … count-1; of Random's methods only `random` gives the same in all versions of Python."""
    return int(chance.random() * count)


def between(chance: random.Random, least: float, most: float) -> float:
    """In milliseconds, so that it reads back as it is shown."""
    return round(least + (most - least) * chance.random(), 3)


def rank_words(rank: int) -> str:
    return rf"rank {rank} at |rank {rank}: no heartbeat|missing ranks: (\d+, )*{rank}\b|rank {rank} .*(left|lost|gone)"


def switch_words() -> str:
    return r"switch tcp://\S+ (has not answered|does not know this job)|the switch was stopped by"


def is_named(kind: FaultKind, event: ChaosEvent, rank: int, error: str) -> bool:
    return re.search(kind.names(event, rank), error) is not None
