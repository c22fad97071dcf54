"""Faults of a network on a sequence of packets: which packets arrive, how often and in what order.

No switch and no packet is needed here: packets are numbers, 0 … n - 1, and the same seed gives the same faults
on every machine.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SINGLE_MOST = 600
"""Sequences with one fault; a sequence of up to 23 packets has no more, of a longer one so many are drawn."""

CHANCE_MOST = 0.3
"""Each mixture draws its own chances of a loss, a repetition and a delay, up to this."""


@dataclass(frozen=True, slots=True)
class ArrivingPacket:
    """A packet of the sequence, by its number, comes in. resent: with the flag RETRANSMISSION, as a worker sends what
    was not answered. note: what the network did to it; "" if nothing."""

    number: int
    note: str = ""
    resent: bool = False

    def __str__(self) -> str:
        return f"packet {self.number}{f', {self.note}' if self.note else ''}"


@dataclass(frozen=True, slots=True)
class FaultyOrder:
    """What arrives, in order, and the faults in words."""

    faults: str
    arrivals: Sequence[ArrivingPacket]


def orders(packets: int, seed: int, mixtures: int) -> Iterator[FaultyOrder]:
    """The sequence as it is, each single fault of it, or a draw of `SINGLE_MOST`, then `mixtures` of several faults."""
    yield FaultyOrder("no fault", [ArrivingPacket(number) for number in range(packets)])
    single = list(_single_faults(packets))
    yield from single if len(single) <= SINGLE_MOST else random.Random(f"single {seed}").sample(single, SINGLE_MOST)
    for number in range(mixtures):
        yield _mixture(packets, random.Random(f"mixture {seed} {number}"), f"mixture {number} of seed {seed}")


def _single_faults(packets: int) -> Iterator[FaultyOrder]:
    in_order = [ArrivingPacket(number) for number in range(packets)]
    for number in range(packets):
        before, after = in_order[:number], in_order[number + 1 :]
        yield FaultyOrder(f"packet {number} is lost", before + after)
        late = ArrivingPacket(number, "sent again after a loss", resent=True)
        yield FaultyOrder(f"packet {number} is lost, and is sent again at the end", [*before, *after, late])
        again = ArrivingPacket(number, "sent again though it had arrived", resent=True)
        yield FaultyOrder(f"packet {number} is sent again at the end", [*in_order, again])
        for other in range(number, packets):
            first, rest = in_order[: other + 1], in_order[other + 1 :]
            copy = ArrivingPacket(number, "a second copy")
            yield FaultyOrder(f"packet {number} comes again after packet {other}", [*first, copy, *rest])
            if other > number:
                overtaken = ArrivingPacket(number, f"overtaken by packet {other}")
                earlier = [arrival for arrival in first if arrival.number != number]
                yield FaultyOrder(f"packet {number} comes after packet {other}", [*earlier, overtaken, *rest])


def _mixture(packets: int, rng: random.Random, title: str) -> FaultyOrder:
    """Losses, repetitions and delays by chance. Time is the number of packets sent."""
    loss, repetition, delay = (rng.uniform(0, CHANCE_MOST) for _ in range(3))
    coming: list[tuple[float, int, ArrivingPacket]] = []

    def arrive(time: float, arrival: ArrivingPacket) -> None:
        coming.append((time, len(coming), arrival))

    for number in range(packets):
        late = rng.random() < delay
        if rng.random() >= loss:
            arrive(number + rng.uniform(1, packets) * late, ArrivingPacket(number, "late" if late else ""))
        elif rng.random() < 0.5:
            arrive(number + rng.uniform(1, packets), ArrivingPacket(number, "sent again after a loss", resent=True))
        if rng.random() < repetition:
            resent = rng.random() < 0.5
            note = "sent again though it had been sent" if resent else "a second copy"
            arrive(number + rng.uniform(0, packets), ArrivingPacket(number, note, resent))
    return FaultyOrder(title, [arrival for _, _, arrival in sorted(coming, key=lambda entry: entry[:2])])
