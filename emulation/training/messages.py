"""What a trainer is told, and how it reports: imported by those who start trainers too, so without torch."""

import sys
from typing import Any

import msgspec

from emulation.results import elements_of
from emulation.scenario import Scenario
from transport.group.method_name import HOST_METHODS, MethodName, parse


class TrainerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rank's part in a run."""

    scenario: Scenario  # as `canonical` writes it; used: seed, workload and switch
    method: str  # as in a scenario: gloo, switch, ring@zeromq, ps+p3
    rank: int
    workers: int
    master_address: str  # where rank 0 listens for the rendezvous: an address that all ranks reach
    master_port: int
    interface: str  # network interface that Gloo binds to, e.g. h1-eth0
    switch: str | None = None  # the switch's control address, tcp://host:port; for method switch
    addresses: tuple[str, ...] = ()  # of all ranks' hosts; for host methods with a schedule
    timeout_s: float = 60.0  # a call that takes longer fails

    def __post_init__(self) -> None:
        name = self.name  # raises ValueError
        if not 0 <= self.rank < self.workers:
            raise ValueError(f"rank {self.rank} of {self.workers} workers: allowed: 0 … workers-1")
        if name.is_switch and not self.switch:
            raise ValueError("method switch: `switch` is missing, the address of the switch, tcp://host:port")
        if name.schedule and name.method in (*HOST_METHODS, "ps", "auto") and len(self.addresses) != self.workers:
            raise ValueError(f"method {self.method}: `addresses` has {len(self.addresses)} entries, not {self.workers}")

    @property
    def name(self) -> MethodName:
        return parse(self.method)

    @property
    def elements(self) -> int:
        """Values in a packet of the switch's method."""
        return elements_of(self.method, self.scenario.switch.elements, self.scenario.topology.mtu_bytes)


def say(event: str, **more: Any) -> None:
    """One line of JSON for whoever follows us."""
    sys.stdout.buffer.write(msgspec.json.encode({"event": event, **more}) + b"\n")
    sys.stdout.buffer.flush()
