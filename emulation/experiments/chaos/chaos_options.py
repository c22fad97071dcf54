"""ChaosOptions: what a chaos run does, checked once, when made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from emulation.scenario.errors import RunFailed
from transport.group.method_name import METHODS, MethodName, parse

NAMESPACES, LOOPBACK = "namespaces", "loopback"
PLACES = (NAMESPACES, LOOPBACK)
"""Where a run takes place: in network namespaces of its own, or as processes of this host."""

WORKERS_MAX = 64


class Survival(Enum):
    """What a job survives, by its options: each kind of fault says for each what shall happen."""

    NOTHING = "nothing"
    """A dead or stopped rank or switch ends the job on all ranks; it starts again from its checkpoint."""


class FaultOutcome(Enum):
    """What shall happen to a job that a fault meets."""

    ENDS = "ends, named"
    """The job ends on all ranks, within the bound, and each error names who was hit."""
    SAME_BITS = "goes on, same bits"
    """The job goes on, and its parameters are those of the undisturbed run."""


class Promise(NamedTuple):
    """What a kind of fault shall come to, a field for each Survival, by its value."""

    nothing: FaultOutcome

    def for_job(self, survival: Survival) -> FaultOutcome:
        outcome: FaultOutcome = getattr(self, survival.value)
        return outcome


@dataclass(frozen=True)
class ChaosOptions:
    """Raises RunFailed for what can't be. seconds: how long faults are made. events: end after so many; 0: none."""

    seed: int
    seconds: float = 600.0
    workers: int = 4
    method: str = "switch"
    place: str = NAMESPACES
    events: int = 0
    kinds: tuple[str, ...] = ()
    """Names of FAULT_KINDS; (): all that the place and the method have."""
    lease_s: float = 1.0
    lap_steps: int = 60
    """Steps of the undisturbed run, after which training begins anew from the same parameters."""
    gap_s: float = 2.0
    """Mean time between a recovery and the next event."""
    double: float = 0.15
    """Share of events that a second one meets within a second."""

    def __post_init__(self) -> None:
        if not 2 <= self.workers <= WORKERS_MAX:
            raise RunFailed(f"--workers {self.workers}: 2 to {WORKERS_MAX}")
        if self.place not in PLACES:
            raise RunFailed(f"--on {self.place}: one of {', '.join(PLACES)}")
        try:
            _ = self.name
        except ValueError as error:
            raise RunFailed(f"--method: {error}") from None
        if self.name.method == "gloo":
            raise RunFailed("--method gloo: PyTorch's own promises nothing about faults; choose one of ours")
        if METHODS[self.name.method].loses:
            raise RunFailed(f"--method {self.method}: its sums may lack values, so no sum can be checked")

    @property
    def name(self) -> MethodName:
        """The method. Raises ValueError."""
        return parse(self.method)

    @property
    def survival(self) -> Survival:
        return Survival.NOTHING

    @property
    def switches(self) -> int:
        """How many switches there are."""
        return int(self.name.is_switch)

    @property
    def repeats(self) -> bool:
        """Whether a job that starts again from its checkpoint has the bits of one that never ended: no codec keeps
        residuals or draws random numbers by the number of a call, and no measurement chooses the method."""
        return not self.name.codec and self.name.method != "auto"
