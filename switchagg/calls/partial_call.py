"""The call of a job with partial sums: each chunk says whose values are in it (rule Q6).

What of this rank's values isn't in a sum goes to the call's residual, where it has one: a row of which nothing is in it
as it was given, in place of what its words lacked.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.chunked_call import ArrayCall, ChunkedCall
from switchagg.codecs.limbs import from_limbs
from switchagg.job import JobConfig
from switchagg.layout import index_of
from switchagg.wire import Op, Route, Values


class PartialCall(ChunkedCall):
    """room: elements of a data chunk that carry its words. presence: of each data chunk a bitmap of the ranks in its
    result, once that is there; of sums with route ALL.
    count(ranks, chunks): is told how many of these chunks hold so many ranks."""

    def __init__(self, call: ArrayCall, job: JobConfig, room: int) -> None:
        self._partly = call.op is Op.SUM and call.shares.route is Route.ALL
        self.count: Callable[[int, int], None] = lambda ranks, chunks: None
        self._presence_elements = job.presence
        super().__init__(call, job.elements, job.workers, room)

    def begin(self, rank: int) -> None:
        super().begin(rank)
        self.presence: NDArray[np.uint64] = np.zeros(self._data_chunks, np.uint64)

    def present(self, values: Values) -> int | None:
        if not self._partly:
            return None
        words = values[self._room : self._room + self._presence_elements].view(np.uint32)
        return sum(int(word) << 32 * place for place, word in enumerate(words))

    def _words_to_send(self, data: list[int]) -> Values:
        """Zeros, and no presence, for rows that the agreed code doesn't cover."""
        if not self._partly:
            return super()._words_to_send(data)
        for row in data if self.coded else ():  # the scale chunk's result may have come before there were values
            self._prepare(range(row, row + 1))
        covered = self._rank_codes[data] <= self._most[data] if self.coded else np.ones(len(data), bool)
        inside = [row for row, is_covered in zip(data, covered, strict=True) if is_covered]
        words = np.zeros((len(data), self._elements), np.int32)
        if inside:
            words[covered, : self._room] = self._encoded(inside)
            words[covered, self._room + self._rank // 32] = np.uint32(1 << self._rank % 32).astype(np.int32)
        if len(inside) < len(data):
            self._give_back([row for row, is_covered in zip(data, covered, strict=True) if not is_covered])
        return words

    def _take(self, data: list[int], values: Values) -> None:
        if not self._partly:
            super()._take(data, values)
            return
        present = values[:, self._room : self._room + self._presence_elements].view(np.uint32).astype(np.uint64)
        bitmaps = present[:, 0] | (present[:, 1] << np.uint64(32) if present.shape[1] > 1 else np.uint64(0))
        self.presence[data] = bitmaps
        self._give_back([row for row, ranks in zip(data, bitmaps.tolist(), strict=True) if not ranks >> self._rank & 1])
        counts = np.array([ranks.bit_count() for ranks in bitmaps.tolist()])
        words = values[:, : self._room]
        for count in np.unique(counts).tolist():
            chosen = np.flatnonzero(counts == count)
            self.count(count, len(chosen))
            self._store([data[place] for place in chosen], np.ascontiguousarray(words[chosen]), count)

    def _store(self, data: Sequence[int], words: Values, count: int) -> None:
        """Rows that hold the values of so many ranks."""
        self._coding.ranks = count
        rows = self._coding.decode(from_limbs(words) if self._limbs else words, index_of(data))
        self._coding.ranks = self._workers
        self._rows.write(data, rows / rows.dtype.type(max(count, 1)) if self.submitted.mean else rows)

    def _give_back(self, data: list[int]) -> None:
        """To the residual, as numbers: a NaN or an infinity is forgotten (as in `codec.lost`)."""
        if self._lost is not None and data:
            values = self._rows.read(data)
            self._lost.write(data, np.where(np.isfinite(values), values, np.zeros_like(values)))
