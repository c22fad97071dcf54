"""codecs.quantised, in Python and in C: F11 to F13. Bits that both share, and awkward calls: test_lanes.py."""

from typing import Any

import numpy as np
import pytest

from switchagg.codecs import CODECS
from switchagg.codecs.lanes import Lanes
from switchagg.codecs.quantised.families import ByWorkers
from switchagg.codecs.rounding import call_key
from switchagg.codecs.spec import parse_codec
from switchagg.job import JobConfig, StreamConfig
from switchagg.native.library import missing
from tests.shared.lane_codings import (
    CORES,
    FLOAT32,
    back_in_c,
    by_rounds,
    coding_of,
    in_c,
    rows_of,
    summed,
    through_a_switch,
)


def of(name: str) -> Lanes:
    codec = CODECS[name]
    assert isinstance(codec, Lanes)
    return codec


# By hand, rounded to the nearest. Two elements of a row; value i lies in element i mod 2, lane i div 2, as q + h.
BY_HAND = [
    # mean square (49 + 15) / 16 = 4, so s = 2.5 * 2 = 5: 7 is clipped, 1 is less than half of it
    ("ternary4", 7, [7] + [1] * 15, 0x40A0, [0x11111112, 0x11111111], [5] + [0] * 15),
    # zeros don't count: s is the largest magnitude
    ("ternary5", 8, [1, -1, 0, 1, -1, 0, 0, 0, 1, 1, -1, -1], 0x3F80, [0x00208022, 0x00208440], None),
    # t = 1.5 * (7 + 1 + 3 + 1 + 1 + 1 + 1 + 1) / 8 = 3; then 1.5 * 2, but no more than the largest, 2
    ("twobit4", 7, [7, -1, 0, 3, 1, -1, 1, 1, -1], 0x4040, [0x11111112, 0x11111121], [3, 0, 0, 3, 0, 0, 0, 0, 0]),
    ("twobit6", 3, [2, -2, 2], 0x4000, [0x01041082, 0x01041040], [2, -2, 2]),
    # s = (3 + 1 + 2) / 3 = 2
    ("onebit4", 4, [3, -1, 0, 2], 0x4000, [0x11111112, 0x11111120], [2, -2, 0, 2]),
    ("sign4", 4, [3, -0.001, 0, 1e-38], 0x3F80, [0x11111112, 0x11111120], [1, -1, 0, 1]),
    ("qsgd10", 4, [127, -127, 0, 1, -1, 64], 0x42FE, [0x07E1FCFE, 0x0BF20000], None),
    # h = 2**14, s = 2. Ties go to the even: 1 + 2**-11 to 1, 1 + 3 * 2**-11 to 1 + 2**-9; bf16 has three bits less
    ("fp16", 1, [1.5, 1 + 2**-11, -1 - 3 * 2**-11, 2**-25], 0x4000, [0x1FF07000, 0x40006000],
     [1.5, 1, -1 - 2**-9, 0]),
    ("bf16", 1, [1.5, 1 + 2**-8, -1 - 3 * 2**-8, 0], 0x4000, [0x1F807000, 0x40006000], [1.5, 1, -1 - 2**-6, 0]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "workers", "values", "code", "words", "decoded"), BY_HAND)
def test_words_by_hand(
    name: str, workers: int, values: list[float], code: int, words: list[int], decoded: list[float] | None
) -> None:
    """The sum of all workers' equal words stands for n times the decoded values; None: for the values."""
    lanes, array = of(name), np.array(values, np.float32)
    rows, codes = rows_of(lanes, array, 2), np.array([code], np.int32)
    coding = coding_of(lanes, 1, 2, workers, 5, nearest=True)
    assert coding.prepare(rows, slice(0, 1)).tolist() == [code]
    coding.agree(0, codes)
    assert [hex(word) for word in coding.encode(rows, [0]).view(np.uint32)[0]] == list(map(hex, words))
    total = (np.array([words], np.uint32) * np.uint32(workers)).view(np.int32)
    want = [workers * value for value in (values if decoded is None else decoded)]
    assert coding.decode(total, [0])[0][: len(values)].tolist() == want
    if not missing():
        own, found = in_c(lanes, array, codes, 2, workers, 5, nearest=True)
        assert (own.tolist(), found.view(np.uint32).tolist()) == ([code], [words])
        assert back_in_c(lanes, total, len(values), codes, workers).tolist() == want


FAMILIES = [codec for codec in CODECS.values() if isinstance(codec, ByWorkers)]


@pytest.mark.parametrize(
    ("name", "widths"),
    [(name, {1: 4, 7: 4, 8: 5, 15: 5, 16: 6, 31: 6, 32: 8, 64: 8}) for name in ("ternary", "twobit", "onebit", "sign")]
    + [("qsgd", {1: 10, 4: 10, 5: 16, 64: 16})],
)
def test_the_narrowest_lanes_that_sum_the_workers(name: str, widths: dict[int, int]) -> None:
    for workers, bits in widths.items():
        assert str(parse_codec(f"{name}:least=5").for_workers(workers)) == f"{name}{bits}:least=5"
        assert CODECS[f"{name}{bits}"].for_workers(workers).name == f"{name}{bits}"
    with pytest.raises(ValueError, match=r"codec ternary4 can't sum 8 workers exactly; .* ternary4 7, ternary5 15, "):
        CODECS["ternary4"].for_workers(8)
    with pytest.raises(ValueError, match=f"codec {name} can't sum 300 workers exactly; workers at most: {name}"):
        CODECS[name].for_workers(300)


@pytest.mark.parametrize("lanes", [one for family in FAMILIES for one in family.variants], ids=lambda one: one.name)
def test_no_lane_carries(lanes: Lanes) -> None:
    """All workers send the largest magnitude, of either sign: what is clipped is clipped after rounding."""
    signs = np.resize([1, -1, 1, 1, -1, 1, -1], 2 * lanes.values_per_word(FLOAT32)).astype(np.float32)
    for workers in (one for one in range(1, 65) if not lanes.fault(one)):
        unit = np.float32(1) if lanes.levels == 1 else np.float32(lanes.levels) * np.float32(1 / lanes.levels)
        assert (summed(lanes, [signs] * workers, 2) == signs * np.float32(workers) * unit).all()
        assert (summed(lanes, [signs, -signs][: workers % 2 + 1], 2) == signs * (1 - workers % 2)).all()


AWKWARD = {
    "one": [3.0],
    "zeros": [0.0, -0.0] * 40,
    "denormals": [1e-45, -1e-40] * 20,
    "one huge value": [1e38, 1.0, -1e-30] * 30,
    "all alike": [-0.1] * 501,
}
PLAIN_NAMES = [*(one.name for one in FAMILIES), "fp16", "bf16"]


@pytest.mark.parametrize("what", AWKWARD)
@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_calls_of_any_length_and_size(name: str, what: str) -> None:
    """All cores and layouts give the same bits, by the name that users write; something is sent wherever there is
    something to send, and never more than s for a worker, which is at least 2**-100."""
    job = JobConfig(1, 1, 3, 8, (StreamConfig(0, 32),))
    values = np.array(AWKWARD[what], np.float32)
    inputs = [values, values, values]
    found = [through_a_switch(core, CODECS[name], inputs, job) for core in CORES] + [by_rounds(CODECS[name], inputs, 8)]
    assert all(array.tobytes() == found[0][0].tobytes() for arrays_ in found for array in arrays_)
    result, largest = found[0][0], float(np.abs(values).max())
    if name == "fp16" and what == "one huge value":
        assert np.isnan(result[:16]).all(), "fp16 ends at 65504"
        return
    assert np.isfinite(result).all()
    assert np.abs(result).max() <= (3 if name == "sign" else 3 * 1.01 * max(largest, 2.0**-100))
    assert (result[np.abs(values) == largest] != 0).any() == (what not in ("zeros", "denormals") or bool(
        what == "denormals" and name in ("onebit", "sign")))  # fmt: skip
    assert not result[values == 0].any()


def test_majority_votes() -> None:
    """n times the sign that most have; those that have 0 abstain, and a tie is 0."""
    votes = [[5, -1, 0.1, 0, -2, 0], [3, -1, -9, 0, -1, -2], [-1e9, -1, 0, 0, 1, 0], [1, 4, 0, 0, 0, 0]]
    found = summed(of("sign4"), [np.array(one, np.float32) for one in votes], 2)
    assert (found / 4).tolist() == [1, -1, 0, 0, -1, -1]
    with pytest.raises(ValueError, match="codec sign: its sums are votes, of which \\+ef has nothing to feed back"):
        parse_codec("sign+ef")


@pytest.mark.parametrize(("name", "torch_name"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_16_bit_floats(name: str, torch_name: str) -> None:
    """Within a power of two of the largest a value arrives as PyTorch rounds it."""
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(4).uniform(1, 2, 500).astype(np.float32) * np.float32(2.0**-3)
    want = torch.from_numpy(values).to(getattr(torch, torch_name)).float().numpy()
    assert (values != want).any()
    assert (summed(of(name), [values] * 8, 360) == 8 * want).all()


def fed_back(lanes: Lanes, gradients: Any) -> tuple[Any, Any]:
    """(sums of what is sent, what is left) of one worker after these steps, (steps, values)."""
    left, sent = np.zeros(gradients.shape[1], np.float32), np.zeros(gradients.shape[1], np.float32)
    for gradient in gradients:
        value = gradient + left
        rows = rows_of(lanes, value, 8)
        coding = coding_of(lanes, len(rows), 8, 1, nearest=True)
        coding.agree(0, coding.prepare(rows, slice(0, len(rows))))
        got = coding.decode(coding.encode(rows, slice(0, len(rows))), slice(0, len(rows))).reshape(-1)[: len(value)]
        left = value - got
        sent += got
    return sent, left


def test_the_sign_climbs_where_the_mean_falls() -> None:
    """A gradient of 4 in a quarter of the steps, else -1: its mean is 1/4, that of the signs -1/2. With error feedback
    all that came in is sent or kept, exactly."""
    gradients = np.resize([4, -1, -1, -1], (400, 1)).astype(np.float32)
    assert sum(float(summed(of("sign4"), [one], 2)[0]) for one in gradients) == -200
    for name in ("onebit4", "twobit4", "ternary4"):
        sent, left = fed_back(of(name), gradients)
        assert sent[0] + left[0] == 100
        assert abs(left[0]) <= 4


@pytest.mark.parametrize("name", ["onebit4", "twobit4", "ternary4"])
@pytest.mark.parametrize("alike", [False, True])
def test_what_is_kept_stays_small(name: str, alike: bool) -> None:
    """Of gradients with a mean and as much noise: after 300 steps a few steps' worth is kept, not 300 means."""
    random = np.random.default_rng(3)
    means = np.ones(512) if alike else random.standard_normal(512)
    gradients = (means + random.standard_normal((300, 512))).astype(np.float32)
    sent, left = fed_back(of(name), gradients)
    assert np.linalg.norm(left) < 12 * np.linalg.norm(means)
    assert np.allclose(sent + left, gradients.sum(axis=0), atol=0.01)


# ---- errors of one worker, as of lanes (test_lanes.py): rows of 1024 values, 2**15 of them


def vnmse(lanes: Lanes, values: Any, workers: int, nearest: bool) -> float:
    rows = values.astype(np.float32).reshape(32, 1024)
    coding = coding_of(lanes, 32, 1024 // lanes.values_per_word(FLOAT32), workers, call_key(0, 3, 0, 0), nearest)
    coding.agree(0, coding.prepare(rows, slice(0, 32)))
    coding.ranks = 1
    error = coding.decode(coding.encode(rows, slice(0, 32)), slice(0, 32)).astype(np.float64) - rows
    return float((error**2).sum() / (rows.astype(np.float64) ** 2).sum())


# Workers, whether rounded to the nearest (as under error feedback), errors: Gaussian, heavy tail, scale differs by row.
ERRORS = [
    ("ternary4", 4, False, (1.02, 0.822, 0.987)),
    ("ternary4", 4, True, (0.497, 0.581, 0.477)),
    ("twobit4", 4, True, (0.401, 0.850, 0.421)),
    ("onebit4", 4, True, (0.363, 0.920, 0.361)),
    ("qsgd16", 8, False, (1.25e-4, 3.60e-3, 9.44e-5)),
    ("qsgd16", 8, True, (6.33e-5, 1.63e-3, 4.86e-5)),
    ("fp16", 8, True, (4.39e-7, 1.77e-5, 6.85e-7)),
    ("bf16", 8, True, (2.85e-6, 1.99e-5, 2.92e-6)),
]


@pytest.mark.parametrize(("name", "workers", "nearest", "usual"), ERRORS)
def test_error_of_one_worker(name: str, workers: int, nearest: bool, usual: tuple[float, ...]) -> None:
    """Within 10 % of what it was measured as."""
    random = np.random.default_rng(1)
    gaussian = random.standard_normal(1 << 15)
    heavy = gaussian * np.exp(1.5 * random.standard_normal(1 << 15))
    by_row = np.repeat(np.exp(2 * random.standard_normal(32)), 1024) * gaussian
    assert [vnmse(of(name), x, workers, nearest) for x in (gaussian, heavy, by_row)] == pytest.approx(usual, rel=0.1)
