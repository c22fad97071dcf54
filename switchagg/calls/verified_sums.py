"""What an endpoint does for verified sums: tags for the chunks it sends, a verdict on each result (V4 to V6, V9);
and for those that are secret, too: masks on what it sends, and none on results (X3)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from switchagg.calls.chunked_call import Call
from switchagg.calls.mask import masks
from switchagg.job import JobConfig
from switchagg.tag import KEY_BYTES, Runs, SumTags
from switchagg.wire import MAX_BIT, Values, givers

Gives = Callable[[int], bool]
"""Whether this rank gives values for chunks of a kind."""


class AwaitedResult(NamedTuple):
    """A row of a bundle that is the result of a chunk in flight. base: the first chunk of its call."""

    row: int
    call: Call
    stream: int
    base: int
    chunk: int


class VerifiedSums:
    """Of the worker `rank` of a job. key: of the generation, for tags (V1), and behind that for masks (X1)."""

    def __init__(self, job: JobConfig, rank: int, key: bytes, gives: Gives) -> None:
        self._job, self._rank, self._gives = job, rank, gives
        self._everyone = (1 << job.workers) - 1
        self._tags = SumTags(key[:KEY_BYTES], job.room)
        self._mask_key = key[KEY_BYTES:] if job.secret == "on" else b""

    def tag(self, call: Call, stream: int, base: int, positions: Sequence[int], values: Values) -> None:
        """Write the tags of chunks of a call into the values (k, E) that this rank sends, and mask these. base: the
        call's first chunk. Maxima have no tag, nor has a chunk of a partial sum to which this rank gives nothing."""
        places = []
        for place, position in enumerate(positions):
            if not call.kind(position) & MAX_BIT:
                present = call.present(values[place])
                if present is None or present >> self._rank & 1:
                    places.append(place)
        if places:
            chosen = [positions[place] for place in places]
            codes, has_code = call.codes(chosen)
            chunks, summed = [base + position for position in chosen], values[places]
            tags = self._tags.tags(self._rank, stream, chunks, codes, has_code, summed, call.signed)
            values[places, self._job.room :] = tags
            if self._mask_key:
                added = masks(self._mask_key, stream, chunks, self._rank, self._rank + 1, self._job.room)
                values[places, : self._job.room] += added.view(np.int32)

    def right(self, call: Call, stream: int, base: int, positions: Sequence[int], values: Values) -> list[bool]:
        """(k,): whether these results of a call, values (k, E), are right, by V5, V6 and V9."""
        verdicts = [True] * len(positions)
        summed = []
        for place, position in enumerate(positions):
            if not call.kind(position) & MAX_BIT:
                if call.counts(position):
                    summed.append(place)
            elif not self._job.partial and self._gives(call.kind(position)):
                verdicts[place] = bool((values[place] >= call.read([position])[0]).all())
        if not summed:
            return verdicts
        chosen = [positions[place] for place in summed]
        ranks = [self._givers(call, position, values[place]) for place, position in zip(summed, chosen, strict=True)]
        codes, has_code = call.codes(chosen)
        chunks = [base + position for position in chosen]
        runs = [runs_of(bitmap) for bitmap in ranks]
        counts = self._tags.code_givers(stream, chunks, codes, runs, values[summed], call.signed)
        for place, position, bitmap, has, count in zip(summed, chosen, ranks, has_code, counts, strict=True):
            others_may_lack_it = self._job.partial or (has and not self._gives(call.kind(position)))
            least = 0 if others_may_lack_it or not call.coded else 1
            most = bitmap.bit_count() if call.coded else 0
            verdicts[place] = least <= count <= most and bitmap <= self._everyone
        return verdicts

    def verified(self, awaited: Sequence[AwaitedResult], values: Values) -> tuple[Values, set[int]]:
        """A bundle's values (k, E), without masks in what was awaited, and the rows of these that are wrong."""
        if self._mask_key:
            values = self._unmasked(awaited, values)
        of_call: dict[int, list[AwaitedResult]] = {}
        for result in awaited:
            of_call.setdefault(id(result.call), []).append(result)
        wrong: set[int] = set()
        for results in of_call.values():
            rows, positions = [r.row for r in results], [r.chunk - r.base for r in results]
            call, stream, base = results[0].call, results[0].stream, results[0].base
            right = self.right(call, stream, base, positions, values[rows].astype(np.int32))
            wrong.update(row for row, is_right in zip(rows, right, strict=True) if not is_right)
        return values, wrong

    def _unmasked(self, awaited: Sequence[AwaitedResult], values: Values) -> Values:
        values, rows, places = values.astype(np.int32), [], []
        for result in awaited:
            kind = result.call.kind(result.chunk - result.base)
            for run in () if kind & MAX_BIT else runs_of(givers(kind, self._everyone)):
                rows.append(result.row)
                places.append((result.stream, result.chunk, *run))
        if rows:
            streams, chunks, first, end = zip(*places, strict=True)
            added = masks(self._mask_key, streams, chunks, first, end, self._job.room)
            np.subtract.at(values[:, : self._job.room], rows, added.view(np.int32))
        return values

    def _givers(self, call: Call, position: int, values: Values) -> int:
        """Bitmap of the ranks of which a result's tag is: those that a partial sum names, or those of its route."""
        present = call.present(values)
        return givers(call.kind(position), self._everyone) if present is None else present


def runs_of(ranks: int) -> Runs:
    """The runs of neighbours in a bitmap."""
    runs, first = [], 0
    while ranks:
        skipped = (ranks & -ranks).bit_length() - 1
        ranks >>= skipped
        length = (~ranks & -~ranks).bit_length() - 1
        first += skipped
        runs.append((first, first + length))
        ranks >>= length
        first += length
    return runs
