"""ChaosOptions: what a chaos run does, checked once, when made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from emulation.scenario.errors import RunFailed
from switchagg.option_syntax import choices
from transport.group.method_name import METHODS, MethodName, parse

NAMESPACES, LOOPBACK, VIRTUAL = "namespaces", "loopback", "virtual"
PLACES = (NAMESPACES, LOOPBACK, VIRTUAL)
"""Where a run takes place: in network namespaces of its own, as processes of this host, or in virtual time."""

SECONDS = 600.0
WORKERS_MAX = 64
STANDBY_MAX = 7


class Survival(Enum):
    """What a job survives, by its options: each kind of fault says for each what shall happen."""

    NOTHING = "nothing"
    """A dead or stopped rank or switch ends the job on all ranks; it starts again from its checkpoint."""
    FALLBACK = "fallback"
    """The loss of a switch: calls take a host method, and return to the switch, or to the next of a list."""
    HOSTS = "hosts"
    """A host method, which has no switch and no leases: a silent rank is waited for longer."""


class FaultOutcome(Enum):
    """What shall happen to a job that a fault meets."""

    ENDS = "ends, named"
    """The job ends on all ranks, within the bound, and each error names who was hit."""
    SAME_BITS = "goes on, same bits"
    """The job goes on, and its parameters are those of the undisturbed run."""
    EITHER = "ends, named, or goes on"
    """As the one or as the other: it depends on who notices what first."""
    STEP = "costs a step"
    """Those that are left repeat the step, at most, and take back who was lost; no rank ends."""


class Promise(NamedTuple):
    """What a kind of fault shall come to, a field for each Survival, by its value. elastic: where those would not have
    the same bits, of a job that is elastic."""

    nothing: FaultOutcome
    fallback: FaultOutcome
    hosts: FaultOutcome = FaultOutcome.SAME_BITS
    elastic: FaultOutcome = FaultOutcome.STEP

    def for_job(self, options: ChaosOptions) -> FaultOutcome:
        outcome: FaultOutcome = getattr(self, options.survival.value)
        return self.elastic if options.elastic and outcome is not FaultOutcome.SAME_BITS else outcome


@dataclass(frozen=True)
class ChaosOptions:
    """Raises RunFailed for what can't be. seconds: how long faults are made; 0: no limit. events: end after so many;
    0: no limit."""

    seed: int
    seconds: float = SECONDS
    workers: int = 4
    method: str = "switch"
    place: str = NAMESPACES
    events: int = 0
    fallback: str = ""
    """A host method that calls take while the switch is lost; "": none."""
    standby: int = 0
    """Switches beside the first, to which a job with a fallback goes."""
    kinds: tuple[str, ...] = ()
    """Names of FAULT_KINDS; (): all that the place and the method have."""
    lease_s: float = 1.0
    lap_steps: int = 60
    """Steps of the undisturbed run, after which training begins anew from the same parameters."""
    gap_s: float = 2.0
    """Mean time between a recovery and the next event."""
    double: float = 0.15
    """Share of events that a second one meets within a second."""
    elastic: bool = False
    """Whether ranks that are left go on without one that died, and take it back."""

    def __post_init__(self) -> None:
        if not 2 <= self.workers <= WORKERS_MAX:
            raise RunFailed(f"--workers {self.workers}: 2 to {WORKERS_MAX}")
        if self.place not in PLACES:
            raise RunFailed(f"--on {self.place}: unknown{choices(self.place, PLACES)}")
        try:
            _ = self.name
        except ValueError as error:
            raise RunFailed(f"--method: {error}") from None
        if self.name.method == "gloo":
            raise RunFailed("--method gloo: PyTorch's own promises nothing about faults; choose one of ours")
        if self.place == VIRTUAL and not self.name.is_switch:
            raise RunFailed(
                f"--method {self.method}: in virtual time chaos is of method switch; leave out --on virtual"
            )
        if self.place == VIRTUAL and self.elastic:
            raise RunFailed("--elastic: there are no elastic jobs in virtual time; leave out one of the two")
        if self.fallback and not self.name.is_switch:
            raise RunFailed(f"--fallback {self.fallback}: of method switch alone; {self.method} has no switch to lose")
        if self.standby and not self.fallback:
            raise RunFailed(f"--standby {self.standby}: to go from one switch to the next a job needs a --fallback")
        if not 0 <= self.standby <= STANDBY_MAX:
            raise RunFailed(f"--standby {self.standby}: 0 to {STANDBY_MAX}")
        if self.elastic and self.name.secret:
            raise RunFailed(f"--elastic --method {self.method}: no rank can go on with secret sums when one dies")
        if METHODS[self.name.method].loses:
            raise RunFailed(f"--method {self.method}: its sums may lack values, so no sum can be checked")

    @property
    def name(self) -> MethodName:
        """The method. Raises ValueError."""
        return parse(self.method)

    @property
    def survival(self) -> Survival:
        if not self.name.is_switch:
            return Survival.HOSTS
        return Survival.FALLBACK if self.fallback else Survival.NOTHING

    @property
    def switches(self) -> int:
        """How many switches there are."""
        return int(self.name.is_switch) * (1 + self.standby)

    @property
    def repeats(self) -> bool:
        """Whether a job that starts again from its checkpoint has the bits of one that never ended: no codec keeps
        residuals or draws random numbers by the number of a call, and no measurement chooses the method."""
        return not self.name.codec and self.name.method != "auto"
