"""Array codecs whose words add: several ranks in lockstep."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Tensor
from switchagg.codecs.compression import Compression
from switchagg.codecs.sparse.blocks import Blocks
from switchagg.codecs.sparse.randomk import drawn
from switchagg.codecs.sparse.sketch import Cells, median
from switchagg.codecs.spec import parse_codec
from switchagg.lockstep import carry_out, sum_together

CHOOSING = ["randomk:ratio=0.1", "randomk:ratio=0.3,block=7", "agreed:ratio=0.25,block=8", "nonzero:block=16"]
"""Those that send values as they are."""

WHOLE = ["randomk:ratio=1", "randomk:ratio=1,block=7", "agreed:ratio=1", "nonzero", "nonzero:block=1"]
"""Those that lose nothing."""


class World:
    """Some ranks' calls, one after the other; each rank keeps what its codec remembers."""

    def __init__(self, text: str, workers: int, shapes: Sequence[tuple[int, ...]] = ()) -> None:
        codec = parse_codec(text).codec
        assert isinstance(codec, ArrayCodec)
        self.codec, self.workers = codec, workers
        self.tensors = [Tensor(f"parameter {place}", shape) for place, shape in enumerate(shapes)]
        self.memory: list[list[Memory]] = [[{} for _ in shapes] for _ in range(workers)]
        self.moved: list[int] = []
        self.step = 0

    def sum(self, values: Sequence[Any], feedback: bool = True) -> tuple[Any, list[Any]]:
        """The result, the same bits on all ranks, and the residuals."""
        arrays = [one.astype(np.float32) for one in values]
        residuals = [np.full_like(one, 7) for one in arrays]
        tensors = self.tensors or [Tensor("parameter", arrays[0].shape)]
        self.moved.clear()
        shapes = [
            ArrayShape(tensors, rank, self.workers, self.step, rank + 1, self.step) for rank in range(self.workers)
        ]
        calls = [
            self.codec.rounds_of(array, residual if feedback else None, shape, self.memory[shape.rank])
            for array, residual, shape in zip(arrays, residuals, shapes, strict=True)
        ]
        for together in zip(*calls, strict=True):
            self.moved.append(together[0].array.nbytes)
            carry_out(together, self.step, elements=8)
        self.step += 1
        assert all(one.tobytes() == arrays[0].tobytes() for one in arrays)
        return arrays[0], residuals


def gradients(workers: int, size: int, seed: int = 0) -> list[Any]:
    return list(np.random.default_rng(seed).standard_normal((workers, size), np.float32))


def plain_sum(values: Sequence[Any]) -> Any:
    total = values[0].copy()
    for one in values[1:]:
        total += one
    return total


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("text", WHOLE)
def test_what_loses_nothing_is_the_plain_sum(text: str, size: int) -> None:
    values = gradients(3, size)
    found, residuals = World(text, 3).sum(values)
    assert (found == plain_sum(values)).all()
    assert not np.any(residuals)


@pytest.mark.parametrize("size", [1, 5, 1003])
@pytest.mark.parametrize("text", CHOOSING)
def test_what_is_not_sent_remains(text: str, size: int) -> None:
    """Value by value either all ranks' are in the sum or each rank keeps its own, bit for bit."""
    values = gradients(4, size)
    found, residuals = World(text, 4).sum(values)
    sent = np.all([residual == 0 for residual in residuals], axis=0)
    assert (found == np.where(sent, plain_sum(values), 0)).all()
    assert all(
        (np.where(sent, value, residual) == value).all() for value, residual in zip(values, residuals, strict=True)
    )
    assert sent.any()
    assert sent.all() == (size == 1 or "nonzero" in text or (size == 5 and "block" in text))


@pytest.mark.parametrize(
    "text", [*CHOOSING, *(f"{text},inner={inner}" for text in CHOOSING for inner in ("lanes8", "rotated8"))]
)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 517, 1002])
def test_what_is_not_finite_reaches_every_worker_and_no_next_call(text: str, bad: float, where: int) -> None:
    world, values = World(text, 3), gradients(3, 1003)
    values[1][where] = bad
    with np.errstate(invalid="ignore"):
        found, residuals = world.sum(values)
    assert not np.isfinite(found[where])
    assert np.isfinite(residuals).all()
    if "nonzero" not in text:
        assert np.isnan(found).all()
        assert all((one[:where] == value[:where]).all() for one, value in zip(residuals, values, strict=True))
    assert np.isfinite(world.sum(gradients(3, 1003))[0]).all()


@pytest.mark.parametrize("text", [*CHOOSING, *(f"{text},inner=lanes16" for text in CHOOSING)])
def test_zeros_and_extremes(text: str) -> None:
    world = World(text, 2)
    found, residuals = world.sum([np.zeros(77)] * 2)
    assert not found.any()
    assert not np.any(residuals)
    values = np.full((2, 77), 1e-45, np.float32)
    values[1, 70] = 3e38
    found, residuals = world.sum(list(values))
    assert np.isfinite(found).all()
    assert np.isfinite(residuals).all()
    if "randomk" not in text:
        assert found[70] == pytest.approx(3e38, rel=1e-3)


@pytest.mark.parametrize("text", ["randomk:ratio=0.3,block=7", "agreed:ratio=0.25,block=8", "nonzero:block=16"])
@pytest.mark.parametrize("inner", ["lanes16", "rotated16"])
def test_an_inner_codec_loses_into_the_residual(text: str, inner: str) -> None:
    values = gradients(3, 1003)
    exact, of_exact = World(text, 3).sum(values)
    found, residuals = World(f"{text},inner={inner}", 3).sum(values)
    assert 0 < np.abs(found - exact).max() < 0.01
    together = np.sum(residuals, axis=0, dtype=np.float64) + found
    assert np.abs(together - plain_sum(values)).max() < 1e-5
    assert all((one[exact == 0] == other[exact == 0]).all() for one, other in zip(residuals, of_exact, strict=True))


def hashes(key: int, sequence: int, count: int) -> list[int]:
    """F10: the numbers of a sequence."""
    mixed = (key + (sequence + 1) * 0x9E3779B97F4A7C15) % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    mixed ^= mixed >> 31
    found = []
    for number in range(count):
        hashed = (mixed + number) % 2**32
        hashed = (hashed ^ hashed >> 16) * 0x7FEB352D % 2**32
        hashed = (hashed ^ hashed >> 15) * 0x846CA68B % 2**32
        found.append(hashed ^ hashed >> 16 ^ mixed >> 32)
    return found


def test_random_blocks_by_hand() -> None:
    """F16: of 10 blocks 3 travel, one of the first 3, of the next 3, of the last 4."""
    key = 12345
    numbers = hashes(key, 0, 3)
    chosen, lengths = drawn(10, 3, key)
    assert lengths.tolist() == [3, 3, 4]
    assert chosen.tolist() == [0 + (numbers[0] * 3 >> 32), 3 + (numbers[1] * 3 >> 32), 6 + (numbers[2] * 4 >> 32)]


def test_random_values_are_unbiased() -> None:
    """Runs of 6 and 7 values: the mean of many sums is the sum; no value is drawn twice."""
    world, values = World("randomk:ratio=0.15", 2), gradients(2, 100)
    sums = [world.sum(values, feedback=False)[0] for _ in range(4000)]
    assert {np.count_nonzero(one) for one in sums} == {15}
    total = plain_sum(values)
    assert (np.abs(np.mean(sums, axis=0) - total) <= 5 * np.abs(total) * (6 / 4000) ** 0.5).all()


def test_the_global_generator_is_left_alone() -> None:
    np.random.seed(3)
    before = np.random.get_state()[1].copy()  # type: ignore[index]
    World("randomk", 2).sum(gradients(2, 1000))
    assert (np.random.get_state()[1] == before).all()  # type: ignore[index]


def test_the_heaviest_blocks_are_those_of_all_ranks_together() -> None:
    values = np.zeros((2, 64), np.float32)
    values[0, 0:8], values[0, 24:32], values[1, 24:32], values[1, 40] = 3, 2, -2, 4
    found, residuals = World("agreed:ratio=0.125,block=8", 2).sum(list(values))
    assert found.nonzero()[0].size == 0  # the two ranks' values of block 3 cancel, which weights don't see
    assert not residuals[0][24:32].any()
    assert residuals[0][0] == 3


def test_blocks_of_zeros_do_not_travel() -> None:
    values = np.zeros((255, 10_000), np.float32)
    values[:, 5000], values[254, 9999] = 1, np.nan
    world = World("nonzero:block=100", 255)
    found, residuals = world.sum(list(values))
    assert world.moved == [100, 800]
    assert found[5000] == 255
    assert np.isnan(found[9999])
    assert not np.any(residuals)
    world.sum(gradients(255, 1000))
    assert world.moved == [12, 4000]


def test_workers_beyond_what_codecs_can() -> None:
    with pytest.raises(ValueError, match="nonzero can't count 256 workers; at most 255"):
        parse_codec("nonzero").for_workers(256)
    with pytest.raises(ValueError, match="lanes4 can't sum 8 workers"):
        parse_codec("agreed:inner=lanes4").for_workers(8)


@pytest.mark.parametrize("text", ["randomk:ratio=0", "agreed:ratio=1.5", "nonzero:inner=zip", "randomk:block=0"])
def test_options_that_cannot_be(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_codec(text)


def test_bits() -> None:
    bits = {text: parse_codec(text).codec.bits(4) for text in ("randomk", "agreed", "agreed:inner=lanes8", "nonzero")}  # type: ignore[call-arg,arg-type]
    assert bits == {
        "randomk": pytest.approx(0.32),
        "agreed": pytest.approx(3.7),
        "agreed:inner=lanes8": pytest.approx(1.3),
        "nonzero": pytest.approx(32 + 1 / 32),
    }


def test_blocks_give_and_take() -> None:
    values = np.arange(10, dtype=np.float32)
    blocks = Blocks(values, 4)
    chosen = np.array([1, 2])
    assert blocks.take(chosen, 1).tolist() == [4, 5, 6, 7, 8, 9, 0]
    blocks.put(chosen, -blocks.take(chosen))
    assert values.tolist() == [0, 1, 2, 3, -4, -5, -6, -7, -8, -9]


MATRICES = [(40,), (30, 20), (8, 3, 5, 5), (3, 3)]
SIZES = [40, 600, 600, 9]


def test_powersgd_by_hand() -> None:
    """What has rank 1 arrives whole; vectors and small matrices are sent as they are; one round of both."""
    rng = np.random.default_rng(1)
    values = gradients(3, 1249)
    for matrices in values:
        matrices[40:640] = np.outer(np.linspace(1, 3, 30), rng.standard_normal(20)).ravel()
    world = World("powersgd", 3, MATRICES)
    found, residuals = world.sum(values)
    assert world.moved == [4 * (40 + 9 + 30 + 8), 4 * (20 + 75)]
    for span in (slice(0, 40), slice(1240, 1249)):
        assert (found[span] == plain_sum(values)[span]).all()
        assert not np.any([one[span] for one in residuals])
    assert np.abs(found - plain_sum(values))[40:640].max() < 1e-5
    assert np.linalg.matrix_rank(found[640:1240].reshape(8, 75)) == 1
    together = np.sum(residuals, axis=0) + found
    assert np.abs(together - plain_sum(values)).max() < 1e-5
    mean = (values[1] - residuals[1])[640:1240]
    assert np.abs(mean - found[640:1240] / 3).max() < 1e-6


def test_powersgd_goes_on_from_the_last_q() -> None:
    """Power iteration: after some sums of the same matrices it has their best approximation."""
    values = gradients(2, 600)
    world = World("powersgd:rank=2", 2, [(30, 20)])
    singular = np.linalg.svd(plain_sum(values).reshape(30, 20))[1]
    errors = [float(np.linalg.norm(world.sum(values)[0] - plain_sum(values))) for _ in range(60)]
    assert errors[-1] == pytest.approx(float(np.sqrt((singular[2:] ** 2).sum())), rel=1e-3)
    assert errors[0] > 1.02 * errors[-1]
    kept = world.memory[0][0]["q"]
    assert np.abs(kept @ kept.T - np.eye(2)).max() < 1e-6
    assert kept.tobytes() == world.memory[1][0]["q"].tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", [0, 41, 700])
def test_powersgd_passes_on_what_is_not_finite_and_forgets_it(bad: float, where: int) -> None:
    world, values = World("powersgd", 2, MATRICES), gradients(2, 1249)
    world.sum(values)
    values[1][where] = bad
    found, residuals = world.sum(values)
    assert not np.isfinite(found[where])
    assert np.isnan(found[40:640]).all() == (where == 41)
    assert np.isfinite(residuals).all()
    assert np.isfinite(world.sum(gradients(2, 1249))[0]).all()


def test_powersgd_of_zeros_and_of_less_rank_than_asked_for() -> None:
    world = World("powersgd:rank=3", 2, [(30, 20)])
    found, residuals = world.sum([np.zeros(600)] * 2)
    assert not found.any()
    assert not np.any(residuals)
    values = [np.outer(np.arange(30), np.arange(20)).ravel() * scale for scale in (1, 1e-3)]
    for _ in range(3):
        found, residuals = world.sum(values)
        assert np.abs(found - np.sum(values, axis=0)).max() < 1e-3
    assert np.abs(world.sum([gradients(2, 600)[0]] * 2)[0]).max() > 0.1


def test_cells_of_a_sketch_by_hand() -> None:
    """F17: 25 values in 3 rows of 7 cells."""
    values, rows, columns = gradients(1, 25)[0], 3, 7
    expected = np.zeros((rows, columns), np.float32)
    said = np.zeros((rows, 25), np.float32)
    where = [
        (row, place, (place % 7 + (number * 7 >> 32)) % 7, -1 if number & 1 else 1)
        for row in range(rows)
        for place, number in enumerate(np.repeat(hashes(0, row, 4), 7)[:25].tolist())
    ]
    for row, place, cell, sign in where:
        expected[row, cell] += np.float32(sign) * values[place]
    for row, place, cell, sign in where:
        said[row, place] = np.float32(sign) * expected[row, cell]
    cells, found, estimates = Cells(25, rows, columns), np.ones((rows, columns), np.float32), np.empty(25, np.float32)
    cells.sketch(values, found)
    assert (found == expected).all()
    cells.estimate(found, estimates)
    assert (estimates == np.median(said, axis=0)).all()
    cells.clear(found, np.array([3, 20]))
    touched = {(row, cell) for row, place, cell, _ in where if place in (3, 20)}
    assert {(int(row), int(cell)) for row, cell in np.argwhere(found == 0)} == touched


@pytest.mark.parametrize("rows", [1, 3, 5, 7, 9])
def test_medians(rows: int) -> None:
    values = np.random.default_rng(rows).integers(0, 4, (rows, 500)).astype(np.float32)
    assert (median(list(values.copy())) == np.median(values, axis=0)).all()


def test_a_sketch_finds_what_is_great_and_keeps_the_rest() -> None:
    """The result, and what the cells still hold, are the sum."""
    values = [0.01 * one for one in gradients(3, 4000)]
    for rank, one in enumerate(values):
        one[[7, 2000, 3999]] += [5, -4, 3 * rank]
    world = World("sketch:top=0.00075", 3, [(40, 100)])
    found, residuals = world.sum(values)
    assert world.moved == [4 * 800]
    assert np.flatnonzero(found).tolist() == [7, 2000, 3999]
    assert np.abs(found - plain_sum(values))[[7, 2000, 3999]].max() < 0.5
    assert not np.any(residuals)
    for _ in range(100):
        found += world.sum(np.zeros((3, 4000)))[0]
    assert np.abs(found - plain_sum(values)).mean() < 0.02


def test_momentum_in_a_sketch() -> None:
    """rho: as the optimiser's would be, of small tensors exactly; of others where the momentum isn't masked."""
    world, exact = World("sketch:rho=0.5", 2, [(10,), (2000,)]), World("sketch", 2, [(10,), (2000,)])
    ones = [np.ones(2010)] * 2
    assert [world.sum(ones)[0][:10].tolist() == [2 * many] * 10 for many in (1, 1.5, 1.75)] == [True] * 3
    assert [exact.sum(ones)[0][:10].tolist() == [2] * 10 for _ in range(2)] == [True] * 2
    assert world.memory[0][1]["lost"].sum() != exact.memory[0][1]["lost"].sum()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", [0, 17, 1009])
def test_a_sketch_passes_on_what_is_not_finite_and_forgets_it(bad: float, where: int) -> None:
    world, values = World("sketch:rho=0.9", 2, [(10,), (1000, 2)]), gradients(2, 2010)
    world.sum(values)
    values[1][where] = bad
    found, residuals = world.sum(values)
    assert np.isnan(found[:10]).all() == (where == 0)
    assert np.isnan(found[10:]).all() == (where != 0)
    assert np.isfinite(residuals).all()
    assert np.isfinite(world.sum(gradients(2, 2010))[0]).all()


def test_what_a_sketch_holds_is_rescaled_with_the_learning_rate() -> None:
    compression = Compression(parse_codec("sketch:least=0"), 0, 1)
    sum_together([compression], gradients(1, 2000), [Tensor("x", (2000,))])
    before = compression.state_dict()["memory"]["x"]["lost"]
    compression.rescale(2)
    assert (compression.state_dict()["memory"]["x"]["lost"] == 2 * before).all()


def test_sums_with_a_sketch_converge_where_few_values_are_great() -> None:
    targets = 0.01 * np.array(gradients(4, 4000, seed=5))
    targets[:, ::200] += 1
    compressions = [Compression(parse_codec("sketch:top=0.02,ratio=0.5"), rank, 4) for rank in range(4)]
    x = np.zeros(4000, np.float32)
    for step in range(250):
        arrays = list((x - targets).astype(np.float32))
        sum_together(compressions, arrays, [Tensor("x", (4000,))], step)
        x = x - np.float32(0.02) * arrays[0] / 4
    away = np.linalg.norm(x - targets.mean(axis=0))
    assert away < 0.1 * np.linalg.norm(targets.mean(axis=0))


@pytest.mark.parametrize(
    "text", ["randomk:ratio=0.3", "randomk:ratio=0.3,inner=lanes16", "agreed:ratio=0.1,block=4", "nonzero", "powersgd"]
)
@pytest.mark.parametrize("feedback", ["ef", "ef21"])
def test_a_quadratic_converges_with_feedback(text: str, feedback: str) -> None:
    """x minimises the sum over ranks of |x - target|^2 / 2."""
    targets, tensors = gradients(4, 600, seed=5), [Tensor("x", (30, 20))]
    spec = parse_codec(f"{text}{',' if ':' in text else ':'}least=0+{feedback}")
    compressions = [Compression(spec, rank, 4) for rank in range(4)]
    x = np.zeros(600, np.float32)
    for step in range(500):
        arrays = [x - target for target in targets]
        sum_together(compressions, arrays, tensors, step)
        x = x - np.float32(0.05) * arrays[0] / 4
    assert np.abs(x - np.mean(targets, axis=0)).max() < 5e-3
