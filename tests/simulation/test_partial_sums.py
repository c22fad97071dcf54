"""Partial sums under any faults, with ranks that have their values late: Q1 to Q8, W1 to W9.

All ranks get the same bits; each chunk is the exact sum, or mean, of the ranks that it names; every call ends.
A failure prints the command that repeats it; `--seeds 10000` runs more worlds.
"""

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulation.checkers import Violation
from simulation.partial_rules import AddsLate, TakesOverAtOnce, TakesOverWhatAllHaveSent
from simulation.test_simulation import replayable
from simulation.world import ANY_ORDER, MS, NEVER_NS, Drawn, SimulatedJob, World
from switchagg.calls.array_calls import array_call, chunked_call
from switchagg.calls.partial_call import PartialCall
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.job import MODULUS, TAG_ELEMENTS
from switchagg.native.library import missing
from switchagg.native.native_endpoint import NativeEndpoint
from switchagg.partial_endpoint import endpoint_of
from switchagg.wire import Op, Packet, Values

PLANES = [name for name, kind in DATAPLANES.items() if kind.partial]


class Named:
    """In place of SlotIsolation: a result is the sum of what the ranks sent that it names, and always the same.
    presence: which of its elements names them."""

    def __init__(self, presence: int) -> None:
        self.presence = presence
        self.sent_by: dict[tuple[int, ...], dict[int, Values]] = {}
        self.results: dict[tuple[int, ...], bytes] = {}
        self.ops: dict[tuple[int, ...], Op] = {}

    @staticmethod
    def _key(packet: Packet) -> tuple[int, ...]:
        return packet.job, packet.generation, packet.stream, packet.chunk

    def sent(self, packet: Packet, rank: int) -> None:
        if len(packet.values):
            self.ops[self._key(packet)] = packet.op  # a resent result has that of the packet that caused it
            self.sent_by.setdefault(self._key(packet), {})[rank] = packet.values

    def combined(self, packet: Packet, below: object) -> None:
        values = packet.values.tobytes()
        if self.results.setdefault(self._key(packet), values) != values:
            raise Violation(f"Named: {self._key(packet)}: two results")
        sent = self.sent_by[self._key(packet)]
        ranks = [rank for rank in sent if packet.values[self.presence] >> rank & 1]
        total = np.sum([np.zeros_like(packet.values), *(sent[rank] for rank in ranks)], axis=0, dtype=np.int64)
        is_sum = self.ops[self._key(packet)] is Op.SUM
        if is_sum and not np.array_equal(total % MODULUS, packet.values.view(np.uint32)):
            raise Violation(f"Named: {self._key(packet)}: not the sum of {ranks}")


class PartialSums:
    """In place of ExactSum. world: whose calls end."""

    def __init__(self, world: "PartialWorld") -> None:
        self._world = world
        self._seen: dict[tuple[int, ...], bytes] = {}
        self.missing = 0

    def completed(self, where: str, got: NDArray[Any], want: object) -> None:
        job_id, generation, number, rank = ast.literal_eval(where)
        call = self._world.made[job_id, generation, number, rank]
        job = next(job for job in self._world.jobs if job.config.job_id == job_id)
        drawn = job.drawn[number]
        if self._seen.setdefault((job_id, generation, number), got.tobytes()) != got.tobytes():
            raise Violation(f"PartialSums: {where}: other bits than another rank")
        if drawn.op == "max":
            return
        first = self._world.first_chunks[job_id, generation, number]
        results, presence = self._world.isolation.results, self._world.isolation.presence
        for position, chunk in enumerate(call._contents):
            if chunk < 0:
                continue
            result = results[job_id, generation, number % len(job.config.streams), first + position]
            ranks = int(np.frombuffer(result, np.uint32)[presence])
            low, high = call._layout.span(chunk)
            inside = [array[low:high] for rank, array in enumerate(drawn.arrays) if ranks >> rank & 1]
            self.missing += len(inside) < len(drawn.arrays)
            total = np.sum(inside, axis=0, dtype=got.dtype) if inside else np.zeros(high - low, got.dtype)
            if drawn.op == "avg":
                total = total / got.dtype.type(max(1, len(inside)))
            if total.tobytes() != got[low:high].tobytes():
                raise Violation(f"PartialSums: {where}: chunk {chunk} is not the sum of {ranks:b}")


class PartialWorld(World):
    """first_chunks: of each call, in its stream."""

    def __init__(
        self,
        seed: int,
        plane: Callable[[int, int], DataPlane],
        faults: Any = None,
        endpoint: Any = endpoint_of,
        verified: bool = False,
    ) -> None:
        super().__init__(seed, faults, plane, endpoint, verified=verified)
        self.first_chunks: dict[tuple[int, ...], int] = {}
        self.made: dict[tuple[int, ...], PartialCall] = {}
        self.exact_sum: Any = PartialSums(self)
        self.isolation: Any = Named(-1 - TAG_ELEMENTS if verified else -1)
        for job in self.jobs:
            self._redraw(job)

    def _redraw(self, job: SimulatedJob) -> None:
        rng, workers = self.rng, max(2, job.config.workers)
        numbers = np.random.default_rng(rng.getrandbits(32))
        backups, close = rng.choice([(1, 0), (workers - 1, 0), (0, 3 * MS), (1, 20 * MS)])
        terms = {"elements": min(24, rng.choice([4, 8, 24]) + job.config.tag_elements), "backups": backups}
        job.config = replace(job.config, workers=workers, close_after_ns=close, **terms)
        job.ports = [job.ports[0] + 100 * (1 + job.config.job_id) + rank for rank in range(workers)]
        job.homes, job.below = [0] * workers, {0: job.ports}
        job.drawn = []
        for _ in range(rng.randint(1, 5)):
            dtype = rng.choice([np.int32, np.int64, np.float32, np.float32, np.float64])
            op = rng.choice(["sum", "avg"]) if dtype in (np.float32, np.float64) else "sum"
            op = "max" if dtype is np.int32 and rng.random() < 0.2 else op
            values = numbers.integers(-(2**16), 2**16, (workers, rng.randint(0, 60)))
            job.drawn.append(Drawn("allreduce", op, 0, [row.astype(dtype) for row in values]))

    def _start(self, job: SimulatedJob) -> None:
        self.planes[0].admit(job.config, job.ports)
        job.endpoints = [self.endpoint(job.config, rank, rank) for rank in range(job.config.workers)]
        job.remaining = len(job.drawn) * job.config.workers
        ends = [0] * len(job.config.streams)
        for number, drawn in enumerate(job.drawn):
            stream = number % len(ends)
            self.first_chunks[job.config.job_id, job.config.generation, number] = ends[stream]
            ends[stream] += chunked_call(array_call(drawn.arrays[0].copy(), drawn.op, job.config), job.config).chunks
        job.calls, job.deadlines_ns = {}, [NEVER_NS] * job.config.workers
        slow = self.rng.randrange(job.config.workers)
        for rank in range(job.config.workers):
            at_ns = self.now_ns
            for number in range(len(job.drawn)):
                at_ns += self.rng.choice([0, self.rng.randrange(10 * MS)]) * (10 if rank == slow else 1)
                self._at(at_ns, self._submit, job, job.config, rank, number)

    def _submit(self, job: SimulatedJob, config: object, rank: int, number: int) -> None:
        if config is not job.config:
            return
        drawn = job.drawn[number]
        array = drawn.arrays[rank].copy()
        call = array_call(array, drawn.op, job.config)
        laid_out = chunked_call(call, job.config)
        name = (job.config.job_id, job.config.generation, number, rank)
        assert isinstance(laid_out, PartialCall)
        job.calls[id(call)], job.arrays[name], self.made[name] = name, array, laid_out
        job.keep.append(call)
        self.exactly_once.submitted(name)
        job.endpoints[rank].submit(number % len(job.config.streams), call)
        self._pump(job, rank)


def test_any_mixture_of_faults_and_late_ranks(seed: int) -> None:
    """Data planes and endpoints take turns; some of their traces are compared with the reference's."""
    plane = PLANES[seed % len(PLANES)]
    endpoint = endpoint_of if missing() or seed % 4 > 1 else NativeEndpoint
    with replayable("test_any_mixture_of_faults_and_late_ranks", seed):
        trace = PartialWorld(seed, DATAPLANES[plane], endpoint=endpoint).run()
        if seed % 5 == 0:
            assert trace == PartialWorld(seed, DATAPLANES["reference"]).run()


def test_every_kind_of_packet_is_met() -> None:
    total: dict[str, int] = {}
    lacking = 0
    for seed in range(12):
        world = PartialWorld(seed, DATAPLANES["reference"], ANY_ORDER)
        world.run()
        lacking += world.exact_sum.missing
        counters = [world.planes[0].counters, *(end.counters for job in world.jobs for end in job.endpoints)]
        for name, count in (item for each in counters for item in each.items()):
            total[name] = total.get(name, 0) + count
    names = "broadcast reply resend abstained drop_late early finalise_requests"
    assert all(total.get(name, 0) > 5 for name in names.split()), total
    assert lacking > 20
    assert "early_refused" not in total


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        (AddsLate, ("Named", "PartialSums")),
        (TakesOverAtOnce, ("Convergence",)),
        (TakesOverWhatAllHaveSent, ("Convergence",)),
    ],
)
def test_plausible_other_rules_fail(rule: Callable[[int, int], DataPlane], wrong: tuple[str, ...]) -> None:
    for seed in range(12):
        try:
            PartialWorld(seed, rule, replace(ANY_ORDER, heal_ns=500 * MS)).run()
        except Violation as violation:
            if str(violation).startswith(wrong):
                return
    pytest.fail("it never failed so")


class NamesNothing(Named):
    """In place of a checker of results: it takes any."""

    def combined(self, packet: Packet, below: object) -> None:
        self.results[self._key(packet)] = packet.values.tobytes()


def test_adding_late_values_would_use_a_nonce_twice() -> None:
    """A sum that changes after it was sent has the header of the earlier one: their tags would tell of the key (A3)."""
    for seed in range(12):
        world = PartialWorld(seed, AddsLate, replace(ANY_ORDER, heal_ns=500 * MS))
        world.isolation = NamesNothing(world.isolation.presence)
        try:
            world.run()
        except Violation as violation:
            if str(violation).startswith("NonceOnce"):
                return
    pytest.fail("no nonce was ever used twice")
