"""codecs.constant (F22): fixed point under a known exponent, NaN where a value doesn't fit, and no codes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from switchagg.calls.array_calls import array_call, chunked_call
from switchagg.calls.chunked_call import row_of
from switchagg.codecs import CODECS, CallShape
from switchagg.codecs.codec import FLOAT32
from switchagg.codecs.constant import EXPONENTS
from switchagg.codecs.fixed_point import Scales, headroom_bits
from switchagg.job import JobConfig, StreamConfig
from switchagg.native.library import missing
from switchagg.native.native_codec import NativeCodec
from switchagg.wire import Op, kind_of

WORDS = 12
NAMES = [f"constant{exponent}" for exponent in EXPONENTS]


def sums(name: str, ranks: list[NDArray[Any]]) -> NDArray[Any]:
    """Of rows (k, width) of each rank, as integers wrap."""
    codec, dtype, rows = CODECS[name], ranks[0].dtype, len(ranks[0])
    shape = CallShape(dtype, rows, WORDS, len(ranks))
    words = sum(codec.begin(shape).encode(values, slice(0, rows)) for values in ranks)
    decoded: NDArray[Any] = codec.begin(shape).decode(np.asarray(words), slice(0, rows))
    return decoded


@given(
    st.sampled_from(EXPONENTS),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([1, 2, 3, 128, 300]),
    st.integers(0, 1 << 32),
)
def test_what_fits_is_fixed_point_under_that_code(exponent: int, dtype: Any, workers: int, seed: int) -> None:
    """The same bits as F2 with this as the agreed code, within F5."""
    rng, rows = np.random.default_rng(seed), 3
    ranks = [(rng.uniform(-1, 1, (rows, WORDS - 1)) * 2.0**exponent).astype(dtype) for _ in range(workers)]
    ranks[0][0, 0] = np.nextafter(dtype(2.0**exponent), dtype(0))
    known = Scales(CallShape(np.dtype(dtype), rows, WORDS - 1, workers))
    known.agree(0, np.full(rows, exponent, np.int32))
    words = sum(known.encode(values, slice(0, rows)) for values in ranks)
    result = sums(f"constant{exponent}", ranks)
    assert (result == known.decode(words, slice(0, rows))).all()
    error = 2 * workers * 2.0 ** (exponent + headroom_bits(workers) - (32 if dtype is np.float32 else 63))
    exact = np.sum([values.astype(np.longdouble) for values in ranks], axis=0)
    assert (abs(result - exact) <= error + abs(exact) * float(np.finfo(dtype).eps)).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("factor", [1.0, -1.0, 1e30, np.nan, np.inf, -np.inf])
def test_a_row_with_a_value_that_does_not_fit_is_nan_on_all_ranks(name: str, dtype: Any, factor: float) -> None:
    """Its other values, and other rows, show nothing and lose nothing."""
    ranks = [np.full((2, WORDS - 1), 0.5, dtype) for _ in range(4)]
    for count in (1, 4):
        for values in ranks[:count]:
            values[1, 3] = factor * 2.0 ** float(name.removeprefix("constant"))
        result = sums(name, ranks)
        assert np.isnan(result[1]).all()
        assert (result[0] == 2).all()
    words = CODECS[name].begin(CallShape(np.dtype(dtype), 2, WORDS, 4)).encode(ranks[0], slice(0, 2))
    assert words[1].tolist() == [0] * (WORDS - 1) + [1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_call_has_data_chunks_alone(name: str, dtype: Any) -> None:
    job = JobConfig(1, 1, 3, WORDS, (StreamConfig(0, 8),))
    words, width = row_of(np.dtype(dtype), WORDS, CODECS[name])
    assert width == words - 1
    call = chunked_call(array_call(np.zeros(5 * width, dtype), "sum", job, CODECS[name]), job)
    assert call.chunks == call.ready_chunks == 5
    assert {call.kind(position) for position in range(5)} == {kind_of(Op.SUM, 0)}


@pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")
@pytest.mark.parametrize("name", NAMES)
@given(st.sampled_from([1, 3, 64, 300]), st.integers(0, 1 << 32))
def test_c_gives_the_bits_of_python(name: str, workers: int, seed: int) -> None:
    """Whole and short rows, and some values of each row that don't fit."""
    codec, rng = CODECS[name], np.random.default_rng(seed)
    for elements in (WORDS, 37, 357):
        _, width = row_of(FLOAT32, elements, codec)
        values = np.zeros((3, width), np.float32)
        count = 2 * width + int(rng.integers(1, width + 1))
        values.reshape(-1)[:count] = rng.standard_normal(count) * 10.0 ** rng.integers(-6, 5)
        values.reshape(-1)[rng.integers(0, count, 2)] = rng.choice([np.nan, np.inf, 1e9, 0.0])
        shape = CallShape(FLOAT32, 3, elements, workers)
        python, native = codec.begin(shape), NativeCodec(codec, shape)
        encoded = python.encode(values, slice(0, 3))
        assert (native.encode(values, slice(0, 3)) == encoded).all()
        got, expected = native.decode(encoded, slice(0, 3)), python.decode(encoded, slice(0, 3))
        assert got.tobytes() == expected.tobytes()
