"""codecs.compression, codecs.memory: error feedback and what else surrounds a codec, with `lockstep`. Compared with ==
where a recursion is computed beside it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from switchagg.calls.array_calls import array_call, begin_in_python, chunked_call, rounds_of
from switchagg.calls.chunked_call import SCALES
from switchagg.codecs import ARRAY_CODECS, CODECS, FIXED_POINT, codec_named
from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction, Tensor
from switchagg.codecs.compression import Compression
from switchagg.codecs.rounding import call_key
from switchagg.codecs.spec import CodecSpec, parse_codec
from switchagg.job import JobConfig, StreamConfig
from switchagg.layout import EVERYONE, shares_of
from switchagg.lockstep import combine, sum_together
from switchagg.native.library import missing
from switchagg.native.native_codec import begin_in_c

WORKERS, SIZE = 3, 5000
FLOAT32 = np.dtype(np.float32)
WEIGHT, BIAS = Tensor("weight", (70, 70)), Tensor("bias", (100,))
BOTH = (WEIGHT, BIAS)


@dataclass(frozen=True)
class Largest(ArrayCodec):
    """The largest values of each rank, by a sum of arrays that are zero elsewhere."""

    name = "largest"
    rounds = 1
    masks = True
    count: int = 10

    def moved(self, values: int, workers: int) -> dict[Any, float]:
        return {"allreduce": 4.0 * values}

    def rounds_of(self, values: Any, residual: Any, shape: ArrayShape, memory: Sequence[Memory]) -> Iterator[Reduction]:
        left = values.copy()
        left[np.argsort(-np.abs(values), kind="stable")[: self.count]] = 0
        if residual is not None:
            residual[:] = left
        values -= left
        memory[0]["calls"] = memory[0].get("calls", np.zeros(1)) + 1
        yield Reduction(values)


@pytest.fixture(autouse=True)
def largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARRAY_CODECS, "largest", Largest)


def compressions(spec: str | CodecSpec) -> list[Compression]:
    spec = parse_codec(spec) if isinstance(spec, str) else spec
    return [Compression(spec, rank, WORKERS, 7) for rank in range(WORKERS)]


def gradients(step: int = 0) -> list[Any]:
    draw = np.random.default_rng(step)
    return [draw.standard_normal(SIZE).astype(np.float32) for _ in range(WORKERS)]


def kept(one: Compression, kind: str) -> Any:
    """Of weight and bias, one behind the other."""
    state = one.state_dict()["kept"][kind]
    return np.concatenate([state["weight"], state["bias"]])


def coded(arrays: Sequence[Any], codec: str) -> tuple[Any, list[Any]]:
    """(sum, residual of each rank) of a plain call of a codec."""
    arrays = [array.copy() for array in arrays]
    lost = [np.full(len(array), np.nan, np.float32) for array in arrays]
    calls = [
        rounds_of(array, 360, WORKERS, codec_named(codec), residual=own)
        for array, own in zip(arrays, lost, strict=True)
    ]
    for rounds in zip(*calls, strict=True):
        combine([words for words, _ in rounds], op=rounds[0][1])
    return arrays[0], lost


def nearest(values: Any, scale: float, half: int) -> Any:
    """F9, with rounding to the nearest, for a row."""
    return np.rint(values * np.float32(half / scale)).astype(np.float32) * np.float32(scale / half)


def test_the_residual_is_what_own_words_do_not_hold() -> None:
    """Rounded to the nearest; scales are those of all ranks; the last row is short."""
    arrays = gradients()
    total, lost = coded(arrays, "lanes8")
    for low in range(0, SIZE, 4 * 360):
        row = slice(low, low + 4 * 360)
        largest = np.array([max(np.abs(array[row]).max() for array in arrays)], np.float32)
        scale = float((((largest.view(np.uint32) + 0xFFFF) >> 16) << 16).view(np.float32)[0])
        for array, own in zip(arrays, lost, strict=True):
            assert (own[row] == array[row] - nearest(array[row], scale, 42)).all()
    assert np.allclose(total, np.sum(arrays, axis=0) - np.sum(lost, axis=0), atol=1e-5)


@pytest.mark.parametrize("size", [1, 359, 1440, SIZE])
def test_chunks_have_the_same_residual(size: int) -> None:
    """Also when they are read again: a packet was lost."""
    job = JobConfig(1, 1, WORKERS, 360, (StreamConfig(0, 4),))
    arrays = [array[:size] for array in gradients()]
    total, lost = coded(arrays, "lanes8")
    found = [np.full(size, np.nan, np.float32) for _ in arrays]
    calls = [
        chunked_call(array_call(array, "sum", job, codec_named("lanes8"), residual=own), job)
        for array, own in zip(arrays, found, strict=True)
    ]
    for chunk in range(calls[0].chunks):
        words = [[call.read([chunk]) for call in calls] for _ in range(2)][-1]
        if calls[0].kind(chunk) == SCALES:
            combined = np.max(words, axis=0)
        else:
            combined = np.sum(words, axis=0, dtype=np.uint32).view(np.int32)
        for call in calls:
            call.write([chunk], combined)
    assert all((array == total).all() for array in arrays)
    assert all((own == other).all() for own, other in zip(found, lost, strict=True))


@pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")
@pytest.mark.parametrize("fed_back", [False, True])
@pytest.mark.parametrize("name", [name for name, codec in CODECS.items() if FLOAT32 in codec.dtypes])
def test_rounds_in_c_are_the_same_bits(name: str, fed_back: bool) -> None:
    """Of any length, with a NaN, and residuals of all rows."""
    codec = codec_named(name).for_workers(WORKERS)
    for size in (1, 359, 361, SIZE):
        found = []
        for begin in (begin_in_python, begin_in_c):
            arrays = [array[:size] for array in gradients()]
            arrays[1][size // 2] = np.nan
            lost = [np.full(size, 7, np.float32) if fed_back else None for _ in arrays]
            calls = [
                rounds_of(array, 40, WORKERS, codec, key=call_key(1, rank, 0, 0), residual=own, begin=begin)
                for rank, (array, own) in enumerate(zip(arrays, lost, strict=True))
            ]
            for rounds in zip(*calls, strict=True):
                combine([words for words, _ in rounds], op=rounds[0][1])
            found.append([one.tobytes() for one in (*arrays, *lost) if one is not None])
        assert found[0] == found[1]


def test_sums_that_have_no_residual() -> None:
    job, floats = JobConfig(1, 1, WORKERS, 360, (StreamConfig(0, 4),)), np.zeros(SIZE, np.float32)
    lanes = codec_named("lanes8")
    for array, shares in ((np.zeros(SIZE), EVERYONE), (floats, shares_of("reduce_scatter"))):
        with pytest.raises(ValueError, match="only sums of float32 that all ranks get have a residual"):
            array_call(array, "sum", job, lanes, shares, np.zeros(SIZE, np.float32))
    with pytest.raises(ValueError, match="as long as the array"):
        array_call(floats, "sum", job, lanes, residual=floats[1:])


def test_error_feedback() -> None:
    """v = g + e is summed, e is what was lost of v: bit for bit over several steps."""
    ranks, errors = compressions("lanes8+ef"), [np.zeros(SIZE, np.float32) for _ in range(WORKERS)]
    for step in range(4):
        arrays = gradients(step)
        total, errors = coded([g + e for g, e in zip(arrays, errors, strict=True)], "lanes8")
        sum_together(ranks, arrays, BOTH)
        assert all((array == total).all() for array in arrays)
        assert all((kept(one, "residual") == e).all() for one, e in zip(ranks, errors, strict=True))


def test_what_is_sent_and_what_is_lost_are_all_there_was() -> None:
    """With values that are sums of few bits, nothing of them is rounded away on the way."""
    ranks = compressions("largest+ef")
    sent = np.zeros(SIZE, np.float32)
    given = np.zeros(SIZE, np.float32)
    for step in range(5):
        arrays = [np.rint(array * 8) for array in gradients(step)]
        given += np.sum(arrays, axis=0)
        sum_together(ranks, arrays, BOTH)
        sent += arrays[0]
        assert (sent + np.sum([kept(one, "residual") for one in ranks], axis=0) == given).all()
    assert 0 < np.count_nonzero(sent) <= 5 * 10 * WORKERS


@pytest.mark.parametrize("feedback", ["ef", "ef21"])
def test_a_codec_that_loses_nothing_changes_nothing(feedback: str) -> None:
    """Ratio 1: the sums of plain SGD, bit for bit."""
    ranks = compressions(CodecSpec(Largest(SIZE), feedback))
    fixed = compressions(CodecSpec(FIXED_POINT, feedback))
    for step in range(3):
        exact = [np.rint(array * 8) for array in gradients(step)]
        total = np.sum(exact, axis=0)
        arrays = [array.copy() for array in exact]
        sum_together(ranks, arrays, BOTH)
        sum_together(fixed, exact, BOTH)
        assert (arrays[0] == total).all()
        assert (exact[0] == total).all()


def test_ef21() -> None:
    """d = g - h; h <- h + C(d), H <- H + sum of C(d), the result is H."""
    ranks, h = compressions("largest+ef21"), [np.zeros(SIZE, np.float32) for _ in range(WORKERS)]
    for step in range(4):
        arrays = [np.rint(array * 8) for array in gradients(step)]
        for own, array in zip(h, arrays, strict=True):
            difference = array - own
            chosen = np.argsort(-np.abs(difference), kind="stable")[:10]
            own[chosen] += difference[chosen]
        sum_together(ranks, arrays, BOTH)
        assert all((array == np.sum(h, axis=0)).all() for array in arrays)
        assert all((kept(one, "own") == own).all() for one, own in zip(ranks, h, strict=True))


@pytest.mark.parametrize("masks", [False, True])
def test_momentum_correction(masks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """u <- m u + g, v <- v + u; the largest of v are sent and leave v, and u where the codec says so (DGC)."""
    monkeypatch.setattr(Largest, "masks", masks)
    ranks = compressions("largest:momentum=0.5+ef")
    u, v = ([np.zeros(SIZE, np.float32) for _ in range(WORKERS)] for _ in range(2))
    for step in range(4):
        arrays = gradients(step)
        total = np.zeros(SIZE, np.float32)
        for rank, array in enumerate(arrays):
            u[rank] = u[rank] * np.float32(0.5) + array
            v[rank] = v[rank] + u[rank]
            chosen = np.argsort(-np.abs(v[rank]), kind="stable")[:10]
            total[chosen] += v[rank][chosen]
            v[rank][chosen] = 0
            if masks:
                u[rank][chosen] = 0
        sum_together(ranks, arrays, BOTH)
        assert (arrays[0] == total).all()
        for one, velocity, residual in zip(ranks, u, v, strict=True):
            assert (kept(one, "velocity") == velocity).all()
            assert (kept(one, "residual") == residual).all()


def test_momentum_correction_that_loses_nothing_is_momentum() -> None:
    """In warm-up, and in arrays of fewer values than the least."""
    ranks = compressions("largest:momentum=0.5,warmup=2,least=6000+ef")
    assert ranks[0].takes(FLOAT32, SIZE, named=True)
    assert not ranks[0].takes(FLOAT32, SIZE)
    velocity = np.zeros(SIZE, np.float32)
    for step in range(4):
        arrays = [np.rint(array * 8) for array in gradients(step)]
        velocity = velocity * np.float32(0.5) + np.sum(arrays, axis=0)
        sum_together(ranks, arrays, BOTH)
        assert (arrays[0] == velocity).all()


def test_what_is_kept_belongs_to_the_tensor() -> None:
    """Not to the array it came in: the same sums, whether two tensors come together, alone, or in another order."""

    class Rounded(Largest):
        def rounds_of(self, values: Any, residual: Any, shape: ArrayShape, memory: Any) -> Iterator[Reduction]:
            residual[:] = values - np.rint(values)
            np.rint(values, out=values)
            yield Reduction(values)

    steady, changing = (compressions(CodecSpec(Rounded(), "ef", least=0)) for _ in range(2))
    for step, layout in enumerate([(BOTH,), ((WEIGHT,), (BIAS,)), ((BIAS, WEIGHT),), ((BIAS,), (WEIGHT,)), (BOTH,)]):
        arrays = gradients(step)
        for tensors in layout:
            sum_together(changing, _in_order(arrays, tensors), tensors)
        sum_together(steady, arrays, BOTH)
        for one, other in zip(steady, changing, strict=True):
            assert (kept(one, "residual") == kept(other, "residual")).all()
    state = changing[0].state_dict()
    assert {name: part.size for name, part in state["kept"]["residual"].items()} == {"weight": 4900, "bias": 100}
    assert state["sums"] == {"weight": 5, "bias": 5}


def _in_order(arrays: Sequence[Any], order: Sequence[Tensor]) -> list[Any]:
    places = {"weight": slice(0, 4900), "bias": slice(4900, 5000)}
    return [np.concatenate([array[places[tensor.name]] for tensor in order]) for array in arrays]


@pytest.mark.parametrize("feedback", ["ef", "ef21"])
def test_warm_up(feedback: str) -> None:
    """The first sums of a tensor travel exactly, and leave no residual."""
    ranks = compressions(f"largest:warmup=2+{feedback}")
    for step in range(3):
        arrays = [np.rint(array * 8) for array in gradients(step)]
        total = np.sum(arrays, axis=0)
        sum_together(ranks, arrays, BOTH)
        assert (arrays[0] == total).all() == (step < 2)


def test_least() -> None:
    one = compressions("lanes8:least=2000+ef")[0]
    assert [one.takes(FLOAT32, size, named) for size in (1999, 2000) for named in (False, True)] == [False] * 2 + [
        True
    ] * 2
    assert not one.takes(np.dtype(np.float64), 5000)


def test_rescale() -> None:
    """What was lost is in units of the learning rate: twice as much of it at half the rate."""
    ranks = compressions("largest:momentum=0.5+ef")
    sum_together(ranks, gradients(), BOTH)
    before = [kept(ranks[0], kind) for kind in ("residual", "velocity")]
    ranks[0].rescale(2.0)
    assert (kept(ranks[0], "residual") == 2 * before[0]).all()
    assert (kept(ranks[0], "velocity") == before[1]).all()


@pytest.mark.parametrize("text", ["lanes8+ef", "largest+ef21", "largest:momentum=0.9,warmup=1+ef", "lanes8"])
def test_a_saved_state_goes_on_as_if_nothing_had_been(text: str) -> None:
    ranks, others = compressions(text), compressions(text)
    for step in range(2):
        sum_together(ranks, gradients(step), BOTH)
    for one, other in zip(ranks, others, strict=True):
        other.load_state_dict(one.state_dict())
    arrays, again = gradients(2), gradients(2)
    sum_together(ranks, arrays, BOTH)
    sum_together(others, again, BOTH)
    assert all((array == other).all() for array, other in zip(arrays, again, strict=True))
    assert ranks[1].state_dict()["sums"] == others[1].state_dict()["sums"]


def test_states_of_others_are_refused() -> None:
    state = compressions("lanes8+ef")[0].state_dict()
    with pytest.raises(ValueError, match=r"a state of codec lanes8\+ef; this is lanes4\+ef"):
        compressions("lanes4+ef")[0].load_state_dict(state)
    with pytest.raises(ValueError, match="a state of rank 0 of 3; this is rank 1 of 3"):
        compressions("lanes8+ef")[1].load_state_dict(state)


def _unended(one: Compression) -> None:
    for _ in range(2):
        next(one.rounds(np.zeros(SIZE, np.float32), BOTH))


@pytest.mark.parametrize(
    ("text", "tensors", "says"),
    [
        (
            "lanes8+ef",
            None,
            r"lanes8\+ef remembers what each parameter lost: name them by tensors=, or give the call a key",
        ),
        ("lanes8:warmup=3", None, "name them"),
        ("lanes8+ef", (WEIGHT,), "tensors of 4900 values: the array has 5000"),
        ("lanes8+ef", (Tensor("a", (2500,)),) * 2, "a name is there twice"),
        ("largest", None, "largest remembers parameters"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(text: str, tensors: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        list(compressions(text)[0].rounds(np.zeros(SIZE, np.float32), tensors))


def test_a_tensor_is_in_one_sum_at_a_time_and_keeps_its_size() -> None:
    one = compressions("lanes8+ef")[0]
    first = one.rounds(np.zeros(SIZE, np.float32), BOTH)
    next(first)
    with pytest.raises(ValueError, match="tensor weight: its last sum has not ended"):
        next(one.rounds(np.zeros(4900, np.float32), (WEIGHT,)))
    list(first)
    with pytest.raises(ValueError, match="tensor weight had 4900 values, it has 5000 now"):
        next(one.rounds(np.zeros(SIZE, np.float32), (Tensor("weight", (SIZE,)),)))


@pytest.mark.parametrize("text", ["lanes8+ef", "lanes8+ef21", "lanes8:momentum=0.5+ef", "largest+ef", "largest+ef21"])
def test_a_step_with_a_nan_is_forgotten(text: str) -> None:
    """All ranks get it, and none keeps it."""
    ranks = compressions(text)
    for step in range(3):
        arrays = gradients(step)
        if step == 1:
            arrays[1][17], arrays[2][4999] = np.nan, np.inf
        with np.errstate(invalid="ignore"):
            sum_together(ranks, arrays, BOTH)
        assert all(np.isfinite(array).all() == (step != 1) for array in arrays)
    assert all(np.isfinite(kept(one, kind)).all() for one in ranks for kind in one.state_dict()["kept"])


def test_calls_may_be_advanced_in_turn() -> None:
    """Random numbers that ranks share depend on the tensors and how often they were summed, not on calls' order."""
    found: dict[str, list[int]] = {"weight": [], "bias": []}

    class Keys(Largest):
        def rounds_of(self, values: Any, residual: Any, shape: ArrayShape, memory: Any) -> Iterator[Reduction]:
            found[shape.tensors[0].name].append(shape.shared)
            yield Reduction(values)

    for order in ((WEIGHT, BIAS), (BIAS, WEIGHT)):
        one = Compression(CodecSpec(Keys(), least=0), 0, 1)
        for _ in range(2):
            calls = [one.rounds(np.zeros(tensor.shape, np.float32).reshape(-1), (tensor,)) for tensor in order]
            for call in calls * 2:
                next(call, None)
    assert found["weight"][:2] == found["weight"][2:]
    assert len({*found["weight"], *found["bias"]}) == 4


def test_as_written() -> None:
    one = Compression(replace(parse_codec("lanes8"), least=0), 1, WORKERS)
    assert str(one) == "lanes8:least=0"
    with pytest.raises(ValueError, match="lanes4 can't sum 8 workers"):
        Compression(parse_codec("lanes4+ef"), 0, 8)
