"""A part by plain collectives of the hosts, with the bits that a switch gives: rules L3 and L9.

Sums of integers don't depend on who adds them. So what a lost switch left of a part is ended in three steps, alike on
all ranks: they tell each other which rows they hold; the lowest holder of a row gives it to those that lack it; and
rows that nobody holds are summed from what the ranks gave, in the words and under the codes in which they travel.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.array_calls import Begin, begin_in_python
from switchagg.calls.chunked_call import ArrayCall
from switchagg.codecs import CallShape
from switchagg.codecs.array_codec import Reduction
from switchagg.codecs.codec import Array, lost
from switchagg.description import WORDS, other_call
from switchagg.errors import AggregationFailed
from switchagg.failover.part_rows import Flags, PartRows, runs_of_rows
from switchagg.job import JobConfig
from switchagg.layout import index_of
from switchagg.wire import Op, Route


def recovery_rounds(part: PartRows, begin: Begin = begin_in_python) -> Iterator[Reduction]:
    """End a disputed part: collectives of all ranks, each combined in place before the next is asked for. What this
    rank lacked is in the call's array at the end.

    begin: codes all rows of a part, as of `rounds_of`. Raises AggregationFailed if ranks made different calls, or a row
    is nowhere any more.
    """
    words, rank, workers = part.call.description, part.rank, part.job.workers
    described = WORDS if words is not None else 0
    table = np.zeros((workers, described + max(1, -(-part.rows // 32))), np.int32)
    table.view(np.uint32)[rank, :described] = words or ()
    table[rank, described:] = _bits(part.held)
    yield Reduction(table.reshape(-1), kind="all_gather")
    if described and (other := other_call(np.ascontiguousarray(table[:, :described]).reshape(-1), rank)) is not None:
        raise AggregationFailed(other[1], job=part.job.job_id)
    if part.rows:
        held = _flags(table[:, described:], part.rows)
        yield from _end_rows(part, held, begin)


def _end_rows(part: PartRows, held: Flags, begin: Begin) -> Iterator[Reduction]:
    """held: (workers, rows), of all ranks."""
    lacking = ~held & _receivers(part)
    somebody_lacks, somebody_holds = lacking.any(axis=0), held.any(axis=0)
    if rows := np.flatnonzero(somebody_lacks & somebody_holds).tolist():
        yield from _given_rows(part, rows, held[:, rows].argmax(axis=0) == part.rank, lacking[part.rank, rows])
    if rows := np.flatnonzero(somebody_lacks & ~somebody_holds).tolist():
        yield from _summed_rows(part, rows, lacking[part.rank, rows], begin)


def host_rounds(call: ArrayCall, rank: int, job: JobConfig, begin: Begin = begin_in_python) -> Iterator[Reduction]:
    """Carry out a part that no switch has begun, as `recovery_rounds` ends one."""
    part = PartRows(call, rank, job)
    shares, every_row = call.shares, range(part.rows)
    if not every_row:
        yield from recovery_rounds(part, begin)  # a barrier waits for all, a rank alone for nobody
    elif shares.route is Route.ALL or (shares.route is Route.TO_OWNER and shares.owner is not None):
        yield from _summed_rows(part, every_row, _receivers(part)[rank], begin)
    elif shares.route is Route.TO_OWNER:
        yield from _scattered_rows(part, begin)
    elif shares.owner is not None:
        low, high = part.form.layout.span(0)[0], part.form.layout.span(part.rows - 1)[1]
        yield Reduction(call.array[low:high], kind="broadcast", root=shares.owner)
    else:
        yield from _gathered_rows(part)


def _by_owner(part: PartRows) -> tuple[NDArray[np.intp], Flags]:
    """All rows, those of rank 0 first, as many of each rank; which of them are this rank's."""
    owners = part.owners()
    order = np.argsort(owners, kind="stable")
    return order, owners[order] == part.rank


def _gathered_rows(part: PartRows) -> Iterator[Reduction]:
    order, is_own = _by_owner(part)
    values = np.zeros((len(order), part.form.width), part.call.array.dtype)
    values[is_own] = part.read(order[is_own].tolist())
    yield Reduction(values.view(np.int32).reshape(-1), kind="all_gather")
    rows, places = np.flatnonzero(~part.held), np.empty_like(order)
    places[order] = np.arange(len(order))
    part.write(rows.tolist(), values[places[rows]])


def _scattered_rows(part: PartRows, begin: Begin) -> Iterator[Reduction]:
    order, is_own = _by_owner(part)
    summed = _SummedRows(part, range(part.rows), begin)
    yield from summed.agree()
    words = np.ascontiguousarray(summed.words()[order])
    yield Reduction(words.reshape(-1), summed.op, "reduce_scatter")
    sums, rows = np.zeros_like(words), order[is_own]
    sums[rows] = words[is_own]
    part.write(rows.tolist(), summed.coding.decode(sums, slice(0, len(sums)))[rows])


def _given_rows(part: PartRows, rows: Sequence[int], gives: Flags, lacks: Flags) -> Iterator[Reduction]:
    """Rows that some rank holds. gives: which this rank gives to the others; lacks: which it lacks."""
    values = np.zeros((len(rows), part.form.width), part.call.array.dtype)
    if gives.any():
        values[gives] = part.read(np.asarray(rows)[gives].tolist())
    yield Reduction(values.view(np.int32).reshape(-1))
    _store(part, rows, lacks, values)


def _summed_rows(part: PartRows, rows: Sequence[int], lacks: Flags, begin: Begin) -> Iterator[Reduction]:
    """Rows that nobody holds: from the ranks' values, which are intact everywhere (L1)."""
    summed = _SummedRows(part, rows, begin)
    yield from summed.agree()
    words = summed.words()
    yield Reduction(words.reshape(-1), summed.op)
    _store(part, rows, lacks, summed.coding.decode(words, index_of(rows)))


class _SummedRows:
    """Rows of a part as words, which ranks sum."""

    def __init__(self, part: PartRows, rows: Sequence[int], begin: Begin) -> None:
        call, form = part.call, part.form
        shape = CallShape(
            call.array.dtype, part.rows, form.words, part.job.workers, call.key, part.residual is not None
        )
        self.coding = begin(form.codec, shape) if len(rows) == part.rows else form.codec.begin(shape)
        self.op = "max" if call.op is Op.MAX else "sum"
        self._part, self._rows, self._values = part, rows, part.read(rows)

    def agree(self) -> Iterator[Reduction]:
        """The collective of the codes, if there are any."""
        if self._part.form.codec.rounds:
            runs = list(runs_of_rows(self._rows))  # a coding prepares neighbours
            codes = np.concatenate(
                [self.coding.prepare(self._values[place], slice(run.start, run.stop)) for place, run in runs]
            )
            yield Reduction(codes, "max")
            for place, run in runs:
                self.coding.agree(run.start, codes[place])

    def words(self) -> Array:
        """(k, words), contiguous, to be summed in place; the residual is written. They are the array itself only where
        the sums belong there on every rank."""
        part, index = self._part, index_of(self._rows)
        words = np.ascontiguousarray(self.coding.encode(self._values, index))
        if part.residual is not None:
            part.residual.write(self._rows, lost(self.coding, self._values, words, index))
        if part.call.shares.route is not Route.ALL and np.may_share_memory(words, self._values):
            return words.copy()
        return words


def _store(part: PartRows, rows: Sequence[int], lacks: Flags, values: Array) -> None:
    if lacks.any():
        part.write(np.asarray(rows)[lacks].tolist(), values[lacks])


def _receivers(part: PartRows) -> Flags:
    """(workers, rows): which ranks get the results."""
    route, workers = part.call.shares.route, part.job.workers
    if route is Route.ALL:
        return np.ones((workers, part.rows), np.bool_)
    owns = np.arange(workers)[:, np.newaxis] == part.owners()
    receivers: Flags = owns if route is Route.TO_OWNER else ~owns
    return receivers


def _bits(flags: Flags) -> NDArray[np.int32]:
    """Words of 32 flags each, at least one word."""
    padded = np.zeros(max(1, -(-len(flags) // 32)) * 32, np.bool_)
    padded[: len(flags)] = flags
    return np.packbits(padded, bitorder="little").view(np.int32)


def _flags(words: NDArray[np.int32], rows: int) -> Flags:
    """(k, rows) of words (k, m)."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    flags: Flags = np.unpackbits(octets, axis=1, count=rows, bitorder="little").view(np.bool_)
    return flags
