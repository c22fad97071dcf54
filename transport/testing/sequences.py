"""A test's own sequence of packets under faults of the network, each compared with what the rules say for it."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, SupportsBytes

import numpy as np

from switchagg.aggregator import Aggregator
from switchagg.dataplane.p4.plane_traffic import SAYS
from switchagg.dataplane.reference import ReferencePlane
from switchagg.errors import SwitchaggError
from switchagg.job import MODULUS
from switchagg.wire import FLAG_RETRANSMISSION, FLAGS_AT, HEADER_BYTES, Packet, decode
from transport.testing.faults import ArrivingPacket, FaultyOrder, orders
from transport.testing.jobs import Job, Unexpected
from transport.testing.packets import bytes_of, describe
from transport.testing.switches import SwitchUnderTest

MIXTURES = 50
"""Default of how many mixtures of faults a sequence meets."""

SMALLER_S = 10.0
"""How long a smaller sequence that fails, too, is looked for."""

PacketSequence = Callable[[Job], Iterable[tuple[int, Packet | SupportsBytes]]]
"""What the ranks of a job send: (rank, packet) in order. Called for each order of arrivals with the job, whose
generation is another one each time."""

Check = Callable[[Mapping[int, Sequence[Packet]]], object]
"""A check of one's own, after each order of arrivals: rank -> the results that it got, in order. Raises
AssertionError."""

Rule = Callable[[int, int], Aggregator]


@dataclass(frozen=True)
class _Failure:
    """The arrivals up to the one that failed; what the switch did with the others; what was wrong."""

    arrivals: Sequence[ArrivingPacket]
    before: Sequence[str]
    wrong: str


class UnderFaults:
    """Runs sequences on a switch under faults: none, every single one, then mixtures by seed (`faults.orders`).

    Each time the job begins anew, in its next generation. Each packet's results, and the counter that counts it, are
    compared with those of the reference.
    """

    def __init__(self, switch: SwitchUnderTest, seed: int = 0, mixtures: int = MIXTURES) -> None:
        self.switch, self.seed, self.mixtures = switch, seed, mixtures

    def __call__(
        self, sequence: PacketSequence, *, rule: Rule | None = Aggregator, check: Check | None = None, **job: Any
    ) -> int:
        """Run a sequence in all orders; returns how many these were.

        rule: the reference, a subclass of `Aggregator` for a rule of one's own; None: only `check` is made. job: as of
        `SwitchUnderTest.job`. Raises Unexpected with the smallest part found that fails, packet by packet.
        """
        __tracebackhide__ = True
        if rule is None and check is None:
            raise SwitchaggError("without a rule nothing is compared: give a check")
        run = _Run(self.switch.job(**job), sequence, rule, check)
        packets = len(run.packets())
        if not packets:
            raise SwitchaggError("the sequence has no packets: yield (rank, packet)")
        played = 0
        for order in orders(packets, self.seed, self.mixtures):
            self.switch.tally.sequences += 1
            if failure := run.play(order.arrivals):
                raise Unexpected(_words(order, run.smallest(failure), played))
            played += 1
        return played


class _Run:
    """A job, a sequence of its packets, and what they are compared with."""

    def __init__(self, job: Job, sequence: PacketSequence, rule: Rule | None, check: Check | None) -> None:
        self._job, self._sequence, self._rule, self._check = job, sequence, rule, check

    def packets(self) -> list[tuple[int, bytes]]:
        return [(rank, bytes_of(packet)) for rank, packet in self._sequence(self._job)]

    def play(self, arrivals: Sequence[ArrivingPacket]) -> _Failure | None:
        """Send packets as they arrive, to cleared slots (S7); returns what goes wrong first."""
        job = self._job
        job.restart((job.config.generation + 1) % MODULUS)
        packets, reference, before = self.packets(), self._reference(), list[str]()
        results: dict[int, list[Packet]] = {rank: [] for rank in range(len(job.workers))}
        for place, arrival in enumerate(arrivals):
            rank, data = packets[arrival.number]
            data = _resent(data) if arrival.resent else data
            job.send(rank, data)
            try:
                counted, received = self._compare(reference, rank, data)
            except Unexpected as error:
                return _Failure(arrivals[: place + 1], before, str(error))
            before.append(f"{arrival}: rank {rank} sent {describe(data)}: {SAYS.get(counted, counted)}")
            for receiver, result in received:
                results[receiver].append(decode(result, header_only=True))
        try:
            if self._check is not None:
                self._check(results)
        except AssertionError as error:
            last = before[-1] if before else "no packet arrives"
            return _Failure(arrivals, before[:-1], f"{last}\nthe check fails after it: {error}")
        return None

    def smallest(self, failure: _Failure) -> _Failure:
        """A failure of fewer packets, by leaving out halves, quarters … of the arrivals while what is left fails."""
        end_s, size = time.monotonic() + SMALLER_S, len(failure.arrivals)
        while size := size // 2:
            start = 0
            while start < len(failure.arrivals) > 1 and time.monotonic() < end_s:
                shorter = [*failure.arrivals[:start], *failure.arrivals[start + size :]]
                if shorter and (smaller := self.play(shorter)):
                    failure, size = smaller, min(size, len(smaller.arrivals))
                else:
                    start += size
        return failure

    def _reference(self) -> ReferencePlane | None:
        if self._rule is None:
            return None
        config = self._job.config
        reference = ReferencePlane(config.slots[1], config.elements, self._rule)
        reference.admit(config, range(len(self._job.workers)))
        return reference

    def _compare(self, reference: ReferencePlane | None, rank: int, data: bytes) -> tuple[str, list[tuple[int, bytes]]]:
        """What the packet sent last is counted as, and the results: (rank, bytes). Raises Unexpected."""
        if reference is None:
            ports = enumerate(self._job.workers)
            return "", [(rank, result) for rank, port in ports for result in iter(partial(port.receive, 0), None)]
        earlier = dict(reference.counters)
        outputs = reference.process(np.frombuffer(data, np.uint8)[np.newaxis, :], rank)
        (counted,) = (name for name, packets in reference.counters.items() if packets > earlier.get(name, 0))
        results = {port: output.bundle[0].tobytes() for output in outputs for port in output.ports}
        self._job.expect_packets(results, counted=counted)
        return counted, list(results.items())


def _resent(data: bytes) -> bytes:
    if len(data) < HEADER_BYTES:
        return data
    return data[:FLAGS_AT] + bytes([data[FLAGS_AT] | FLAG_RETRANSMISSION]) + data[FLAGS_AT + 1 :]


def _words(order: FaultyOrder, smallest: _Failure, played: int) -> str:
    return "\n".join(
        [
            f"the sequence fails under faults: {order.faults} ({played} orders of arrival passed before)",
            f"the smallest part of it found that fails, {len(smallest.arrivals)} packets:",
            *(f"  ok    {line}" for line in smallest.before),
            f"  FAIL  {smallest.arrivals[-1] if smallest.arrivals else 'no packet'}:",
            *(f"        {line}" for line in smallest.wrong.splitlines()),
        ]
    )
