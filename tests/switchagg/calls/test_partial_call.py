"""Calls of jobs with partial sums, without a network: what isn't in a sum goes back to the residual, exactly (Q6)."""

import numpy as np
import pytest

from switchagg.calls.array_calls import array_call, chunked_call
from switchagg.calls.partial_call import PartialCall
from switchagg.codecs import CODECS, FIXED_POINT
from switchagg.codecs.array_codec import Tensor
from switchagg.codecs.codec import CallShape, lost
from switchagg.codecs.memory import ErrorFeedback
from switchagg.job import JobConfig, StreamConfig
from switchagg.layout import shares_of
from switchagg.wire import MAX_BIT

WORKERS, ELEMENTS, VALUES = 3, 32, 500
JOB = JobConfig(1, 1, WORKERS, ELEMENTS, (StreamConfig(0, 8),), backups=1)
TENSORS = (Tensor("weights", (VALUES,)),)


class Rank:
    """A rank's error feedback, as `switchagg.codecs.compression` has it, and beside it the same written out."""

    def __init__(self, number: int, codec_name: str) -> None:
        self.number = number
        self.codec = CODECS[codec_name].for_workers(WORKERS)
        self.feedback = ErrorFeedback(checked=True)
        self.expected = np.zeros(VALUES, np.float32)
        self.rng = np.random.default_rng(number)

    def begin(self) -> PartialCall:
        self.array = (self.rng.standard_normal(VALUES) * 10.0 ** (self.number - 1)).astype(np.float32)
        self.given = self.array + self.expected
        residual = self.feedback.before(self.array, TENSORS, exact=False)
        assert residual is not None
        assert np.array_equal(self.array, self.given)
        call = chunked_call(array_call(self.array, "avg", JOB, self.codec, residual=residual), JOB)
        assert isinstance(call, PartialCall)
        call.begin(self.number)
        self.call, self.residual = call, residual
        return call


def exchange(ranks: list[Rank], position: int, late: set[int]) -> None:
    """One chunk: the ranks that aren't late give, and all take the result."""
    kind = ranks[0].call.kind(position)
    values = [rank.call.read([position])[0] for rank in ranks if rank.number not in late]
    result = np.max(values, axis=0) if kind & MAX_BIT else np.sum(values, axis=0, dtype=np.int32)
    for rank in ranks:
        rank.call.write([position], result[np.newaxis])


@pytest.mark.parametrize("name", ["lanes8", "lanes16", "rotated8", "thc", "ternary", "bf16"])
def test_what_is_not_counted_goes_back_exactly(name: str) -> None:
    """e <- v where a rank isn't in the sum, e <- v - C(v) where it is; the mean is that of those who are."""
    ranks = [Rank(number, name) for number in range(WORKERS)]
    chance = np.random.default_rng(7)
    absent = 0
    for _ in range(4):
        calls = [rank.begin() for rank in ranks]
        for position in range(calls[0].chunks):
            late = {int(chance.integers(WORKERS))} if chance.random() < 0.6 else set()
            exchange(ranks, position, late)
        words, width = calls[0]._room, calls[0]._room * ranks[0].codec.values_per_word(np.dtype(np.float32))
        for rank, call in zip(ranks, calls, strict=True):
            shape = CallShape(np.dtype(np.float32), call._data_chunks, words, WORKERS, 0, True)
            coding = rank.codec.begin(shape)
            coding.agree(0, call._most.astype(np.int32))
            for row, present in enumerate(call.presence.tolist()):
                low, high = row * width, min((row + 1) * width, VALUES)
                padded = np.zeros((1, width), np.float32)
                padded[0, : high - low] = rank.given[low:high]
                if present >> rank.number & 1:
                    padded = lost(coding, padded, coding.encode(padded, [row]), [row])
                else:
                    absent += 1
                rank.expected[low:high] = padded[0, : high - low]
            assert np.array_equal(rank.residual, rank.expected)
            assert np.array_equal(rank.array, ranks[0].array)
    assert absent > 3


def test_a_code_that_came_too_late_is_not_covered() -> None:
    """Rank 2's values are 100 times the others': without its code they would overflow, so it gives no value."""
    ranks = [Rank(number, "lanes8") for number in range(WORKERS)]
    calls = [rank.begin() for rank in ranks]
    for position in range(calls[0].chunks):
        exchange(ranks, position, {2} if calls[0].kind(position) & MAX_BIT else set())
    assert all(present == 0b011 for present in calls[0].presence.tolist())
    assert np.array_equal(ranks[2].residual, ranks[2].given)


def test_results_before_any_values_leave_them_to_the_residual() -> None:
    ranks = [Rank(number, "rotated8") for number in range(WORKERS)]
    calls = [rank.begin() for rank in ranks]
    for position in range(calls[0].chunks):
        exchange(ranks, position, {0})
    assert np.array_equal(ranks[0].residual, ranks[0].given)
    assert np.array_equal(ranks[0].array, ranks[1].array)


@pytest.mark.parametrize("kind", ["reduce", "reduce_scatter"])
def test_a_sum_to_owners_whose_scale_may_lack_a_rank_is_refused(kind: str) -> None:
    """Data chunks to an owner wait for all ranks, scale chunks don't: a late rank's values would overflow."""
    with pytest.raises(ValueError, match="float32 to one rank: with partial sums their scale may lack a rank's"):
        array_call(np.ones(40, np.float32), "sum", JOB, shares=shares_of(kind))
    assert array_call(np.ones(40, np.int32), "sum", JOB, shares=shares_of(kind)).codec.rounds == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_a_sum_of_nobody_is_zero(dtype: type) -> None:
    array = np.ones(40, dtype)
    op = "avg" if array.dtype.kind == "f" else "sum"
    call = chunked_call(array_call(array, op, JOB, FIXED_POINT), JOB)
    call.begin(0)
    for position in range(call.chunks):
        codes = np.full((1, ELEMENTS), 5 if call.kind(position) & MAX_BIT else 0, np.int32)
        call.write([position], codes)
    assert not array.any()
