"""codecs.rotated, and the same in C: F14 and F15."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from switchagg.codecs import CallShape, codec_named
from switchagg.codecs.array_codec import Tensor
from switchagg.codecs.codec import GREATEST_CODE, LEAST_CODE
from switchagg.codecs.compression import Compression
from switchagg.codecs.rotated.rotation import Rotation, rotation_of
from switchagg.codecs.rotated.rows import REACH
from switchagg.codecs.rotated.thc import TABLE, UNIFORM, Thc
from switchagg.codecs.rounding import call_key
from switchagg.codecs.spec import parse_codec
from switchagg.endpoint import Endpoint
from switchagg.job import JobConfig, StreamConfig
from switchagg.lockstep import sum_together
from switchagg.native.library import missing
from switchagg.native.native_endpoint import NativeEndpoint
from tests.switchagg.codecs.test_lanes import (
    AWKWARD,
    FLOAT32,
    LARGEST,
    back_in_c,
    by_rounds,
    in_c,
    inputs,
    needs_core,
    rows_of,
    through_a_switch,
)

ROTATED = ["rotated16", "rotated10", "rotated8", "rotated6", "rotated5", "rotated4", "thc", "thc_table"]
EVERY_CODEC = pytest.mark.parametrize("codec", [codec_named(name) for name in ROTATED], ids=lambda codec: codec.name)


def most_workers(codec: Any) -> int:
    return max(workers for workers in range(1, 65) if not codec.fault(workers))


# ---- the rotation (F14)


def as_written(values: list[float]) -> list[float]:
    """F14 for one row, in plain numbers."""

    def sign(number: int, index: int) -> int:
        x = number + index // 32
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        return -1 if (x ^ x >> 16) >> index % 32 & 1 else 1

    def mix(first: int, end: int, apart: int, below: int) -> None:
        while apart < below:
            for i in range(first, end):
                if (i - first) // apart % 2 == 0:
                    row[i], row[i + apart] = row[i] + row[i + apart], row[i] - row[i + apart]
            apart *= 2

    width = len(values)
    inner = next(width & -width for _ in values)
    outer = inner
    while 2 * outer <= width:
        outer *= 2
    row = [sign(1, i) * value / outer**0.5 for i, value in enumerate(values)]
    mix(0, width, 1, inner)
    mix(0, outer, inner, outer)
    if outer < width:
        for i in range(2 * outer - width):
            row[width - outer + i] *= sign(1 << 16, i) / (outer // inner) ** 0.5
        mix(width - outer, width, inner, outer)
    return row


WIDTHS = [1, 2, 3, 8, 11, 24, 90, 128, 360, 1440, 1441]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_rotation_is_as_written_keeps_the_norm_and_has_an_inverse(width: int) -> None:
    values = np.random.default_rng(width).standard_normal((2, width)).astype(np.float32)
    one, rotation = np.ones((2, 1)), Rotation(width)
    rotated = rotation.rotated(values, one)
    assert rotated[0] == pytest.approx(np.array(as_written(values[0].tolist())), abs=1e-5)
    assert np.linalg.norm(rotated[1]) == pytest.approx(np.linalg.norm(values[1]), rel=1e-6)
    assert rotation.back(rotated, one) == pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize("width", [720, 1080, 1440, 1441, 1800, 2160, 2880])
def test_one_huge_value_is_spread_over_its_row(width: int) -> None:
    """From wherever it is. Without signs between the two transforms one would half undo the other."""
    spikes = np.eye(width, dtype=np.float32)[:: width // 90]
    rotated = rotation_of(width).rotated(spikes, np.ones((len(spikes), 1))) * np.sqrt(width)
    assert np.abs(rotated).max() < 5
    assert (rotated**4).mean(axis=1).max() < 3.2, "as if normally distributed: 3"


# ---- Python and C


@needs_core
@EVERY_CODEC
@pytest.mark.filterwarnings("ignore:.* encountered")
@settings(max_examples=40)
@given(st.data())
def test_c_gives_the_same_bits(codec: Any, data: st.DataObject) -> None:
    """Any bits as values, any agreed codes no less than the own ones, any sums, any widths."""
    words = data.draw(st.sampled_from([1, 3, 8, 17, 64, 90]))
    workers = data.draw(st.integers(1, most_workers(codec)))
    size = data.draw(st.integers(1, 3 * words * codec.values_per_word(FLOAT32) + 1))
    seed = data.draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2**32, size, np.uint32)
    near = random.standard_normal(size).astype(np.float32)
    values = data.draw(
        st.sampled_from([bits.view(np.float32), near, np.ldexp(near, (bits % 280).astype(np.int32) - 150)])
    )
    rows, key = rows_of(codec, values, words), data.draw(st.integers(0, 2**64 - 1))
    every = slice(0, len(rows))
    coding = codec.begin(CallShape(FLOAT32, every.stop, words, workers, key))
    own = coding.prepare(rows, every)
    codes = np.maximum(own, data.draw(arrays(np.int32, every.stop, elements=st.integers(LEAST_CODE, GREATEST_CODE))))
    if data.draw(st.booleans()):
        codes = own
    coding.agree(0, codes)
    found, payload = in_c(codec, values, codes, words, workers, key)
    assert found.tolist() == own.tolist()
    assert payload.tobytes() == coding.encode(rows, every).tobytes()
    assert payload[-1:].tobytes() == coding.encode(rows[-1:], [every.stop - 1]).tobytes(), "a row sent again"
    sums = data.draw(arrays(np.int32, (every.stop, words), elements=st.integers(-(2**31), 2**31 - 1)))
    want = coding.decode(sums, every).reshape(-1)[:size]
    assert back_in_c(codec, sums, size, codes, workers).tobytes() == want.tobytes()


@needs_core
@EVERY_CODEC
def test_long_arrays_are_the_same_bits(codec: Any) -> None:
    """As wide as packets are, and longer than what NumPy encodes at once."""
    values = np.random.default_rng(2).standard_normal(70_005).astype(np.float32)
    for words in (256, 360, 2240):
        rows = rows_of(codec, values, words)
        every = slice(0, len(rows))
        coding = codec.begin(CallShape(FLOAT32, every.stop, words, 4, 99))
        codes = coding.prepare(rows, every)
        coding.agree(0, codes)
        sums = coding.encode(rows, every)
        assert in_c(codec, values, codes, words, 4, 99)[1].tobytes() == sums.tobytes()
        back = back_in_c(codec, sums, len(values), codes, 4)
        assert back.tobytes() == coding.decode(sums, every).reshape(-1)[: len(values)].tobytes()


# ---- words by hand


def test_words_by_hand() -> None:
    """F14. A row of 4 in 16 bits, 3 workers: h = 10922 has 14 bits, so T is 5.896. The rotation of (2, 0, 0, 0) is
    (1, 1, 1, 1), its rms 1, and 10922 / 5.896 is 1852.4; a lane holds 1852 + 10922 = 0x31e6."""
    codec = codec_named("rotated16")
    values = np.array([[2, 0, 0, 0]], np.float32)
    coding = codec.begin(CallShape(FLOAT32, 1, 2, 3))
    assert coding.prepare(values, [0]).tolist() == [0x3F80]
    coding.agree(0, np.array([0x3F80], np.int32))
    words = coding.encode(values, [0])
    assert words.tolist() == [[0x31E631E6, 0x31E631E6]]
    # 1852 / 10922 * 5.896 is 0.99975; by back-rotation 2 of them in the first value
    assert coding.decode(3 * words, [0])[0] == pytest.approx([3 * 2 * 0.99975, 0, 0, 0], abs=1e-4)
    if not missing():
        assert in_c(codec, values[0], np.array([0x3F80]), 2, 3)[1].tolist() == words.tolist()


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([0, -0.0], 0),
        ([1, -1], 0x3F80),
        ([1, 0], 0x3F36),  # 0.7071068 has the bits 3f3504f3
        ([1e-45, 0], 1),
        ([LARGEST, LARGEST], 0x7F7F),
        ([LARGEST, np.nan], GREATEST_CODE),
        ([-np.inf, 0], GREATEST_CODE),
    ],
)
def test_codes(values: list[float], code: int) -> None:
    """The upper half of the rms, rounded up; squares of no float32 overflow."""
    row = np.array([values], np.float32)
    assert codec_named("rotated16").begin(CallShape(FLOAT32, 1, 1, 4)).prepare(row, [0]).tolist() == [code]
    if not missing():
        assert in_c(codec_named("rotated16"), row[0], np.array([code]), 1, 4)[0].tolist() == [code]


def test_too_many_workers_are_refused() -> None:
    for name, most in (("thc", 17), ("thc_table", 8)):
        assert not codec_named(name).fault(most)
        assert codec_named(name).fault(most + 1) == f"codec {name} can't sum {most + 1} workers exactly; at most {most}"
    with pytest.raises(ValueError, match="codec thc_released can't sum 9 workers exactly; at most 8"):
        parse_codec("thc_released+ef").for_workers(9)
    text = "codec rotated4 can't sum 8 workers exactly; workers at most: rotated4 7, rotated5 15, rotated6 31, rotated8"
    with pytest.raises(ValueError, match=text):
        codec_named("rotated4").begin(CallShape(FLOAT32, 1, 1, 8))


# ---- calls


@EVERY_CODEC
@pytest.mark.parametrize("what", AWKWARD)
def test_calls_of_any_length_and_size(what: str, codec: Any) -> None:
    """All cores and layouts give the same bits; zeros and what is next to nothing are zeros."""
    job = JobConfig(1, 1, 3, 8, (StreamConfig(0, 32),))
    values = np.array(AWKWARD[what], np.float32)
    given_ = [values, -values / 2, values[::-1].copy()]
    cores = [Endpoint] if missing() else [Endpoint, NativeEndpoint]
    found = [through_a_switch(core, codec, given_, job) for core in cores] + [by_rounds(codec, given_, 8)]
    assert all(array.tobytes() == found[0][0].tobytes() for arrays_ in found for array in arrays_)
    result = found[0][0].astype(np.float64)
    if what in ("zeros", "denormals"):
        assert np.abs(result).max() <= (2.0**-100 if isinstance(codec, Thc) and what == "denormals" else 0)
        assert what == "denormals" or not np.signbit(result).any()
        return
    exact = np.clip(np.sum(np.array(given_, np.float64), axis=0), -LARGEST, LARGEST)
    result = np.clip(result, -LARGEST, LARGEST)
    half = 7.5 if isinstance(codec, Thc) else codec.lanes.half(3)
    step = 2.154 / half if isinstance(codec, Thc) else REACH[half.bit_length() - 1] / half
    energies = [np.sqrt((rows_of(codec, one, 8).astype(np.float64) ** 2).mean(axis=1).max()) for one in given_]
    if what != "one":  # which is spread evenly, so that rounding may hit it all alike
        assert np.sqrt(((result - exact) ** 2).mean()) < max(3 * step, 0.05) * max(energies)


@EVERY_CODEC
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_reach_every_worker(bad: float, codec: Any) -> None:
    """F4: the whole row is NaN, others aren't."""
    job = JobConfig(1, 1, 3, 2, (StreamConfig(0, 8),))
    width = 2 * codec.values_per_word(FLOAT32)
    given_ = [np.ones(3 * width, np.float32) for _ in range(3)]
    given_[1][width + 1] = bad
    cores = [Endpoint] if missing() else [Endpoint, NativeEndpoint]
    for found in [through_a_switch(core, codec, given_, job) for core in cores] + [by_rounds(codec, given_, 2)]:
        for array in found:
            assert np.isnan(array[width : 2 * width]).all()
            assert np.isfinite(array[:width]).all()
            assert np.isfinite(array[2 * width :]).all()


@needs_core
@EVERY_CODEC
@pytest.mark.filterwarnings("ignore:.* encountered")
def test_codes_that_only_a_broken_worker_sends_are_safe(codec: Any) -> None:
    values = np.array([1e30, -1e30, np.nan, np.inf, 1, 0, -np.inf, 5], np.float32)
    for code in (LEAST_CODE, -1, 0, 1, 100, 0x3F80, 0x7F7F, 0x7F80, 0x7FFE):
        coding = codec.begin(CallShape(FLOAT32, 1, 8, 4))
        coding.agree(0, np.array([code], np.int32))
        words = coding.encode(rows_of(codec, values, 8), [0])
        assert in_c(codec, values, np.array([code]), 8, 4)[1].tobytes() == words.tobytes()


def test_the_mean_of_many_roundings_is_nearly_the_value() -> None:
    """Within 5 sigma, of 2,000 steps, and what clipping takes."""
    codec, steps, values = codec_named("rotated8"), 2000, np.linspace(-1, 1, 64, dtype=np.float32)[np.newaxis]
    total = np.zeros_like(values, np.float64)
    for step in range(steps):
        coding = codec.begin(CallShape(FLOAT32, 1, 16, 4, call_key(0, 0, 0, step)))
        coding.ranks = 1
        coding.agree(0, coding.prepare(values, [0]))
        total += coding.decode(coding.encode(values, [0]), [0])
    unit = 3.297 * 0.586 / 31
    assert np.abs(total / steps - values).max() < 5 * unit / 2 / np.sqrt(steps) + 0.002


# ---- errors: rows of 1024 values, 2**15 of them


def vnmse(name: str, values: Any, workers: int, *, nearest: bool = False) -> float:
    """|decoded - x|**2 / |x|**2 of one worker."""
    codec, every = codec_named(name), slice(0, 32)
    words = 1024 // codec.values_per_word(FLOAT32)
    rows = values.astype(np.float32).reshape(32, 1024)
    coding = codec.begin(CallShape(FLOAT32, 32, words, workers, call_key(0, 3, 0, 0), nearest))
    coding.agree(0, coding.prepare(rows, every))
    coding.ranks = 1
    error = coding.decode(coding.encode(rows, every), every).astype(np.float64) - rows
    return float((error**2).sum() / (rows.astype(np.float64) ** 2).sum())


# rotated8 with 4, 8 and 16 workers: at random, and to the nearest.
ERRORS = {
    "gaussian": ((0.00200, 0.00675, 0.0225), (0.00105, 0.00363, 0.0128)),
    "heavy": ((0.00189, 0.00625, 0.0206), (0.00095, 0.00313, 0.0107)),
    "by block": ((0.00188, 0.00613, 0.0195), (0.00093, 0.00304, 0.0098)),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("nearest", [False, True])
def test_error_of_one_worker(kind: str, nearest: bool) -> None:
    """Within 10 % of what it was measured as, about the same whatever the values are. `lanes8` loses 10 times as much
    of heavy tails."""
    values = inputs()[kind]
    for workers, usual in zip((4, 8, 16), ERRORS[kind][nearest], strict=True):
        found = vnmse("rotated8", values, workers, nearest=nearest)
        assert found == pytest.approx(usual, rel=0.1)
        if kind == "heavy":
            assert 9 * found < vnmse("lanes8", values, workers, nearest=nearest)


@pytest.mark.parametrize(
    ("kind", "usual", "released"), [("gaussian", 0.0202, 0.020), ("heavy", 0.0160, 0.021), ("by block", 0.0161, 0.54)]
)
def test_error_of_thc(kind: str, usual: float, released: float) -> None:
    """No more than published, whatever the values are; the table gains little. As released, with one norm for rows of
    different magnitude, it is 0.54."""
    for name, workers in (("thc", 17), ("thc_table", 8)):
        assert vnmse(name, inputs()[kind], workers) == pytest.approx(usual, rel=0.06)
    values = inputs()[kind].astype(np.float32)
    ranks = [Compression(parse_codec("thc_released+ef"), rank, 8) for rank in range(8)]
    tensors = [Tensor("parameter", values.shape)]
    sum_together(ranks, [values.copy() for _ in ranks], tensors)
    left = ranks[3].state_dict()["kept"]["residual"]["parameter"].astype(np.float64)
    assert float((left**2).sum() / (values.astype(np.float64) ** 2).sum()) == pytest.approx(released, rel=0.06)


# ---- THC (F15)


def lanes_of(words: Any) -> Any:
    return np.stack([words.view(np.uint32) >> shift & 0xFF for shift in (0, 8, 16, 24)], axis=1).reshape(len(words), -1)


@pytest.mark.parametrize(("name", "levels"), [("thc", UNIFORM), ("thc_table", TABLE)])
def test_a_value_becomes_the_level_below_or_above_it(name: str, levels: tuple[int, ...]) -> None:
    """At random, with the value as the mean, within 5 sigma of 1,000 trials; what is a level stays one."""
    most, trials = levels[-1], 1000
    coding: Any = codec_named(name).begin(CallShape(FLOAT32, trials, 16, 1, 5))._inner
    places = np.linspace(0, most, 64, dtype=np.float32)
    values = np.tile((places * 2 / most - 1)[np.newaxis], (trials, 1))
    found = lanes_of(coding.encode(values, slice(0, trials)))
    assert set(np.unique(found)) <= set(levels)
    below = np.searchsorted(levels, np.minimum(places, most - 1e-3), side="right") - 1
    low, high = np.array(levels)[below], np.array(levels)[below + 1]
    assert ((found == low) | (found == high)).all()
    assert np.abs(found.mean(axis=0) - places).max() < 5 * 1.5 / np.sqrt(trials)
    exact = np.tile(np.resize(np.array(levels, np.float32) * 2 / most - 1, 64)[np.newaxis], (trials, 1))
    assert (lanes_of(coding.encode(exact, slice(0, trials)))[:, :16] == levels).mean() > 0.999
