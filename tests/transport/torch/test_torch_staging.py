"""Order of copies and events of a CUDA tensor's way to the switch, with a stand-in for torch.cuda; the seams of
the backend that need no second process."""

import gc
import threading
import time
import weakref
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from waiting import until

from transport.torch import backend, collectives
from transport.torch.calls import completions, tensor_layout, work
from transport.torch.calls.completions import CompletionPool
from transport.torch.calls.tensor_layout import RankContext, ReduceOperation
from transport.torch.calls.tensor_staging import CudaStage, HostStage, SideStreams

Log = list[tuple[Any, ...]]


class FakeCuda:
    """The part of torch.cuda that staging uses; records what was done, in which stream."""

    def __init__(self) -> None:
        self.log: Log = []
        self.current = "caller"
        cuda = self

        class Event:
            def __init__(self) -> None:
                self.name = ""

            def record(self, stream: "Stream") -> None:
                self.name = f"event{sum(entry[0] == 'record' for entry in cuda.log)}"
                cuda.log.append(("record", self.name, stream.name))

            def synchronize(self) -> None:
                cuda.log.append(("host waits", self.name))

        class Stream:
            def __init__(self, device: Any = None, name: str = "side") -> None:
                self.name = name

            def wait_stream(self, other: "Stream") -> None:
                cuda.log.append(("stream waits for stream", self.name, other.name))

            def wait_event(self, event: Event) -> None:
                cuda.log.append(("stream waits for event", self.name, event.name))

        self.Event, self.Stream = Event, Stream

    def current_stream(self, device: Any) -> Any:
        return self.Stream(name=self.current)

    @contextmanager
    def stream(self, stream: Any) -> Any:
        before, self.current = self.current, stream.name
        yield
        self.current = before


class FakeCudaTensor(torch.Tensor):
    """A tensor in host memory that records when it is read and written."""

    cuda: FakeCuda

    def record_stream(self, stream: Any) -> None:
        self.cuda.log.append(("keep for", stream.name))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        log, stream = cls.cuda.log, cls.cuda.current
        if function is torch.Tensor.copy_:
            way = "write" if isinstance(args[0], cls) else "read"
            log.append((way, stream, (kwargs or {}).get("non_blocking", False)))
        return super().__torch_function__(function, types, args, kwargs or {})


RANKS = RankContext(0, 2)


@pytest.mark.parametrize(
    ("dtype", "op", "expected"),
    [(torch.float32, "sum", 5.0), (torch.float16, "sum", 5.0), (torch.bfloat16, "avg", 2.5), (torch.int64, "sum", 5)],
)
def test_a_cuda_tensor_waits_for_its_caller_and_its_caller_for_it(dtype: torch.dtype, op: str, expected: float) -> None:
    cuda = FakeCuda()
    FakeCudaTensor.cuda = cuda
    tensor = torch.full((3, 4), 2, dtype=dtype)[:, ::2].as_subclass(FakeCudaTensor)
    side = SideStreams(cuda).of(tensor.device)

    (whole,) = tensor_layout.allreduce([tensor], ReduceOperation(op), RANKS)  # type: ignore[misc]
    stage = CudaStage(whole, side, cuda=cuda, pin=False)
    assert stage.needs_fetch
    stage.fetch()
    assert stage.array.dtype == (torch.int64 if dtype == torch.int64 else torch.float32).__str__().split(".")[1]
    assert stage.array.tolist() == [2] * 6
    stage.array += 3
    stage.restore()
    stage.synchronize()

    assert cuda.log == [
        ("stream waits for stream", "side", "caller"),
        ("read", "side", True),
        ("record", "event0", "side"),
        ("keep for", "side"),
        ("host waits", "event0"),
        ("write", "side", False),
        ("record", "event1", "side"),
        ("stream waits for event", "caller", "event1"),
    ]
    assert tensor.as_subclass(torch.Tensor).tolist() == [[expected] * 2] * 3
    with stage.on_its_stream():
        assert cuda.current == "side"


def test_a_device_has_one_side_stream() -> None:
    streams = SideStreams(FakeCuda())
    device, other = torch.device("cuda:0"), torch.device("cuda:1")
    assert streams.of(device) is streams.of(device)
    assert streams.of(device) is not streams.of(other)


def test_a_reduce_scatter_of_cuda_tensors_reads_one_and_writes_the_other() -> None:
    cuda = FakeCuda()
    FakeCudaTensor.cuda = cuda
    given = torch.arange(6.0).as_subclass(FakeCudaTensor)
    output = torch.zeros(3).as_subclass(FakeCudaTensor)
    (shards,) = tensor_layout.reduce_scatter(output, [given], ReduceOperation(), RankContext(1, 2))  # type: ignore[misc]
    stage = CudaStage(shards, SideStreams(cuda).of(given.device), cuda=cuda, pin=False)
    stage.fetch()
    assert stage.array.tolist() == [0, 1, 2, 3, 4, 5]
    stage.array[:] = [9, 9, 9, 6, 8, 10]
    stage.restore()
    assert output.as_subclass(torch.Tensor).tolist() == [6, 8, 10]
    assert given.as_subclass(torch.Tensor).tolist() == [0, 1, 2, 3, 4, 5]
    assert cuda.log.count(("keep for", "side")) == 2


@pytest.mark.parametrize(
    ("dtype", "op", "elements", "way"),
    [
        (torch.float32, "sum", 10**7, "allreduce sum float32"),
        (torch.float64, "avg", 3, "allreduce sum float64"),
        (torch.bfloat16, "avg", 10**7, "allreduce sum float32"),
        (torch.bfloat16, "max", 3, "allreduce max float32"),
        (torch.float32, "min", 3, "allreduce max float32"),
        (torch.int32, "max", 3, "allreduce max int32"),
        (torch.int16, "sum", 10**7, "allreduce sum int16"),
        (torch.int8, "sum", 3, "allreduce sum int8"),
        (torch.int8, "sum", 10**6, None),
        (torch.bool, "sum", 3, "allreduce sum bool"),
        (torch.bool, "avg", 3, None),
        (torch.int64, "max", 3, "all_gather sum int64"),
        (torch.int64, "max", 10**6, None),
        (torch.float32, "product", 3, "all_gather sum float32"),
        (torch.float32, "product", 10**6, None),
        (torch.uint8, "band", 3, "all_gather sum uint8"),
        (torch.float32, "band", 3, None),
        (torch.int32, "premul_sum", 3, None),
        (torch.complex64, "sum", 3, None),
    ],
)
def test_which_way_a_reduction_takes(dtype: torch.dtype, op: str, elements: int, way: str | None) -> None:
    tensor = torch.empty(elements, dtype=dtype)
    found = tensor_layout.allreduce([tensor], ReduceOperation(op, 0.5), RANKS)
    if way is None:
        assert found is None
        assert tensor_layout.allreduce([torch.zeros(3), tensor], ReduceOperation(op, 0.5), RANKS) is None
        return
    assert found is not None
    (part,) = found
    wire = str(part.dtype).removeprefix("torch.")
    assert f"{part.request.kind} {part.request.op} {wire}" == way


@pytest.mark.parametrize(
    ("dtype", "op", "better"),
    [
        (torch.uint16, "sum", "int32"),
        (torch.uint64, "max", "int64"),
        (torch.float8_e5m2, "sum", "float32"),
        (torch.float8_e4m3fn, "min", "float32"),
        (torch.bool, "avg", "float32"),
    ],
)
def test_a_type_that_nothing_combines_is_named_with_what_works(dtype: torch.dtype, op: str, better: str) -> None:
    assert tensor_layout.allreduce([torch.empty(3, dtype=dtype)], ReduceOperation(op), RANKS) is None
    with pytest.raises(TypeError, match=rf"allreduce \({op}\) of {dtype}: .* give tensor.to\(torch.{better}\)"):
        tensor_layout.refuse_type("allreduce", ReduceOperation(op), dtype)
    tensor_layout.refuse_type("all_gather", ReduceOperation(""), dtype)


def test_memory_in_which_sums_were_made_can_be_resized() -> None:
    """PowerSGD's batched hook does so with DDP's buckets."""
    tensor = torch.ones(3)
    (whole,) = tensor_layout.allreduce([tensor], ReduceOperation(), RANKS)  # type: ignore[misc]
    stage = HostStage(whole)
    stage.array += 1
    assert tensor.tolist() == [2, 2, 2]
    del stage
    assert tensor.resize_(9).shape == (9,)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("_allgather_base", "all_gather_single"),
        ("_reduce_scatter_base", "reduce_scatter_single"),
        ("alltoall_base", "all_to_all_single"),
        ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
    ],
)
def test_renamed_operations_have_both_names(old: str, new: str) -> None:
    """PyTorch 2.11 has only the old names and calls those; later ones call the new, or, when asked, the old."""

    class OldGloo:
        pass

    setattr(OldGloo, old, lambda self, *args: ("old", args))

    class Group(collectives.Collectives):
        reducer = SimpleNamespace(raise_failure=lambda: None)
        _gloo = OldGloo()
        delegate = backend.SwitchProcessGroup.delegate

        def run(self, kind: Any, tensors: Any, build: Any, options: Any, forward: Any, **more: Any) -> Any:
            return forward()

        def by_gloo(self, seen: Any, forward: Any, results: Any, size_bytes: int) -> Any:
            return forward()

    given = ([torch.ones(1)], [torch.ones(1)]) if "coalesced" in old else (torch.ones(1), torch.ones(1))
    for name in (old, new):
        how, (outputs, inputs, *_) = getattr(Group(0, 1), name)(*given)
        assert (how, outputs, inputs) == ("old", *given)
        assert hasattr(dist.ProcessGroup, name) or torch.__version__ < "2.13"


def test_no_hook_is_seen_outside_of_backward() -> None:
    assert work.current_hook() is None


def test_a_hook_is_waited_for_until_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    call = work.SwitchWork([], "a call", 1.0)

    def hook(gradient: torch.Tensor) -> None:
        found = work.current_hook()
        assert found is not None
        seen.append((found, found._running()))

    parameter = torch.ones(2, requires_grad=True)
    parameter.register_hook(hook)
    parameter.sum().backward()
    ((found, inside),) = seen
    assert inside
    assert not found._running()
    found.wait(call)

    # One that waits for its own Future must not wait for ever, and not be waited for again.
    monkeypatch.setattr(work, "PATIENCE_S", 0.05)

    def waits(gradient: torch.Tensor) -> None:
        found = work.current_hook()
        assert found is not None
        found.wait(call)
        monkeypatch.setattr(work, "PATIENCE_S", 1e9)
        found.wait(call)
        seen.append("went on")

    parameter.register_hook(waits)
    parameter.sum().backward()
    assert seen[-1] == "went on"


def test_options_from_every_form() -> None:
    given = dist.AllreduceOptions()
    assert collectives._options(dist.AllreduceOptions, given, None, reduceOp=given) is given
    made = collectives._options(dist.AllreduceOptions, None, timedelta(seconds=5), reduceOp=dist.ReduceOp.PRODUCT)
    assert made.reduceOp == dist.ReduceOp.PRODUCT
    assert made.timeout == timedelta(seconds=5)
    assert collectives._options(dist.AllreduceOptions, None, None, reduceOp=None).reduceOp == dist.ReduceOp.SUM


def test_idle_threads_keep_no_tensor_alive() -> None:
    pool = CompletionPool("idle")
    for _ in range(2):  # the first task makes the thread, the second finds it idle
        buffer = torch.ones(3)
        alive, done = weakref.ref(buffer), threading.Event()
        pool.submit(lambda buffer=buffer, done=done: done.set())
        assert done.wait(20)
        del buffer
        end = time.monotonic() + 120
        while not pool.idle or alive() is not None:
            assert time.monotonic() < end, "an idle thread holds its task"
            gc.collect()
            time.sleep(0.01)
    assert pool.threads == 1
    pool.close()


def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "IDLE_S", 0.01)
    pool = CompletionPool("ends")
    for _ in range(50):  # tasks come also while a thread ends
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(20)
        time.sleep(0.01)
    until(lambda: not pool.threads, "an idle thread goes on")
    assert pool.idle == 0
    pool.close()
