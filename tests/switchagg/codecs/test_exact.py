"""Codec `exact` (F19 to F21) against sums of fractions, in NumPy and in C."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from switchagg.codecs.array_codec import SUM, ArrayShape, SumTerms
from switchagg.codecs.codec import LEAST_CODE
from switchagg.codecs.exact.exact import ExactSums
from switchagg.codecs.exact.groups import GROUP, TYPES, WORKERS_MOST
from switchagg.codecs.exact.nearest import Rounding
from switchagg.description import shard_range
from switchagg.native.library import missing
from switchagg.native.native_exact import NativeExactSums
from tests.oracles.correct_rounding import combined

IN_C = pytest.param(NativeExactSums(), id="native", marks=pytest.mark.skipif(bool(missing()), reason=missing() or "-"))
BOTH = pytest.mark.parametrize("codec", [pytest.param(ExactSums(), id="NumPy"), IN_C])


def summed(codec: ExactSums, arrays: Sequence[Any], terms: SumTerms = SUM, alike: int = 1) -> list[Any]:
    """What each rank has; words are summed as numbers without a bound, which must not be needed. alike: ranks that have
    the last array: one codes for all of them."""
    results = [array.copy() for array in arrays]
    ranks = [1] * (len(arrays) - 1) + [alike]
    shapes = [ArrayShape((), rank, sum(ranks), 0, 0, 0, terms) for rank in range(len(arrays))]
    calls = [codec.rounds_of(array, None, shape, ()) for array, shape in zip(results, shapes, strict=True)]
    for steps in zip(*calls, strict=True):
        if steps[0].op == "max":
            total = np.max([step.array for step in steps], axis=0)
        else:
            wide = sum(
                count * step.array.view(np.uint32).astype(np.int64) for count, step in zip(ranks, steps, strict=True)
            )
            assert (wide < 1 << 32).all(), "a word wraps"
            total = wide.astype(np.uint32).view(np.int32)
        for step in steps:
            step.array[:] = total
    return results


def check(codec: ExactSums, arrays: Sequence[Any], terms: SumTerms = SUM, alike: int = 1) -> None:
    results = summed(codec, arrays, terms, alike)
    of_ranks = [*arrays, *arrays[-1:] * (alike - 1)]
    name, divisor = terms.target or arrays[0].dtype.name, len(of_ranks) if terms.op == "avg" else 1
    want = combined(of_ranks, name, divisor)
    for result in results:
        assert result.tobytes() == want.tobytes(), (result[result != want], want[result != want])


def to_type(values: Any, name: str) -> Any:
    """Of a narrower type, in its wider array."""
    if name == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) if name == "bfloat16" else values


@st.composite
def gradients(draw: Callable[..., Any], most: int = 64) -> list[Any]:
    """Of 2 to `most` ranks: spans of any size, zeros, groups of zeros, numbers that cancel, extremes, now and then what
    is not finite."""
    workers, size = draw(st.integers(2, most)), draw(st.sampled_from([0, 1, 2, 63, 64, 65, 128, 200, 331]))
    dtype = draw(st.sampled_from([np.float32, np.float32, np.float64]))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    info, spread = np.finfo(dtype), draw(st.sampled_from([0, 4, 12, 40, 2000]))
    low, high = max(info.minexp - info.nmant, -spread), min(info.maxexp - 1, spread)
    shape = workers, size
    with np.errstate(over="ignore"):
        values = np.ldexp(random.standard_normal(shape), random.integers(low, high + 1, shape)).astype(dtype)
    if draw(st.booleans()):
        values[random.random(shape) < 0.7] = 0
        values[:, GROUP : 2 * GROUP] = random.choice([0.0, -0.0], (workers, 1))
    if draw(st.booleans()):  # what is left of sums is far below the addends
        values[1] = -values[0]
    if draw(st.booleans()):
        extremes = [info.max, -info.max, info.tiny, info.smallest_subnormal, -info.smallest_subnormal, 0.0, -0.0]
        values = np.where(random.random(shape) < 0.1, random.choice(np.array(extremes, dtype), shape), values)
    if draw(st.integers(0, 3)) == 0:
        specials = random.choice(np.array([np.inf, -np.inf, np.nan], dtype), shape)
        values = np.where(random.random(shape) < 0.02, specials, values)
    return list(values)


@BOTH
@given(gradients(), st.sampled_from(["sum", "avg"]), st.sampled_from(["", "", "bfloat16", "float16"]))
def test_sums_are_correctly_rounded(codec: ExactSums, arrays: list[Any], op: str, target: str) -> None:
    target = target if arrays[0].dtype == np.float32 else ""
    with np.errstate(invalid="ignore"):
        check(codec, [to_type(array, target) for array in arrays], SumTerms(op=op, target=target))


@BOTH
@given(st.lists(st.lists(st.floats(width=32), min_size=2, max_size=2), min_size=1, max_size=5))
@example([[2.0**24, 2.0**24 + 2], [1.0, 1.0]])
@example([[2.0**24, -(2.0**24)], [1.0, -1.0], [2.0**-149, -(2.0**-149)]])
@example([[3.4028234663852886e38], [2.0**103]])  # half a unit of the greatest number: infinite
@example([[3.4028234663852886e38], [2.0**102]])
@example([[-0.0], [-0.0]])
def test_any_values(codec: ExactSums, rows: list[list[float]]) -> None:
    arrays = [np.array(row, np.float32) for row in rows]
    check(codec, arrays)
    check(codec, arrays, SumTerms(op="avg"))


@BOTH
@pytest.mark.parametrize(
    ("addends", "target", "result"),
    [
        ((2.0**24, 1.0), "", 2.0**24),
        ((2.0**24 + 2, 1.0), "", 2.0**24 + 4),
        ((2.0**24, 1.0, 2.0**-149), "", 2.0**24 + 2),
        ((2.0**24 + 2, 1.0, -(2.0**-149)), "", 2.0**24 + 2),
        ((256.0, 1.0), "bfloat16", 256.0),
        ((258.0, 1.0), "bfloat16", 260.0),
        ((256.0, 1.0, 2.0**-133), "bfloat16", 258.0),
        ((65504.0, 15.0), "float16", 65504.0),
        ((65504.0, 16.0), "float16", math.inf),
        ((2.0**-24, 2.0**-24), "float16", 2.0**-23),
        ((1e8, 1.0, -1e8, 1.0), "", 2.0),
        ((math.inf, -1.0), "", math.inf),
        ((math.inf, -math.inf), "", math.nan),
        ((math.nan, math.inf), "", math.nan),
    ],
)
def test_by_hand(codec: ExactSums, addends: tuple[float, ...], target: str, result: float) -> None:
    """Each beside others whose group needs vectors, and one that needs many words."""
    for neighbour in (1.0, 1e30):
        arrays = [np.full(200, neighbour, np.float32) for _ in addends]
        for array, addend in zip(arrays, addends, strict=True):
            array[[5, 70, -1]] = addend
        (first, *_) = summed(codec, arrays, SumTerms(target=target))
        assert first[[5, 70, -1]].tobytes() == np.full(3, result, np.float32).tobytes()


@BOTH
@pytest.mark.parametrize("workers", [3, 49, 255])
@pytest.mark.parametrize("bits", [25, 40, 48, 55])
def test_means_are_rounded_once(codec: ExactSums, workers: int, bits: int) -> None:
    """Means at, just below and just above the middle between two numbers, which a rounded quotient may hide."""
    arrays = [np.ones(130, np.float32) for _ in range(workers)]  # vectors need words behind a group's own
    for array in arrays:
        array[:GROUP] = 0
    for number in range(12):
        middle = (1 << bits) - (2 * number + 1 << bits - 25)
        for below in (-1, 0, 1):
            total = workers * middle + below
            for array in arrays[:3]:
                array[3 * number + below + 1] = part = np.float32(total >> 24 << 24 if abs(total) >> 24 else total)
                total -= int(part)
            assert total == 0
    check(codec, arrays, SumTerms(op="avg"))
    arrays[0][70] = arrays[0][10] = 1e30
    check(codec, arrays, SumTerms(op="avg"))


@BOTH
@given(gradients(5), st.integers(0, 1 << 32))
def test_bits_follow_from_values_alone(codec: ExactSums, arrays: list[Any], seed: int) -> None:
    """The same alone, cut, beside any neighbours, in any order of ranks, with ranks of zeros."""
    random = np.random.default_rng(seed)
    with np.errstate(invalid="ignore"):
        whole = summed(codec, arrays)[0]
        cut = int(random.integers(0, len(whole) + 1))
        parts = [summed(codec, [array[part] for array in arrays])[0] for part in (slice(cut), slice(cut, None))]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
        wild = np.ldexp(random.standard_normal((len(arrays), 77)), random.integers(-100, 100, 77)).astype(whole.dtype)
        beside = summed(codec, [np.concatenate([other, array]) for other, array in zip(wild, arrays, strict=True)])[0]
        assert beside[77:].tobytes() == whole.tobytes()
        others = [arrays[rank] for rank in random.permutation(len(arrays))] + [np.zeros_like(whole)] * int(seed % 9)
        assert summed(codec, others)[0].tobytes() == whole.tobytes()


@BOTH
@given(gradients(7), st.sampled_from([1, 2]), st.sampled_from(["sum", "avg"]))
def test_a_reduce_scatter_gives_each_rank_its_shard(codec: ExactSums, arrays: list[Any], unit: int, op: str) -> None:
    size, workers = len(arrays[0]) // unit, len(arrays)
    arrays = [array[: size * unit] for array in arrays]
    with np.errstate(invalid="ignore"):
        want = summed(codec, arrays, SumTerms(op=op))[0]
        results = summed(codec, arrays, SumTerms("reduce_scatter", op, unit=unit))
    for rank, result in enumerate(results):
        low, high = (unit * end for end in shard_range(size, rank, workers))
        assert result[low:high].tobytes() == want[low:high].tobytes()


@BOTH
@given(gradients(9))
def test_sums_of_float64_are_those_of_fsum(codec: ExactSums, arrays: list[Any]) -> None:
    arrays = [np.nan_to_num(array.astype(np.float64), posinf=0, neginf=0) / 16 for array in arrays]
    result = summed(codec, arrays)[0]
    assert result.tolist() == [math.fsum(column) for column in zip(*arrays, strict=True)]


@BOTH
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_widest_group_of_the_largest_job(codec: ExactSums, dtype: Any) -> None:
    """All digits of all ranks as large as they can be: no word wraps, no lane carries."""
    info = np.finfo(dtype)
    arrays = [np.full(GROUP + 1, info.max, dtype) for _ in range(3)]
    arrays[0][-1], arrays[1][0] = info.smallest_subnormal, -info.smallest_subnormal
    check(codec, arrays, alike=WORKERS_MOST - 2)
    check(codec, [-array for array in arrays], SumTerms(op="avg"), alike=WORKERS_MOST - 2)


Lists = list[list[int]]
WORDS_BY_HAND: list[tuple[list[float], Lists, list[int]]] = [
    # S + 1 = 4 bits in lanes of 5: 12 and 5
    ([1.0, -0.75], [[1], [2]], [12 | 5 << 5]),
    # 41 bits: 31 of a word, 10 in lanes of 11; 2**40 + 2**39 and 2**40 + 1
    ([2.0**20, 2.0**-19], [[21], [19]], [0, 1, 768 | 512 << 11]),
    # 19 bits: 15 in lanes of 16, 4 in lanes of 5; 2**18 + 2**17 and 2**18 + 1
    ([1.0, 2.0**-17], [[1], [17]], [0 | 1 << 16, 12 | 8 << 5]),
    # 129 bits, four words and 5 in lanes of 6, then kinds; 2**128 and 2**128 + 1
    ([-np.inf, 1.0], [[4096], [0]], [0, 1, 0, 0, 0, 0, 0, 0, 16 | 16 << 6, 1 << 10, 0]),
    ([np.nan, 0.0], [[4096], [-32768]], [1 << 20, 0]),
    ([0.0, -0.0], [[-32768], [-32768]], []),
]


@BOTH
@pytest.mark.parametrize(("values", "codes", "words"), WORDS_BY_HAND)
def test_words_of_two_ranks_by_hand(codec: ExactSums, values: list[float], codes: Lists, words: list[int]) -> None:
    array = np.array(values, np.float32)
    assert codec.codes(array).tolist() == codes
    assert codec.encode(array, np.array(codes, np.int32), 2).tolist() == words


NEEDS_C = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
JOBS = st.sampled_from([1, 2, 4, 5, 64, 1023])


@NEEDS_C
@given(gradients(), JOBS, st.integers(0, 40), st.sampled_from(["float32", "bfloat16", "float16"]), st.booleans())
def test_native_gives_the_bits_of_numpy(arrays: list[Any], workers: int, wider: int, target: str, mean: bool) -> None:
    """Codes; words under agreed codes beyond this rank's own; results of sums."""
    numpy, native, array = ExactSums(), NativeExactSums(), arrays[0]
    name = target if array.dtype == np.float32 else "float64"
    rounding = Rounding(TYPES[name], workers if mean else 1)
    assert native.codes(array).tolist() == numpy.codes(array).tolist()
    codes = np.maximum.reduce([numpy.codes(other) for other in arrays])
    codes[codes > LEAST_CODE] += wider
    words = numpy.encode(array, codes, workers)
    assert native.encode(array, codes, workers).tolist() == words.tolist()
    sums = words * np.int32(workers)
    results = np.full((2, len(array)), 7, array.dtype)
    for codec, result in zip((numpy, native), results, strict=True):
        codec.decode(sums, codes, result, workers, rounding)
    assert results[0].tobytes() == results[1].tobytes()


@NEEDS_C
@given(st.integers(0, 1 << 32), st.sampled_from([np.float32, np.float64]), JOBS)
def test_native_survives_codes_and_words_of_no_rank(seed: int, dtype: Any, workers: int) -> None:
    """What a faulty switch may send: as many words as in NumPy, and no crash."""
    random, native = np.random.default_rng(seed), NativeExactSums()
    array = random.integers(0, 256, 150 * np.dtype(dtype).itemsize, np.uint8).view(dtype)
    ends = np.array([-(1 << 31), (1 << 31) - 1, 4096, 128, -149, LEAST_CODE], np.int32)
    codes = random.integers(-200, 200, (2, 3), np.int32)
    codes = np.where(random.random((2, 3)) < 0.3, random.choice(ends, (2, 3)), codes)
    words = native.encode(array, codes, workers)
    assert len(words) == len(ExactSums().encode(array, codes, workers))
    words = random.integers(-(1 << 31), 1 << 31, len(words)).astype(np.int32)
    native.decode(words, codes, array, workers, Rounding(TYPES[array.dtype.name], workers))


@BOTH
def test_codes_below_a_ranks_own_are_refused(codec: ExactSums) -> None:
    rounds = codec.rounds_of(np.ones(3, np.float32), None, ArrayShape((), 0, 2, 0, 0, 0), ())
    next(rounds).array[:] -= 1
    with pytest.raises(ValueError, match="what carries the sums is faulty"):
        next(rounds)


def test_more_workers_than_a_special_word_counts_are_refused() -> None:
    assert ExactSums().fault(WORKERS_MOST) == ""
    assert "can't sum 1024 workers exactly; at most 1023" in ExactSums().fault(1024)
