"""Order, completion and failure of tensor allreduces, with ranks as threads and a switch inside the process."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fake_switch import FakeSession, FakeSwitch
from waiting import until

from transport.torch.calls import tensor_layout
from transport.torch.calls.completions import CompletionPool
from transport.torch.calls.reducer import DEPTH_MAX, Reducer
from transport.torch.calls.tensor_layout import ReduceOperation
from transport.torch.calls.work import DEADLINES

WAIT = timedelta(seconds=20)


@pytest.fixture
def switch() -> Iterator[FakeSwitch]:
    fake = FakeSwitch()
    yield fake
    fake.stop()


class Ranks:
    """One Reducer per rank, each driven by a thread of its own."""

    def __init__(self, switch: FakeSwitch, workers: int) -> None:
        self.switch = switch
        self.sessions: list[dict[int, FakeSession]] = [{} for _ in range(workers)]
        self.reducers = [
            Reducer(lambda lane, rank=rank: self._open(rank, lane), f"group g (rank {rank})", lambda: 20)
            for rank in range(workers)
        ]

    def _open(self, rank: int, lane: int) -> FakeSession:
        session = self.switch.join("tcp://fake:1", f"job/{lane}", rank, len(self.reducers))
        self.sessions[rank][lane] = session
        return session

    def run(self, program: Callable[[int, Reducer], Any]) -> list[Any]:
        futures: list[Future[Any]] = [in_thread(program, rank, reducer) for rank, reducer in enumerate(self.reducers)]
        return [future.result(timeout=30) for future in futures]


def in_thread(function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
    """What the function returns or raises. A daemon thread: one that hangs fails the test and not the whole run."""
    future: Future[Any] = Future()

    def call() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future


@pytest.fixture
def ranks(switch: FakeSwitch) -> Iterator[Callable[[int], Ranks]]:
    made: list[Ranks] = []

    def make(workers: int) -> Ranks:
        made.append(Ranks(switch, workers))
        return made[-1]

    yield make
    for group in made:
        for reducer in group.reducers:
            reducer.close()


def allreduce(reducer: Reducer, tensors: list[torch.Tensor], op: str = "sum", limit_s: float | None = None) -> Any:
    parts = None if reducer.failure else tensor_layout.allreduce(tensors, ReduceOperation(op), reducer.ranks())
    return reducer.start(parts or [], tensors, limit_s)


def reduced(reducer: Reducer, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
    allreduce(reducer, [tensor], op).wait(WAIT)
    return tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_floats_are_summed_and_averaged(ranks: Callable[[int], Ranks], dtype: torch.dtype) -> None:
    def program(rank: int, reducer: Reducer) -> None:
        total = reduced(reducer, torch.tensor([1.0, 2.0, -4.5], dtype=dtype) * (rank + 1))
        assert total.tolist() == [6.0, 12.0, -27.0]
        mean = reduced(reducer, torch.tensor([1.0, 2.0, -4.5], dtype=dtype) * (rank + 1), op="avg")
        assert mean.tolist() == [2.0, 4.0, -9.0]

    ranks(3).run(program)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers_wrap(ranks: Callable[[int], Ranks], dtype: torch.dtype) -> None:
    largest = torch.iinfo(dtype).max

    def program(rank: int, reducer: Reducer) -> None:
        assert reduced(reducer, torch.tensor([largest, 5], dtype=dtype)).tolist() == [-2, 10]

    ranks(2).run(program)


def test_maximum(ranks: Callable[[int], Ranks]) -> None:
    def program(rank: int, reducer: Reducer) -> None:
        assert reduced(reducer, torch.tensor([rank, -rank], dtype=torch.int32), op="max").tolist() == [2, 0]

    ranks(3).run(program)


def test_sixteen_bit_sums_are_rounded_once(ranks: Callable[[int], Ranks]) -> None:
    def program(rank: int, reducer: Reducer) -> None:
        # Adding in float16 step by step would lose each 1 beside 2048.
        value = torch.tensor([2048.0 if rank == 0 else 1.0], dtype=torch.float16)
        assert reduced(reducer, value).item() == 2050.0

    ranks(3).run(program)


def test_strided_tensors_keep_what_lies_between(ranks: Callable[[int], Ranks]) -> None:
    def program(rank: int, reducer: Reducer) -> None:
        whole = torch.arange(12, dtype=torch.float32).reshape(3, 4)
        reduced(reducer, whole[:, ::2])
        assert whole.tolist() == [[0, 1, 4, 3], [8, 5, 12, 7], [16, 9, 20, 11]]

    ranks(2).run(program)


def test_contiguous_tensors_are_reduced_in_place(ranks: Callable[[int], Ranks]) -> None:
    def program(rank: int, reducer: Reducer) -> None:
        weight = torch.nn.Parameter(torch.ones(2, 3))
        place = weight.data_ptr()
        work = allreduce(reducer, [weight])
        assert work.result()[0] is weight
        assert weight.data_ptr() == place
        assert weight.tolist() == [[2.0] * 3] * 2

    ranks(2).run(program)


def test_scalars_and_several_tensors_in_one_call(ranks: Callable[[int], Ranks]) -> None:
    def program(rank: int, reducer: Reducer) -> None:
        tensors = [torch.tensor(1.5), torch.ones(3, dtype=torch.int64), torch.empty(0)]
        assert allreduce(reducer, tensors).get_future().wait() is not None
        assert tensors[0].item() == 3.0
        assert tensors[1].tolist() == [2, 2, 2]

    ranks(2).run(program)


def test_an_empty_tensor_is_a_call_as_any_other(ranks: Callable[[int], Ranks]) -> None:
    """Else a rank whose tensor isn't empty would wait for those whose are."""
    reducers = ranks(2).reducers
    work = allreduce(reducers[0], [torch.empty(0)])
    assert not work.is_completed()
    allreduce(reducers[1], [torch.empty(0)])
    assert work.wait()


def test_calls_overlap(ranks: Callable[[int], Ranks], switch: FakeSwitch) -> None:
    started = threading.Barrier(2, action=switch.hold.set)
    switch.hold.clear()

    def program(rank: int, reducer: Reducer) -> list[float]:
        tensors = [torch.full((4,), float(number)) for number in range(8)]
        works = [allreduce(reducer, [tensor]) for tensor in tensors]
        assert not any(work.is_completed() for work in works)
        started.wait(20)
        assert all(work.wait(WAIT) for work in works)
        assert all(work.is_success() for work in works)
        return [tensor[0].item() for tensor in tensors]

    assert ranks(2).run(program) == [[2.0 * number for number in range(8)]] * 2


def test_an_all_gather_does_not_wait_for_a_reduce_scatter(ranks: Callable[[int], Ranks], switch: FakeSwitch) -> None:
    """Both are handed to the group before either has ended: their ways on the link are opposite."""
    started = threading.Barrier(2, action=switch.hold.set)
    switch.hold.clear()

    def program(rank: int, reducer: Reducer) -> tuple[list[float], list[float]]:
        place = reducer.ranks()
        shard, whole = torch.empty(3), torch.empty(4)
        scatter = tensor_layout.reduce_scatter(shard, [torch.arange(6.0)], ReduceOperation(), place)
        works = [
            reducer.start(scatter or [], [shard]),
            reducer.start(tensor_layout.all_gather([whole], torch.full((2,), float(rank)), place), [whole]),
        ]
        assert reducer._lanes[0].session._calls == 2
        started.wait(20)
        assert all(work.wait(WAIT) for work in works)
        return shard.tolist(), whole.tolist()

    gathered = [0.0, 0.0, 1.0, 1.0]
    assert ranks(2).run(program) == [([0.0, 2.0, 4.0], gathered), ([6.0, 8.0, 10.0], gathered)]


def test_callbacks_run_off_the_network_thread(ranks: Callable[[int], Ranks]) -> None:
    def program(rank: int, reducer: Reducer) -> str:
        seen: list[str] = []
        work = allreduce(reducer, [torch.ones(1)])
        work.get_future().then(lambda future: seen.append(threading.current_thread().name)).wait()
        return seen[0]

    assert all(name != "network" for name in ranks(2).run(program))


def test_a_callback_may_wait_for_another_call(ranks: Callable[[int], Ranks], switch: FakeSwitch) -> None:
    """As PowerSGD's do, for many calls in flight and with ranks whose callbacks come in different orders."""
    calls = 12
    attached = threading.Barrier(3, action=switch.hold.set)
    switch.hold.clear()

    def program(rank: int, reducer: Reducer) -> list[list[float]]:
        def again(future: Any) -> torch.Tensor:
            time.sleep(0.002 * ((rank * 7 + future.value()[0].numel() * 3) % 5))
            (first,) = future.value()
            second = first.clone().repeat(2)
            allreduce(reducer, [second]).get_future().wait()
            third = second[:1].clone()
            allreduce(reducer, [third]).wait(WAIT)
            return torch.cat([second, third])

        futures = []
        for number in range(calls):
            tensor = torch.full((number % 3 + 1,), float(number))
            futures.append(allreduce(reducer, [tensor]).get_future().then(again))
        attached.wait(20)
        return [future.wait().tolist() for future in futures]

    results = ranks(3).run(program)
    expected = [[9.0 * n] * (2 * (n % 3 + 1)) + [27.0 * n] for n in range(calls)]
    assert results == [expected] * 3
    assert not switch.mismatches
    assert {joined["job"] for joined in switch.joined} == {"job/0", "job/1"}


def test_nested_calls_are_bounded(ranks: Callable[[int], Ranks], switch: FakeSwitch) -> None:
    reducer = ranks(1).reducers[0]

    def deeper(future: Any) -> Any:
        if future is not None:
            future.value()
        switch.hold.clear()
        child = allreduce(reducer, [torch.ones(1)]).get_future().then(deeper)
        switch.hold.set()
        return child.wait()

    with pytest.raises(RuntimeError, match=f"nested more than {DEPTH_MAX} deep"):
        deeper(None)
    assert [joined["job"] for joined in switch.joined] == [f"job/{lane}" for lane in range(DEPTH_MAX + 1)]


def test_a_failure_reaches_everything_once(ranks: Callable[[int], Ranks], switch: FakeSwitch) -> None:
    group = ranks(2)
    reducer = group.reducers[0]
    pending = [allreduce(reducer, [torch.ones(3)]) for _ in range(3)]
    assert reducer.failure is None
    futures = [work.get_future() for work in pending]
    group.sessions[0][0].fail("worker gone", missing=(1,))
    for work in pending:
        with pytest.raises(dist.DistBackendError, match=r"allreduce \d .*worker gone; missing ranks: 1") as raised:
            work.wait(WAIT)
        assert raised.value.__cause__ is reducer.failure
        assert work.is_completed()
        assert not work.is_success()
        assert work.exception() is reducer.failure
    for future in futures:
        with pytest.raises(RuntimeError, match="worker gone"):
            future.wait()
    later = allreduce(reducer, [torch.ones(1)])
    assert later.is_completed()
    with pytest.raises(dist.DistBackendError, match="worker gone"):
        later.wait()
    with pytest.raises(RuntimeError, match="worker gone"):
        later.get_future().wait()
    with pytest.raises(dist.DistBackendError, match="worker gone"):
        reducer.raise_failure()


def test_a_failure_frees_callbacks_that_wait(ranks: Callable[[int], Ranks], switch: FakeSwitch) -> None:
    group = ranks(2)
    inside = threading.Event()

    def again(future: Any) -> None:
        work = allreduce(group.reducers[0], [torch.ones(1)])
        inside.set()
        work.wait(WAIT)

    switch.hold.clear()
    # Rank 1 takes part in the first call and never makes the second.
    first = in_thread(lambda: allreduce(group.reducers[1], [torch.ones(1)]).wait(WAIT))
    future = allreduce(group.reducers[0], [torch.ones(1)]).get_future().then(again)
    switch.hold.set()
    assert first.result(timeout=20)
    assert inside.wait(20)
    group.sessions[0][0].fail("worker gone")
    with pytest.raises(dist.DistBackendError):
        allreduce(group.reducers[0], [torch.ones(1)]).wait(WAIT)
    with pytest.raises(RuntimeError, match="worker gone"):
        future.wait()


def test_joining_that_fails_fails_the_call_and_not_the_caller() -> None:
    def refuse(lane: int) -> None:
        raise dist.DistBackendError("no switch there")

    reducer = Reducer(refuse, "group g", lambda: 5)
    work = reducer.start([tensor_layout.barrier()], [])
    with pytest.raises(dist.DistBackendError, match=r"group g: barrier 0 .* failed: no switch there"):
        work.wait()
    reducer.close()


def test_wait_ends_after_its_time_and_the_call_goes_on(ranks: Callable[[int], Ranks]) -> None:
    group = ranks(2)
    tensor = torch.ones(2)
    work = allreduce(group.reducers[0], [tensor])
    with pytest.raises(dist.DistBackendError, match=r"timed out; no result after 0\.05 s"):
        work.wait(timedelta(milliseconds=50))
    allreduce(group.reducers[1], [torch.ones(2)]).wait(WAIT)
    work.wait(WAIT)
    assert tensor.tolist() == [2.0, 2.0]


def test_a_call_that_takes_too_long_fails_and_the_group_with_it(ranks: Callable[[int], Ranks]) -> None:
    reducer = ranks(2).reducers[0]
    work = allreduce(reducer, [torch.ones(2)], limit_s=0.05)
    for timeout in (None, timedelta(0), timedelta(milliseconds=-1)):
        with pytest.raises(dist.DistBackendError, match=r"allreduce 0 .*failed: timed out after 0\.05 s"):
            work.wait(timeout)
    with pytest.raises(RuntimeError, match=r"timed out after 0\.05 s"):
        work.get_future().wait()
    with pytest.raises(dist.DistBackendError, match=r"timed out after 0\.05 s"):
        allreduce(reducer, [torch.ones(2)]).wait()
    assert not DEADLINES._due


def test_nothing_of_a_call_is_kept_beyond_its_end(ranks: Callable[[int], Ranks]) -> None:
    def program(rank: int, reducer: Reducer) -> list[Any]:
        kept: list[Any] = []
        for number in range(20):
            tensor, gathered, place = torch.ones(1 + number), torch.empty(2), reducer.ranks()
            works = [
                allreduce(reducer, [tensor]),
                reducer.start([tensor_layout.all_gather([gathered], torch.ones(1), place)[0]], [gathered]),
                reducer.start([tensor_layout.barrier()], []),
            ]
            assert all(work.wait(WAIT) for work in works)
            kept += map(weakref.ref, (tensor, gathered, *works))
        assert reducer.start([tensor_layout.barrier()], []).wait(WAIT)
        return kept

    kept = [one for each in ranks(2).run(program) for one in each]
    until(lambda: gc.collect() >= 0 and not [one for one in kept if one() is not None])


def test_the_future_of_a_call_that_was_waited_for_is_done(ranks: Callable[[int], Ranks]) -> None:
    """Also inside a hook: what it attaches then runs at once, as with PyTorch's back ends; torchft counts on it."""

    def program(rank: int, reducer: Reducer) -> list[bool]:
        done: list[bool] = []

        def wait(gradient: torch.Tensor) -> None:
            for _ in range(20):
                work = allreduce(reducer, [gradient.clone()])
                assert work.wait(WAIT)
                future = work.get_future()
                done.append(future.done() and future.then(lambda _: threading.get_ident()).done())

        wait(torch.ones(2))
        values = torch.ones(2, requires_grad=True)
        values.register_hook(wait)
        values.sum().backward()
        return done

    assert ranks(2).run(program) == [[True] * 40] * 2


def test_close_fails_what_is_pending_and_ends_the_threads(ranks: Callable[[int], Ranks]) -> None:
    group = ranks(2)
    work = allreduce(group.reducers[0], [torch.ones(2)])
    group.reducers[0].close()
    group.reducers[0].close()
    with pytest.raises(dist.DistBackendError, match="shut down"):
        work.wait(WAIT)
    with pytest.raises(dist.DistBackendError, match="shut down"):
        allreduce(group.reducers[0], [torch.ones(2)]).wait()
    assert group.sessions[0][0].closed


def test_pool_grows_with_blocked_tasks_and_reuses_idle_threads() -> None:
    pool = CompletionPool("test")
    gates = [threading.Event() for _ in range(20)]
    all_inside = threading.Barrier(21)

    def blocked(gate: threading.Event) -> None:
        all_inside.wait(20)
        gate.wait(20)

    for gate in gates:
        pool.submit(lambda gate=gate: blocked(gate))
    all_inside.wait(20)  # passes only if all run at one time
    for gate in gates:
        gate.set()
    until(lambda: pool.idle == 20)
    for _ in range(50):
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(20)
        until(lambda: pool.idle == 20)
    assert pool.threads == 20
    pool.submit(lambda: 1 / 0)  # is logged, and harms nobody
    pool.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test-completion")]
    ran: list[bool] = []
    pool.submit(lambda: ran.append(True))
    assert ran == [True]
