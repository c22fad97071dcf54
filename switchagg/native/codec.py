"""The codecs of the compiled core, by the numbers that its functions take, and what they do to whole arrays."""

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from switchagg.codecs import Codec
from switchagg.native.library import Missing, load

DTYPES = tuple(map(np.dtype, (np.float32, np.float64, np.int32, np.int64, np.uint8)))
"""In the order of `enum sa_dtype`."""


class NativeCoding(ctypes.Structure):
    """`struct sa_coding`."""

    _fields_ = [
        ("codec", ctypes.c_void_p),
        ("dtype", ctypes.c_uint32),
        ("elements", ctypes.c_uint32),
        ("width", ctypes.c_uint32),
        ("workers", ctypes.c_uint32),
        ("headroom", ctypes.c_uint32),
        ("half", ctypes.c_uint32),
        ("ranks", ctypes.c_uint32),
        ("random", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
    ]


@lru_cache(maxsize=1)
def declared() -> ctypes.CDLL:
    """The library with the functions of codec.h declared. Raises library.Missing."""
    library = load()
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    coding = ctypes.POINTER(NativeCoding)
    library.sa_codec_number.argtypes = [ctypes.c_char_p]
    for name, arguments in (
        ("sa_coding_begin", [u32, u32, u32, u32]),
        ("sa_codec_prepare", [pointer, u64, pointer]),
        ("sa_codec_encode", [pointer, u64, pointer, pointer, u64]),
        ("sa_codec_decode", [pointer, u64, pointer, pointer, u64]),
    ):
        function = getattr(library, name)
        function.restype = None
        function.argtypes = [coding, *arguments]
    return library


@lru_cache(maxsize=64)
def number_of(codec: Codec) -> int:
    """Of this codec in the compiled core. Raises library.Missing if it is in Python alone, or there is no such core."""
    number: int = declared().sa_codec_number(codec.name.encode())
    if number < 0:
        raise Missing(f"codec {codec.name} is not in the compiled core")
    return number


def missing(codec: Codec) -> str:
    """Why this codec needs the Python core where the compiled one is there; "" if it doesn't."""
    try:
        number_of(codec)
    except Missing as error:
        return str(error)
    return ""


def begin(codec: Codec, dtype: "np.dtype[Any]", elements: int, workers: int) -> NativeCoding:
    """For the functions `sa_codec_…`, E elements per row. Raises library.Missing."""
    coding = NativeCoding()
    declared().sa_coding_begin(coding, number_of(codec), DTYPES.index(dtype), elements, workers)
    return coding
