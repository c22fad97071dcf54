"""A whole parameter-server job in one thread: parties joined by wires that are first in, first out per pair.

Which wire moves next, whether memory is offered, and when a message's memory comes back is decided by a seeded
generator; time passes only when nothing else can happen, or by `pass_time`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from switchagg.calls.call_request import CallRequest
from transport.contracts.group_contract import Array
from transport.meshes.mesh import OutgoingMessage
from transport.ps.config import PsConfig
from transport.ps.ps_arithmetic import Arithmetic
from transport.ps.ps_calls import PsCall, PsCallFinished
from transport.ps.ps_server import PsServer
from transport.ps.ps_worker import PsWorker


class World:
    """Members of `config`; configs: of single workers, where they differ. weights: how likely each sender moves."""

    def __init__(
        self,
        config: PsConfig,
        seed: int = 0,
        *,
        configs: dict[int, PsConfig] | None = None,
        adopt: bool = False,
        calculator: Arithmetic | None = None,
        weights: Sequence[float] | None = None,
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.config = config
        self.now_ns = 1_000
        self.workers = [PsWorker(r, (configs or {}).get(r, config), job="test") for r in range(config.workers)]
        served = PsConfig(config.workers, config.servers) if adopt else config
        self.servers = [
            PsServer(config.workers + s, served, adopt=adopt, calculator=calculator) for s in range(config.servers)
        ]
        self.parties: list[PsWorker | PsServer] = [*self.workers, *self.servers]
        self.wires: dict[tuple[int, int], deque[OutgoingMessage]] = {}
        self.returning: list[tuple[int, int]] = []
        self.dead: set[int] = set()
        self.finished: dict[int, list[PsCallFinished]] = {r: [] for r in range(config.workers)}
        self.delivered: list[tuple[int, int, OutgoingMessage]] = []
        self.on_finish: Callable[[int, PsCallFinished], None] | None = None
        self.on_delivery: Callable[[int, int, OutgoingMessage], None] | None = None
        self.deliveries = 0
        self._weights = weights
        for party in self.parties:
            party.handle_timer(self.now_ns)

    def call(self, rank: int, kind: str, array: Array, op: str = "sum", **options: object) -> PsCall:
        return self.workers[rank].submit(CallRequest(kind, op, **options), array, now_ns=self.now_ns)  # type: ignore[arg-type]

    def step(self) -> bool:
        """One thing happens; False if nothing can but for the passing of time."""
        self._collect()
        ready = [pair for pair, wire in self.wires.items() if wire]
        choices = len(ready) + len(self.returning)
        if not choices:
            return False
        odds = None
        if self._weights is not None:
            speeds = [self._weights[source] if source < len(self._weights) else 1.0 for source, _ in ready]
            odds = np.array(speeds + [1.0] * len(self.returning), float)
            odds /= odds.sum()
        chosen = int(self.random.choice(choices, p=odds))
        if chosen < len(ready):
            self._deliver(*ready[chosen])
        else:
            member, ticket = self.returning.pop(chosen - len(ready))
            if member not in self.dead:
                self.parties[member].on_sent(ticket)
        self._collect()
        return True

    def run(self, steps: int = 1_000_000) -> None:
        """Until nothing moves."""
        for _ in range(steps):
            if not self.step():
                return
        raise AssertionError("the world doesn't come to rest")

    def pass_time(self, seconds: float) -> None:
        """Let timers run while messages flow."""
        end_ns = self.now_ns + round(seconds * 1e9)
        while True:
            self.run()
            due = [
                (deadline, member)
                for member, party in enumerate(self.parties)
                if member not in self.dead and (deadline := party.next_deadline_ns()) is not None
            ]
            if not due or min(due)[0] > end_ns:
                break
            self.now_ns = max(self.now_ns, min(due)[0])
            for deadline, member in due:
                if deadline <= self.now_ns:
                    self.parties[member].handle_timer(self.now_ns)
        self.now_ns = end_ns

    def kill(self, member: int, *, noticed: bool = True) -> None:
        """A member dies. noticed: its earlier messages still arrive, and the mesh reports the loss; else
        nothing arrives any more."""
        self._collect()
        self.dead.add(member)
        for pair in list(self.wires):
            if pair[1] == member:
                for message in self.wires.pop(pair):
                    self.returning.append((pair[0], message.ticket))
        if not noticed:
            for other in range(self.config.members):
                self.wires.pop((member, other), None)
            return
        for other in range(self.config.members):
            if other not in self.dead:
                while self.wires.get((member, other)):
                    self._deliver(member, other)
                self.parties[other].lost(member, "its process died", self.now_ns)

    def _deliver(self, sender: int, to: int) -> None:
        message = self.wires[sender, to].popleft()
        self.returning.append((sender, message.ticket))
        if to in self.dead:
            return
        self.deliveries += 1
        self.now_ns += 1_000
        party = self.parties[to]
        data: bytes | memoryview = bytes(message.data)
        if self.random.random() < 0.7 and (view := party.place(sender, message.head, len(data))) is not None:
            view[:] = data
            data = view[:]
        if self.on_delivery is not None:
            self.on_delivery(sender, to, message)
        party.receive(sender, message.head, data, self.now_ns)

    def _deliver_raw(self, sender: int, to: int, head: bytes, data: bytes) -> None:
        """What `sender` never sent."""
        self.parties[to].place(sender, head, len(data))
        self.parties[to].receive(sender, head, data, self.now_ns)

    def _collect(self) -> None:
        for member, party in enumerate(self.parties):
            if member in self.dead:
                continue
            for message in party.messages_to_send():
                self.wires.setdefault((member, message.to), deque()).append(message)
            if isinstance(party, PsWorker):
                for ended in party.events():
                    self.finished[member].append(ended)
                    if self.on_finish is not None:
                        self.on_finish(member, ended)

    def results(self) -> list[list[str]]:
        """Per worker the kinds of its calls that ended well."""
        return [[ended.call.kind for ended in self.finished[r] if ended.failure is None] for r in self.finished]

    def memory_is_free(self) -> bool:
        """No server keeps anything of a call."""
        return all(not server._open and server._pool.used_bytes == 0 for server in self.servers)


def changed(config: PsConfig, **fields: object) -> PsConfig:
    return replace(config, **fields)  # type: ignore[arg-type]
