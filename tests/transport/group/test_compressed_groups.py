"""Codecs that remember parameters, or take several collectives for a sum, on every method: names, order, failures."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from switchagg.calls.call_request import own_shard
from switchagg.codecs import ARRAY_CODECS
from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction, Tensor
from switchagg.codecs.compression import Compression
from switchagg.codecs.spec import parse_codec
from switchagg.errors import AggregationFailed, JobError
from switchagg.lockstep import sum_together
from tests.transport.contracts.groups import closed, together
from tests.transport.contracts.meshes import free_addresses
from transport.group.group_opening import open_group
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

pytestmark = pytest.mark.filterwarnings("ignore:the Python core carries")

SOON_S = 120.0
WORKERS, SIZE = 3, 4000
TENSORS = (Tensor("weight", (50, 78)), Tensor("bias", (100,)))
METHODS = ["ring", "tree", "auto", "ps", "switch"]
GATHERED = ["topk:ratio=0.05+ef", "efsign+ef", "drop+ef", "dgc+ef"]


@dataclass(frozen=True)
class Toy(ArrayCodec):
    """Whole numbers: a sum of what is nearest, then every rank's count of them, gathered; the counts must agree."""

    name = "toy"
    rounds = 2

    def moved(self, values: int, workers: int) -> dict[Any, float]:
        return {"allreduce": 4.0 * values, "all_gather": 8.0 * workers}

    def rounds_of(self, values: Any, residual: Any, shape: ArrayShape, memory: Sequence[Memory]) -> Iterator[Reduction]:
        nearest = np.rint(values)
        if residual is not None:
            residual[:] = values - nearest
        integers = nearest.astype(np.int64)
        yield Reduction(integers)
        counts = np.zeros(shape.workers, np.int64)
        own_shard(counts, shape.rank, shape.workers)[:] = [int(integers.sum())]
        yield Reduction(counts, kind="all_gather")
        assert len(set(counts.tolist())) == 1
        values[:] = integers


@dataclass(frozen=True)
class Faulty(Toy):
    """Rank 1 breaks down in its second collective."""

    name = "faulty"

    def rounds_of(self, values: Any, residual: Any, shape: ArrayShape, memory: Sequence[Memory]) -> Iterator[Reduction]:
        for number, one in enumerate(super().rounds_of(values, residual, shape, memory)):
            if number and shape.rank == 1:
                raise RuntimeError("no more")
            yield one


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    for codec in (Toy, Faulty):
        monkeypatch.setitem(ARRAY_CODECS, codec.name, codec)


@contextmanager
def groups(method: str, codecs: Sequence[str] | str, **more: Any) -> Iterator[list[Any]]:
    """One for each rank. codecs: each rank's, or all."""
    each = [codecs] * WORKERS if isinstance(codecs, str) else codecs
    addresses = free_addresses(WORKERS)

    def opened(rank: int, **how: Any) -> Any:
        options = {"codec": each[rank], "timeout_s": 20.0, **how, **more}
        link = "udp" if method == "switch" else "tcp"
        return open_group(method, link, rank, addresses, job="toys", options=options)

    if method != "switch":
        with closed(together(WORKERS, opened)) as found:
            yield found
        return
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=4096)) as daemon:
        how = {"switch": daemon.control_endpoint, "bind": "127.0.0.1", "window_slots": 64}
        with closed(together(WORKERS, lambda rank: opened(rank, **how))) as found:
            yield found


def gradients(step: int, size: int = SIZE) -> list[Any]:
    return [np.random.default_rng([step, rank]).standard_normal(size).astype(np.float32) * 4 for rank in range(WORKERS)]


def in_lockstep(text: str, steps: int, elements: int = 357) -> list[Any]:
    """The sum of each step. elements: of a row, by default of a switch whose sums are verified (V4)."""
    ranks, found = [Compression(parse_codec(text), rank, WORKERS) for rank in range(WORKERS)], []
    for step in range(steps):
        arrays = gradients(step)
        sum_together(ranks, arrays, TENSORS, step, elements)
        found.append(arrays[0])
    return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("codec", ["lanes8+ef", "toy+ef", "toy+ef21", "lanes8:momentum=0.5+ef", *GATHERED])
def test_sums_are_those_in_lockstep(method: str, codec: str) -> None:
    """Bit for bit, step after step: what was lost comes back in the next one."""
    with groups(method, codec) as ranks:
        for step, total in enumerate(in_lockstep(codec, 3)):
            arrays = gradients(step)
            futures = [group.allreduce(array, tensors=TENSORS) for group, array in zip(ranks, arrays, strict=True)]
            assert all(future.result(SOON_S) is array for future, array in zip(futures, arrays, strict=True))
            assert all((array == total).all() for array in arrays)
        assert all(str(group.compression) == codec for group in ranks)


@pytest.mark.parametrize("method", METHODS)
def test_many_calls_at_once(method: str) -> None:
    """Of several threads, with the plain ones between them that the codec doesn't touch: each sum is its own. On a
    switch each thread has a class, in the others the keys of a rank come in any order."""
    told = {"priorities": [0, 3, 7], "window_slots": 64} if method == "switch" else {}
    with groups(method, "toy+ef", **told) as ranks:

        def one_thread(rank: int, thread: int) -> None:
            group, pending = ranks[rank], []
            order = list(range(8)) if method == "switch" or rank == 0 else list(range(8))[::-1]
            for number in order:
                key = 10 * thread + number
                size = 2000 if number % 3 else 100
                array = np.full(size, 1000 * rank + key, np.float32)
                priority = (0, 3, 7)[thread]
                pending.append((key, array, group.allreduce(array, key=key, priority=priority)))
                whole = np.full(50, key, np.int32)
                pending.append((-key, whole, group.allreduce(whole, key=1000 + key, priority=priority)))
            for key, array, future in pending:
                future.result(SOON_S)
                expected = 3000 + 3 * key if key > 0 or array.dtype == np.float32 else -3 * key
                assert (array == expected).all(), (key, array[:3])

        together(3 * WORKERS, lambda place: one_thread(place % WORKERS, place // WORKERS))


@pytest.mark.parametrize("method", METHODS)
def test_a_rank_whose_codec_fails_ends_the_job_for_all(method: str) -> None:
    with groups(method, "faulty") as ranks:
        futures = [group.allreduce(array) for group, array in zip(ranks, gradients(0), strict=True)]
        later = [group.allreduce(array) for group, array in zip(ranks, gradients(1), strict=True)]
        errors = [future.exception(SOON_S) for future in futures]
        # Which call gets as far first, the network says: it is the one that fails with the codec's own error.
        assert "no more" in {str(one[1].exception(SOON_S)) for one in (futures, later)}
        for rank in (0, 2):
            assert isinstance(errors[rank], AggregationFailed)
            assert "1" in str(errors[rank])
        assert all(future.exception(SOON_S) is not None for future in later)


@pytest.mark.parametrize("method", METHODS)
def test_a_rank_that_leaves_ends_what_the_others_wait_for(method: str) -> None:
    with groups(method, "toy+ef") as ranks:
        futures: list[Future[Any]] = [ranks[rank].allreduce(gradients(0)[rank], tensors=TENSORS) for rank in (0, 2)]
        futures += [ranks[rank].allreduce(gradients(1)[rank], key=3) for rank in (0, 2)]
        threading.Timer(0.1, ranks[1].close).start()
        assert all(isinstance(future.exception(SOON_S), AggregationFailed) for future in futures)


@pytest.mark.parametrize("method", ["ring", "ps", "switch"])
@pytest.mark.parametrize("other", ["lanes8+ef", "lanes8:least=7", "toy"])
def test_ranks_with_other_codecs_are_refused_at_once(method: str, other: str) -> None:
    """Both named, whatever part of it differs."""
    # Those whom the switch has admitted wait for the one that it hasn't.
    with pytest.raises(JobError) as refused, groups(method, ["lanes8", other, "lanes8"], timeout_s=1.5):
        pass
    assert "lanes8" in str(refused.value)
    assert other in str(refused.value)


@pytest.mark.parametrize("method", ["ring", "ps", "switch"])
@pytest.mark.parametrize("codec", ["topk:ratio=0.05", "twobit", "topk+ef", "lanes8", "thc_released"])
def test_rank_0_warns_of_a_codec_without_the_feedback_that_it_needs(
    method: str, codec: str, caplog: pytest.LogCaptureFixture
) -> None:
    with groups(method, codec):
        said = [one.message for one in caplog.records if "without error feedback" in one.message]
    needs = codec in ("topk:ratio=0.05", "twobit")
    assert said == needs * [f"codec {codec} without error feedback: training may stall or diverge; with it: {codec}+ef"]


@pytest.mark.parametrize("method", ["ring", "switch"])
def test_what_has_no_name_is_refused_and_a_key_names(method: str) -> None:
    with groups(method, "lanes8+ef") as ranks:
        for group in ranks:
            with pytest.raises(ValueError, match="name them by tensors=, or give the call a key"):
                group.allreduce(np.zeros(SIZE, np.float32))
        arrays = gradients(0)
        for future in [group.allreduce(array, key=5) for group, array in zip(ranks, arrays, strict=True)]:
            future.result(SOON_S)
        assert list(ranks[0].compression.state_dict()["sums"]) == ["key 5"]
        short = [np.full(100, 0.1, np.float32) for _ in ranks]
        for future in [group.allreduce(array) for group, array in zip(ranks, short, strict=True)]:
            assert future.result(SOON_S)[0] == pytest.approx(0.3)


def test_a_session_alone() -> None:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=512)) as daemon:
        how = JoinOptions(bind="127.0.0.1", window_slots=64, codec="lanes8+ef")

        def join(rank: int) -> SwitchSession:
            return SwitchSession.join(daemon.control_endpoint, "toys", rank, WORKERS, how)

        with closed(together(WORKERS, join)) as ranks:
            for step, total in enumerate(in_lockstep("lanes8+ef", 2)):
                arrays = gradients(step)
                calls = [one.allreduce(array, tensors=TENSORS) for one, array in zip(ranks, arrays, strict=True)]
                assert all((call.result(SOON_S) == total).all() for call in calls)


@pytest.mark.parametrize("method", ["switch", "ring", "ps"])
@pytest.mark.parametrize("codec", ["lanes8+ef", "toy+ef", *GATHERED])
def test_virtual_time(method: str, codec: str) -> None:
    """The same bits, of several sums at once, also where packets are lost."""
    simulation = SIMULATIONS[method](SimulationConfig(WORKERS, LinkConfig(10**9, 10_000, loss=0.05), codec=codec))
    for step, total in enumerate(in_lockstep(codec, 2, 360)):
        arrays, done = gradients(step), []

        def end(found: list[int], count: int) -> None:
            found.append(1)
            if len(found) == count:
                simulation.network.stop()

        plain = [np.full(10, rank, np.int32) for rank in range(WORKERS)]
        for rank, array in enumerate(arrays):
            simulation.launch(rank, array, "sum", partial(end, done, 2 * WORKERS), tensors=TENSORS)
            simulation.launch(rank, plain[rank], "sum", partial(end, done, 2 * WORKERS))
        simulation.run("compressed sums")
        assert all((array == total).all() for array in arrays)
        assert all((array == 3).all() for array in plain)


@pytest.mark.parametrize("method", ["switch", "ring", "ps"])
def test_bytes_of_what_is_gathered(method: str) -> None:
    """A switch and a server pass on what each rank sends once; a ring has each rank send as much as it receives."""
    simulation = SIMULATIONS[method](SimulationConfig(WORKERS, LinkConfig(10**9, 10_000), codec="topk", servers=1))
    size, done = 400_000, [0]
    tensors = (Tensor("all", (size,)),)

    def end() -> None:
        done[0] += 1
        if done[0] == WORKERS:
            simulation.network.stop()

    for rank, array in enumerate(gradients(0, size)):
        simulation.launch(rank, array, "sum", end, tensors=tensors)
    simulation.run("a gathered sum")
    sent, received = simulation.wire_bytes(0)
    own = size * parse_codec("topk").codec.bits(WORKERS) / 8
    assert sent == pytest.approx(own * (WORKERS - 1 if method == "ring" else 1), rel=0.25)
    assert received == pytest.approx(own * (WORKERS - 1), rel=0.12)
