"""Traffic of real workers through a faulty network, packet by packet, with what a reference switch makes of each.

A small network in virtual time, drawn from a seed: ranks send as W2 and W6 say and repeat what is not answered; packets
and results are lost, doubled and overtaken; ranks fall behind; jobs end and start again with the next generation while
old packets are still under way. The same seed gives the same traffic, on every machine.
"""

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from switchagg.aggregator import Aggregator, Decision
from switchagg.job import MODULUS, JobConfig, StreamConfig
from switchagg.wire import Op, Packet, Route, Values, encode

TIMEOUT = 8.0
"""After so long an unanswered chunk is sent again; one way takes a packet 1.0."""

LATE = (2.0, 25.0)
"""How much later an overtaken packet, or a second copy, arrives: up to several turns of a slot."""

PAUSE = (5.0, 40.0)
"""How long a rank falls behind."""

MAX_EVERY = 5
"""One of so many chunks has op MAX, as scale chunks have (W4)."""

ROUTES = (Route.ALL, Route.TO_OWNER, Route.ALL, Route.FROM_OWNER)
"""Of chunks in turn; each rank of two or more is an owner in its turn."""

MARKED_EVERY = 7
"""In each so many chunks one rank, each in its turn, meets congestion (G1)."""

EVENTS_PER_PACKET = 200
"""More happen only where nearly nothing arrives."""

PACKETS_MOST = 1_000_000
WINDOW_MOST = 4096
JOBS_MOST = 64


@dataclass(frozen=True, slots=True)
class TrafficFaults:
    """Probabilities: of a packet or result to be lost, of one to come twice, of one to be overtaken; of a rank to fall
    behind, per chunk; of a job to end and start again, per packet that arrives."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    straggler: float = 0.0
    reset: float = 0.0

    def __post_init__(self) -> None:
        for fault in fields(self):
            value = getattr(self, fault.name)
            most = 0.9 if fault.name in ("loss", "reset") else 1.0
            if not 0 <= value <= most:
                raise ValueError(f"fault {fault.name}={value}: 0 to {most}")


USUAL = TrafficFaults(loss=0.05, duplicate=0.05, reorder=0.05, straggler=0.02)
"""Default probabilities."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of the traffic: `packets` that arrive at the switch; `jobs` alike, each with `streams` of `window` slots."""

    seed: int = 0
    packets: int = 100
    workers: int = 3
    elements: int = 32
    window: int = 2
    jobs: int = 1
    streams: int = 1

    def __post_init__(self) -> None:
        limits = {"packets": PACKETS_MOST, "window": WINDOW_MOST, "jobs": JOBS_MOST, "streams": 8, "workers": 64}
        for name, most in limits.items():
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} {getattr(self, name)}: 1 to {most}")

    @property
    def slots(self) -> int:
        return self.jobs * self.streams * self.window

    @property
    def ports(self) -> int:
        return self.jobs * self.workers


@dataclass(frozen=True, slots=True)
class AdmittedTraffic:
    """A job begins, or its next generation; ports[rank] is where its workers are."""

    job: JobConfig
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Evicted:
    job_id: int


@dataclass(frozen=True, slots=True)
class LostPackets:
    """A packet or result that the network lost."""

    note: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """A packet at the switch. results: what the reference sends for it, (port, bytes). reason: its counter."""

    note: str
    port: int
    data: bytes
    results: tuple[tuple[int, bytes], ...]
    reason: str


Step = AdmittedTraffic | Evicted | LostPackets | Arrived

Reference = Callable[[int, int], Aggregator]
"""Makes a reference switch of (slots, elements): `Aggregator`, or one with another rule."""

SAYS = {
    "absorbed": "S3, S4: counted in, not all ranks are seen",
    "broadcast": "S5: complete, BROADCAST to all",
    "reply": "S5: complete already, REPLY to the sender",
    "drop_duplicate": "S3, S4: its rank is in already, not added again",
    "drop_older": "S2: older than what the slot version holds",
    "drop_early": "S2: further ahead than the next chunk of the slot version",
    "drop_generation": "S1: of an earlier generation",
    "drop_job": "S8: its job is evicted",
    "drop_unknown_sender": "S1: no job has the address that it came from",
    "drop_checksum": "P5: its UDP checksum is wrong",
    "up": "H3: the last child's, the sums go UP to the parent",
    "up_again": "H4: it asks for a result that the parent has not sent, the sums go UP again",
    "drop_asked": "H4: it asks, and another child has asked already",
    **{
        f"drop_{field}": f"S1: not a packet of the job, the first that is wrong is its {field}"
        for field in ("stream", "slot", "rank", "port", "owner", "elements")
    },
    **{
        f"drop_{reason}": f"P6: not in the layout of a packet ({reason})"
        for reason in ("short", "magic", "wire_version", "op", "flags", "length")
    },
    "drop_result": "S1: a result, and its sender is not the switch's parent",
}
"""Counter of a packet -> the rule that it follows from."""


def traffic(shape: Shape, faults: TrafficFaults = USUAL, reference: Reference = Aggregator) -> Iterator[Step]:
    """All that happens, in order. Raises ValueError if the faults let nearly nothing through."""
    return _Network(shape, faults, reference).steps()


@dataclass(slots=True)
class _Job:
    config: JobConfig
    ports: tuple[int, ...]
    running: bool = True


@dataclass(frozen=True, slots=True)
class _Sending:
    """A packet on its way to the switch, and why it was sent."""

    job: _Job
    packet: Packet
    why: str


class _Network:
    """Workers, links and the reference switch; `steps` runs them."""

    def __init__(self, shape: Shape, faults: TrafficFaults, reference: Reference) -> None:
        self.shape, self.faults = shape, faults
        self.rng = random.Random(shape.seed)
        self.switch = reference(shape.slots, shape.elements)
        self.now = 0.0
        self.pending_steps: list[Step] = []
        self.arrived = 0
        self.jobs: dict[int, _Job] = {}
        self.resting: dict[tuple[int, int], float] = {}  # (job, rank): until then it sends nothing
        self.in_flight: set[tuple[int, int, int, int, int]] = set()  # (job, generation, stream, rank, chunk)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    def steps(self) -> Iterator[Step]:
        for number in range(self.shape.jobs):
            self._start(number)
        for _ in range(EVENTS_PER_PACKET * (self.shape.packets + 10)):
            yield from self.pending_steps
            self.pending_steps.clear()
            if self.arrived >= self.shape.packets:
                return
            self.now, _, event = heapq.heappop(self._events)
            event()
        raise ValueError(f"{self.arrived} of {self.shape.packets} packets arrived: these faults let too few through")

    def _at(self, delay: float, event: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now + delay, self._order, event))

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    # ---- jobs

    def _start(self, number: int) -> None:
        """Admit a job for the first time, or again; all its ranks begin with chunk 0."""
        shape, old = self.shape, self.jobs.get(number)
        generation = self.rng.randrange(MODULUS) if old is None else (old.config.generation + 1) % MODULUS
        first = number * shape.streams * shape.window
        streams = tuple(StreamConfig(first + s * shape.window, shape.window) for s in range(shape.streams))
        config = JobConfig(number + 1, generation, shape.workers, shape.elements, streams)
        job = _Job(config, tuple(range(number * shape.workers, (number + 1) * shape.workers)))
        self.jobs[number] = job
        self.switch.admit(config, job.ports)
        self.pending_steps.append(AdmittedTraffic(config, job.ports))
        for stream in range(shape.streams):
            for chunk in range(shape.window):
                for rank in range(shape.workers):
                    self._send_soon(job, stream, rank, chunk)

    def _reset(self, number: int) -> None:
        """The job ends now; in a while it is there again."""
        job = self.jobs[number]
        job.running = False
        self.switch.evict(job.config.job_id)
        self.pending_steps.append(Evicted(job.config.job_id))
        self._at(self.rng.uniform(0.3, 3.0), lambda: self._start(number))

    # ---- workers

    def _send_soon(self, job: _Job, stream: int, rank: int, chunk: int) -> None:
        """A chunk's first sending (W6), unless the rank has fallen behind."""
        key = (job.config.job_id, rank)
        if self._chance(self.faults.straggler):
            self.resting[key] = max(self.resting.get(key, 0.0), self.now) + self.rng.uniform(*PAUSE)
        behind = self.resting.get(key, 0.0) > self.now
        wait = self.resting[key] - self.now if behind else self.rng.uniform(0.0, 0.3)
        why = "from a rank that fell behind" if behind else "first sending"
        self._at(wait, lambda: self._send(job, stream, rank, chunk, why))

    def _send(self, job: _Job, stream: int, rank: int, chunk: int, why: str) -> None:
        config, again = job.config, why == "retransmission"
        key = (config.job_id, config.generation, stream, rank, chunk)
        if not job.running or (again and key not in self.in_flight):
            return
        self.in_flight.add(key)
        slot, version = config.place(stream, chunk)
        op = Op.MAX if chunk % MAX_EVERY == MAX_EVERY - 1 else Op.SUM
        route = ROUTES[chunk % len(ROUTES)] if config.workers > 1 else Route.ALL
        owner = chunk // len(ROUTES) % config.workers if route else 0
        gives = not route or (rank == owner) == (route is Route.FROM_OWNER)
        congested = chunk % MARKED_EVERY == 0 and chunk // MARKED_EVERY % config.workers == rank
        packet = Packet(
            config.job_id, config.generation, stream, rank, op, slot, version, chunk % MODULUS,
            values=_values(self.shape, key)[: None if gives else 0], retransmission=again, route=route, owner=owner,
            marked=congested,
        )  # fmt: skip
        self._transmit(_Sending(job, packet, why))
        self._at(TIMEOUT * self.rng.uniform(1.0, 1.2), lambda: self._send(job, stream, rank, chunk, "retransmission"))

    def _transmit(self, sending: _Sending) -> None:
        """Send a packet to the switch through the faulty network: lost, overtaken or doubled by chance."""
        if self._chance(self.faults.loss):
            self.pending_steps.append(LostPackets(f"lost on its way: {_name(sending)}"))
        elif self._chance(self.faults.reorder):
            late = replace(sending, why=f"{sending.why}, overtaken on its way")
            self._at(1.0 + self.rng.uniform(*LATE), lambda: self._arrive(late))
        else:
            self._at(self.rng.uniform(1.0, 1.3), lambda: self._arrive(sending))
        if self._chance(self.faults.duplicate):
            copy = replace(sending, why=f"a second copy of the {'re' * sending.packet.retransmission}transmission")
            self._at(1.0 + self.rng.uniform(0.0, LATE[1]), lambda: self._arrive(copy))

    def _receive(self, job: _Job, rank: int, result: Packet) -> None:
        """A result at a worker: what it awaits (W5) lets the slot's next chunk go (W6)."""
        key = (result.job, result.generation, result.stream, rank, result.chunk)
        if key in self.in_flight and job.running:
            self.in_flight.remove(key)
            self._send_soon(job, result.stream, rank, result.chunk + self.shape.window)

    # ---- the switch

    def _arrive(self, sending: _Sending) -> None:
        if self.arrived >= self.shape.packets:
            return
        packet, job = sending.packet, sending.job
        number = packet.job - 1
        if self.jobs[number].running and self._chance(self.faults.reset):
            self._reset(number)
        self.arrived += 1
        port = job.ports[packet.rank]
        held = self.switch.seen(packet.slot, packet.version).chunk
        decision = self.switch.accept(packet, port)
        takes = packet.chunk != held and decision.reason in ("absorbed", "broadcast", "reply")
        says = SAYS.get(decision.reason, decision.reason) + ("; S2: takes the slot version over" if takes else "")
        results = tuple(self._answers(decision, job))
        note = f"{self.arrived}: {_name(sending)}: {says}"
        self.pending_steps.append(Arrived(note, port, encode(packet), results, decision.reason))

    def _answers(self, decision: Decision, job: _Job) -> Iterator[tuple[int, bytes]]:
        """Results as they leave; on their way to the workers they may be lost."""
        for result, ports in decision.sends:
            data = encode(result)
            for port in ports:
                yield port, data
                if self._chance(self.faults.loss):
                    continue
                late = self.rng.uniform(*LATE) if self._chance(self.faults.reorder) else 0.0
                rank = job.ports.index(port)
                receive = partial(self._receive, job, rank, result)
                self._at(self.rng.uniform(1.0, 1.3) + late, receive)


def _name(sending: _Sending) -> str:
    packet = sending.packet
    place = f"slot {packet.slot} version {packet.version}"
    stream = f"stream {packet.stream} " if len(sending.job.config.streams) > 1 else ""
    op = " MAX" if packet.op is Op.MAX else ""
    route = f" {packet.route.name} {packet.owner}" if packet.route else ""
    return f"job {packet.job} rank {packet.rank} {stream}chunk {packet.chunk}{op}{route} ({place}), {sending.why}"


def _values(shape: Shape, key: tuple[int, ...]) -> Values:
    """A contribution: the same each time it is sent. Small numbers, and now and then such that sums wrap."""
    drawn = random.Random(repr((shape.seed, key)))
    span = 2**31 if drawn.random() < 0.3 else 1000
    return np.array([drawn.randrange(-span, span) for _ in range(shape.elements)], np.int32)
