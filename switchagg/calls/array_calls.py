"""A call: one collective, laid out as a run of consecutive chunks of a stream (rules W3, W4 and W13), or
as rounds of plain reductions for methods that have no chunks.

A codec (switchagg/codecs) turns rows of values into words and back. A codec that needs no agreement sends its rows
directly. For others, floats in fixed point for one, a *scale chunk* (op MAX) carries the codes of the next E data
chunks (a group), and is sent a whole group ahead of them:

    S0  S1 D D D ... D   S2 D D ... D   ...   D D ... D
        ^ data of group 0    ^ group 1              ^ last group

Nothing here knows of slots, packets or time. Values are read from the caller's array when a chunk is (re)sent and
results are written into it as they come, so a call needs no copy of the tensor.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, count, pairwise
from typing import Any, NamedTuple

import numpy as np

from switchagg.calls.chunked_call import ArrayCall, ChunkedCall, row_of
from switchagg.calls.partial_call import PartialCall
from switchagg.calls.small_call import WIDE, SmallCall, small_rows
from switchagg.codecs import FIXED_POINT, PLAIN, RAW, SPLIT, Array, CallShape, Codec, Codes, Coding, codec_for
from switchagg.codecs.array_codec import Reduction
from switchagg.codecs.codec import lost
from switchagg.codecs.limbs import WORKERS_MOST as LIMB_WORKERS
from switchagg.description import NOTHING, WORDS, Words
from switchagg.job import JobConfig
from switchagg.layout import EVERYONE, Layout, Rows, Shares
from switchagg.wire import Op, Route


def share_of_chunks(
    dtype: "np.dtype[Any]", elements: int, codec: Codec = FIXED_POINT, tag_elements: int = 0, workers: int = 1
) -> float:
    """Bytes of a long array per byte of the chunks that carry it, scale chunks included (W3, W4).

    1 for int32, E/(E+1) for float32 in fixed point. codec: what was asked for; a type that it doesn't take travels as
    it would without it. tag_elements, workers: of the job (V3, V4).
    """
    used = codec_for(dtype, codec)
    assert used is not None
    if used is PLAIN and dtype.itemsize == 4 and tag_elements:
        used = SPLIT.for_workers(workers)
    _, width = row_of(dtype, elements - tag_elements, used)
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
    """The switch's operation on this array, and the array's codec.

    array: 1-D, C-contiguous, writable; float32, float64, int32 or int64 for op "sum", int32 for op "max"; of any type
    where owners give the values (FROM_OWNER): its bytes travel. Raises ValueError for anything else, also for 64-bit
    words when a packet has room for fewer than three elements, or more workers than the codec can sum. codec: one that
    adds. residual: as of `ArrayCall`, for sums of float32 that all ranks get. With partial sums also op "avg", of
    floats that all ranks give and get: divided by the ranks in the sum, chunk by chunk (Q6); no sums of floats to
    owners (Q8).
    """
    flags = array.flags
    if array.ndim != 1 or not flags.c_contiguous or not flags.writeable:
        raise ValueError("the array must be one-dimensional, contiguous and writable")
    if shares.route is Route.FROM_OWNER:
        return ArrayCall(array.view(np.uint8), Op.SUM, RAW, shares._replace(unit=shares.unit * array.itemsize))
    mean = op == "avg" and job.partial and array.dtype.kind == "f" and shares.route is Route.ALL
    room, verified = job.room - job.presence * job.partial, job.tag_elements > 0
    way = _way(array.dtype, "sum" if mean else op, room, job.workers, codec, verified)
    call = ArrayCall(array, *way, shares, mean=mean)
    if job.partial and shares.route is Route.TO_OWNER and call.codec.rounds:  # Q8
        raise ValueError(
            f"sums of {array.dtype} to one rank: with partial sums their scale may lack a rank's; sum to all"
        )
    if residual is not None:
        _check_residual(call, residual)
        call.residual = residual
    return call


def _check_residual(call: ArrayCall, residual: Array) -> None:
    if call.op is not Op.SUM or call.array.dtype != np.float32 or call.shares.route is not Route.ALL:
        raise ValueError("only sums of float32 that all ranks get have a residual")
    if residual.dtype != np.float32 or residual.shape != call.array.shape or not residual.flags.c_contiguous:
        raise ValueError("a residual must be float32, contiguous and as long as the array")


def room_of(call: ArrayCall, job: JobConfig) -> int:
    """Elements of a data chunk that carry a call's words: behind them stand presence (Q6) and a sum's tag (V4)."""
    if call.op is Op.MAX:
        return job.elements
    presence = job.presence if job.partial and call.shares.route is Route.ALL else 0
    return job.room - presence


class RowForm(NamedTuple):
    """How a call's values are rows, one for each data chunk, and these words (W3, W13, W16)."""

    codec: Codec
    words: int
    """Of a row."""
    width: int
    """Values of a row."""
    layout: Layout
    small: int
    """R of a small call; else 0."""


def row_form(call: ArrayCall, room: int, workers: int, *, partial: bool = False) -> RowForm:
    """The form of a call, wherever its words are summed. room: elements of a chunk that carry words. partial: whether
    sums may lack ranks."""
    array, codec, small = call.array, call.codec, 0
    if not partial and call.residual is None:
        small = small_rows(array, call.op, codec, call.shares, room, workers)
    if small:
        codec, words, width = WIDE, room // 2, room // 2
    else:
        words, width = row_of(array.dtype, room, codec)
    return RowForm(codec, words, width, Layout(call.shares, len(array), width, workers), small)


def form_of(call: ArrayCall, job: JobConfig) -> RowForm:
    """The form of a call on a job's streams."""
    return row_form(call, room_of(call, job), job.workers, partial=job.partial)


@lru_cache(maxsize=64)
def _way(
    dtype: "np.dtype[Any]", op: str, elements: int, workers: int, codec: Codec, verified: bool
) -> tuple[Op, Codec]:
    """The operation on values of this type, and their codec. Raises ValueError."""
    used = codec_for(dtype, codec)
    if op not in ("sum", "max") or used is None or (op == "max" and dtype != np.int32):
        raise ValueError(f"op {op} of {dtype}: the switch does sum of float32, float64, int32, int64; max of int32")
    if op == "max":
        used = PLAIN
    elif used is PLAIN and verified and dtype.itemsize == 4:
        used = SPLIT  # sums that wrap can't be verified (V3)
    used = used.for_workers(workers)
    if used.word(dtype).itemsize == 8 and workers > LIMB_WORKERS:
        raise ValueError(f"sums of {dtype} are exact for at most {LIMB_WORKERS} workers, not {workers}")
    if row_of(dtype, elements, used)[1] < 1:
        least = next(most for most in count(elements) if row_of(dtype, most, used)[1])
        raise ValueError(f"{dtype} needs at least {least} elements per packet, not {elements}")
    return Op.SUM if op == "sum" else Op.MAX, used


def split(call: ArrayCall, job: JobConfig, windows: Mapping[int, int]) -> dict[int, Shares]:
    """The parts of a call that is split over streams, by stream; empty if it is one call (W11). windows: by stream, the
    slots for which the job has asked."""
    array, shares = call.array, call.shares
    room = room_of(call, job)
    width = row_of(array.dtype, room, call.codec)[1]
    layout = Layout(shares, array.size, width, job.workers)
    if len(windows) < 2 or job.partial or layout.chunks <= min(windows.values()):
        return {}
    ends = [layout.rows * upto // sum(windows.values()) for upto in accumulate(windows.values(), initial=0)]
    for first, end in pairwise(ends):  # a small part's bits would be others
        if first == end or small_rows(
            array[first * width : end * width], call.op, call.codec, shares, room, job.workers
        ):
            return {}
    return {stream: shares._replace(rows=rows) for stream, rows in zip(windows, pairwise(ends), strict=True)}


def chunked_call(call: ArrayCall, job: JobConfig) -> ChunkedCall | SmallCall:
    """The call as its chunks."""
    room = room_of(call, job)
    if job.partial:
        return PartialCall(call, job, room)
    if rows := form_of(call, job).small:
        return SmallCall(call, rows, room, job)
    return ChunkedCall(call, job.elements, job.workers, room)


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
    for reduction in reductions:
        if reduction.is_plain:
            yield reduction._replace(codec=None)
        else:
            assert reduction.codec is not None
            how: dict[str, Any] = {"key": key, "residual": reduction.residual, "begin": begin}
            for words, op in rounds_of(reduction.array, elements, workers, reduction.codec, **how):
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
    begin: the codec's own, or another that gives the same bits (`switchagg.native.native_codec`).
    """
    call = ArrayCall(array, Op.SUM, codec.for_workers(workers), shares, residual=residual)
    codec, words, width, layout, _ = row_form(call, elements, workers)
    if not layout.chunks:
        return
    rows, everything = Rows(array, width, layout), range(layout.chunks)
    coding = begin(codec, CallShape(array.dtype, layout.chunks, words, workers, key, residual is not None))
    values, all_rows = rows.read(everything), slice(0, layout.chunks)
    if codec.rounds:
        codes = coding.prepare(values, all_rows)
        yield codes, "max"
        coding.agree(0, codes)
    encoded = np.ascontiguousarray(coding.encode(values, all_rows))
    if residual is not None:
        Rows(residual, width, layout).write(everything, lost(coding, values, encoded, all_rows))
    yield encoded.reshape(-1), "sum"
    rows.write(everything, coding.decode(encoded, all_rows))
