"""The contract of a codec: prepare -> agree -> encode -> decode, on rows of values.

A row is what one packet of the switch carries: as many values as fit E int32 elements. Each row has at most one code,
an int32 on which all ranks agree by taking the maximum, before any of its values travels. Then each rank encodes the
row to words, the words of all ranks are summed, and the sum is decoded. Moving codes and words is the layout's
business (`switchagg.calls.array_calls`): chunks of a stream for a switch, plain reductions for host methods, in real
and in virtual time.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Codes = NDArray[np.int32]
RowIndex = slice | list[int]

FLOAT32 = np.dtype(np.float32)

LEAST_CODE = -(1 << 15)
"""The least code of every codec: MAX leaves any other beside it. A scale chunk has it where there is no row."""

GREATEST_CODE = (1 << 15) - 1
"""A code outside the range counts as the end of the range: the compiled core keeps 16 bits."""


@dataclass(frozen=True, slots=True)
class CallShape:
    """The facts of a call that all ranks know before they look at values.

    rows: how many, each of `words` words; workers: how many ranks are summed. key: of random rounding (F10), not the
    same on all ranks, nor in all calls. nearest: round to the nearest also where codecs would round at random: what is
    lost is fed back.
    """

    dtype: "np.dtype[Any]"
    rows: int
    words: int
    workers: int
    key: int = 0
    nearest: bool = False


class Coding(Protocol):
    """The memory of a codec for a rank's call, from `prepare` to `decode`.

    Values are (k, width), the call's last row padded with zeros; words are (k, words). `rows`: which rows of the call
    they are. Rows may be encoded again (a packet was lost), and are decoded in any order.
    """

    ranks: int
    """How many contributions a decoded sum holds: all workers', at first. With 1, own words are decoded."""

    def prepare(self, values: Array, rows: RowIndex) -> Codes:
        """(k,) int32: this rank's codes. A coding without rounds of agreement is never asked."""

    def agree(self, first: int, codes: Codes) -> None:
        """Take the agreed codes (k,) of rows first, first + 1, …; before any of them is encoded."""

    def encode(self, values: Array, rows: RowIndex) -> Array:
        """Words (k, words); `values` are unchanged."""

    def decode(self, words: Array, rows: RowIndex) -> Array:
        """Values (k, width) of summed words; `words` are unchanged."""


class Codec(ABC):
    """A way to write numbers. Stateless: what belongs to a call is in its `Coding`.

    adds: words of several ranks may be summed as integers, in any order, and the sum decoded: what a switch, a ring and
    a server do. rounds: of agreement before the values, 0 or 1. dtypes: arrays it takes; others travel as they would
    without it. lossy: error feedback has something to do. feeds_back: it can: what words lack is what sums lack.
    needs_feedback: without it, training doesn't converge. variants: one of which stands for it, by the workers.
    signed_words: sums of its words of 32 bits, read as signed numbers, never wrap; else, read without a sign (V3).
    """

    name: str
    adds = True
    lossy = False
    feeds_back = True
    needs_feedback = False
    signed_words = False
    rounds: int
    dtypes: "tuple[np.dtype[Any], ...]"
    variants: "tuple[Codec, ...]" = ()

    def word(self, dtype: "np.dtype[Any]") -> "np.dtype[Any]":
        """int32, or int64 for types of 8 bytes: what words of such an array are, and how their sums wrap."""
        return np.dtype(np.int32 if dtype.itemsize == 4 else np.int64)

    def values_per_word(self, dtype: "np.dtype[Any]") -> int:
        """How many values a word carries."""
        return 1

    def row_values(self, dtype: "np.dtype[Any]", words: int) -> int:
        """How many values a row of so many words carries."""
        return words * self.values_per_word(dtype)

    def bits(self, dtype: "np.dtype[Any]") -> float:
        """Bits of a word that a value has for itself."""
        return 8 * self.word(dtype).itemsize / self.values_per_word(dtype)

    def fault(self, workers: int) -> str:
        """Why it can't sum so many ranks exactly; "" if it can."""
        return ""

    def for_workers(self, workers: int) -> "Codec":
        """The codec that so many ranks use: of some, the width of a lane follows. Raises ValueError with the fault."""
        if fault := self.fault(workers):
            raise ValueError(fault)
        return self

    @abstractmethod
    def begin(self, shape: CallShape) -> Coding:
        """A new call. Raises ValueError with the fault of its number of workers, if it has one."""


def lost(coding: Coding, values: Array, words: Array, rows: RowIndex) -> Array:
    """The part of these values that their words don't hold; 0 where that is no number, as in rows with a NaN."""
    workers, coding.ranks = coding.ranks, 1
    with np.errstate(invalid="ignore"):
        difference: Array = values - coding.decode(words, rows)
    coding.ranks = workers
    difference[~np.isfinite(difference)] = 0
    return difference
