"""Honest sums are never refused, and no lie about a sum is believed (V1 to V9); the published ways to tag sums fail.

`--seeds 1000` takes a million forged sums through the arithmetic; `--seed S` replays one.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from simulation.test_partial_sums import PartialWorld
from simulation.test_simulation import replayable
from simulation.test_trees import LEAVES, TREES, UP
from simulation.world import ABOVE, ANY_ORDER, World
from switchagg.calls.array_calls import array_call
from switchagg.codecs import CODECS, FIXED_POINT, Codec
from switchagg.codecs.codec import Array
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.dataplane.reference import ReferencePlane
from switchagg.description import CallSignature
from switchagg.endpoint import CallCompleted, StreamFailed, WrongSum
from switchagg.job import JobConfig, StreamConfig
from switchagg.layout import shares_of
from switchagg.native.library import missing
from switchagg.native.native_endpoint import NativeEndpoint
from switchagg.partial_endpoint import endpoint_of
from switchagg.tag import PRIME, SumTags, random_numbers
from switchagg.wire import HEADER_BYTES, MAX_BIT, Bundle, headers, payload

MS = 1_000_000
ENDPOINTS: list[Callable[..., Any]] = [endpoint_of] if missing() else [endpoint_of, NativeEndpoint]


# ---- honest sums


def test_honest_sums_are_taken_under_any_faults(seed: int) -> None:
    """Codecs, routes, small calls, trees, partial sums, restarts with packets of old generations, any order and loss;
    a world objects if a sum is refused."""
    plane = DATAPLANES[LEAVES[seed % len(LEAVES)]]
    with replayable("test_honest_sums_are_taken_under_any_faults", seed):
        faults, above = [None, None, ANY_ORDER, UP][seed % 4], [ABOVE, *TREES][seed % (1 + len(TREES))]
        for make in (partial(World, seed, faults, above=above), partial(PartialWorld, seed)):
            traces = {make(plane=plane, endpoint=end, verified=True).run() for end in ENDPOINTS}
            assert len(traces) == 1, "the endpoints in C and in Python differ"


# ---- forged sums, a thousand for each seed, through the arithmetic


BATCH = 1000


def test_no_forged_sum_passes(seed: int) -> None:
    """Any bit of any result, two results exchanged, a rank dropped and another counted twice, an old generation
    replayed, a code changed: of each batch all sums are refused, and none as long as they are honest."""
    rng = np.random.default_rng(seed)
    workers, covered = int(rng.integers(2, 10)), int(rng.choice([3, 8, 21]))
    signed, coded = bool(rng.integers(2)), bool(rng.integers(2))
    tags, older = SumTags(rng.bytes(16), covered), SumTags(rng.bytes(16), covered)
    chunks, codes = list(range(seed, seed + BATCH)), (rng.integers(-140, 128, BATCH) * coded).tolist()
    everyone, most = [((0, workers),)] * BATCH, workers if coded else 0

    def sent_with(by: SumTags, rank: int, codes: list[int], words: Array) -> Array:
        has = (rng.random(BATCH) < 0.5) & coded if rank else np.full(BATCH, coded)
        values = np.pad(words, ((0, 0), (0, 3)))
        values[:, covered:] = by.tags(rank, 3, chunks, codes, has.tolist(), values, signed)
        return values

    limit = 2**31 // workers if signed else 2**32 // workers
    words = [rng.integers(-limit if signed else 0, limit, (BATCH, covered)).astype(np.uint32) for _ in range(workers)]
    parts = [sent_with(tags, rank, codes, own_words.view(np.int32)) for rank, own_words in enumerate(words)]
    sums = np.sum(parts, axis=0, dtype=np.int64).astype(np.uint32).view(np.int32)

    def passed(results: Array, codes: list[int] = codes) -> list[bool]:
        counts = tags.code_givers(3, chunks, codes, everyone, np.ascontiguousarray(results), signed)
        return [int(coded) <= count <= most for count in counts]

    assert all(passed(sums))
    flipped = sums.copy()
    places, bits = rng.integers(0, covered + 3, BATCH), rng.integers(0, 32, BATCH)
    flipped[np.arange(BATCH), places] ^= (np.uint32(1) << bits.astype(np.uint32)).view(np.int32)
    dropped, doubled = rng.choice(workers, 2, replace=False)
    twice = sums - parts[dropped] + parts[doubled]
    replayed = np.sum([sent_with(older, r, codes, words[r].view(np.int32)) for r in range(workers)], axis=0)
    added = sums.copy()
    added[:, : covered + 3] += rng.integers(1, 2**31, (BATCH, covered + 3)).astype(np.int32)
    for name, forged in (
        ("a bit", flipped),
        ("exchanged", np.roll(sums, int(rng.integers(1, BATCH)), axis=0)),
        ("dropped, doubled", twice),
        ("replayed", replayed.astype(np.int32)),
        ("added", added),
        ("zeros", np.zeros_like(sums)),
    ):
        assert not any(passed(forged)), f"{name}, seed {seed}"
    if coded:
        assert not any(passed(sums, [code + 1 for code in codes])), f"codes, seed {seed}"
        for rank in range(workers):  # all were told a code that is no rank's own
            parts[rank][:, covered:] = tags.tags(rank, 3, chunks, codes, [False] * BATCH, parts[rank], signed)
        assert not any(passed(np.sum(parts, axis=0, dtype=np.int64).astype(np.uint32).view(np.int32)))


# ---- lies of a switch or a wire, through endpoints


class Shape(NamedTuple):
    """A call of every rank. codec: of sums. partial: backups; split, described: as users' calls are."""

    kind: Any
    dtype: Any
    op: str = "sum"
    codec: Codec = FIXED_POINT
    elements: int = 24
    size: int = 120
    routed: bool = True
    backups: int = 0
    described: bool = False


SHAPES = {
    "float32": Shape("allreduce", np.float32),
    "float64": Shape("allreduce", np.float64),
    "int32": Shape("allreduce", np.int32),
    "int64": Shape("allreduce", np.int64),
    "described": Shape("allreduce", np.float32, elements=40, size=400, described=True),
    "small": Shape("allreduce", np.float32, elements=64),
    "lanes": Shape("allreduce", np.float32, codec=CODECS["lanes8"], size=400),
    "rotated": Shape("allreduce", np.float32, codec=CODECS["rotated8"], size=400),
    "thc": Shape("allreduce", np.float32, codec=CODECS["thc"], size=400),
    "reduce-scatter": Shape("reduce_scatter", np.float32),
    "reduce": Shape("reduce", np.int32),
    "all-gather": Shape("all_gather", np.float64),
    "broadcast": Shape("broadcast", np.float32),
    "reduce-scatter, no routes": Shape("reduce_scatter", np.int32, routed=False),
    "all-gather, no routes": Shape("all_gather", np.float32, routed=False),
    "partial": Shape("allreduce", np.float32, backups=1),
    "partial integers": Shape("allreduce", np.int32, backups=1),
}
CODED = ("float32", "float64", "small", "lanes", "rotated", "thc", "reduce-scatter")

Payload = Array
"""(E,) int32: the values of a packet."""


class Lie:
    """A forged result, the same each time: `forge` gets the true values of one of the results that it is about.

    codes: it is about a scale chunk or a head, else about data chunks. all_ranks: all ranks get it, else one.
    """

    codes = False

    def __init__(self, rng: random.Random, workers: int) -> None:
        self.rng, self.workers = rng, workers
        self.chunk: int | None = None
        self.skip = rng.randrange(3)
        self.port = rng.choice([None, *range(workers)])
        self.seed = rng.getrandbits(32)
        self.told: set[int] = set()

    def wants(self, kind: int, chunk: int, parts: dict[int, Payload], results: dict[int, Payload]) -> bool:
        """Whether it can be about this chunk."""
        return bool(kind & MAX_BIT) is self.codes

    def forge(self, port: int, values: Payload, parts: dict[int, Payload], results: dict[int, Payload]) -> Payload:
        raise NotImplementedError

    def __call__(
        self, port: int, kind: int, chunk: int, values: Payload, parts: dict[int, Payload], results: dict[int, Payload]
    ) -> Payload:
        """What this rank is told. parts: the ranks' values of the chunk; results: the values of chunks so far."""
        if self.chunk is None and self.wants(kind, chunk, parts, results):
            if self.skip:
                self.skip -= 1
            else:
                self.chunk = chunk
        if chunk != self.chunk or self.port not in (None, port):
            return values
        self.rng.seed(self.seed)  # it lies consistently
        told = self.forge(port, values.copy(), parts, results)
        if (told != values).any():
            self.told.add(port)
        return told


class Flip(Lie):
    """Any bit of any element."""

    def forge(self, port: int, values: Payload, parts: dict[int, Payload], results: dict[int, Payload]) -> Payload:
        values.view(np.uint32)[self.rng.randrange(len(values))] ^= np.uint32(1 << self.rng.randrange(32))
        return values


class Exchange(Lie):
    """The result of an earlier chunk."""

    def wants(self, kind: int, chunk: int, parts: dict[int, Payload], results: dict[int, Payload]) -> bool:
        return super().wants(kind, chunk, parts, results) and any(other != chunk for other in results)

    def forge(self, port: int, values: Payload, parts: dict[int, Payload], results: dict[int, Payload]) -> Payload:
        return results[self.rng.choice([chunk for chunk in sorted(results) if chunk != self.chunk])]


class DropAndDouble(Lie):
    """One rank is left out, another counted twice. Of partial sums it may be an honest one of other ranks."""

    def wants(self, kind: int, chunk: int, parts: dict[int, Payload], results: dict[int, Payload]) -> bool:
        return super().wants(kind, chunk, parts, results) and len(parts) > 1

    def forge(self, port: int, values: Payload, parts: dict[int, Payload], results: dict[int, Payload]) -> Payload:
        dropped, doubled = self.rng.sample(sorted(parts), 2)
        return values - parts[dropped] + parts[doubled]


class Rack(Lie):
    """A leaf lies about its rack: any of its values."""

    def forge(self, port: int, values: Payload, parts: dict[int, Payload], results: dict[int, Payload]) -> Payload:
        values += np.array([self.rng.randrange(-(2**31), 2**31) for _ in values], np.int32)
        return values


class CodesUp(Lie):
    """A code above the agreed one; of a head, all codes in it."""

    codes = True
    step = 1

    def forge(self, port: int, values: Payload, parts: dict[int, Payload], results: dict[int, Payload]) -> Payload:
        near = (values > -5000) & (values < 32000)  # of rows that there are
        values[near] += np.sign(values[near]) * self.step if self.step > 1 else self.step
        return values


class CodesFarUp(CodesUp):
    """The same, by what moves the values of small calls, too."""

    step = 16


class CodesDown(CodesUp):
    step = -1


class CodesOfOne(Lie):
    """One rank's own codes as if they were all ranks'."""

    codes = True

    def forge(self, port: int, values: Payload, parts: dict[int, Payload], results: dict[int, Payload]) -> Payload:
        return parts[self.rng.choice(sorted(parts))].copy()


class Ranks:
    """The ranks of a job and a switch between which a lie stands."""

    def __init__(
        self,
        name: str,
        seed: int,
        endpoint: Callable[..., Any],
        lie: Lie | None = None,
        replayed: "Ranks | None" = None,
    ) -> None:
        rng, shape = random.Random(seed), SHAPES[name]
        workers = seed % 4 + 2
        self.shape, self.lie, self.replayed = shape, lie, replayed
        self.job = JobConfig(
            1,
            1,
            workers,
            shape.elements,
            (StreamConfig(0, rng.choice([4, 8, 64])),),
            verify="on",
            backups=shape.backups,
            rto_initial_ns=4 * MS,
            rto_min_ns=3 * MS,
            rto_max_ns=8 * MS,
        )
        numbers = np.random.default_rng(rng.getrandbits(32))
        if np.dtype(shape.dtype).kind == "f":
            drawn = numbers.standard_normal((workers, shape.size)) * 10.0 ** rng.randint(-20, 20)
        else:
            limits = np.iinfo(shape.dtype)
            drawn = numbers.integers(limits.min, limits.max, (workers, shape.size), endpoint=True)
        self.arrays = [row.astype(shape.dtype) for row in drawn]
        self.inputs = [array.copy() for array in self.arrays]
        self.plane = ReferencePlane(64, shape.elements)
        self.plane.admit(self.job, range(workers))
        key = rng.randbytes(16)
        self.ends = [endpoint(self.job, rank, key=key) for rank in range(workers)]
        self.parts: dict[int, dict[int, Payload]] = {}
        self.results: dict[int, Payload] = {}
        self.completed: set[int] = set()
        self.failures: dict[int, StreamFailed] = {}
        self.now_ns = 0
        shares = shares_of(shape.kind, 1 % workers if shape.kind in ("reduce", "broadcast") else 0)
        for array, end in zip(self.arrays, self.ends, strict=True):
            call = array_call(array, shape.op, self.job, shape.codec, shares._replace(routed=shape.routed))
            if shape.described:
                call.description = CallSignature(shape.kind, "sum", array.dtype, len(array)).words(0)
            end.submit(0, call)

    def run(self, steps: int = 60) -> "Ranks":
        for _ in range(steps):
            self.now_ns += MS
            outputs: list[tuple[int, Bundle]] = []
            for rank, frame in list(self._frames()):
                for output in self.plane.process(frame.copy(), rank):
                    outputs += [(port, output.bundle.copy()) for port in output.ports]
            for port, frame in outputs:
                self.ends[port].receive(self._told(port, frame), self.now_ns)
            for rank, end in enumerate(self.ends):
                while (event := end.next_event()) is not None:
                    if isinstance(event, CallCompleted):
                        self.completed.add(rank)
                    else:
                        self.failures[rank] = event
            if len(self.completed | set(self.failures)) == self.job.workers:
                break
        return self

    def _frames(self) -> Iterator[tuple[int, Bundle]]:
        for rank, end in enumerate(self.ends):
            end.handle_timer(self.now_ns)
            while len(bundle := end.frames_to_send(self.now_ns)):
                for row in bundle:
                    frame = row[np.newaxis]
                    if len(row) > HEADER_BYTES:
                        chunk = headers(frame).tolist()[0][7]
                        self.parts.setdefault(chunk, {})[rank] = payload(frame)[0].astype(np.int32)
                    yield rank, frame

    def _told(self, port: int, frame: Bundle) -> Bundle:
        if frame.shape[1] == HEADER_BYTES:
            return frame
        fields = headers(frame).tolist()[0]
        kind, chunk, values = fields[0], fields[7], payload(frame)[0].astype(np.int32)
        if not kind & MAX_BIT:
            self.results[chunk] = values
        if self.lie is not None:
            results = self.results if self.replayed is None else self.replayed.results
            payload(frame)[0] = self.lie(port, kind, chunk, values, self.parts[chunk], results)
        return frame


class Replay(Lie):
    """The result of the same chunk in an earlier generation, where ranks gave other values."""

    def wants(self, kind: int, chunk: int, parts: dict[int, Payload], results: dict[int, Payload]) -> bool:
        return super().wants(kind, chunk, parts, results) and chunk in results

    def forge(self, port: int, values: Payload, parts: dict[int, Payload], results: dict[int, Payload]) -> Payload:
        assert self.chunk is not None
        return results[self.chunk]


GATHERED = ("all_gather", "broadcast")

LIES: dict[str, tuple[type[Lie], Sequence[str]]] = {
    "flip": (Flip, list(SHAPES)),
    "exchange": (Exchange, [name for name in SHAPES if name != "small"]),
    "drop and double": (
        DropAndDouble,
        [name for name in SHAPES if SHAPES[name].kind not in GATHERED and not SHAPES[name].backups],
    ),
    "rack": (Rack, list(SHAPES)),
    "replay": (Replay, list(SHAPES)),
    "codes up": (CodesUp, CODED),
    "codes far up": (CodesFarUp, CODED),
    "codes down": (CodesDown, CODED),
    "codes of one": (CodesOfOne, CODED),
}
CASES = [(lie, shape) for lie, (_, shapes) in LIES.items() for shape in shapes]


def test_no_lie_reaches_an_array(seed: int) -> None:
    """Ranks that complete their call have the bits of an honest run, those that were lied to don't complete."""
    for number in (seed, seed + len(CASES) // 2):
        lie_name, shape = CASES[number % len(CASES)]
        with replayable(f"test_no_lie_reaches_an_array ({lie_name}, {shape})", seed):
            no_lie_is_believed(lie_name, shape, seed // len(CASES), ENDPOINTS[seed % len(ENDPOINTS)])


def no_lie_is_believed(lie_name: str, shape: str, seed: int, endpoint: Callable[..., Any]) -> None:
    honest = Ranks(shape, seed, endpoint).run()
    assert honest.completed == set(range(honest.job.workers))
    assert not any(end.counters.get("wrong_sums") for end in honest.ends)
    lie = LIES[lie_name][0](random.Random(seed), honest.job.workers)
    earlier = Ranks(shape, seed + 4000, endpoint).run() if lie_name == "replay" else None
    ranks = Ranks(shape, seed, endpoint, lie, earlier).run()
    if not lie.told:  # the chunk was never met
        assert ranks.completed == honest.completed
        return
    assert all(isinstance(failure, WrongSum) for failure in ranks.failures.values())
    if shape != "small":  # whose first data chunks may not count
        assert ranks.failures, f"{lie_name} is believed"
        assert lie.codes or lie.told <= set(ranks.failures)
    for rank in ranks.completed:
        if not SHAPES[shape].backups:  # where who is late, and missing, follows from the time of packets
            assert ranks.arrays[rank].tobytes() == honest.arrays[rank].tobytes()
    for rank, failure in ranks.failures.items():
        assert "wrong sum" in failure.reason
        assert ranks.ends[rank].counters["wrong_sums"] >= 1


# ---- the published ways, broken


def solved(rows: list[list[int]], sides: list[int], prime: int) -> list[int]:
    """x of rows @ x = sides, modulo a prime."""
    size = len(rows)
    table = [[*row, side] for row, side in zip(rows, sides, strict=True)]
    for column in range(size):
        pivot = next(row for row in range(column, size) if table[row][column] % prime)
        table[column], table[pivot] = table[pivot], table[column]
        inverse = pow(table[column][column], -1, prime)
        table[column] = [entry * inverse % prime for entry in table[column]]
        for row in range(size):
            factor = table[row][column]
            if row != column and factor:
                table[row] = [(a - factor * b) % prime for a, b in zip(table[row], table[column], strict=True)]
    return [row[size] for row in table]


Pads = Callable[[int, int], int]
"""pad(chunk, rank): what a rank adds to the tag of a chunk."""


def seen_on_the_wire(
    coefficients: list[int], workers: int, pad: Pads, chunks: int, rng: random.Random
) -> Iterator[tuple[list[int], int]]:
    """(elements, tag) of results, as anybody sees them who has no key."""
    for chunk in range(chunks):
        words = [[rng.randrange(-(2**27), 2**27) for _ in coefficients] for _ in range(workers)]
        tags = [
            sum(r * w for r, w in zip(coefficients, row, strict=True)) + pad(chunk, rank)
            for rank, row in enumerate(words)
        ]
        yield [sum(column) for column in zip(*words, strict=True)], sum(tags) % PRIME


@pytest.mark.parametrize("published", [True, False])
def test_pads_that_add_up_to_zero_give_the_coefficients_away(published: bool, seed: int) -> None:
    """With F_w - F_(w+1), w + 1 modulo n, as many results as coefficients are enough to forge any further one; with
    G_0 to G_n the same attack fails."""
    rng = random.Random(seed)
    key, size, workers = rng.randbytes(16), 12, rng.randrange(2, 6)
    coefficients = random_numbers(key, 0, np.arange(size))

    def pad(chunk: int, rank: int) -> int:
        here, following = random_numbers(key, 1, [chunk], 0, [rank, (rank + 1) % workers if published else rank + 1])
        return here - following

    *known, (elements, tag) = seen_on_the_wire(coefficients, workers, pad, size + 1, rng)
    stolen = solved([row for row, _ in known], [side for _, side in known], PRIME)
    assert (stolen == coefficients) is published
    place, change = rng.randrange(size), rng.randrange(1, 2**20)
    elements[place] += change
    tag += stolen[place] * change
    left = tag - sum(r * w for r, w in zip(coefficients, elements, strict=True))
    if not published:
        left -= sum(pad(size, rank) for rank in range(workers))
    assert (left % PRIME == 0) is published


@pytest.mark.parametrize(
    ("primes", "blind"), [((2**31 - 1, 2**31 - 1), 2), ((2**31 - 1, 2**31 - 19), 1), ((PRIME,), 0)]
)
def test_a_prime_below_an_element_is_blind_to_itself(primes: tuple[int, ...], blind: int, seed: int) -> None:
    """An element that is changed by 2**31 - 1 has the same hash modulo that; a wire can change it so, up or down."""
    rng = random.Random(seed)
    words = [rng.randrange(-(2**31), 2**31) for _ in range(8)]
    place = rng.randrange(8)
    forged = list(words)
    forged[place] += (2**31 - 1) * (1 if words[place] < 1 else -1)
    assert -(2**31) <= forged[place] < 2**31
    unnoticed = 0
    for prime in primes:
        coefficients = [rng.randrange(1, prime) for _ in words]
        hashes = [sum(r * w for r, w in zip(coefficients, row, strict=True)) % prime for row in (words, forged)]
        unnoticed += hashes[0] == hashes[1]
    assert unnoticed == blind
