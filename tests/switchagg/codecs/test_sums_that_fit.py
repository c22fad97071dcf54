"""No honest sum of a codec's 32-bit words wraps in the reading that verified sums have of it (V3); `split` and F18."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchagg.calls.array_calls import array_call, chunked_call, share_of_chunks
from switchagg.calls.chunked_call import row_of
from switchagg.codecs import CODECS, NARROW, RAW, SPLIT, Array, CallShape, Codec
from switchagg.codecs.limbs import WORKERS_MOST, to_limbs
from switchagg.codecs.wide_fixed_point import WideFixedPoint, to_words
from switchagg.job import MAX_VERIFIED, JobConfig, StreamConfig
from switchagg.native import headers
from switchagg.native.library import missing
from switchagg.native.native_codec import NativeCodec, begin
from switchagg.wire import Op

INT32, FLOAT32 = np.dtype(np.int32), np.dtype(np.float32)
WIDE = WideFixedPoint()
SUMMED = [
    (codec, dtype)
    for codec in (*(codec for codec in CODECS.values() if codec.adds and not codec.variants), WIDE, SPLIT)
    for dtype in codec.dtypes
    if (codec, dtype) != (CODECS["plain"], INT32)  # their sums may wrap: `split` is for those
]


def extreme(dtype: "np.dtype[Any]", size: int, rng: np.random.Generator) -> Array:
    """Values at both ends of a type, and of any size between."""
    if dtype.kind == "i":
        limits = np.iinfo(dtype)
        ends = np.array([limits.min, limits.max, -1, 0, 1], dtype)
        return np.where(rng.random(size) < 0.5, rng.choice(ends, size), rng.integers(limits.min, limits.max, size))
    powers = rng.integers(-10, 11, size) if rng.random() < 0.5 else rng.integers(-140, 128, size)
    mantissas = rng.choice([1.0, 2 - 2.0**-23, 1.5, 0.0], size)
    return (rng.choice([-1, 1], size) * np.ldexp(mantissas, powers)).astype(dtype)


def words_of_ranks(codec: Codec, dtype: "np.dtype[Any]", workers: int, room: int, seed: int) -> list[Array]:
    """Each rank's words (rows, room) of a call, under codes that all agree on."""
    rng, rows = np.random.default_rng(seed), 3
    codec = codec.for_workers(workers)
    words, width = (room // 2, room // 2) if codec is WIDE else row_of(dtype, room, codec)
    values = [extreme(dtype, rows * width, rng).astype(dtype).reshape(rows, width) for _ in range(workers)]
    if rng.random() < 0.5:  # all at the same end
        values = [values[0]] * workers
    codings = [codec.begin(CallShape(dtype, rows, words, workers, key=rank)) for rank in range(workers)]
    if codec.rounds:
        agreed = np.max([c.prepare(v, slice(0, rows)) for c, v in zip(codings, values, strict=True)], axis=0)
        for coding in codings:
            coding.agree(0, agreed)
    encoded = [coding.encode(row_values, slice(0, rows)) for coding, row_values in zip(codings, values, strict=True)]
    if codec is WIDE:
        return [to_words(words, room, workers) for words in encoded]
    return [to_limbs(np.ascontiguousarray(words), room) if words.itemsize == 8 else words for words in encoded]


@pytest.mark.parametrize(("codec", "dtype"), SUMMED, ids=[f"{codec.name}-{dtype}" for codec, dtype in SUMMED])
@given(workers=st.sampled_from([1, 2, 3, 4, 5, 8, 64, 127, 128]), room=st.integers(8, 40), seed=st.integers(0, 1 << 32))
def test_honest_sums_do_not_wrap(codec: Codec, dtype: "np.dtype[Any]", workers: int, room: int, seed: int) -> None:
    if codec.fault(workers) or (codec is WIDE and workers > 64):
        return
    encoded = words_of_ranks(codec, dtype, workers, room, seed)
    signed = codec.signed_words and (codec is WIDE or codec.word(dtype).itemsize == 4)
    read = np.int32 if signed else np.uint32
    exact = np.sum([words.view(read).astype(np.int64) for words in encoded], axis=0)
    assert np.iinfo(read).min <= exact.min()
    assert exact.max() <= np.iinfo(read).max
    wire = np.sum([words.view(np.uint32) for words in encoded], axis=0, dtype=np.uint32)
    assert (wire.view(read) == exact).all()


@given(
    workers=st.sampled_from([1, 2, 3, 4, 5, 16, 17, 64, 65, 300, MAX_VERIFIED]),
    words=st.integers(2, 60),
    seed=st.integers(0, 1 << 32),
)
def test_split_sums_are_those_of_the_values(workers: int, words: int, seed: int) -> None:
    """By F18: exact modulo 2**32, and a row's parts fit it."""
    codec, rng = SPLIT.for_workers(workers), np.random.default_rng(seed)
    width = codec.row_values(INT32, words)
    values = [extreme(INT32, 2 * width, rng).astype(np.int32).reshape(2, width) for _ in range(min(workers, 40))]
    values += [values[0]] * (workers - len(values))  # as many as there may be, all alike
    coding = codec.begin(CallShape(INT32, 2, words, workers))
    encoded = {id(row): coding.encode(row, slice(0, 2)) for row in values}
    exact = np.zeros((2, words), np.int64)
    for row in values:
        exact += encoded[id(row)].view(np.uint32)
    assert exact.max() < 1 << 32
    expected = np.sum(values, axis=0, dtype=np.int64).astype(np.uint32).view(np.int32)
    assert (coding.decode(exact.astype(np.uint32).view(np.int32), slice(0, 2)) == expected).all()


def test_split_by_hand() -> None:
    """F18 with 3 workers: L = 2, lanes of 4 bits, k = 8; 9 words hold 8 values and one word of lanes."""
    coding, codec = SPLIT.begin(CallShape(INT32, 1, 9, 3)), SPLIT.for_workers(3)
    assert codec.row_values(INT32, 9) == 8
    values = np.array([[-1, 0, 1, -(1 << 31), (1 << 31) - 1, 5, 1 << 30, -2]], np.int32)
    low = (1 << 30) - 1
    lanes = 3 | 0 << 4 | 0 << 8 | 2 << 12 | 1 << 16 | 0 << 20 | 1 << 24 | 3 << 28
    words = [low, 0, 1, 0, low, 5, 0, low - 1, lanes]
    assert coding.encode(values, slice(0, 1)).view(np.uint32)[0].tolist() == words


def verified(workers: int, elements: int = 24, verify: str = "on") -> JobConfig:
    return JobConfig(1, 1, workers, elements, (StreamConfig(0, 8),), verify=verify)


def test_which_codec_a_verified_call_has() -> None:
    integers = np.zeros(9, np.int32)
    assert array_call(integers, "sum", verified(4)).codec is SPLIT.for_workers(4)
    assert array_call(integers, "sum", verified(4), NARROW).codec is NARROW
    assert array_call(integers, "max", verified(4)).codec is CODECS["plain"]
    assert array_call(integers, "sum", verified(4, verify="off")).codec is CODECS["plain"]
    assert array_call(np.zeros(9, np.int64), "sum", verified(4)).codec is CODECS["plain"]
    assert not RAW.signed_words


def test_rows_leave_room_for_tags() -> None:
    """V4: 21 of 24 elements carry a sum; a maximum has all."""
    job, floats = verified(4), np.zeros(210, np.float32)
    assert chunked_call(array_call(floats, "sum", job), job).chunks == 10 + 1
    assert chunked_call(array_call(np.zeros(48, np.int32), "max", job), job).chunks == 2
    assert share_of_chunks(FLOAT32, 24, CODECS["fixed_point"], 3) == 21 / 24 * 24 / 25
    assert share_of_chunks(INT32, 24, CODECS["fixed_point"], 3, 4) == 18 / 24  # 21 * 8 // 9
    assert array_call(floats, "sum", job).op is Op.SUM
    assert WORKERS_MOST < MAX_VERIFIED


def test_jobs_that_cannot_be_verified() -> None:
    with pytest.raises(ValueError, match="verified sums need more than 3 elements, not 3"):
        verified(4, 3)
    with pytest.raises(ValueError, match="verified sums of 2049 workers: 1 to 2048"):
        verified(2049)
    with pytest.raises(ValueError, match="verify 'maybe' is unknown; allowed: auto, on, off"):
        verified(2, verify="maybe")
    assert verified(2, 3, "auto").tag_elements == verified(2, 3, "off").tag_elements == 0


@pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")
@given(
    codec=st.sampled_from([SPLIT, NARROW]),
    workers=st.sampled_from([1, 2, 3, 4, 5, 16, 17, 64, 65, 300, MAX_VERIFIED]),
    words=st.integers(2, 60),
    seed=st.integers(0, 1 << 32),
)
def test_integers_are_the_same_bits_in_c(codec: Codec, workers: int, words: int, seed: int) -> None:
    """F18: words of any values, and values of any sums, which honest ranks need not have made."""
    codec, rng = codec.for_workers(workers), np.random.default_rng(seed)
    shape = CallShape(INT32, 2, words, workers)
    python, native = codec.begin(shape), NativeCodec(codec, shape)
    values = extreme(INT32, 2 * codec.row_values(INT32, words), rng).astype(np.int32).reshape(2, -1)
    sums = rng.integers(-(1 << 31), 1 << 31, (2, words)).astype(np.int32)
    everything = slice(0, 2)
    assert (native.encode(values, everything) == python.encode(values, everything)).all()
    assert (native.decode(sums, everything) == python.decode(sums, everything)).all()


@pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")
def test_words_are_read_alike_in_c() -> None:
    for codec, dtype in (*SUMMED, (NARROW, INT32), (RAW, np.dtype(np.uint8))):
        coding = begin(codec.for_workers(2), dtype, 24, 2)
        assert headers.struct("sa_codec").from_address(coding.codec).signed_words == codec.signed_words
