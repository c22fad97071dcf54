"""Codec `exact` by the compiled core: the same bits as switchagg/codecs/exact, in less time."""

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.codecs.codec import Array
from switchagg.codecs.exact.exact import ExactSums
from switchagg.codecs.exact.groups import Codes, group_count, type_of
from switchagg.codecs.exact.nearest import Rounding
from switchagg.codecs.spec import CodecSpec
from switchagg.native import headers
from switchagg.native.library import load, missing
from switchagg.native.native_codec import DTYPES


class NativeExactSums(ExactSums):
    """Raises library.CoreMissing when it is used without a core."""

    def codes(self, values: Array) -> Codes:
        values, codes = np.ascontiguousarray(values), np.empty((2, group_count(len(values))), np.int32)
        load().sa_exact_codes(_exact(values, 1), values.ctypes.data, len(values), *_rows(codes))
        return codes

    def encode(self, values: Array, codes: Codes, workers: int) -> NDArray[np.int32]:
        values, rows = np.ascontiguousarray(values), _rows(codes := np.ascontiguousarray(codes))
        exact = _exact(values, workers)
        words = np.empty(load().sa_exact_words(exact, len(values), *rows), np.int32)
        load().sa_exact_encode(exact, values.ctypes.data, len(values), *rows, words.ctypes.data, len(words))
        return words

    def decode(self, words: NDArray[np.int32], codes: Codes, values: Array, workers: int, rounding: Rounding) -> None:
        assert words.flags.c_contiguous
        assert values.flags.c_contiguous
        rows, exact = _rows(codes := np.ascontiguousarray(codes)), _exact(values, workers, rounding)
        assert len(words) >= load().sa_exact_words(exact, len(values), *rows)
        load().sa_exact_decode(exact, words.ctypes.data, len(words), *rows, values.ctypes.data, len(values))


def _exact(values: Array, workers: int, rounding: Rounding | None = None) -> Any:
    target, divisor = rounding or Rounding(type_of(values.dtype))
    return ctypes.byref(headers.struct("sa_exact")(DTYPES.index(values.dtype), workers, divisor, *target))


def _rows(codes: Codes) -> tuple[int, int]:
    upper = codes.ctypes.data
    return upper, upper + codes.strides[0]


def in_c(spec: CodecSpec) -> CodecSpec:
    """The same, whose codec runs in C if it sees whole arrays, and the compiled core is there and has it."""
    return replace(spec, codec=NativeExactSums()) if type(spec.codec) is ExactSums and not missing() else spec
