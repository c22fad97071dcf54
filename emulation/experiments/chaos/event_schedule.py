"""The events of a run: a pure function of seed and options, without end.

Each event is drawn by a generator of its own, so that the first ones are the same however many follow.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from emulation.experiments.chaos.chaos_options import ChaosOptions
from emulation.experiments.chaos.fault_kinds.fault_kind import ChaosEvent, FaultKind, between, pick
from emulation.experiments.chaos.fault_kinds.fault_table import FAULT_KINDS
from emulation.scenario.errors import RunFailed
from switchagg.option_syntax import choices

SECOND_WITHIN_S = 1.0
GAP_LEAST = 0.25
"""Of the mean gap, as the most is 2 less this."""


def kinds_of(options: ChaosOptions) -> list[FaultKind]:
    """The kinds that these options allow. Raises RunFailed for names that are unknown, or that can't be here."""
    for name in options.kinds:
        if name not in FAULT_KINDS:
            raise RunFailed(f"--kinds {name}: unknown{choices(name, FAULT_KINDS)}")
        if not FAULT_KINDS[name].applies(options):
            raise RunFailed(f"--kinds {name}: {options.method} on {options.place} has nothing that it can meet")
    kinds = [FAULT_KINDS[name] for name in options.kinds or FAULT_KINDS]
    return [kind for kind in kinds if kind.applies(options)]


def events(options: ChaosOptions) -> Iterator[ChaosEvent]:
    """All kinds come in each round of the deck, as often as their weight says, in an order of its own."""
    kinds = kinds_of(options)
    deck_size = sum(kind.weight for kind in kinds)
    deck: list[FaultKind] = []
    number = 0
    while True:
        if not deck:
            deck = [kind for kind in kinds for _ in range(kind.weight)]
            shuffle(random.Random(f"{options.seed}/deck/{number // deck_size}"), deck)
        yield _event(number, deck.pop(), options)
        number += 1


def groups(options: ChaosOptions) -> Iterator[list[ChaosEvent]]:
    """Events as they are met: each with the second ones that follow it."""
    group: list[ChaosEvent] = []
    for event in islice(events(options), options.events or None):
        if group and not event.second:
            yield group
            group = []
        group.append(event)
    yield group


def first_events(options: ChaosOptions, count: int) -> list[ChaosEvent]:
    """So many, or all that the options have."""
    return list(islice(events(options), min(count, options.events or count)))


def _event(number: int, kind: FaultKind, options: ChaosOptions) -> ChaosEvent:
    chance = random.Random(f"{options.seed}/event/{number}")
    second = number > 0 and chance.random() < options.double
    mean_s = options.gap_s
    gap_s = between(chance, GAP_LEAST * mean_s, (2 - GAP_LEAST) * mean_s)
    if second:
        gap_s = between(chance, 0.0, SECOND_WITHIN_S)
    target, detail = kind.draw(chance, options)
    duration_s = between(chance, *(leases * options.lease_s for leases in kind.span(options)))
    return ChaosEvent(number, gap_s, kind.name, target, duration_s, detail, pick(chance, 1 << 32), second)


def shuffle(chance: random.Random, deck: list[FaultKind]) -> None:
    """As Random.shuffle, which may draw otherwise in another version of Python."""
    for last in range(len(deck) - 1, 0, -1):
        other = pick(chance, last + 1)
        deck[last], deck[other] = deck[other], deck[last]
