"""Integers as they are: no agreement, exact sums modulo 2**32 or 2**64, also maxima (W3)."""

from typing import Any

import numpy as np

from switchagg.codecs.codec import Array, CallShape, Codec, Codes, RowIndex


class Plain(Codec):
    """int32 and int64."""

    name = "plain"
    rounds = 0
    dtypes: "tuple[np.dtype[Any], ...]" = (np.dtype(np.int32), np.dtype(np.int64))

    def begin(self, shape: CallShape) -> "Unchanged":
        return Unchanged(shape.workers)


class Narrow(Plain):
    """int32 of which the caller knows that no sum reaches 2**32, read without a sign: they need no `Split`."""

    name = "narrow"
    dtypes = (np.dtype(np.int32),)


class Unchanged:
    """The coding of what nobody has to agree on."""

    def __init__(self, workers: int) -> None:
        self.ranks = workers

    def prepare(self, values: Array, rows: RowIndex) -> Codes:
        raise AssertionError("there is nothing to agree on")

    def agree(self, first: int, codes: Codes) -> None:
        raise AssertionError("there is nothing to agree on")

    def encode(self, values: Array, rows: RowIndex) -> Array:
        return values

    def decode(self, words: Array, rows: RowIndex) -> Array:
        return words
