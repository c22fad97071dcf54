"""Parts of calls with random values, what a switch that isn't disturbed makes of them, and collectives in memory."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.array_calls import array_call, form_of
from switchagg.calls.chunked_call import ArrayCall
from switchagg.codecs import CODECS, codec_named, names
from switchagg.codecs.array_codec import Reduction
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.reference import ReferencePlane
from switchagg.description import CallSignature, Kind, shard_range
from switchagg.endpoint import CallCompleted, Endpoint
from switchagg.job import JobConfig
from switchagg.layout import shares_of
from switchagg.wire import Route

ROW_CODECS = [name for name in names() if name != "plain"]


@dataclass(frozen=True)
class Part:
    """A part that all ranks make. rows: of each shard, as of `Shares`. seed: of the values of all ranks."""

    kind: Kind = "allreduce"
    dtype: str = "float32"
    size: int = 20
    op: str = "sum"
    codec: str = "fixed_point"
    root: int = 0
    unit: int = 1
    routed: bool = True
    rows: tuple[int, int] | None = None
    run: int = 1
    described: bool = False
    feeds_back: bool = False
    seed: int = 0

    def values(self, rank: int) -> NDArray[Any]:
        """What a rank gives: zeros, values of any size, NaN and infinity in some."""
        numbers = np.random.default_rng((self.seed, rank))
        dtype = np.dtype(self.dtype)
        if dtype.kind == "i":
            return numbers.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, self.size, dtype, endpoint=True)
        values = numbers.normal(size=self.size) * 10.0 ** numbers.integers(-12, 12, max(1, self.size))[: self.size]
        values[numbers.random(self.size) < 0.1] = 0
        if self.seed % 7 == 0 and self.kind == "allreduce":
            values[numbers.random(self.size) < 0.02] = numbers.choice([np.nan, np.inf, -np.inf])
        return values.astype(dtype)

    def call(self, rank: int, number: int, job: JobConfig) -> ArrayCall:
        """A rank's call of it, the number-th of its stream."""
        array = self.values(rank)
        shares = shares_of(self.kind, self.root, self.unit)
        residual = np.full(self.size, 7, np.float32) if self.feeds_back else None
        shares = shares._replace(routed=self.routed)
        call = array_call(array, self.op, job, codec_named(self.codec), shares, residual)
        call.shares = call.shares._replace(rows=self.rows, run=self.run)
        if self.described:
            call.description = CallSignature(self.kind, self.op, array.dtype, self.size).words(number)
        call.key = 1 + number * 64 + rank if call.codec.lossy else 0
        return call


def draw_part(rng: random.Random, job: JobConfig, rows: int) -> Part:
    """Any part that a switch can carry in a packet of 9 elements and more, of about so many rows at most. What has no
    values is described: else nothing would say that a rank is there (W12)."""
    kind = rng.choice(["allreduce"] * 4 + ["reduce_scatter"] * 2 + ["all_gather", "broadcast", "reduce"])
    dtype = rng.choice(["float32"] * 4 + ["int32"] * 2 + ["int64", "float64"])
    op = "max" if dtype == "int32" and kind not in ("all_gather", "broadcast") and rng.random() < 0.4 else "sum"
    codec = rng.choice([name for name in ROW_CODECS if not CODECS[name].fault(job.workers)])
    unit = rng.choice([1, 2]) if kind in ("reduce_scatter", "all_gather") else 1
    size = rng.choice([0, 1, rng.randrange(job.elements), *[rng.randrange(rows * job.elements)] * 3]) // unit * unit
    part = Part(
        kind,  # type: ignore[arg-type]
        dtype,
        size,
        op,
        codec,
        rng.randrange(job.workers),
        unit,
        rng.random() < 0.7,
        run=rng.choice([1, 1, 2, 5]),
        described=not size or rng.random() < 0.5,
        feeds_back=kind == "allreduce" and dtype == "float32" and rng.random() < 0.4,
        seed=rng.getrandbits(20),
    )
    form = form_of(part.call(0, 0, job), job)
    if form.layout.rows > 8 and rng.random() < 0.4:  # a small call isn't split
        low = rng.randrange(form.layout.rows)
        part = replace(part, rows=(low, rng.randint(low + 1, form.layout.rows)))
    return part


def kept(call: ArrayCall) -> tuple[bytes, bytes]:
    """All that a rank has in the end: its array and its residual."""
    return call.array.tobytes(), b"" if call.residual is None else call.residual.tobytes()


def undisturbed(
    parts: Sequence[Part],
    job: JobConfig,
    stream: int = 0,
    endpoint: Callable[..., Any] = Endpoint,
    make: Callable[[int, int], DataPlane] = ReferencePlane,
) -> list[list[ArrayCall]]:
    """The calls of these parts, by part and rank, when a switch has ended them."""
    plane = make(job.slots[1], job.elements)
    plane.admit(job, range(job.workers))
    endpoints = [endpoint(job, rank, key=bytes(16)) for rank in range(job.workers)]
    calls = [[part.call(rank, number, job) for rank in range(job.workers)] for number, part in enumerate(parts)]
    for part_calls in calls:
        for endpoint, call in zip(endpoints, part_calls, strict=True):
            endpoint.submit(stream, call)
    missing = len(parts) * job.workers
    while missing:
        sent = False
        for rank, endpoint in enumerate(endpoints):
            while len(frames := endpoint.frames_to_send(0)):
                sent = True
                for output in plane.process(frames, rank):
                    for port in sorted(output.ports):
                        endpoints[port].receive(output.bundle, 0)
        for endpoint in endpoints:
            while (event := endpoint.next_event()) is not None:
                assert isinstance(event, CallCompleted), event
                missing -= 1
        assert sent or not missing, "the switch stands still"
    return calls


def combine(arrays: Sequence[NDArray[Any]], reduction: Reduction) -> None:
    """A collective of all ranks, in place, exactly as its contract says: what that leaves open becomes garbage."""
    workers, size = len(arrays), len(arrays[0])
    shards = [slice(*shard_range(size, rank, workers)) for rank in range(workers)]
    results = [array.copy() for array in arrays]
    if reduction.kind == "broadcast":
        results = [arrays[reduction.root].copy()] * workers
    elif reduction.kind == "all_gather":
        results = [np.concatenate([array[shard] for array, shard in zip(arrays, shards, strict=True)])] * workers
    else:
        assert arrays[0].dtype in (np.int32, np.int64), "sums of floats would depend on their order"
        total = np.sum(arrays, axis=0, dtype=arrays[0].dtype) if reduction.op == "sum" else np.max(arrays, axis=0)
        results = [total.copy() for _ in arrays]
        if reduction.kind == "reduce_scatter":
            for result, shard in zip(results, shards, strict=True):
                inside = result[shard].copy()
                result[:] = -1234567
                result[shard] = inside
    for array, result in zip(arrays, results, strict=True):
        array[:] = result


def together(rounds: Sequence[Iterator[Reduction]], seen: Callable[[Reduction], None] = lambda step: None) -> None:
    """Collectives of all ranks, one after the other."""
    for steps in zip(*rounds, strict=True):
        first = steps[0]
        for step in steps:
            assert (step.kind, step.op, step.root, step.array.dtype, step.array.shape) == (
                first.kind,
                first.op,
                first.root,
                first.array.dtype,
                first.array.shape,
            )
            assert step.codec is None
            assert step.array.ndim == 1
            assert step.array.flags.c_contiguous
        combine([step.array for step in steps], first)
        seen(first)


def gets(route: Route, owners: NDArray[Any], rank: int) -> NDArray[np.bool_]:
    """Which rows have their results on this rank in the end."""
    if route is Route.ALL:
        return np.ones(len(owners), np.bool_)
    return (owners == rank) if route is Route.TO_OWNER else (owners != rank)
