"""A collective laid out as a run of consecutive chunks of a stream (rules W3, W4 and W13).

It is what an endpoint asks for; `switchagg.calls.array_calls` makes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs import Array, CallShape, Codec, Codes
from switchagg.codecs.codec import GREATEST_CODE, LEAST_CODE, lost
from switchagg.codecs.limbs import LIMBS, from_limbs, to_limbs
from switchagg.description import Words
from switchagg.layout import EVERYONE, Layout, Rows, Shares, index_of
from switchagg.wire import Op, Route, Values, kind_of

SCALES = kind_of(Op.MAX, 0)
"""The kind of scale chunks."""


class Call(Protocol):
    """The interface of a call for an endpoint. Positions count the call's chunks from 0."""

    chunks: int
    """How many chunks the call has; the same on every worker."""
    ready_chunks: int
    """How many leading chunks may be sent now; never decreases, and only `write` raises it."""
    submitted: "ArrayCall"
    """The call that is laid out."""
    undecided: bool
    """Whether it isn't known yet how many chunks it has (W16): later calls wait for that."""
    signed: bool
    """How sums of its data chunks are read where they are verified: as signed numbers, or without a sign (V3)."""
    coded: bool
    """Whether its data chunks travel under codes on which ranks agree (V4)."""

    def begin(self, rank: int) -> None:
        """Called once, by the endpoint that the call is submitted to."""

    def kind(self, position: int) -> int:
        """Op, route and owner of a chunk's packets: `wire.kind_of` without flags."""

    def read(self, positions: Sequence[int]) -> Values:
        """(k, E) int32: what this rank gives for these chunks, ascending, ready and not yet written. An
        endpoint doesn't ask for chunks for which this rank gives nothing."""

    def write(self, positions: Sequence[int], values: Values) -> None:
        """Take the results (k, E) of these chunks, once each, in any order. An endpoint doesn't hand over chunks
        that this rank doesn't get."""

    def codes(self, positions: Sequence[int]) -> tuple[list[int], list[bool]]:
        """(k,) codes under which these data chunks travel, and whether this rank's own are the same (V4); 0 and False
        where there are none."""

    def present(self, values: Values) -> int | None:
        """Bitmap of the ranks in these values (E,) of a data chunk; None: its kind says whose values are in it (Q6)."""

    def counts(self, position: int) -> bool:
        """Whether the result of this chunk is the call's; False as long as that isn't decided (V8)."""

    def held(self, answered: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(rows,) the data rows whose results are in the array, of those that this rank gets. answered: (chunks,)."""


@dataclass(slots=True, eq=False)
class ArrayCall:
    """A collective on an array, checked by `array_call`: what an endpoint takes.

    description: what all workers are told of it, and compare (W12); None: nothing. key: of random rounding (F10), for
    codecs that do so: `codecs.rounding.call_key`. residual: gets what of this rank's values its words don't hold,
    float32, as long as the array; None: nobody asks. mean: of a partial sum, divided by the ranks in it (Q6).
    """

    array: Array
    op: Op
    codec: Codec
    shares: Shares = EVERYONE
    description: Words | None = None
    key: int = 0
    residual: Array | None = None
    mean: bool = False


class ChunkedCall:
    """The `Call` of a collective on an array. room: elements of a data chunk that carry its words; None: all."""

    undecided = False

    def __init__(self, call: ArrayCall, elements: int, workers: int, room: int | None = None) -> None:
        self.array, self.op, self.codec, self.shares = call.array, call.op, call.codec, call.shares
        self.submitted, self.key, self.residual = call, call.key, call.residual
        self._elements, self._workers, self._room = elements, workers, elements if room is None else room
        self._limbs = self.codec.word(self.array.dtype).itemsize == 8
        self.signed, self.coded = self.codec.signed_words and not self._limbs, self.codec.rounds > 0
        self.begin(0)

    def begin(self, rank: int) -> None:
        shares, dtype = self.shares, self.array.dtype
        words, width = row_of(dtype, self._room, self.codec)
        self._rank = rank
        self._layout = Layout(shares, len(self.array), width, self._workers)
        self._rows = Rows(self.array, width, self._layout)
        self._lost = None if self.residual is None else Rows(self.residual, width, self._layout)
        self._data_chunks = self._layout.chunks
        shape = CallShape(dtype, self._data_chunks, words, self._workers, self.key, self._lost is not None)
        self._coding = self.codec.begin(shape)
        self._contents, self._ready_after = _layout(self._data_chunks, self._elements, self.codec.rounds)
        self._agreed = [False] * (len(self._ready_after) - 1)
        self._known_groups = 0
        coded_rows = self._data_chunks if self.coded else 0
        self._rank_codes, self._most = np.zeros((2, coded_rows), np.int32)  # this rank's codes, and the agreed ones
        self._prepared = np.zeros(coded_rows, bool)
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
            return self._words_to_send(data)
        values = np.empty((len(contents), self._elements), np.int32)
        if data:
            values[[k for k, c in enumerate(contents) if c >= 0]] = self._words_to_send(data)
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
                self._agree(first, values[k, : self._data_chunks - first])
                self._agreed[~content] = True
        while self._known_groups < len(self._agreed) and self._agreed[self._known_groups]:
            self._known_groups += 1
        self.ready_chunks = self._ready_after[self._known_groups]

    def codes(self, positions: Sequence[int]) -> tuple[list[int], list[bool]]:
        if not self.coded:
            return [0] * len(positions), [False] * len(positions)
        data = [self._contents[p] for p in positions]
        codes = self._most[data]
        return codes.tolist(), (self._rank_codes[data] == codes).tolist()

    def present(self, values: Values) -> int | None:
        return None

    def counts(self, position: int) -> bool:
        return True

    def held(self, answered: NDArray[np.bool_]) -> NDArray[np.bool_]:
        rows = answered[np.asarray(self._contents, np.int64) >= 0]
        return rows & self._is_mine(range(len(rows)))

    def _own_codes(self, group: int) -> Codes:
        first = group * self._elements
        data = range(first, min(first + self._elements, self._data_chunks))
        codes = np.full(self._elements, LEAST_CODE, np.int32)
        codes[: len(data)] = self._prepare(data)
        return codes

    def _prepare(self, data: range) -> Codes:
        """This rank's codes of data chunks."""
        rows = slice(data.start, data.stop)
        if not self._prepared[rows].all():
            self._rank_codes[rows] = self._coding.prepare(self._rows.read(data), rows)
            self._prepared[rows] = True
        return self._rank_codes[rows]

    def _agree(self, first: int, codes: Codes) -> None:
        """The agreed codes of data chunks first, first + 1, …"""
        self._coding.agree(first, codes)
        self._most[first : first + len(codes)] = np.clip(codes, LEAST_CODE, GREATEST_CODE)

    def _words_to_send(self, data: list[int]) -> Values:
        """The values that this rank sends: zeros where another rank gives them to a switch that knows no routes."""
        words = self._encoded(data)
        if self.shares.route is Route.FROM_OWNER and not self._route:
            words[[k for k, chunk in enumerate(data) if self._layout.owner(chunk) != self._rank]] = 0
        if self._room < self._elements:
            words = np.pad(words, ((0, 0), (0, self._elements - self._room)))
        return words

    def _encoded(self, data: list[int]) -> Values:
        values = self._rows.read(data)
        words = self._coding.encode(values, index_of(data))
        if self._lost is not None:
            self._lost.write(data, lost(self._coding, values, words, index_of(data)))
        return to_limbs(np.ascontiguousarray(words), self._room) if self._limbs else words

    def _is_mine(self, data: Sequence[int]) -> NDArray[np.bool_]:
        """Of which of these data chunks this rank gets the results."""
        route = self.shares.route
        if route is Route.ALL:
            return np.ones(len(data), bool)
        return np.array([(self._layout.owner(c) == self._rank) is (route is Route.TO_OWNER) for c in data], bool)

    def _take(self, data: list[int], values: Values) -> None:
        """Store results that are this rank's to have. A switch with routes leaves the owner's own values to it."""
        if self.shares.route is not Route.ALL:
            received = np.flatnonzero(self._is_mine(data)).tolist()
            if not received:
                return
            data, values = [data[k] for k in received], values[received]
        values = np.ascontiguousarray(values[:, : self._room])
        if self._route is Route.TO_OWNER:
            combine = np.maximum if self.op is Op.MAX else np.add
            values = combine(values, self._encoded(data))
        words = from_limbs(values) if self._limbs else values
        self._rows.write(data, self._coding.decode(words, index_of(data)))


@lru_cache(maxsize=64)
def _layout(data_chunks: int, elements: int, rounds: int) -> tuple[Sequence[int], list[int]]:
    """The content of each chunk of a call, and how many chunks may be sent once the codes of the first g groups are
    known.

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


@lru_cache(maxsize=256)
def row_of(dtype: "np.dtype[Any]", elements: int, codec: Codec) -> tuple[int, int]:
    """(words, values) of what E elements carry: words of 64 bits take three elements each (F6)."""
    words = elements if codec.word(dtype).itemsize == 4 else elements // LIMBS
    return words, codec.row_values(dtype, words)
