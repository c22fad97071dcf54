"""A call: one collective, laid out as a run of consecutive chunks of a stream (rules W3, W4 and W13 of PROTOCOL.md), or
as rounds of plain reductions for methods that have no chunks.

A codec (switchagg/codecs) turns rows of values into words and back. One that needs no agreement sends its rows
directly. For others, floats in fixed point for one, a *scale chunk* (op MAX) carries the codes of the next E data
chunks (a group), and is sent a whole group ahead of them:

    S0  S1 D D D ... D   S2 D D ... D   ...   D D ... D
        ^ data of group 0    ^ group 1              ^ last group

Nothing here knows of slots, packets or time. Values are read from the caller's array when a chunk is (re)sent and
results are written into it as they come, so a call needs no copy of the tensor.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np

from switchagg.codecs import FIXED_POINT, PLAIN, RAW, Array, CallShape, Codec, Codes, Coding, codec_for
from switchagg.codecs.array_codec import Reduction
from switchagg.codecs.codec import LEAST_CODE, lost
from switchagg.codecs.limbs import LIMBS, from_limbs, to_limbs
from switchagg.codecs.limbs import WORKERS_MOST as LIMB_WORKERS
from switchagg.description import NOTHING, WORDS, Words
from switchagg.job import JobConfig
from switchagg.layout import EVERYONE, RUN_MAX, Layout, Rows, Shares, index_of
from switchagg.small_call import WIDE, SmallCall, small_rows
from switchagg.wire import Op, Route, Values, kind_of

SCALES = kind_of(Op.MAX, 0)
"""The kind of scale chunks."""


class Call(Protocol):
    """What an endpoint needs of a call. Positions count the call's chunks from 0."""

    chunks: int
    """How many chunks the call has; the same on every worker."""
    ready_chunks: int
    """How many leading chunks may be sent now; never decreases, and only `write` raises it."""
    description: Words | None
    """What all workers are told of the call, and compare (W12); None: nothing."""
    key: int
    """Of random rounding (F10), for codecs that do so: `codecs.rounding.call_key`."""

    undecided: bool
    """Whether it isn't known yet how many chunks it has (W16): later calls wait for that."""

    def begin(self, rank: int, window: int) -> None:
        """Called once, by the endpoint that the call is submitted to. window: slots of its stream."""

    def kind(self, position: int) -> int:
        """Op, route and owner of a chunk's packets: `wire.kind_of` without flags."""

    def read(self, positions: Sequence[int]) -> Values:
        """(k, E) int32: what this rank gives for these chunks, ascending, ready and not yet written. Not asked of
        chunks for which it gives nothing."""

    def write(self, positions: Sequence[int], values: Values) -> None:
        """Take the results (k, E) of these chunks, once each, in any order. Not called for those it doesn't get."""


@dataclass(slots=True, eq=False)
class ArrayCall:
    """A collective on an array, checked by `array_call`, for a core that lays it out itself.

    residual: gets what of this rank's values its words don't hold, float32, as long as the array; None: nobody asks.
    """

    array: Array
    op: Op
    codec: Codec
    shares: Shares = EVERYONE
    description: Words | None = None
    key: int = 0
    residual: Array | None = None


class ChunkedCall:
    """A collective on an array, for a core that asks for its chunks (`Call`)."""

    undecided = False

    def __init__(self, call: ArrayCall, elements: int, workers: int) -> None:
        self.array, self.op, self.codec, self.shares = call.array, call.op, call.codec, call.shares
        self.description, self.key, self.residual = call.description, call.key, call.residual
        self._elements, self._workers = elements, workers
        self._limbs = self.codec.word(self.array.dtype).itemsize == 8
        self.begin(0, RUN_MAX * 4 * workers)

    def begin(self, rank: int, window: int) -> None:
        shares, dtype = self.shares, self.array.dtype
        words, width = row_of(dtype, self._elements, self.codec)
        self._rank = rank
        self._layout = Layout(shares, len(self.array), width, self._workers, window)
        self._rows = Rows(self.array, width, self._layout)
        self._lost = None if self.residual is None else Rows(self.residual, width, self._layout)
        self._data_chunks = self._layout.chunks
        shape = CallShape(dtype, self._data_chunks, words, self._workers, self.key, self._lost is not None)
        self._coding = self.codec.begin(shape)
        self._contents, self._ready_after = _layout(self._data_chunks, self._elements, self.codec.rounds)
        self._agreed = [False] * (len(self._ready_after) - 1)
        self._known_groups = 0
        self._route = shares.route if shares.routed else Route.ALL
        self._kinds = [kind_of(self.op, 0, self._route, owner) for owner in range(self._workers if self._route else 1)]
        self.chunks = len(self._contents)
        self.ready_chunks = self._ready_after[0]

    def kind(self, position: int) -> int:
        content = self._contents[position]
        if content < 0:
            return SCALES
        return self._kinds[self._layout.owner(content) if self._route else 0]

    def read(self, positions: Sequence[int]) -> Values:
        contents = [self._contents[p] for p in positions]
        data = [c for c in contents if c >= 0] if self._agreed else contents
        if len(data) == len(contents):
            return self._given(data)
        values = np.empty((len(contents), self._elements), np.int32)
        if data:
            values[[k for k, c in enumerate(contents) if c >= 0]] = self._given(data)
        for k, content in enumerate(contents):
            if content < 0:
                values[k] = self._own_codes(~content)
        return values

    def write(self, positions: Sequence[int], values: Values) -> None:
        contents = [self._contents[p] for p in positions]
        data = [c for c in contents if c >= 0] if self._agreed else contents
        if len(data) == len(contents):
            self._take(data, values)
            return
        if data:
            self._take(data, values[[k for k, c in enumerate(contents) if c >= 0]])
        for k, content in enumerate(contents):
            if content < 0:
                first = ~content * self._elements
                self._coding.agree(first, values[k, : self._data_chunks - first])
                self._agreed[~content] = True
        while self._known_groups < len(self._agreed) and self._agreed[self._known_groups]:
            self._known_groups += 1
        self.ready_chunks = self._ready_after[self._known_groups]

    def _own_codes(self, group: int) -> Codes:
        first = group * self._elements
        data = range(first, min(first + self._elements, self._data_chunks))
        codes = np.full(self._elements, LEAST_CODE, np.int32)
        codes[: len(data)] = self._coding.prepare(self._rows.read(data), slice(data.start, data.stop))
        return codes

    def _given(self, data: list[int]) -> Values:
        """What this rank sends: zeros for what another shall give to a switch that knows no routes."""
        words = self._encoded(data)
        if self.shares.route is Route.FROM_OWNER and not self._route:
            words[[k for k, chunk in enumerate(data) if self._layout.owner(chunk) != self._rank]] = 0
        return words

    def _encoded(self, data: list[int]) -> Values:
        values = self._rows.read(data)
        words = self._coding.encode(values, index_of(data))
        if self._lost is not None:
            self._lost.write(data, lost(self._coding, values, words, index_of(data)))
        return to_limbs(np.ascontiguousarray(words), self._elements) if self._limbs else words

    def _take(self, data: list[int], values: Values) -> None:
        """Store results that are this rank's to have. A switch with routes leaves the owner's own values to it."""
        route = self.shares.route
        if self._route is Route.TO_OWNER:
            combine = np.maximum if self.op is Op.MAX else np.add
            values = combine(values, self._encoded(data))
        elif route is not Route.ALL and not self._route:
            mine = [k for k, c in enumerate(data) if (self._layout.owner(c) == self._rank) is (route is Route.TO_OWNER)]
            if not mine:
                return
            data, values = [data[k] for k in mine], values[mine]
        words = from_limbs(values) if self._limbs else values
        self._rows.write(data, self._coding.decode(words, index_of(data)))


@lru_cache(maxsize=64)
def _layout(data_chunks: int, elements: int, rounds: int) -> tuple[Sequence[int], list[int]]:
    """What each chunk of a call carries, and how many may be sent once the first g groups' codes are known.

    Content c >= 0 is data chunk c; c < 0 is the scale chunk of group ~c (W4). Without agreement there are no groups.
    """
    if not rounds:
        return range(data_chunks), [data_chunks]
    groups = -(-data_chunks // elements)
    contents: list[int] = [~0] if groups else []
    ready_after = []
    for group in range(groups):
        if group + 1 < groups:
            contents.append(~(group + 1))
        ready_after.append(len(contents))
        contents.extend(range(group * elements, min((group + 1) * elements, data_chunks)))
    ready_after.append(len(contents))
    return contents, ready_after


def row_of(dtype: "np.dtype[Any]", elements: int, codec: Codec) -> tuple[int, int]:
    """(words, values) of what E elements carry: words of 64 bits take three elements each (F6)."""
    words = elements if codec.word(dtype).itemsize == 4 else elements // LIMBS
    return words, words * codec.values_per_word(dtype)


def share_of_chunks(dtype: "np.dtype[Any]", elements: int, codec: Codec = FIXED_POINT) -> float:
    """Bytes of a long array per byte of the chunks that carry it, scale chunks included (W3, W4).

    1 for int32, E/(E+1) for float32 in fixed point. codec: what was asked for; a type that it doesn't take travels as
    it would without it.
    """
    used = codec_for(dtype, codec)
    assert used is not None
    _, width = row_of(dtype, elements, used)
    return width * dtype.itemsize / (4 * elements) * (elements / (elements + used.rounds))


def share_of_rounds(dtype: "np.dtype[Any]", elements: int, codec: Codec) -> float:
    """Bytes of a long array per byte of the words and codes of its rounds (`rounds_of`). codec: one that takes it."""
    words, width = row_of(dtype, elements, codec)
    return width * dtype.itemsize / (words * codec.word(dtype).itemsize + 4 * codec.rounds)


def array_call(
    array: Array,
    op: str,
    job: JobConfig,
    codec: Codec = FIXED_POINT,
    shares: Shares = EVERYONE,
    residual: Array | None = None,
) -> ArrayCall:
    """What the switch does with this array, and how it is coded.

    array: 1-D, C-contiguous, writable; float32, float64, int32 or int64 for op "sum", int32 for op "max"; of any type
    where owners give the values (FROM_OWNER): its bytes travel. Raises ValueError for anything else, also for 64-bit
    words when a packet has room for fewer than three elements, or more workers than the codec can sum. codec: one that
    adds. residual: as of `ArrayCall`, for sums of float32 that all ranks get.
    """
    flags = array.flags
    if array.ndim != 1 or not flags.c_contiguous or not flags.writeable:
        raise ValueError("the array must be one-dimensional, contiguous and writable")
    if shares.route is Route.FROM_OWNER:
        return ArrayCall(array.view(np.uint8), Op.SUM, RAW, shares._replace(unit=shares.unit * array.itemsize))
    call = ArrayCall(array, *_way(array.dtype, op, job.elements, job.workers, codec), shares)
    if residual is not None:
        _check_residual(call, residual)
        call.residual = residual
    return call


def _check_residual(call: ArrayCall, residual: Array) -> None:
    if call.op is not Op.SUM or call.array.dtype != np.float32 or call.shares.route is not Route.ALL:
        raise ValueError("only sums of float32 that all ranks get have a residual")
    if residual.dtype != np.float32 or residual.shape != call.array.shape or not residual.flags.c_contiguous:
        raise ValueError("a residual must be float32, contiguous and as long as the array")


@lru_cache(maxsize=64)
def _way(dtype: "np.dtype[Any]", op: str, elements: int, workers: int, codec: Codec) -> tuple[Op, Codec]:
    """What is done with values of this type, and how they are coded. Raises ValueError."""
    used = codec_for(dtype, codec)
    if op not in ("sum", "max") or used is None or (op == "max" and dtype != np.int32):
        raise ValueError(f"op {op} of {dtype}: the switch does sum of float32, float64, int32, int64; max of int32")
    if op == "max":
        used = PLAIN
    used = used.for_workers(workers)
    if used.word(dtype).itemsize == 8 and workers > LIMB_WORKERS:
        raise ValueError(f"sums of {dtype} are exact for at most {LIMB_WORKERS} workers, not {workers}")
    if row_of(dtype, elements, used)[0] < 1:
        raise ValueError(f"{dtype} needs at least {LIMBS} elements per packet, not {elements}")
    return Op.SUM if op == "sum" else Op.MAX, used


def split(call: ArrayCall, job: JobConfig, streams: Sequence[int]) -> dict[int, Shares]:
    """The parts of a call that is split over these streams, by stream; empty if it is one call (W11)."""
    array, shares = call.array, call.shares
    width = row_of(array.dtype, job.elements, call.codec)[1]
    whole = Layout(shares, array.size, width, job.workers, 0)
    windows = [job.streams[stream].window_slots for stream in streams]
    if len(streams) < 2 or whole.chunks <= min(windows):
        return {}
    ends = [whole.rows * upto // sum(windows) for upto in accumulate(windows, initial=0)]
    for first, end in pairwise(ends):  # a small part's bits would be others
        if first == end or small_rows(
            array[first * width : end * width], call.op, call.codec, shares, job.elements, job.workers
        ):
            return {}
    return {stream: shares._replace(rows=rows) for stream, rows in zip(streams, pairwise(ends), strict=True)}


def make_call(
    array: Array, op: str, job: JobConfig, codec: Codec = FIXED_POINT, shares: Shares = EVERYONE
) -> ChunkedCall | SmallCall:
    """The call that does it, in place. Raises ValueError as `array_call` does."""
    return chunked_call(array_call(array, op, job, codec, shares), job)


def chunked_call(call: ArrayCall, job: JobConfig) -> ChunkedCall | SmallCall:
    """The same, for a core that asks for chunks."""
    rows = small_rows(call.array, call.op, call.codec, call.shares, job.elements, job.workers)
    if rows and call.residual is None:
        return SmallCall(call.array, call.codec, rows, job.elements, job.workers)
    return ChunkedCall(call, job.elements, job.workers)


def description_call(words: Words | None, rank: int, job: JobConfig, codes: Sequence[int] | Codes = ()) -> ChunkedCall:
    """The call that precedes a described or a small one: its array has the words of every rank then, WORDS of each, and
    the greatest of the codes of a small one (W12, W16)."""
    array = np.full(WORDS * job.workers + len(codes), NOTHING, np.int32)
    if words is not None:
        array.view(np.uint32)[WORDS * rank : WORDS * (rank + 1)] = words
    array[WORDS * job.workers :] = codes
    return ChunkedCall(ArrayCall(array, Op.MAX, PLAIN), job.elements, job.workers)


Begin = Callable[[Codec, CallShape], Coding]


def begin_in_python(codec: Codec, shape: CallShape) -> Coding:
    """As the codec does."""
    return codec.begin(shape)


def plain_rounds(
    reductions: Iterable[Reduction], elements: int, workers: int, key: int, begin: Begin = begin_in_python
) -> Iterator[Reduction]:
    """The same, without codecs: coded ones as the rounds of `rounds_of`, which has the arguments."""
    for one in reductions:
        if one.codec is None:
            yield one
        else:
            how: dict[str, Any] = {"key": key, "residual": one.residual, "begin": begin}
            for words, op in rounds_of(one.array, elements, workers, one.codec, **how):
                yield Reduction(words, op)


def rounds_of(
    array: Array,
    elements: int,
    workers: int,
    codec: Codec,
    shares: Shares = EVERYONE,
    key: int = 0,
    residual: Array | None = None,
    begin: Begin = begin_in_python,
) -> Iterator[tuple[Array, str]]:
    """The sum of an array in place as plain reductions: each (words, op) yielded is combined over all ranks, in place,
    before the next is asked for. Rows are those of a switch of E elements, so the results are the same bits (F7).

    array: 1-D, of a type that the codec takes; it must not change meanwhile. op: "sum" or "max"; words: int32 or int64.
    codec: one that adds. shares: whose rows they would be there. key: as of a `Call`. residual: as of `ArrayCall`.
    begin: the codec's own, or another that gives the same bits (`switchagg.native.codec`).
    """
    codec = codec.for_workers(workers)
    words, width = row_of(array.dtype, elements, codec)
    if residual is None and small_rows(array, Op.SUM, codec, shares, elements, workers):
        codec, words, width = WIDE, elements // 2, elements // 2
    layout = Layout(shares, len(array), width, workers, 0)
    if not layout.chunks:
        return
    rows, everything = Rows(array, width, layout), range(layout.chunks)
    coding = begin(codec, CallShape(array.dtype, layout.chunks, words, workers, key, residual is not None))
    values, whole = rows.read(everything), slice(0, layout.chunks)
    if codec.rounds:
        codes = coding.prepare(values, whole)
        yield codes, "max"
        coding.agree(0, codes)
    encoded = np.ascontiguousarray(coding.encode(values, whole))
    if residual is not None:
        Rows(residual, width, layout).write(everything, lost(coding, values, encoded, whole))
    yield encoded.reshape(-1), "sum"
    rows.write(everything, coding.decode(encoded, whole))
