"""The kinds of faults, and the table of them. To add one: a subclass, and a line in FAULT_KINDS."""

from __future__ import annotations

import random

from emulation.experiments.chaos.chaos_network import FAR, NEAR
from emulation.experiments.chaos.chaos_options import ChaosOptions, FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import (
    HARMLESS,
    SWITCH,
    WORKER,
    Casualties,
    ChaosEvent,
    FaultKind,
    KillFault,
    PacketFault,
    StopFault,
    SwitchFault,
    pick,
    rank_words,
    switch_words,
)


class WorkerKill(KillFault):
    """SIGKILL. In an elastic job it starts again alone; else all ranks do, once they have ended."""

    name = "worker-kill"
    summary = "SIGKILL of a worker"
    expected = Promise(nothing=FaultOutcome.ENDS, fallback=FaultOutcome.ENDS, hosts=FaultOutcome.ENDS)

    def span(self, options: ChaosOptions) -> tuple[float, float]:
        return self.leases if options.elastic else (0.0, 0.0)


class WorkerStop(StopFault):
    """SIGCONT comes once the others must have noticed: it hears that it was taken for dead."""

    name = "worker-stop"
    summary = "SIGSTOP of a worker, SIGCONT more than a lease later"
    expected = Promise(nothing=FaultOutcome.ENDS, fallback=FaultOutcome.EITHER, hosts=FaultOutcome.EITHER)

    def names(self, event: ChaosEvent, rank: int) -> str:
        return "taken for dead" if rank == event.place else rank_words(event.place)


class WorkerPause(StopFault):
    """SIGCONT comes before the lease ends: it is slow, not dead."""

    name = "worker-pause"
    summary = "SIGSTOP of a worker, SIGCONT within half a lease"
    leases = (0.1, 0.45)
    expected = HARMLESS


class SwitchKill(SwitchFault, KillFault):
    """The new one begins at the same addresses, and knows nothing of the job."""

    name = "switch-kill"
    summary = "SIGKILL of a switch, a new one at its addresses later"


class SwitchStop(SwitchFault, StopFault):
    """SIGCONT comes once all workers must have noticed: it wakes up with a job that is gone."""

    name = "switch-stop"
    summary = "SIGSTOP of a switch, SIGCONT more than a lease later"


class SwitchPause(SwitchFault, StopFault):
    """SIGCONT comes before the lease ends: workers wait, and send again what nobody answered."""

    name = "switch-pause"
    summary = "SIGSTOP of a switch, SIGCONT within half a lease"
    leases = (0.1, 0.45)
    expected = HARMLESS


class SwitchRestart(SwitchFault):
    """SIGTERM, as systemd restarts a service: the switch lets its jobs leave, then ends."""

    name = "switch-restart"
    summary = "SIGTERM of a switch, a new one at its addresses once it has ended"

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.restart_switch(event.place)


class LinkCut(FaultKind):
    """`ip link set down` at either end of the link of a worker or a switch, and up again once it was noticed."""

    name = "link-cut"
    summary = "the link of a worker or switch down for more than a lease"
    needs_network = True
    weight = 2
    leases = (2.0, 3.0)
    expected = Promise(nothing=FaultOutcome.ENDS, fallback=FaultOutcome.SAME_BITS)

    expected_of_workers = Promise(nothing=FaultOutcome.ENDS, fallback=FaultOutcome.EITHER, hosts=FaultOutcome.EITHER)

    def outcome(self, event: ChaosEvent, options: ChaosOptions) -> FaultOutcome:
        """A worker that is out of reach for long has neither switch nor hosts."""
        promise = self.expected_of_workers if event.target.startswith(WORKER) else self.expected
        return promise.for_job(options)

    def outcome_words(self, options: ChaosOptions) -> str:
        of_switches, of_workers = self.expected.for_job(options), self.expected_of_workers.for_job(options)
        return of_switches.value + (f"; a worker's: {of_workers.value}" if of_workers is not of_switches else "")

    def draw(self, chance: random.Random, options: ChaosOptions) -> tuple[str, str]:
        place = pick(chance, options.workers + options.switches)
        target = f"{WORKER} {place}" if place < options.workers else f"{SWITCH} {place - options.workers}"
        return target, (NEAR, FAR)[pick(chance, 2)]

    def begin(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.cut(event.target, event.detail)

    def undo(self, casualties: Casualties, event: ChaosEvent) -> None:
        casualties.restore(event.target)

    def names(self, event: ChaosEvent, rank: int) -> str:
        if event.target == f"{WORKER} {rank}":  # to it the switch is gone, or it hears later what the others thought
            return f"{switch_words()}|taken for dead|{rank_words(rank)}"
        return super().names(event, rank)


class LinkFlap(LinkCut):
    """`ip link set down`, and up again half a second before the lease ends, at the latest."""

    name = "link-flap"
    summary = "the link of a worker or switch down for less than half a lease"
    leases = (0.05, 0.45)
    expected = expected_of_workers = HARMLESS


class RandomPackets(PacketFault):
    """Random bytes of random length, to the data ports of switch and ranks, from a host that is no member."""

    name = "random-packets"
    summary = "random bytes to the data ports"


class ReplayedPackets(PacketFault):
    """What the job's links have carried, as it was, later: a repeated packet changes nothing."""

    name = "replayed-packets"
    summary = "packets of the job sent again later"


class ForgedPackets(PacketFault):
    """Headers of real packets with another generation, and other bits changed, from the member's own address."""

    name = "forged-packets"
    summary = "packets of the job with another generation and other changes"


FAULT_KINDS: dict[str, FaultKind] = {
    kind.name: kind
    for kind in (
        WorkerKill(),
        WorkerStop(),
        WorkerPause(),
        SwitchKill(),
        SwitchStop(),
        SwitchPause(),
        SwitchRestart(),
        LinkCut(),
        LinkFlap(),
        RandomPackets(),
        ReplayedPackets(),
        ForgedPackets(),
    )
}
"""All kinds, by name."""
