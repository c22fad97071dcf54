"""The codecs of the compiled core, by the numbers that its functions take, and what they do to whole arrays."""

import ctypes
import sys
from functools import lru_cache
from typing import Any

import numpy as np

from switchagg.codecs import Array, CallShape, Codec, Codes, Coding, RowIndex
from switchagg.codecs.codec import GREATEST_CODE, LEAST_CODE
from switchagg.native import headers
from switchagg.native.library import CoreMissing, load

DTYPES = tuple(map(np.dtype, headers.names("sa_dtype", "SA_")))
"""By their number in C."""

_Coding = headers.struct("sa_coding")


@lru_cache(maxsize=64)
def number_of(codec: Codec) -> int:
    """The codec's number in the compiled core. Raises library.CoreMissing: the codec or the core isn't compiled."""
    number: int = load().sa_codec_number(codec.name.encode())
    if number < 0:
        raise CoreMissing(f"codec {codec.name} is not in the compiled core")
    return number


def missing(codec: Codec) -> str:
    """Why this codec needs the Python core where the compiled one is there; "" if it doesn't."""
    try:
        number_of(codec.variants[0] if codec.variants else codec)
    except CoreMissing as error:
        return str(error)
    return ""


def begin(codec: Codec, dtype: "np.dtype[Any]", elements: int, workers: int) -> Any:
    """A `struct sa_coding` for the functions `sa_codec_…`, E elements per row. Raises library.CoreMissing."""
    coding = _Coding()
    number = number_of(codec.for_workers(workers))
    load().sa_coding_begin(ctypes.byref(coding), number, DTYPES.index(dtype), elements, workers)
    return coding


class NativeCodec:
    """The `Coding` of a call whose values are all coded at once, in order: the same bits as the codec's own, in less
    time. It is for words of 32 bits. Raises library.CoreMissing."""

    def __init__(self, codec: Codec, shape: CallShape) -> None:
        self._shape = shape
        self._coding = begin(codec, shape.dtype, shape.words, shape.workers)
        self._coding.key = shape.key
        if shape.nearest:
            self._coding.random = 0
        self._codes = np.zeros(shape.rows, np.int16)
        self._library, self._place = load(), ctypes.byref(self._coding)

    @property
    def ranks(self) -> int:
        """See `Coding`."""
        return int(self._coding.ranks)

    @ranks.setter
    def ranks(self, ranks: int) -> None:
        self._coding.ranks = ranks

    def prepare(self, values: Array, rows: RowIndex) -> Codes:
        """See `Coding`."""
        values = self._contiguous(values)
        codes = np.empty(len(values), np.int32)
        self._library.sa_codec_prepare(self._place, values.ctypes.data, values.size, codes.ctypes.data)
        return codes

    def agree(self, first: int, codes: Codes) -> None:
        """See `Coding`."""
        self._codes[first : first + len(codes)] = np.clip(codes, LEAST_CODE, GREATEST_CODE)

    def encode(self, values: Array, rows: RowIndex) -> Array:
        """See `Coding`."""
        values, codes = self._contiguous(values), self._codes.ctypes.data
        words = np.empty((len(values), self._shape.words), np.int32)
        self._library.sa_codec_encode(
            self._place, values.ctypes.data, values.size, codes, words.ctypes.data, words.strides[0]
        )
        return words.byteswap(True) if sys.byteorder == "little" else words

    def decode(self, words: Array, rows: RowIndex) -> Array:
        """See `Coding`."""
        sums = words.byteswap() if sys.byteorder == "little" else words
        values = np.empty((len(sums), self._coding.width), self._shape.dtype)
        codes = self._codes.ctypes.data
        self._library.sa_codec_decode(
            self._place, values.ctypes.data, values.size, codes, sums.ctypes.data, sums.strides[0]
        )
        return values

    def _contiguous(self, values: Array) -> Array:
        assert len(values) == self._shape.rows
        return np.ascontiguousarray(values)


@lru_cache(maxsize=64)
def _is_there(codec: Codec) -> bool:
    return not missing(codec)


def begin_in_c(codec: Codec, shape: CallShape) -> Coding:
    """For `switchagg.calls.array_calls.rounds_of`: in C where the compiled core is there and has the codec."""
    if codec.word(shape.dtype).itemsize == 4 and shape.rows and _is_there(codec):
        return NativeCodec(codec, shape)
    return codec.begin(shape)
