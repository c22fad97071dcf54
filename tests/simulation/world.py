"""A seeded world: endpoints, a tree of switches, and a network that drops, duplicates, reorders and corrupts packets.

Workers stall and restart. One heap of events in virtual time; every choice comes from one generator, so a seed is a
complete description. Checkers watch; the world knows nothing of what they check.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulation.checkers import Convergence, Determinism, ExactlyOnce, ExactSum, NonceOnce, SlotIsolation, Violation
from switchagg.aggregator import Parent
from switchagg.calls.array_calls import array_call
from switchagg.dataplane.contract import DataPlane
from switchagg.description import Kind
from switchagg.endpoint import CallCompleted, Endpoint
from switchagg.job import MODULUS, TAG_ELEMENTS, JobConfig, StreamConfig
from switchagg.layout import shares_of
from switchagg.native.native_endpoint import NativeEndpoint
from switchagg.tag import KEY_BYTES
from switchagg.wire import FLAG_RESULT, FLAGS_AT, MARKED, RANK_AT, Bundle, decode, encode

MS = 1_000_000
SWITCH = 1 << 16
"""Number of the root as a place in the network; those of other switches follow, those of workers are below."""
NEVER_NS = 1 << 62

AnyEndpoint = Endpoint | NativeEndpoint

ABOVE = (-1,)
"""One switch; of a tree of switches, root first, the index of the one above each."""


@dataclass(frozen=True)
class Faults:
    """What the network and the hosts do wrong until `heal_ns`; probabilities per packet.

    delay_ns: least and most one-way delay; different values mean any-order delivery. straggle: share of packets that
    take 30 times as long, so that copies cross many turns of their slot. corrupt: a burst of at most 15 bits is
    flipped. forge: share of packets to a switch before which one like it comes, with a chunk that is neither the one
    held nor the next (S2). mark: share of packets that come marked CE, later, too. links: "all", or only those between
    switches, "up" or "down" the tree. stalls: how many times a worker sleeps for up to 300 ms. restarts: how many times
    a job starts again with a new generation, and its slots divided anew among its streams.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    forge: float = 0.0
    delay_ns: tuple[int, int] = (MS, MS)
    straggle: float = 0.0
    mark: float = 0.0
    links: str = "all"
    stalls: int = 0
    restarts: int = 0
    heal_ns: int = 2_000 * MS

    @staticmethod
    def drawn(rng: random.Random) -> "Faults":
        """Any mixture: each kind of fault is absent in some worlds and heavy in others."""
        pick = rng.choice
        return Faults(
            drop=pick([0, 0.01, 0.1, 0.3]),
            duplicate=pick([0, 0.01, 0.2, 0.5]),
            corrupt=pick([0, 0, 0.05, 0.2]),
            forge=pick([0, 0, 0.05, 0.5]),
            delay_ns=pick([(MS, MS), (MS, 3 * MS), (MS, 40 * MS), (0, 0)]),
            straggle=pick([0, 0.05, 0.2]),
            mark=pick([0, 0, 0.1, 0.5, 1]),
            stalls=pick([0, 0, 1, 4]),
            restarts=pick([0, 0, 0, 1, 3]),
        )


ANY_ORDER = Faults(drop=0.2, duplicate=0.2, delay_ns=(MS, 20 * MS), straggle=0.1, heal_ns=60_000 * MS)
"""20 % drop, 20 % duplication, any order, to the end."""

IN_ORDER_LOSS = Faults(drop=0.1, heal_ns=60_000 * MS)
"""What the published rule was made for: loss only, order kept."""


def checksum(data: bytes) -> int:
    """The 16-bit ones' complement sum that UDP carries (P5)."""
    words = np.frombuffer(data + b"\0" * (len(data) % 2), ">u2")
    total = int(words.sum(dtype=np.uint64))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@dataclass
class SimulatedJob:
    """A job, its workers' endpoints, and what its calls must end as."""

    config: JobConfig
    ports: list[int]
    drawn: list["Drawn"]
    room: tuple[int, int]
    """Its slots: the first, and the one after the last."""
    homes: list[int]
    """Index of each rank's switch."""
    below: dict[int, list[int]]
    """Its switches by their index, and the places that send to each, in the order of their ranks there."""
    endpoints: list[AnyEndpoint] = field(default_factory=list)
    calls: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    arrays: dict[tuple[Any, ...], NDArray[Any]] = field(default_factory=dict)
    keep: list[Any] = field(default_factory=list)
    deadlines_ns: list[int] = field(default_factory=list)
    """Per rank, when its timer has work; as of the last time it was given anything."""
    remaining: int = 0

    def ranks_below(self, switch: int) -> list[int]:
        """The ranks, in the job, whose sum this switch makes."""
        ranks: list[int] = []
        for place in self.below[switch]:
            ranks += self.ranks_below(place - SWITCH) if place >= SWITCH else [self.ports.index(place)]
        return ranks


class Drawn(NamedTuple):
    """A collective and its arrays, one for each rank."""

    kind: Kind
    op: str
    root: int
    arrays: list[NDArray[Any]]

    def wants(self, rank: int) -> tuple[slice, NDArray[Any]]:
        """Which elements a rank has the result of, and the result."""
        size, workers = len(self.arrays[0]), len(self.arrays)
        everything = slice(0, size)
        shards = [slice(r * size // workers, (r + 1) * size // workers) for r in range(workers)]
        if self.kind == "broadcast":
            return everything, self.arrays[self.root]
        if self.kind == "all_gather":
            return everything, np.concatenate([a[shard] for a, shard in zip(self.arrays, shards, strict=True)])
        total = (
            np.max(self.arrays, axis=0) if self.op == "max" else np.sum(self.arrays, axis=0, dtype=self.arrays[0].dtype)
        )
        mine = shards[rank] if self.kind == "reduce_scatter" else everything
        if self.kind == "reduce" and rank != self.root:
            mine = slice(0, 0)
        return mine, total[mine]


def draw_call(rng: random.Random, numbers: np.random.Generator, workers: int) -> Drawn:
    """Arrays whose sum is exact in every type, so that == is the right comparison also for floats."""
    dtype = rng.choice([np.int32, np.int64, np.float32, np.float32, np.float64])
    size = rng.randint(0, 40)
    kind = rng.choice(["allreduce", "allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce"])
    op = "max" if dtype is np.int32 and rng.random() < 0.5 else "sum"
    values = numbers.integers(-(2**16), 2**16, (workers, size))
    return Drawn(kind, op, rng.randrange(workers), [row.astype(dtype) for row in values])  # type: ignore[arg-type]


def draw_homes(
    rng: random.Random, above: Sequence[int], ports: Sequence[int]
) -> tuple[list[int], dict[int, list[int]]]:
    """A switch for each of these workers, mostly one without switches below, and who sends to each switch."""
    leaves = [switch for switch in range(len(above)) if switch not in above]
    homes = [rng.choice(leaves if rng.random() < 0.8 else range(len(above))) for _ in ports]
    below: dict[int, list[int]] = {0: []}
    for home, port in zip(homes, ports, strict=True):
        below.setdefault(home, []).append(port)
    for switch in range(len(above) - 1, 0, -1):
        if switch in below:
            below.setdefault(above[switch], []).append(SWITCH + switch)
    for places in below.values():
        rng.shuffle(places)
    return homes, below


def draw_job(rng: random.Random, job_id: int, first_slot: int, first_port: int, above: Sequence[int]) -> SimulatedJob:
    workers = rng.choice([1, 2, 2, 3, 4] if len(above) == 1 else [2, 3, 4, 5, 6, 7])
    streams = []
    for _ in range(rng.choice([1, 1, 2])):
        streams.append(StreamConfig(first_slot, rng.choice([1, 2, 3, 6]), rng.choice([0, 0, 1])))
        first_slot += streams[-1].window_slots
    config = JobConfig(
        job_id,
        rng.randrange(1 << 32),
        workers,
        rng.choice([3, 4, 8, 24]),  # 24: room for small calls
        tuple(streams),
        rto_initial_ns=50 * MS,
        rto_min_ns=10 * MS,
        rto_max_ns=400 * MS,
        retry_limit=200,
    )
    numbers = np.random.default_rng(rng.getrandbits(32))
    drawn = [draw_call(rng, numbers, workers) for _ in range(rng.randint(1, 4))]
    ports = list(range(first_port, first_port + workers))
    homes, below = ([0] * workers, {0: ports}) if len(above) == 1 else draw_homes(rng, above, ports)
    return SimulatedJob(config, ports, drawn, config.slots, homes, below)


class World:
    """One run. `run` returns when all calls of all jobs have completed; checkers raise Violation.

    above: as `ABOVE`; workers of a tree are anywhere in it. verified: the jobs verify their sums (V1), each generation
    with a key of its own; no honest sum may be refused.
    """

    def __init__(
        self,
        seed: int,
        faults: Faults | None,
        plane: Callable[[int, int], DataPlane],
        endpoint: Callable[..., AnyEndpoint] = Endpoint,
        above: Sequence[int] = ABOVE,
        verified: bool = False,
    ) -> None:
        self._above = above
        self.verified = verified
        self._routed = getattr(plane, "routes", False) and len(above) == 1
        self.rng = random.Random(seed)
        self.faults = faults or Faults.drawn(self.rng)
        self.now_ns = 0
        self.verify_checksums = True
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._asleep_until: dict[int, int] = {}
        self.exact_sum = ExactSum()
        self.exactly_once = ExactlyOnce()
        self.isolation = SlotIsolation()
        self.nonces = NonceOnce()
        self.convergence = Convergence(limit_ns=60_000 * MS)
        self.determinism = Determinism()
        self.jobs: list[SimulatedJob] = []
        slot = port = 0
        for job_id in range(self.rng.choice([1, 1, 2, 3])):
            self.jobs.append(draw_job(self.rng, job_id, slot, port, above))
            if verified:
                config = self.jobs[-1].config
                self.jobs[-1].config = replace(config, verify="on", elements=min(24, config.elements + TAG_ELEMENTS))
            slot = self.jobs[-1].config.slots[1]
            port += self.jobs[-1].config.workers
        self.planes = [plane(slot, 24) for _ in above]
        self._endpoint = endpoint

    # ---- running

    def run(self) -> str:
        """Returns the trace's hash."""
        for job in self.jobs:
            self._start(job)
        for _ in range(self.faults.stalls):
            self._at(self.rng.randrange(500 * MS), self._stall, self.rng.choice(self.jobs))
        for _ in range(self.faults.restarts):
            self._at(self.rng.randrange(500 * MS), self._restart, self.rng.choice(self.jobs))
        while any(job.remaining for job in self.jobs):
            due = min(min(job.deadlines_ns) for job in self.jobs)
            if self._events and self._events[0][0] <= due:
                self.now_ns, _, action, arguments = heapq.heappop(self._events)
                action(*arguments)
            else:
                assert due < NEVER_NS, "nothing can happen any more, and calls are open"
                self.now_ns = max(self.now_ns, due)
                for job in self.jobs:
                    for rank, deadline_ns in enumerate(job.deadlines_ns):
                        if deadline_ns <= self.now_ns:
                            job.endpoints[rank].handle_timer(self.now_ns)
                            self._pump(job, rank)
            self.convergence.at(self.now_ns, self.faults.heal_ns)
        self.exactly_once.ended()
        refused = [end.counters.get("wrong_sums", 0) for job in self.jobs for end in job.endpoints]
        if any(refused):
            raise Violation(f"VerifiedSums: honest sums are refused: {refused}")
        self.determinism.happened(self.now_ns, *(sorted(plane.counters.items()) for plane in self.planes))
        return self.determinism.trace

    def _at(self, time_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time_ns, self._sequence, action, arguments))

    # ---- hosts

    def _start(self, job: SimulatedJob) -> None:
        for switch, ports in job.below.items():
            if not switch:
                self.planes[0].admit(job.config, ports)
                continue
            above = self._above[switch]
            parent = Parent(SWITCH + above, job.below[above].index(SWITCH + switch))
            self.planes[switch].admit(job.config, ports, parent)
        job.endpoints = [
            self.endpoint(job.config, rank, job.below[home].index(job.ports[rank]))
            for rank, home in enumerate(job.homes)
        ]
        job.remaining = len(job.drawn) * job.config.workers
        job.calls = {}
        job.deadlines_ns = [NEVER_NS] * job.config.workers
        for number, drawn in enumerate(job.drawn):
            shares = shares_of(drawn.kind, drawn.root)._replace(routed=self._routed)
            for rank, given in enumerate(drawn.arrays):
                array = given.copy()
                call = array_call(array, drawn.op, job.config, shares=shares)
                name = (job.config.job_id, job.config.generation, number, rank)
                job.calls[id(call)] = name
                job.arrays[name] = array
                job.keep.append(call)
                self.exactly_once.submitted(name)
                job.endpoints[rank].submit(number % len(job.config.streams), call)
        for rank in range(job.config.workers):
            self._pump(job, rank)

    def endpoint(self, config: JobConfig, rank: int, wire_rank: int) -> AnyEndpoint:
        """A rank's endpoint, with the key of the generation where sums are verified."""
        if not self.verified:
            return self._endpoint(config, rank, wire_rank)
        key = random.Random(config.job_id << 32 | config.generation).randbytes(KEY_BYTES)
        return self._endpoint(config, rank, wire_rank, key=key)

    def _restart(self, job: SimulatedJob) -> None:
        """A worker dies and comes back: its job starts again while old packets are still in the network."""
        if not job.remaining:
            return
        for name in job.calls.values():
            self.exactly_once.abandoned(name)
        generation = (job.config.generation + 1) % MODULUS
        job.config = replace(job.config, generation=generation, streams=self._divided(job))
        self.determinism.happened("restart", self.now_ns, job.config.job_id)
        self._start(job)

    def _divided(self, job: SimulatedJob) -> tuple[StreamConfig, ...]:
        """The job's streams in its slots, with other windows (C24): all of the slots, or fewer."""
        first, end = job.room
        streams = []
        for left, stream in zip(reversed(range(len(job.config.streams))), job.config.streams, strict=True):
            streams.append(replace(stream, first_slot=first, window_slots=self.rng.randint(1, end - first - left)))
            first = streams[-1].first_slot + streams[-1].window_slots
        return tuple(streams)

    def _stall(self, job: SimulatedJob) -> None:
        port = self.rng.choice(job.ports)
        self._asleep_until[port] = self.now_ns + self.rng.randrange(300 * MS)
        rank = job.ports.index(port)
        job.deadlines_ns[rank] = max(job.deadlines_ns[rank], self._asleep_until[port])

    def _pump(self, job: SimulatedJob, rank: int) -> None:
        endpoint = job.endpoints[rank]
        while len(frames := endpoint.frames_to_send(self.now_ns, limit=8)):
            for row in frames:
                self.isolation.sent(decode(row.tobytes(), True), rank)
                self._transmit(SWITCH + job.homes[rank], job.ports[rank], row.tobytes())
        deadline_ns = endpoint.next_deadline_ns()
        awake_ns = self._asleep_until.get(job.ports[rank], 0)
        job.deadlines_ns[rank] = NEVER_NS if deadline_ns is None else max(deadline_ns, awake_ns)
        while (event := endpoint.next_event()) is not None:
            if not isinstance(event, CallCompleted):
                self.convergence.gave_up(f"job {job.config.job_id} rank {rank}: {event}")
                continue
            name = job.calls[id(event.call)]
            self.exactly_once.completed(name)
            where, want = job.drawn[name[2]].wants(rank)
            self.exact_sum.completed(str(name), job.arrays[name][where], want)
            job.remaining -= 1
            self.determinism.happened("completed", self.now_ns, name)

    # ---- network

    def _transmit(self, to: int, source: int, frame: bytes) -> None:
        rng, faults = self.rng, self.faults
        self.nonces.sent(to if frame[FLAGS_AT] & FLAG_RESULT else source, frame)
        faulty = self.now_ns < faults.heal_ns and faults.links in ("all", self._direction(to, source))
        copies = 1
        if faulty:
            copies = 0 if rng.random() < faults.drop else 1
            copies += rng.random() < faults.duplicate
        for _ in range(copies):
            delay_ns = rng.randint(*faults.delay_ns) if faulty else faults.delay_ns[0]
            if faulty and rng.random() < faults.straggle:
                delay_ns *= 30
            data = self._corrupted(frame) if faulty and rng.random() < faults.corrupt else frame
            congested = faults.mark > 0 and rng.random() < faults.mark
            self._at(self.now_ns + delay_ns, self._deliver, to, source, data, frame, congested)

    @staticmethod
    def _direction(to: int, source: int) -> str:
        """Of a link between switches, whose numbers grow from the root on."""
        return "hosts" if min(to, source) < SWITCH else "up" if to < source else "down"

    def _corrupted(self, frame: bytes) -> bytes:
        """A burst of 1 to 15 bits: what the UDP checksum is sure to detect."""
        length = self.rng.randint(1, 15)
        pattern = 1 | self.rng.getrandbits(length)
        bits = int.from_bytes(frame, "big") ^ pattern << self.rng.randrange(8 * len(frame) - 15)
        return bits.to_bytes(len(frame), "big")

    def _forge(self, to: int, source: int, frame: bytes) -> None:
        packet, plane = decode(frame, True), self.planes[to - SWITCH]
        job = next(j.config for j in self.jobs if j.config.job_id == packet.job)
        if packet.generation != job.generation:
            return
        turn = 2 * job.streams[packet.stream].window_slots
        ahead = self.rng.choice([1, -turn, 2 * turn, 3 * turn, 1 << 30, (1 << 31) - 1, self.rng.randrange(MODULUS)])
        chunk = (plane.seen(packet.slot, packet.version).chunk + ahead) % MODULUS
        if ahead not in (0, turn):
            forged = np.frombuffer(encode(replace(packet, chunk=chunk, values=~packet.values)), np.uint8)
            assert not plane.process(forged[np.newaxis, :], source), f"a forged packet is answered: {packet}, {ahead}"

    def _deliver(self, to: int, source: int, data: bytes, sent: bytes, congested: bool) -> None:
        if to < SWITCH and (wake_ns := self._asleep_until.get(to, 0)) > self.now_ns:
            self._at(wake_ns, self._deliver, to, source, data, sent, congested)
            return
        if self.verify_checksums and data is not sent and checksum(data) != checksum(sent):
            return
        bundle: Bundle = np.frombuffer(data, np.uint8)[np.newaxis, :]
        self.determinism.happened("deliver", self.now_ns, to, data)
        if to >= SWITCH:
            if self.now_ns < self.faults.heal_ns and self.rng.random() < self.faults.forge:
                self._forge(to, source, sent)
            if congested and not data[FLAGS_AT] & FLAG_RESULT:  # G2
                bundle = bundle.copy()
                bundle[0, RANK_AT] |= MARKED
            for output in self.planes[to - SWITCH].process(bundle, source):
                for row in output.bundle:
                    packet = decode(row.tobytes())
                    job = next(j for j in self.jobs if j.config.job_id == packet.job)
                    self.isolation.combined(packet, job.ranks_below(0 if packet.result else to - SWITCH))
                    for port in sorted(output.ports):  # a plane may name them in any order
                        self._transmit(port, to, row.tobytes())
            return
        job = next(j for j in self.jobs if to in j.ports)
        rank = job.ports.index(to)
        job.endpoints[rank].receive(bundle, self.now_ns, congested)
        self._pump(job, rank)
