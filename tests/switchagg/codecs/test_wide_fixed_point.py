"""codecs.wide_fixed_point, and the same in C: F8."""

import ctypes
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from switchagg.codecs import CallShape
from switchagg.codecs.codec import FLOAT32
from switchagg.codecs.fixed_point import NONFINITE, ZERO, exponents
from switchagg.codecs.wide_fixed_point import WideFixedPoint, WideScales, coarse, from_words, low_bits, to_words
from switchagg.native.library import load, missing
from switchagg.native.native_codec import begin

LARGEST = np.finfo(np.float32).max
LEAST = np.finfo(np.float32).smallest_subnormal
ALL = slice(0, 1)
Array = NDArray[Any]


def agreed(code: int, workers: int) -> WideScales:
    scales = WideFixedPoint().begin(CallShape(FLOAT32, 1, 0, workers))
    scales.agree(0, np.array([code], np.int32))
    return scales


def allreduce(contributions: list[Array]) -> tuple[Array, int]:
    """(result, agreed code) of one row, one array per worker; asserts that no sum of words overflows."""
    workers, size = len(contributions), len(contributions[0])
    code = max(int(coarse(exponents(c[np.newaxis]))[0]) for c in contributions)
    scales = agreed(code, workers)
    words = [to_words(scales.encode(c[np.newaxis], ALL), 2 * size + 1, workers) for c in contributions]
    exact = np.sum(words, axis=0, dtype=np.int64)
    assert exact.min() >= -(2**31)
    assert exact.max() < 2**31
    return scales.decode(from_words(exact.astype(np.int32), workers), ALL)[0], code


@pytest.mark.parametrize(
    ("code", "want"),
    [(-148, -144), (-144, -144), (-143, -128), (-1, 0), (0, 0), (1, 16), (16, 16), (17, 32), (113, 128), (128, 128)],
)
def test_codes_are_multiples_of_16_not_below_the_exponent(code: int, want: int) -> None:
    assert coarse(np.array([ZERO, code, NONFINITE], np.int32)).tolist() == [ZERO, want, NONFINITE]


@pytest.mark.parametrize(
    ("workers", "code", "value", "words"),
    [
        # n = 1: k = 31, q = x * 2**(62 - c)
        (1, 0, 0.5, [1 << 30, 0]),
        (1, 0, -0.5, [-(1 << 30), 0]),
        (1, 0, 2.0**-62, [0, 1]),
        (1, 0, -(2.0**-62), [-1, (1 << 31) - 1]),
        (1, 0, 1.5 * 2.0**-62, [0, 2]),  # ties to even
        (1, 0, 2.5 * 2.0**-62, [0, 2]),
        (1, 0, 1 - 2.0**-24, [(1 << 31) - (1 << 7), 0]),
        (1, 16, 1.0, [1 << 15, 0]),
        (1, 128, float(LARGEST), [(1 << 31) - (1 << 7), 0]),
        (1, -144, float(LEAST), [1 << 26, 0]),
        # n = 8: k = 28, q = x * 2**(56 - c)
        (8, 0, 0.5, [1 << 27, 0]),
        (8, 0, 3 * 2.0**-29, [1, 1 << 27]),
        (8, -16, -(2.0**-72), [-1, (1 << 28) - 1]),
        # n = 64: k = 25, q = x * 2**(50 - c)
        (64, 0, -(1 - 2.0**-24), [-(1 << 25) + 2, 0]),
        (64, 32, 1.0, [0, 1 << 18]),
    ],
)
def test_words_of_single_values(workers: int, code: int, value: float, words: list[int]) -> None:
    """F8, by hand."""
    scales = agreed(code, workers)
    row = np.array([[value]], np.float32)
    sent = to_words(scales.encode(row, ALL), 3, workers)
    assert sent.tolist() == [[*words, 0]]
    if Fraction(value) * Fraction(2) ** (2 * low_bits(workers) - code) % 1 == 0:
        assert scales.decode(from_words(sent, workers), ALL).tolist() == row.tolist()


@pytest.mark.parametrize("workers", range(1, 65))
def test_no_sum_overflows(workers: int) -> None:
    """Every worker sends the value that gives the largest or the least words, at both ends of the range and between."""
    below = np.nextafter(np.float32(1), np.float32(0))
    for power in (-144, -128, 0, 16, 128):
        value = np.ldexp(below, power).astype(np.float32)
        ones = (
            np.ldexp(np.float32(1), power - 2 * low_bits(workers)) if power > -60 else LEAST
        )  # a low word of ones: -1
        for x in (value, -value, -ones):
            allreduce([np.array([x, value], np.float32)] * workers)  # asserts it


@pytest.mark.parametrize("workers", [1, 2, 7, 64])
def test_nan_infinity_zeros_and_the_ends_of_the_range(workers: int) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        chunks = [np.array([LARGEST, 0, -1], np.float32) for _ in range(workers)]
        chunks[-1][1] = bad
        result, code = allreduce(chunks)
        assert code == NONFINITE
        assert np.isnan(result).all()
    result, code = allreduce([np.array([0, -0.0], np.float32)] * workers)
    assert code == ZERO
    assert result.tobytes() == bytes(8)  # no -0
    sums = [workers * float(LEAST), -workers * float(LEAST), 0]
    assert allreduce([np.array([LEAST, -LEAST, -0.0], np.float32)] * workers)[0].tolist() == sums
    if workers > 1:
        assert allreduce([np.array([LARGEST, -LARGEST], np.float32)] * workers)[0].tolist() == [np.inf, -np.inf]


contributions_of_all = st.integers(1, 64).flatmap(
    lambda n: st.lists(
        arrays(np.float32, 4, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
        min_size=n,
        max_size=n,
    )
)


@given(contributions_of_all)
def test_error_bound(contributions: list[Array]) -> None:
    """In exact arithmetic: n * 2**(c - 2k - 1), then roundings to 53 and 24 bits; c is at most 16 too large."""
    result, code = allreduce(contributions)
    if code == ZERO:
        assert result.tolist() == [0, 0, 0, 0]
        return
    workers = len(contributions)
    bound = workers * Fraction(2) ** (code - 2 * low_bits(workers) - 1)
    for i, got in enumerate(result):
        want = sum((Fraction(float(c[i])) for c in contributions), Fraction(0))
        if np.isinf(got):
            assert abs(want) + bound > Fraction(float(LARGEST))
            continue
        rounding = abs(Fraction(float(got))) * Fraction(2) ** -23 + Fraction(float(LEAST)) / 2
        assert abs(Fraction(float(got)) - want) <= bound + rounding
    largest = max(abs(Fraction(float(x))) for c in contributions for x in c)
    assert max(Fraction(2) ** (code - 16), Fraction(float(LEAST))) <= largest < Fraction(2) ** code


@pytest.mark.parametrize(("workers", "bits"), [(8, 41), (64, 35)])
def test_a_row_is_exact_far_below_its_largest_value(workers: int, bits: int) -> None:
    """Whatever the distance of the code: floats down to 2**-(bits - 24) of the largest have all their bits."""
    rng = np.random.default_rng(workers)
    for power in range(16):
        small = np.ldexp(rng.integers(1 << 23, 1 << 24, 4) | 1, power - 24 - (bits - 24)).astype(np.float32)
        given_ = [np.append(small, np.float32(2.0 ** (power - 1)))] + [np.zeros(5, np.float32)] * (workers - 1)
        result, code = allreduce(given_)
        assert code in (0, 16)
        assert result.tolist() == given_[0].tolist()


# ---- in C


def in_c(values: Array, code: int, workers: int, elements: int) -> tuple[int, bytes]:
    """(own code, payload) of a row."""
    own = np.zeros(1, np.int32)
    payload = np.full(elements, 0x5A5A5A5A, np.int32)
    coding = begin(WideFixedPoint(), FLOAT32, elements, workers)
    codes = np.array([code], np.int16)
    load().sa_codec_prepare(ctypes.byref(coding), values.ctypes.data, len(values), own.ctypes.data)
    load().sa_codec_encode(
        ctypes.byref(coding), values.ctypes.data, len(values), codes.ctypes.data, payload.ctypes.data, 4 * elements
    )
    return int(own[0]), payload.tobytes()


def back_in_c(sums: Array, count: int, code: int, workers: int) -> Array:
    around = np.full(count + 2, 7, np.float32)
    coding = begin(WideFixedPoint(), FLOAT32, sums.size, workers)
    codes, payload = np.array([code], np.int16), sums.astype(">i4")
    load().sa_codec_decode(
        ctypes.byref(coding), around.ctypes.data + 4, count, codes.ctypes.data, payload.ctypes.data, 4 * sums.size
    )
    assert (around[0], around[-1]) == (7, 7)
    return around[1:-1]


any_float32 = arrays(np.uint32, st.integers(1, 19), elements=st.integers(0, 2**32 - 1)).map(
    lambda a: a.view(np.float32)
)
near_float32 = arrays(np.float32, st.integers(1, 19), elements=st.floats(-1, 1, width=32))


@pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")
@settings(max_examples=100)
@given(st.one_of(any_float32, near_float32), st.integers(0, 3), st.integers(1, 64), st.data())
def test_c_gives_the_same_bits(values: Array, room: int, workers: int, data: st.DataObject) -> None:
    """Own codes, words under any code, also what only a broken worker sends, and any sums turned back."""
    elements = 2 * len(values) + room
    row = np.zeros((1, elements // 2), np.float32)
    row[0, : len(values)] = values
    own = int(coarse(exponents(row))[0])
    for code in (own, data.draw(st.integers(-32768, 32767)), data.draw(st.integers(-9, 8)) * 16):
        scales = agreed(code, workers)
        words = to_words(scales.encode(row, ALL), elements, workers)
        assert in_c(values, code, workers, elements) == (own, words.astype(">i4").tobytes())
        sums = data.draw(arrays(np.int32, elements, elements=st.integers(-(2**31), 2**31 - 1)))
        want = scales.decode(from_words(sums[np.newaxis], workers), ALL)[0, : len(values)]
        assert back_in_c(sums, len(values), code, workers).tobytes() == want.astype(np.float32).tobytes()
    assert own in (ZERO, NONFINITE) or math.fmod(own, 16) == 0
