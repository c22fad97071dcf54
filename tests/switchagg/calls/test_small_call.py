"""small_call: F8, W12 and W16, over the reference switch: one round trip, or two, and the same bits in any case."""

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from switchagg.calls import small_call
from switchagg.calls.array_calls import array_call, chunked_call, rounds_of
from switchagg.calls.small_call import Predictions, SmallCall
from switchagg.codecs import FIXED_POINT
from switchagg.dataplane.reference import ReferencePlane
from switchagg.description import CallSignature
from switchagg.endpoint import CallCompleted, Endpoint, StreamFailed
from switchagg.job import JobConfig, StreamConfig
from switchagg.native.library import missing
from switchagg.native.native_endpoint import NativeEndpoint

Array = NDArray[Any]
MS = 1_000_000
CORES: list[Any] = [Endpoint]
if not missing():
    CORES.append(NativeEndpoint)


def by_rounds(inputs: list[Array], job: JobConfig) -> Array:
    """What a host method makes of these: every rank's rounds, combined exactly."""
    copies = [array.copy() for array in inputs]
    for rounds in zip(*(rounds_of(array, job.elements, job.workers, FIXED_POINT) for array in copies), strict=True):
        op = np.max if rounds[0][1] == "max" else np.sum
        combined = op([words for words, _ in rounds], axis=0)
        for words, _ in rounds:
            words[:] = combined
    assert all(copy.tobytes() == copies[0].tobytes() for copy in copies)
    return copies[0]


class Net:
    """Workers and a switch; `step` moves what is under way there and back. seed: of losses, copies and any order."""

    def __init__(self, core: Any, workers: int, window: int = 32, elements: int = 64, seed: int | None = None) -> None:
        timing = {"rto_initial_ns": 4 * MS, "rto_min_ns": 3 * MS, "rto_max_ns": 8 * MS, "retry_limit": 1000}
        self.job = JobConfig(1, 7, workers, elements, (StreamConfig(0, window),), **timing)
        self.switch = ReferencePlane(window, elements)
        self.switch.admit(self.job, range(workers))
        self.ends = [core(self.job, rank) for rank in range(workers)]
        self.rng = random.Random(seed)
        self.faulty = seed is not None
        self.now_ns = 0
        self.done: list[list[Array]] = [[] for _ in range(workers)]
        self.failed: list[StreamFailed] = []
        self.frames = 0

    def submit(self, rank: int, array: Array, words: Any = None) -> None:
        call = array_call(array, "sum", self.job)
        call.description = words
        self.ends[rank].submit(0, call)

    def step(self) -> None:
        self.now_ns += MS
        frames = []
        for rank, end in enumerate(self.ends):
            if self.faulty:
                end.handle_timer(self.now_ns)
            while len(bundle := end.frames_to_send(self.now_ns)):
                frames += [(rank, row[np.newaxis]) for row in bundle]
        self.frames += len(frames)
        results = []
        for rank, frame in self._mixed(frames):
            for output in self.switch.process(frame.copy(), rank):
                results += [(port, output.bundle.copy()) for port in output.ports]
        for port, frame in self._mixed(results):
            self.ends[port].receive(frame, self.now_ns)
        for rank, end in enumerate(self.ends):
            while (event := end.next_event()) is not None:
                if isinstance(event, CallCompleted):
                    self.done[rank].append(event.call.array)  # type: ignore[union-attr]
                else:
                    self.failed.append(event)

    def _mixed(self, frames: list[Any]) -> list[Any]:
        if not self.faulty:
            return frames
        kept = [frame for frame in frames for _ in range(self.rng.choice([0, 1, 1, 1, 1, 2]))]
        return self.rng.sample(kept, len(kept))

    def counted(self, name: str) -> int:
        return sum(end.counters.get(name, 0) for end in self.ends)


def drawn(numbers: np.random.Generator, workers: int, size: int, power: int) -> list[Array]:
    return [np.ldexp(numbers.uniform(-1, 1, size), power).astype(np.float32) for _ in range(workers)]


@pytest.mark.parametrize("core", CORES)
def test_one_round_trip_if_predicted_two_if_not(core: Any) -> None:
    """All ranks alike see whether the prediction holds: it does if they agree on what they know, values or history."""
    net, numbers = Net(core, 3), np.random.default_rng(1)
    ones, halves = np.ones(70, np.float32), np.full(70, 0.5, np.float32)
    for inputs, steps, counted in (
        ([ones, ones, ones], 1, (3, 0)),  # the values' own codes are alike
        ([ones, halves, halves], 1, (6, 0)),  # and now there is a history
        ([halves, halves, halves], 2, (6, 3)),  # lower than usual: nobody knew
        ([halves, halves, ones], 2, (6, 6)),  # one rank knows better than the history
        ([0 * ones, 0 * ones, halves], 2, (6, 9)),  # 70 values: ones were the last
        ([0 * ones, 0 * ones, 0 * ones], 1, (9, 9)),  # zeros are zeros under any prediction
        ([halves, 0 * ones, 0 * ones], 1, (12, 9)),  # and don't spoil the history
        ([halves, ones * np.nan, ones], 1, (15, 9)),  # nor does what is NaN on all ranks
        ([halves, halves, 0 * ones], 1, (18, 9)),
        (drawn(numbers, 3, 70, -40), 2, (18, 12)),
        (drawn(numbers, 3, 70, -40), 1, (21, 12)),
    ):
        want = by_rounds(inputs, net.job)
        copies = [array.copy() for array in inputs]
        for rank, array in enumerate(copies):
            net.submit(rank, array)
        for _ in range(steps):
            assert not any(net.done)
            net.step()
        assert [len(done) for done in net.done] == [1, 1, 1]
        assert all(array.tobytes() == want.tobytes() for array in copies)
        assert (net.counted("predicted"), net.counted("repeated")) == counted
        for done in net.done:
            done.clear()


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("seed", range(12))
def test_the_bits_depend_on_the_inputs_alone(core: Any, seed: int) -> None:
    """Under loss, copies and any order, with any window, described or not, in front of and behind other calls, for
    ranks that submit at different times and remember different calls."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    net = Net(core, rng.choice([2, 3, 5, 8]), rng.choice([1, 2, 5, 40]), seed=seed)
    workers, described = len(net.ends), rng.random() < 0.5
    calls, wants = [], []
    for number in range(12):
        size = rng.choice([1, 31, 32, 33, 64, 90, 100, 300, 600])
        inputs = drawn(numbers, workers, size, rng.choice([-140, -20, -1, 0, 1, 1, 1, 15, 17, 127]))
        if rng.random() < 0.2:
            inputs[rng.randrange(workers)][rng.randrange(size)] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 1e38])
        for array in inputs:
            array[: rng.choice([0, 0, size, size // 2])] = 0
        if rng.random() < 0.2:
            inputs = [array.view(np.int32) for array in inputs]
        wants.append(
            by_rounds(inputs, net.job) if inputs[0].dtype == np.float32 else np.sum(inputs, axis=0, dtype=np.int32)
        )
        words = CallSignature("allreduce", "sum", inputs[0].dtype, size).words(number) if described else None
        calls.append((inputs, words))
    waiting = [list(calls) for _ in net.ends]
    if core is Endpoint:  # a memory of calls that the others never saw
        for end in net.ends[::2]:
            end._predictions.agreed(31, np.array([32], np.int32))
            end._predictions.agreed(33, np.array([-128, 48], np.int32))
    results: list[list[Array]] = [[] for _ in net.ends]
    while not all(len(done) == len(calls) for done in net.done):
        assert net.now_ns < 20_000 * MS
        for rank, left in enumerate(waiting):
            if left and rng.random() < 0.2:
                inputs, words = left.pop(0)
                results[rank].append(inputs[rank].copy())
                net.submit(rank, results[rank][-1], words)
        net.step()
    assert not net.failed
    for arrays_ in results:
        assert [array.tobytes() for array in arrays_] == [want.tobytes() for want in wants]
    assert len({end.counters.get("repeated", 0) for end in net.ends}) == 1


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("others", [np.zeros(70, np.int32), np.ones(71, np.float32), np.ones(900, np.float32)])
def test_a_call_that_differs_names_both_sides(core: Any, others: Array) -> None:
    """Small or not, of the same chunks or others: every rank learns it from the first chunk, and no array counts."""
    net = Net(core, 3)
    for rank, array in enumerate((np.ones(70, np.float32), others, np.ones(70, np.float32))):
        net.submit(rank, array, CallSignature("allreduce", "sum", array.dtype, len(array)).words(4))
    net.step()
    reasons = sorted(failed.reason for failed in net.failed)
    mine, theirs = "allreduce 4 of 70 float32 (sum)", f"allreduce 4 of {len(others)} {others.dtype} (sum)"
    assert reasons == [
        f"rank 0 calls {mine}, rank 1 calls {theirs}",
        f"rank 1 calls {theirs}, rank 0 calls {mine}",
        f"rank 1 calls {theirs}, rank 2 calls {mine}",
    ]
    assert net.done == [[], [], []]


def test_which_calls_are_small() -> None:
    """At most 8 rows, and a head that fits one chunk; n counts, since the head has the words of all ranks."""
    for elements, workers, size, small in (
        (360, 8, 1440, True),
        (360, 8, 1441, False),
        (360, 64, 1440, True),
        (279, 64, 1112, False),  # 3 * 8 + 4 * 64 = 280
        (279, 64, 900, True),
        (7, 1, 3, True),
        (7, 1, 4, False),
        (1, 1, 1, False),
        (360, 8, 0, False),
    ):
        job = JobConfig(1, 1, workers, elements, (StreamConfig(0, 4),))
        call = array_call(np.zeros(size, np.float32), "sum", job)
        assert isinstance(chunked_call(call, job), SmallCall) is small
    job = JobConfig(1, 1, 2, 360, (StreamConfig(0, 4),))
    for dtype in (np.float64, np.int32, np.int64):
        assert not isinstance(chunked_call(array_call(np.zeros(9, dtype), "sum", job), job), SmallCall)


def test_sizes_that_share_a_place_forget_each_other() -> None:
    predictions, codes = Predictions(), np.array([16], np.int32)
    own = np.array([-16], np.int32)
    predictions.agreed(3, codes)
    assert predictions.of(3, own).tolist() == [16]
    assert predictions.of(4, own).tolist() == [-16]
    assert predictions.of(3 + Predictions.PLACES, own).tolist() == [-16]
    predictions.agreed(3 + Predictions.PLACES, codes)
    assert predictions.of(3, own).tolist() == [-16]


def test_without_the_guard_sums_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above would see a core that trusts its prediction."""
    decide = small_call.SmallCall.decide

    def trusting(self: Any, agreed: Array, predictions: Any, verified: bool) -> bool:
        codes = agreed[: len(agreed) // 3]
        return decide(self, np.concatenate((codes, codes, -codes)), predictions, verified)

    monkeypatch.setattr(small_call.SmallCall, "decide", trusting)
    with pytest.raises(AssertionError):
        test_one_round_trip_if_predicted_two_if_not(Endpoint)
