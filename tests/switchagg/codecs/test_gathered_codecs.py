"""Array codecs whose words are gathered: which values they choose, how these are packed, and that nothing is lost."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from switchagg.codecs import ARRAY_CODECS, ArrayCodec
from switchagg.codecs.array_codec import ArrayShape, Tensor
from switchagg.codecs.compression import Compression
from switchagg.codecs.gathered.choosing import greatest
from switchagg.codecs.gathered.packing import bit_words, pack_positions, position_words, unpack_positions
from switchagg.codecs.spec import parse_codec
from switchagg.lockstep import combine, sum_together

GATHERED = sorted(name for name, codec in ARRAY_CODECS.items() if not codec.adds)
SPECIAL = np.array([0.0, -0.0, 1e-40, 3e38, -3e38, 1.0, -1.0, 2.0**-126], np.float32)


def codec_of(text: str) -> ArrayCodec:
    codec = parse_codec(text).codec
    assert isinstance(codec, ArrayCodec)
    return codec


def together(
    codec: ArrayCodec, arrays: Sequence[Any], sizes: Sequence[int] = (), step: int = 0, carried: Any = None
) -> tuple[list[Any], list[Any]]:
    """What each rank has then, the same everywhere; what it is left with. Every collective carried out in memory.
    carried: gets the bytes that each has."""
    workers = len(arrays)
    tensors = [Tensor(str(number), (size,)) for number, size in enumerate(sizes or [len(arrays[0])])]
    given = [array.copy() for array in arrays]
    residuals = [np.full_like(array, 7) for array in arrays]
    memories: list[Any] = [[{} for _ in tensors] for _ in arrays]
    calls = [
        codec.rounds_of(given[rank], residuals[rank], ArrayShape(tensors, rank, workers, step, rank, 9), memories[rank])
        for rank in range(workers)
    ]
    for asked in zip(*calls, strict=True):
        assert len({(one.kind, one.op, one.array.dtype, len(one.array)) for one in asked}) == 1
        if carried is not None:
            carried.append(asked[0].array.nbytes)
        combine([one.array for one in asked], asked[0].kind, asked[0].op)
    assert len({array.tobytes() for array in given}) == 1, "ranks differ"
    return given, residuals


def gradients(workers: int, size: int, seed: int = 1) -> list[Any]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(size).astype(np.float32) ** 3 for _ in range(workers)]


def in_order(arrays: Sequence[Any]) -> Any:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total


# ---- choosing and packing


@pytest.mark.parametrize(("size", "count"), [(1, 1), (10, 3), (5000, 4999), (300_000, 3000), (300_000, 150_000)])
def test_the_greatest_are_found_exactly(size: int, count: int) -> None:
    values = gradients(1, size)[0]
    found = greatest(values, count)
    assert len(found) == count
    assert (np.diff(found) > 0).all()
    assert np.abs(values[found]).min() == np.sort(np.abs(values))[-count]


def test_of_equal_ones_the_first_are_taken_and_nan_is_greatest() -> None:
    values = np.array([2, -3, 3, 3, np.inf, np.nan, -np.inf], np.float32)
    assert [greatest(values, count).tolist() for count in (1, 3, 4, 6)] == [
        [5], [4, 5, 6], [1, 4, 5, 6], [1, 2, 3, 4, 5, 6],
    ]  # fmt: skip


def test_a_sample_that_misleads_costs_time_only() -> None:
    """Great values lie exactly where it looks: there seem to be five times as many."""
    values = np.zeros(1 << 18, np.float32)
    seen = np.arange(0, 1 << 18, (1 << 18 >> 16) | 1)
    values[seen] = 5
    values[7] = 9
    assert greatest(values, 2).tolist() == [0, 7]
    assert set(greatest(values, len(seen) + 3)) == {*seen, 7, 1, 2}


@pytest.mark.parametrize(
    ("size", "count", "words"), [(100, 50, 4), (200_000, 1000, 504), (10**6, 5, 5), (64, 64, 2), (10**6, 1, 1)]
)
@pytest.mark.parametrize("fewer", [0, 1])
def test_positions_take_the_shortest_of_three_ways(size: int, count: int, words: int, fewer: int) -> None:
    assert position_words(size, count) == words
    chosen = np.sort(np.random.default_rng(2).choice(size, count - fewer, replace=False))
    assert unpack_positions(pack_positions(chosen, size, count), size, count).tolist() == chosen.tolist()


# ---- all codecs


@pytest.mark.parametrize("name", GATHERED)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("sizes", [(1,), (2000,), (33, 0, 1, 999)])
def test_what_is_sent_and_what_is_left_are_all_there_was(name: str, workers: int, sizes: tuple[int, ...]) -> None:
    arrays = gradients(workers, sum(sizes))
    summed, residuals = together(codec_of(name), arrays, sizes)
    sent = in_order([given - left for given, left in zip(arrays, residuals, strict=True)])
    np.testing.assert_allclose(summed[0], sent, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", GATHERED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 5000])
def test_what_is_not_finite_reaches_all_and_is_forgotten(name: str, bad: float, size: int) -> None:
    arrays = gradients(3, size)
    arrays[1][size // 2] = bad
    summed, residuals = together(codec_of(name), arrays)
    assert not np.isfinite(summed[0]).all()
    assert all(np.isfinite(left).all() for left in residuals)


@pytest.mark.parametrize("name", GATHERED)
def test_zeros_and_extremes(name: str) -> None:
    assert not np.any(together(codec_of(name), [np.zeros(3000, np.float32)] * 2)[0][0])
    with np.errstate(over="ignore"):
        summed, residuals = together(codec_of(name), [SPECIAL] * 2)
        assert not np.isnan([*summed, *residuals]).any()


@pytest.mark.parametrize("name", GATHERED)
def test_bits_are_those_of_the_words(name: str) -> None:
    carried: list[int] = []
    codec, size = codec_of("threshold:tau=2.5758" if name == "threshold" else name), 1 << 18
    arrays = [np.random.default_rng(rank).standard_normal(size).astype(np.float32) for rank in range(2)]
    together(codec, arrays, carried=carried)
    assert sum(carried) == pytest.approx(sum(codec.moved(size, 2).values()), rel=0.05)
    assert codec.bits(2) == pytest.approx(8 * sum(carried) / 2 / size, rel=0.05)
    assert codec.rounds == len(carried)


# ---- topk


def test_topk_sends_a_share_of_each_tensor() -> None:
    """By hand: one of the first four, two of the next eight."""
    array = np.array([1, -2, 0.5, 0, 100, 90, 80, -110, 1, 1, 1, 1], np.float32)
    summed, residuals = together(codec_of("topk:ratio=0.25"), [array, 2 * array], (4, 8))
    assert summed[0].tolist() == [0, -6, 0, 0, 300, 0, 0, -330, 0, 0, 0, 0]
    assert residuals[0].tolist() == [1, 0, 0.5, 0, 0, 90, 80, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("text", ["topk:ratio=0.01", "topk:ratio=0.3", "drop:ratio=0.1", "gtopk:ratio=0.05", "dgc"])
def test_not_a_bit_is_lost(text: str) -> None:
    """Facts' third test of error feedback: sent + residual = input, and either is 0."""
    arrays = gradients(1, 3000)
    summed, residuals = together(codec_of(text), arrays)
    assert (summed[0] + residuals[0]).tobytes() == arrays[0].tobytes()
    assert not (summed[0] * residuals[0]).any()


@pytest.mark.parametrize("text", ["topk:ratio=1", "gtopk:ratio=1", "dgc:ratio=1", "drop:ratio=1"])
@pytest.mark.parametrize("workers", [1, 4])
def test_ratio_1_is_the_plain_sum(text: str, workers: int) -> None:
    arrays = gradients(workers, 999)
    for array in arrays:
        array[:8] = SPECIAL[[1, 1, 2, 5, 6, 1, 0, 7]]
    summed, residuals = together(codec_of(text), arrays)
    zero = np.float32(0.0 if "drop" in text else -0.0)  # what it is added to stays as it is; drop sends no zeros
    assert summed[0].tobytes() == (in_order(arrays) + zero).tobytes()
    assert not np.any(residuals)


def descent(text: str, start: Any, rate: float) -> Iterator[Any]:
    """x after each step of SGD by the mean of what the ranks' gradients become."""
    ranks, x = [Compression(parse_codec(text), rank, 3) for rank in range(3)], start.copy()
    while True:
        arrays = [quadratic(rank, x) for rank in range(3)]
        sum_together(ranks, arrays, [Tensor("x", x.shape)])
        x = x - np.float32(rate / 3) * arrays[0]
        yield x


@pytest.mark.parametrize("rate", [3 / 32, 3 / 4, 3.0])
def test_three_quadratics_diverge_by_their_factor_without_feedback(rate: float) -> None:
    """f = <a, x>^2 + |x|^2 / 4, a = (-3, 2, 2) and its rotations: top-1 takes what makes x grow, by 1 + 11/6 rate."""
    start = np.full(3, 2.0**-10, np.float32)
    expected = start.astype(np.float64)
    for _, x in zip(range(3), descent("topk:ratio=0.334,least=0", start, rate), strict=False):
        expected *= 1 + 11 * rate / 6
        assert x.tolist() == expected.tolist()


def quadratic(rank: int, x: Any) -> Any:
    a = np.roll(np.array([-3, 2, 2], np.float32), rank)
    return (2 * (a @ x) * a + x / 2).astype(np.float32)


@pytest.mark.parametrize("text", ["topk:ratio=0.334,least=0+ef", "topk:ratio=0.334,least=0+ef21"])
def test_three_quadratics_converge_with_feedback(text: str) -> None:
    steps = descent(text, np.ones(3, np.float32), 0.03)
    assert max(abs(next(x for step, x in enumerate(steps) if step == 2000))) < 1e-6


@pytest.mark.parametrize("name", ["topk", "gtopk", "drop", "dgc:momentum=0"])
def test_feedback_at_ratio_1_is_sgd(name: str) -> None:
    plain = start = np.array([1, -0.3, 0.7], np.float32)
    text = f"{name}{',' if ':' in name else ':'}ratio=1,least=0+ef"
    for _, x in zip(range(20), descent(text, start, 0.05), strict=False):
        plain = plain - np.float32(0.05 / 3) * in_order([quadratic(rank, plain) for rank in range(3)])
        assert x.tobytes() == plain.tobytes()


# ---- efsign


def test_efsign_by_hand() -> None:
    array = np.array([1, -2, 3, -0.0, -5, 8], np.float32)
    summed, residuals = together(codec_of("efsign"), [array], (4, 2))
    assert summed[0].tolist() == [1.5, -1.5, 1.5, -1.5, -6.5, 6.5]
    assert residuals[0].tolist() == [-0.5, -0.5, 1.5, 1.5, 1.5, 1.5]


def test_efsign_sends_a_bit_for_each_value() -> None:
    codec = codec_of("efsign")
    assert codec.moved(10**6, 4)["all_gather"] == 4 * 4 * (bit_words(10**6) + 1) == 4 * 125_004
    assert codec.bits(4) == pytest.approx(1, abs=1e-4)


# ---- threshold, drop


def test_threshold_by_hand() -> None:
    """Ranks have one, three and no values beyond tau."""
    arrays = [np.array(values, np.float32) for values in ([0.5, 1.25, -1, 0], [-9, 2, 0, 1.5], [0, 1, -1, 0.5])]
    summed, residuals = together(codec_of("threshold:tau=1"), arrays)
    assert summed[0].tolist() == [-1, 2, 0, 1]
    assert [left.tolist() for left in residuals] == [[0.5, 0.25, -1, 0], [-8, 1, 0, 0.5], [0, 1, -1, 0.5]]


def test_threshold_loses_not_a_bit_where_tau_is_a_power_of_two() -> None:
    array = gradients(1, 3000)[0]
    summed, residuals = together(codec_of("threshold:tau=0.125"), [array])
    assert (summed[0] + residuals[0]).tobytes() == array.tobytes()
    assert set(np.unique(summed[0])) == {-0.125, 0, 0.125}


@pytest.mark.parametrize("size", [1000, 400_000])
def test_drop_sends_about_its_share(size: int) -> None:
    summed, _ = together(codec_of("drop:ratio=0.02"), gradients(1, size))
    assert np.count_nonzero(summed[0]) == pytest.approx(0.02 * size, rel=0.1)


def test_drop_sends_equal_ones_together_and_no_zeros() -> None:
    array = np.array([2] * 50 + [0] * 950, np.float32)
    summed, residuals = together(codec_of("drop:ratio=0.2"), [array, array * 0])
    assert summed[0].tolist() == array.tolist()
    assert not np.any(residuals)


# ---- dgc, gtopk


def test_dgc_begins_with_more() -> None:
    codec = codec_of("dgc:ratio=0.001,ramp=10")
    sent = [np.count_nonzero(together(codec, gradients(1, 10_000), step=step)[0][0]) for step in (0, 2, 4, 7, 8, 99)]
    assert sent == [2512, 631, 158, 40, 10, 10]


@pytest.mark.parametrize("nesterov", [0, 1])
def test_dgc_corrects_masks_and_clips(nesterov: int) -> None:
    """The recursion of the paper beside it."""
    spec, m = parse_codec(f"dgc:ratio=0.1,nesterov={nesterov},clip=9,least=0+ef"), np.float32(0.9)
    ranks, parts = [Compression(spec, rank, 2) for rank in range(2)], [Tensor("a", (20, 5)), Tensor("b", (50,))]
    u, v = np.zeros((2, 2, 150), np.float32)
    for step in range(5):
        arrays = gradients(2, 150, step)
        total = np.zeros(150, np.float32)
        for rank, array in enumerate(arrays):
            g = array.copy()
            for part in (slice(0, 100), slice(100, 150)):
                length = np.linalg.norm(g[part].astype(np.float64))
                g[part] *= np.float32(min(1, 9 / 2**0.5 / length))
            u[rank] = (u[rank] + g) * m if nesterov else u[rank] * m + g
            v[rank] += g + u[rank] if nesterov else u[rank]
            chosen = np.r_[np.argsort(-abs(v[rank][:100]))[:10], 100 + np.argsort(-abs(v[rank][100:]))[:5]]
            total[chosen] += v[rank][chosen]
            v[rank][chosen] = u[rank][chosen] = 0
        sum_together(ranks, arrays, parts)
        np.testing.assert_allclose(arrays[0], total, rtol=1e-5)


def test_gtopk_takes_back_what_is_not_among_the_greatest_sums() -> None:
    """By hand: ranks send 5 and 4, -5 and 3; of the sums 0, 4, 3 the greatest two are applied. What cancels is not."""
    arrays = [np.array(values, np.float32) for values in ([5, 4, 1, 0], [-5, 2, 3, 0])]
    summed, residuals = together(codec_of("gtopk:ratio=0.5"), arrays)
    assert summed[0].tolist() == [0, 4, 3, 0]
    assert [left.tolist() for left in residuals] == [[5, 0, 1, 0], [-5, 2, 0, 0]]
