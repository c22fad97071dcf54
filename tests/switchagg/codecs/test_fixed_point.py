"""codecs.fixed_point and limbs: F1 to F7. Sums of integers are compared with ==; one test states the floats' bound."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from switchagg.calls.array_calls import array_call
from switchagg.codecs import FIXED_POINT, CallShape
from switchagg.codecs.fixed_point import NONFINITE, ZERO, Scales, exponents, headroom_bits
from switchagg.codecs.limbs import from_limbs, to_limbs
from switchagg.job import JobConfig, StreamConfig
from switchagg.native.library import missing
from switchagg.native.native_codec import NativeCodec

FLOATS = [np.float32, np.float64]
ALL = slice(0, 1)


def allreduce(contributions: list[NDArray[Any]]) -> tuple[NDArray[Any], int, list[NDArray[Any]]]:
    """(result, agreed code, integers) of one chunk, one (E,) array per worker; asserts that no sum overflows."""
    workers, dtype = len(contributions), contributions[0].dtype
    code = np.max([exponents(c[np.newaxis]) for c in contributions], axis=0)
    scales = Scales(CallShape(dtype, 1, 5, workers))
    scales.agree(0, code)
    integers = [scales.encode(c[np.newaxis], ALL) for c in contributions]
    exact = [sum(int(q[0, i]) for q in integers) for i in range(len(contributions[0]))]
    limit = 2**31 if dtype == np.float32 else 2**63
    assert all(-limit < total < limit for total in exact)
    total = np.array([exact], integers[0].dtype)
    return scales.decode(total, ALL)[0], int(code[0]), [q[0] for q in integers]


@pytest.mark.parametrize("dtype", FLOATS)
def test_code_is_the_smallest_exponent_above(dtype: type) -> None:
    info = np.finfo(dtype)
    for value in (1.0, 0.75, 2.0, 3.0, float(info.max), float(info.tiny), float(info.smallest_subnormal), 1e-30):
        for sign in (1, -1):
            code = int(exponents(np.array([[0, sign * value]], dtype))[0])
            assert Fraction(2) ** (code - 1) <= Fraction(float(dtype(value))) < Fraction(2) ** code


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_codes(dtype: type) -> None:
    rows = np.array([[0, -0.0], [1, np.nan], [np.inf, 0], [-np.inf, np.nan], [-np.nan, 1]], dtype)
    assert exponents(rows).tolist() == [ZERO] + [NONFINITE] * 4


@pytest.mark.parametrize("workers", range(1, 65))
@pytest.mark.parametrize("dtype", FLOATS)
def test_no_sum_overflows(workers: int, dtype: type) -> None:
    """F3: every worker sends the largest value below a power of two, at both ends of the type's range and between."""
    below = np.nextafter(dtype(1), dtype(0))
    for power in (0, 1, -1, 100, -100, math.frexp(float(np.finfo(dtype).max))[1], -120):
        value = np.ldexp(below, power).astype(dtype)
        for x in (value, -value):
            allreduce([np.array([x, x / 3], dtype)] * workers)  # asserts it


@pytest.mark.parametrize("workers", [65, 100, 128, 129, 256, 1000, 1024, 4096])
@pytest.mark.parametrize("dtype", FLOATS)
def test_no_sum_of_a_tree_overflows(workers: int, dtype: type) -> None:
    """F3: all workers at the extremes, alike; beyond 128 of them rounding alone would reach 2**31 in a sum."""
    below = np.nextafter(dtype(1), dtype(0))
    for x in (below, -below, np.ldexp(below, -100), dtype(0.5)):
        scales = Scales(CallShape(np.dtype(dtype), 1, 3, workers))
        row = np.array([[x, -x, x / 3]], dtype)
        scales.agree(0, exponents(row))
        integers = scales.encode(row, ALL)
        limit = 2**31 if dtype == np.float32 else 2**63
        assert all(abs(int(q)) * workers < limit for q in integers[0])
        got = scales.decode(integers * workers, ALL)[0]
        unit = 2.0 ** (int(exponents(row)[0]) + headroom_bits(workers) - (31 if dtype == np.float32 else 62))
        assert abs(float(got[0]) - workers * float(x)) <= workers * unit + abs(workers * float(x)) * np.finfo(dtype).eps


@pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")
@given(st.sampled_from([1, 64, 128, 129, 1000, 4096]), arrays(np.float32, (1, 16), elements=st.floats(width=32)))
def test_words_in_c_are_the_same_for_any_number_of_workers(workers: int, row: NDArray[np.float32]) -> None:
    shape = CallShape(np.dtype(np.float32), 1, 16, workers)
    row[0, 0] = np.nextafter(np.float32(1), np.float32(0))
    words = []
    for coding in (Scales(shape), NativeCodec(FIXED_POINT, shape)):
        coding.agree(0, exponents(row))
        words.append(coding.encode(row, ALL))
    assert words[0].tobytes() == words[1].tobytes()


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 8, 64])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinity_reach_every_rank(workers: int, dtype: type) -> None:
    """F4: on whatever rank and at whatever place, it makes the whole chunk NaN; and without NumPy warnings."""
    for bad in (np.nan, np.inf, -np.inf):
        chunks = [np.linspace(-1e30, 1e30, 5).astype(dtype) for _ in range(workers)]
        chunks[-1][2] = bad
        result, code, integers = allreduce(chunks)
        assert code == NONFINITE
        assert np.isnan(result).all()
        assert all((q == 0).all() for q in integers)


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_and_minus_zero(dtype: type) -> None:
    result, code, _ = allreduce([np.array([0, -0.0], dtype)] * 3)
    assert code == ZERO
    assert result.tolist() == [0, 0]
    assert not np.signbit(result).any()  # F2: -0 comes back as +0


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("workers", [1, 2, 5, 64])
def test_powers_of_two_are_exact_everywhere(dtype: type, workers: int) -> None:
    """Huge, tiny and subnormal chunks keep their values: one power of two per chunk, so each is exact."""
    info = np.finfo(dtype)
    smallest = math.frexp(float(info.smallest_subnormal))[1] - 1
    for power in range(smallest, math.frexp(float(info.max))[1] - 1 - headroom_bits(workers), 7):
        value = np.ldexp(dtype(1), power)
        result, _, _ = allreduce([np.array([value, -value, 0], dtype)] * workers)
        assert result.tolist() == [workers * value, -workers * value, 0]


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_sum_beyond_the_type_is_infinite(dtype: type) -> None:
    largest = np.finfo(dtype).max
    result, _, _ = allreduce([np.array([largest, -largest, 1], dtype)] * 2)
    assert result[0] == np.inf
    assert result[1] == -np.inf


def floats(width: int) -> st.SearchStrategy[list[NDArray[Any]]]:
    element = st.floats(width=width, allow_nan=False, allow_infinity=False)
    dtype = np.dtype(f"float{width}")
    return st.integers(1, 64).flatmap(lambda n: st.lists(arrays(dtype, 4, elements=element), min_size=n, max_size=n))


@given(st.one_of(floats(32), floats(64)))
def test_error_bound(contributions: list[NDArray[Any]]) -> None:
    """F5, in exact arithmetic: n * 2**(e + L - 32 or 63), then one rounding to the float type."""
    dtype = contributions[0].dtype
    result, code, _ = allreduce(contributions)
    exact = [sum((Fraction(float(c[i])) for c in contributions), Fraction(0)) for i in range(4)]
    if code == ZERO:
        assert result.tolist() == [0, 0, 0, 0]
        return
    workers = len(contributions)
    bits = 32 if dtype == np.float32 else 63
    bound = workers * Fraction(2) ** (code + headroom_bits(workers) - bits)
    info = np.finfo(dtype)
    for got, want in zip(result, exact, strict=True):
        if np.isinf(got):
            assert abs(want) + bound > Fraction(float(info.max))
            continue
        # rounding happens at the integer's conversion and, for subnormal results, once more
        rounding = abs(Fraction(float(got))) * Fraction(float(info.eps)) + Fraction(float(info.smallest_subnormal))
        assert abs(Fraction(float(got)) - want) <= bound + rounding
    largest = max(abs(Fraction(float(x))) for c in contributions for x in c)
    assert Fraction(2) ** (code - 1) <= largest < Fraction(2) ** code


@given(
    st.sampled_from([1, 2, 63, 64, 65, 128]).flatmap(
        lambda n: st.lists(
            arrays(np.int64, 3, elements=st.integers(-(2**63), 2**63 - 1)),
            min_size=n,
            max_size=n,
        )
    ),
    st.integers(9, 12),
)
def test_limbs_sum_exactly(contributions: list[NDArray[np.int64]], elements: int) -> None:
    """F6: limbs never carry out of 32 bits with up to 128 workers, and recombine to the sum modulo 2**64."""
    width = elements // 3
    limbs = [to_limbs(np.resize(c, (1, width)), elements) for c in contributions]
    exact = np.sum([part.astype(np.int64) for part in limbs], axis=0)
    assert exact.min() >= 0
    assert exact.max() < 2**32
    got = from_limbs(exact.astype(np.uint32).view(np.int32))
    want = [sum(int(np.resize(c, width)[i]) for c in contributions) for i in range(width)]
    assert [(int(g) - w) % 2**64 for g, w in zip(got[0], want, strict=True)] == [0] * width


def test_the_most_workers_that_limbs_sum() -> None:
    """F6: every bit set, by the most workers; one more is refused."""
    ones = to_limbs(np.full((1, 1), -1), 3)
    total = (ones.astype(np.int64) * 128).astype(np.uint32).view(np.int32)
    assert from_limbs(total).tolist() == [[-128]]
    for dtype in (np.int64, np.float64):
        array_call(np.zeros(3, dtype), "sum", JobConfig(1, 1, 128, 9, (StreamConfig(0, 1),)))
        with pytest.raises(ValueError, match="exact for at most 128 workers, not 129"):
            array_call(np.zeros(3, dtype), "sum", JobConfig(1, 1, 129, 9, (StreamConfig(0, 1),)))


def test_headroom() -> None:
    assert [headroom_bits(n) for n in (1, 2, 3, 4, 5, 8, 9, 33, 64, 4096)] == [0, 1, 2, 2, 3, 3, 4, 6, 6, 12]


def test_codes_out_of_range_count_as_nonfinite_or_zeros() -> None:
    """Codes outside the documented range, as only a broken worker sends them, are taken for NONFINITE or ZERO."""
    scales = Scales(CallShape(np.dtype(np.float32), 3, 2, 2))
    scales.agree(0, np.array([2**31 - 1, -(2**31), 5000], np.int32))
    assert scales.encode(np.zeros((3, 2), np.float32), slice(0, 3)).tolist() == [[0, 0]] * 3
    assert np.isnan(scales.decode(np.zeros((3, 2), np.int32), slice(0, 3))[0]).all()
