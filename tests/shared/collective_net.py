"""Parties joined by pairwise FIFOs, with deliveries and `on_sent` in a seeded random order: no links, no time."""

import random
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.call_request import CallRequest
from transport.collectives.collective_party import CollectiveFinished, CollectiveParty
from transport.meshes.mesh import OutgoingMessage


class Net:
    """All members of a job. `run` delivers until nothing is left; `ends` has what each call of each member ended with.

    eager: probability that a message's memory is given back at once; otherwise any time later. Messages are kept
    as the link may keep them: what is sent is read only when it is delivered.
    """

    def __init__(self, workers: int, seed: int = 0, **options: Any) -> None:
        self.parties = [CollectiveParty(m, workers, **options) for m in range(workers)]
        self.ends: list[list[CollectiveFinished]] = [[] for _ in self.parties]
        self.chance = random.Random(seed)
        self.now_ns = 0
        self.delivered = 0
        self.fifos: dict[tuple[int, int], deque[OutgoingMessage]] = {}
        self.tickets: list[tuple[int, int]] = []
        self.cut: set[int] = set()  # members that get and give nothing more

    def collect(self, member: int) -> None:
        for message in self.parties[member].messages_to_send():
            assert 0 <= message.to < len(self.parties) != member
            assert message.to != member
            self.fifos.setdefault((member, message.to), deque()).append(message)
        self.ends[member] += self.parties[member].events()

    def run(self) -> None:
        for member in range(len(self.parties)):
            self.collect(member)
        while self.fifos or self.tickets:
            if self.tickets and (not self.fifos or self.chance.random() < 0.3):
                member, ticket = self.tickets.pop(self.chance.randrange(len(self.tickets)))
                self.parties[member].on_sent(ticket)
                self.collect(member)
            else:
                self._deliver(*self.chance.choice(list(self.fifos)))

    def _deliver(self, sender: int, to: int) -> None:
        fifo = self.fifos[sender, to]
        message = fifo.popleft()
        if not fifo:
            del self.fifos[sender, to]
        if sender in self.cut or to in self.cut:
            return
        party = self.parties[to]
        data: bytes | memoryview = bytes(message.data)
        if self.chance.random() < 0.5 and (memory := party.place(sender, message.head, len(data))) is not None:
            memory[:] = data
            data = memory
        self.tickets.append((sender, message.ticket))
        party.receive(sender, message.head, data, self.now_ns)
        self.delivered += 1
        self.collect(to)

    def failures(self) -> list[str]:
        """Of each worker's calls, in order of ending; "" for those that went well."""
        return [str(end.failure or "") for ends in self.ends for end in ends]


def run_once(
    kind: Any,
    algorithm: str,
    arrays: list[NDArray[Any]],
    op: Any = "sum",
    *,
    seed: int = 0,
    **call: Any,
) -> Net:
    """One collective on all ranks, in place; asserts that it went well."""
    told = {"segment_bytes": call.pop("segment_bytes", 64), "option": call.pop("option", 0)}
    net = Net(len(arrays), seed, **told)
    for rank, array in enumerate(arrays):
        net.parties[rank].submit(CallRequest(kind, op, **call), algorithm, array, now_ns=0)
    net.run()
    assert net.failures() == [""] * len(arrays)
    return net


def integers(workers: int, elements: int, seed: int, dtype: Any = np.int64) -> list[NDArray[Any]]:
    generator = np.random.default_rng([seed, workers, elements])
    return [generator.integers(-1000, 1000, elements).astype(dtype) for _ in range(workers)]
