"""What every codec promises, of rows and of arrays: a new one is held to it by being listed in its table.

Sums of ranks in lockstep, with error feedback where a codec loses something.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from switchagg.codecs import ARRAY_CODECS, CODECS, names
from switchagg.codecs.array_codec import ArrayCodec, Tensor
from switchagg.codecs.codec import FLOAT32
from switchagg.codecs.compression import Compression
from switchagg.codecs.constant import EXPONENTS
from switchagg.codecs.spec import CodecSpec, parse_codec
from switchagg.lockstep import sum_together

NAMES = [*(name for name in names() if FLOAT32 in CODECS[name].dtypes), *ARRAY_CODECS]
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "nothing": (),
    "no value": ((0,),),
    "one value": ((1,),),
    "less than a row": ((7,),),
    "a matrix": ((37, 41),),
    "some tensors": ((33,), (), (0,), (5, 7, 11), (64, 9)),
}
WORKERS = 5
"""But for codecs that can sum fewer only; these say so, with their name and the number."""


OWN_MEMORY = {"sketch"}
"""Keep what they lose in what they remember, not in residuals."""


BELOW = {f"constant{exponent}": 2.0**exponent for exponent in EXPONENTS}
LARGEST = {"fp16": 65504.0} | {name: float(np.nextafter(np.float32(below), 0)) for name, below in BELOW.items()}
"""Of codecs whose type ends before float32; what exceeds it is infinite there, or NaN."""

COARSE = {name: below * WORKERS * 2.0**-28 for name, below in BELOW.items()}
"""The error of a sum, where it doesn't depend on how large values are."""


def spec_of(name: str, *options: str) -> CodecSpec:
    """With error feedback, where that has something to do."""
    text = f"{name}:{','.join(('least=0', *options))}"
    try:
        return parse_codec(f"{text}+ef")
    except ValueError as fault:
        if "nothing to feed back" not in str(fault):
            raise
        return parse_codec(text)


def feeds_back(name: str) -> bool:
    codec = parse_codec(name).codec
    return name not in OWN_MEMORY and (not codec.lossy or spec_of(name).feedback == "ef")


def ranks_of(name: str, workers: int, *options: str) -> list[Compression]:
    return [Compression(spec_of(name, *options), rank, workers, 3) for rank in range(workers)]


def most(name: str) -> int:
    def sums(workers: int) -> bool:
        try:
            return bool(spec_of(name).for_workers(workers))
        except ValueError as fault:
            return not (name in str(fault) and str(workers) in str(fault))

    return next(workers for workers in range(WORKERS, 0, -1) if sums(workers))


def tensors_of(shapes: str) -> list[Tensor]:
    return [Tensor(f"parameter {number}", shape) for number, shape in enumerate(SHAPES[shapes])]


def gradients(workers: int, shapes: str, step: int = 0) -> list[Any]:
    generator, size = np.random.default_rng(step), sum(int(np.prod(shape)) for shape in SHAPES[shapes])
    return [generator.standard_normal(size).astype(np.float32) / 8 for _ in range(workers)]


def summed(ranks: Sequence[Compression], arrays: Sequence[Any], shapes: str, key: int = 0) -> Any:
    """Of copies; the same bits on all ranks."""
    own = [array.copy() for array in arrays]
    sum_together(ranks, own, tensors_of(shapes), key)
    assert len({array.tobytes() for array in own}) == 1
    return own[0]


def residual(one: Compression, shapes: str) -> Any:
    kept = one.state_dict()["kept"].get("residual", {})
    parts = [kept.get(tensor.name, np.zeros(int(np.prod(tensor.shape)))) for tensor in tensors_of(shapes)]
    return np.concatenate([[], *parts])


@pytest.mark.parametrize("name", [*CODECS, *ARRAY_CODECS])
def test_it_is_written_by_its_name(name: str) -> None:
    spec = parse_codec(name)
    assert spec.name == str(spec) == name
    assert CODECS.get(name, spec.codec) is spec.codec


@pytest.mark.parametrize("name", [name for name in NAMES if feeds_back(name)])
@pytest.mark.parametrize("workers", [1, 2, WORKERS])
@pytest.mark.parametrize("shapes", SHAPES)
def test_nothing_is_lost(name: str, workers: int, shapes: str) -> None:
    """After any number of sums: all results, and what all ranks still have, are all gradients (without the momentum
    that a codec may bring)."""
    ranks = ranks_of(name, min(workers, most(name)), "momentum=0")
    given, came = np.zeros(0), np.zeros(0)
    for step in range(3):
        arrays = gradients(len(ranks), shapes, step)
        given = sum(arrays) + (given if step else 0)
        came = summed(ranks, arrays, shapes) + (came if step else 0)
    left = sum(residual(one, shapes) for one in ranks)
    error = 1e-5 * WORKERS * max(1, np.abs(given).max(initial=0))
    np.testing.assert_allclose(came + left, given, atol=error + 3 * COARSE.get(name, 0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shapes", ["one value", "a matrix"])
def test_what_is_not_finite_reaches_all_ranks_once(name: str, bad: float, shapes: str) -> None:
    ranks = ranks_of(name, min(3, most(name)))
    arrays = gradients(len(ranks), shapes)
    arrays[-1][len(arrays[0]) // 2] = bad
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(summed(ranks, arrays, shapes)).all()
    assert np.isfinite(summed(ranks, gradients(len(ranks), shapes, 1), shapes, 1)).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("values", [[0.0], [-0.0], [1e-45], [2.0**-126, 1.0], [3e38, 1.0], [1e-40, -3e38]])
def test_extremes(name: str, values: list[float]) -> None:
    ranks = ranks_of(name, 1)
    array = np.zeros(1517, np.float32)
    array[3 : 3 + len(values)] = np.clip(values, -LARGEST.get(name, np.inf), LARGEST.get(name, np.inf))
    result = summed(ranks, [array], "a matrix")
    assert np.isfinite(result).all()
    assert np.any(array) or not np.any(result)
    assert np.isfinite(summed(ranks, [array * 0], "a matrix", 1)).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_state_goes_on_with_the_same_bits(name: str) -> None:
    ranks = ranks_of(name, 2)
    for step in range(2):
        summed(ranks, gradients(2, "some tensors", step), "some tensors", step)
    others = ranks_of(name, 2)
    for one, other in zip(ranks, others, strict=True):
        other.load_state_dict(one.state_dict())
    arrays = gradients(2, "some tensors", 2)
    assert summed(ranks, arrays, "some tensors", 2).tobytes() == summed(others, arrays, "some tensors", 2).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_run_repeats_with_the_same_bits(name: str) -> None:
    runs = []
    for _ in range(2):
        ranks = ranks_of(name, 2)
        runs.append([summed(ranks, gradients(2, "a matrix", step), "a matrix", step).tobytes() for step in range(2)])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("name", ARRAY_CODECS)
def test_it_says_what_it_moves(name: str) -> None:
    codec = parse_codec(name).codec
    assert isinstance(codec, ArrayCodec)
    assert codec.bits(4) > 0
    moved = codec.moved(10**6, 4)
    assert set(moved) <= {"allreduce", "all_gather"}
    assert ("all_gather" in moved) == (not codec.adds)
    assert codec.rounds > 0
