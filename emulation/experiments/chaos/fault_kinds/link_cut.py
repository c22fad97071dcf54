"""A link that is down for longer than a lease."""

import random

from emulation.experiments.chaos.chaos_network import FAR, NEAR
from emulation.experiments.chaos.chaos_options import ChaosOptions, FaultOutcome, Promise
from emulation.experiments.chaos.fault_kinds.fault_kind import (
    SWITCH,
    WORKER,
    Casualties,
    ChaosEvent,
    FaultKind,
    pick,
    rank_words,
    switch_words,
)


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
