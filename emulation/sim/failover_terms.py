"""What a job in virtual time has against the loss of its switch, and which switches die when."""

from dataclasses import dataclass

from emulation.scenario.scenario_tables import LostSwitch

LEASE_NS = 4_000_000_000
"""As of `switchagg switch --lease`, by default."""


@dataclass(frozen=True)
class FailoverTerms:
    """fallback: the host method that calls take without a switch; "": the job ends. standby: switches of the job's list
    beside the first. lease_ns: of the switches."""

    fallback: str = ""
    standby: int = 0
    lease_ns: int = LEASE_NS
    losses: tuple[LostSwitch, ...] = ()
