"""A small call: so few float32 values that their codes are predicted, and one round trip is enough (rules F8 and W16).

    H D D ... D               the data under predicted codes; it counts if all ranks have predicted the agreed ones
    H D D ... D  D D ... D    else all ranks, which see the same head H, send it again under those

The head (op MAX) has the call's description, each row's code, the predicted one and its negative. A rank's
prediction decides how long the call takes, never its result.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from switchagg.calls.chunked_call import ArrayCall
from switchagg.codecs.codec import GREATEST_CODE, LEAST_CODE, Array, CallShape, Codec, Codes
from switchagg.codecs.fixed_point import FixedPoint
from switchagg.codecs.wide_fixed_point import WideFixedPoint, from_words, to_words
from switchagg.description import WORDS
from switchagg.job import JobConfig
from switchagg.layout import Shares
from switchagg.wire import Op, Values, kind_of

WORKERS_MOST = 64
"""Of a job with small calls."""

ROWS_MAX = 8
"""Of a small call: four chunks of float32, in two words each."""

WIDE = WideFixedPoint()


def small_rows(array: Array, op: Op, codec: Codec, shares: Shares, room: int, workers: int) -> int:
    """R, if the call of this array is small; else 0. room: elements of a data chunk that carry words."""
    width = room // 2
    if array.dtype != np.float32 or op is not Op.SUM or type(codec) is not FixedPoint or shares.route:
        return 0
    if workers > WORKERS_MOST or not 0 < len(array) <= ROWS_MAX * width:
        return 0
    rows = -(-len(array) // width)
    return rows if 3 * rows + WORDS * workers <= room else 0


class Predictions:
    """The codes on which ranks agreed last, by the number of values of the call; of one endpoint, for all its streams.

    Two numbers that share a place forget each other's.
    """

    PLACES = 61  # a prime, so that round numbers of values spread

    def __init__(self) -> None:
        self._places: list[tuple[int, Codes]] = [(0, np.empty(0, np.int32))] * self.PLACES

    def of(self, count: int, codes: Codes) -> Codes:
        """For a call of `count` values whose own codes these are: no lower, as a lower one can't be agreed."""
        last_count, last = self._places[count % self.PLACES]
        return np.maximum(codes, last) if last_count == count else codes

    def agreed(self, count: int, codes: Codes) -> None:
        """Zeros, NaN and infinities are no news of what is usual."""
        last_count, last = self._places[count % self.PLACES]
        if last_count != count:
            last = np.full(len(codes), LEAST_CODE, np.int32)
        usual = (codes > LEAST_CODE) & (codes < GREATEST_CODE)
        self._places[count % self.PLACES] = (count, np.where(usual, codes, last))


class SmallCall:
    """The `Call` of so few values: the data after its head."""

    signed = coded = True

    def __init__(self, call: ArrayCall, rows: int, room: int, job: JobConfig) -> None:
        self.submitted, self.array = call, call.array
        self._rows, self._room, self._width = rows, room, room // 2
        self._elements, self._workers = job.elements, job.workers
        self.begin(0)

    def begin(self, rank: int) -> None:
        """See `Call`."""
        shape = CallShape(self.array.dtype, self._rows, self._width, self._workers)
        self._predicted, self._agreed = WIDE.begin(shape), WIDE.begin(shape)
        self._held: dict[int, Values] = {}  # results that came before the head's
        self._stored = np.zeros(self._rows, bool)
        self._again: Array | None = None  # the values, if they go again: then the array fills with sums
        self.undecided = True
        self.chunks = self.ready_chunks = self._rows

    def predict(self, predictions: Predictions) -> Codes:
        """The head's values of this call (3 * R): own codes, predicted codes, and the negatives of those. To be
        called once."""
        codes = self._predicted.prepare(self._values(range(self._rows)), slice(0, self._rows))
        predicted = predictions.of(len(self.array), codes)
        self._predicted.agree(0, predicted)
        self._rank_codes, self._codes = codes, [predicted, codes]
        return np.concatenate((codes, predicted, -predicted))

    def decide(self, agreed: Codes, predictions: Predictions, verified: bool) -> bool:
        """Take what the head's result has of this call; whether all ranks predicted the agreed codes. If not, there are
        more chunks now. verified: a sum is verified under the very code that all predicted (V8)."""
        codes, highest, lowest = agreed.astype(np.int64).reshape(3, self._rows)
        # a row of zeros, and one that becomes NaN, is the same under any prediction
        special = (codes <= LEAST_CODE) | (codes >= GREATEST_CODE)
        hit = bool(((special & (not verified)) | ((highest == codes) & (lowest == -codes))).all())
        usable = np.clip(codes, LEAST_CODE, GREATEST_CODE).astype(np.int32)
        self._agreed.agree(0, usable)
        predictions.agreed(len(self.array), usable)
        self._codes[1] = usable
        self.undecided = False
        if not hit:
            self._again = self._values(range(self._rows))
            self.chunks = self.ready_chunks = 2 * self._rows
        return hit

    def take_held(self) -> tuple[list[int], Values]:
        """(positions, results) that came before it was decided; to be written if they count."""
        positions, results = list(self._held), np.array(list(self._held.values()), np.int32)
        self._held.clear()
        return positions, results.reshape(-1, self._elements)

    def counts(self, position: int) -> bool:
        return not self.undecided and (self._again is not None) is (position >= self._rows)

    def held(self, answered: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return self._stored.copy()

    def codes(self, positions: Sequence[int]) -> tuple[list[int], list[bool]]:
        rows = [divmod(position, self._rows) for position in positions]
        codes = [int(self._codes[again][row]) for again, row in rows]
        return codes, [code == self._rank_codes[row] for code, (_, row) in zip(codes, rows, strict=True)]

    def present(self, values: Values) -> int | None:
        return None

    def kind(self, position: int) -> int:
        return kind_of(Op.SUM, 0)

    def read(self, positions: Sequence[int]) -> Values:
        values = np.zeros((len(positions), self._elements), np.int32)
        for coding, first in ((self._predicted, 0), (self._agreed, self._rows)):
            chosen = [k for k, p in enumerate(positions) if 0 <= p - first < self._rows]
            if chosen:
                rows = [positions[k] - first for k in chosen]
                values[chosen] = to_words(coding.encode(self._values(rows), rows), self._elements, self._workers)
        return values

    def write(self, positions: Sequence[int], values: Values) -> None:
        for position, row in zip(positions, values, strict=True):
            if self.undecided:
                self._held[position] = row.copy()
            elif self.counts(position):
                self._store(position % self._rows, row)

    def _values(self, rows: Sequence[int]) -> Array:
        """(k, width) copy, the call's last row padded with zeros."""
        if self._again is not None:
            return self._again[rows]
        padded = np.zeros((self._rows, self._width), self.array.dtype)
        padded.reshape(-1)[: len(self.array)] = self.array
        return padded[rows]

    def _store(self, row: int, sums: Values) -> None:
        width, words = self._width, sums[np.newaxis, : self._room]
        values = self._agreed.decode(from_words(words, self._workers), [row])[0]
        target = self.array[row * width : (row + 1) * width]
        target[:] = values[: len(target)]
        self._stored[row] = True
