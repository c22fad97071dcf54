"""Order of copies and events of a CUDA tensor's way to the switch, with a stand-in for torch.cuda; the seams of
the backend that need no second process."""

import gc
import threading
import time
import weakref
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from transport.torch import attachment, backend
from transport.torch.completions import CompletionPool
from transport.torch.staging import CudaStage, SideStreams

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


@pytest.mark.parametrize(
    ("dtype", "divisor", "expected"),
    [(torch.float32, None, 5.0), (torch.float16, None, 5.0), (torch.bfloat16, 2, 2.5), (torch.int64, None, 5)],
)
def test_a_cuda_tensor_waits_for_its_caller_and_its_caller_for_it(
    dtype: torch.dtype, divisor: int | None, expected: float
) -> None:
    cuda = FakeCuda()
    FakeCudaTensor.cuda = cuda
    tensor = torch.full((3, 4), 2, dtype=dtype)[:, ::2].as_subclass(FakeCudaTensor)
    side = SideStreams(cuda).of(tensor.device)

    stage = CudaStage(tensor, divisor, side, cuda=cuda, pin=False)
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


SUM, AVG, MAX = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX


@pytest.mark.parametrize(
    ("dtype", "op", "goes"),
    [
        (torch.float32, SUM, True),
        (torch.float64, AVG, True),
        (torch.bfloat16, AVG, True),
        (torch.int32, SUM, True),
        (torch.int32, MAX, True),
        (torch.int64, SUM, True),
        (torch.int64, MAX, False),
        (torch.int32, AVG, True),
        (torch.float32, MAX, False),
        (torch.float32, dist.ReduceOp.PRODUCT, False),
        (torch.int8, SUM, False),
        (torch.bool, SUM, False),
        (torch.complex64, SUM, False),
    ],
)
def test_which_tensors_and_operations_use_the_switch(dtype: torch.dtype, op: Any, goes: bool) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    tensor = torch.zeros(3, dtype=dtype)
    assert backend.eligible([tensor], options.reduceOp) is goes
    assert not backend.eligible([torch.zeros(3), tensor, torch.zeros(3, dtype=torch.int8)], options.reduceOp)
    assert not backend.eligible([], op)
    assert not backend.eligible([tensor.to_sparse()], op)
    assert not backend.eligible([torch.empty(3, dtype=dtype, device="meta")], op)


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

    class Group:
        class reducer:
            @staticmethod
            def raise_failure() -> None:
                pass

        _gloo = OldGloo()
        delegate = backend.SwitchProcessGroup.delegate

    for name in (old, new):
        assert getattr(backend.SwitchProcessGroup, name)(Group(), 1, 2) == ("old", (1, 2))
        assert hasattr(dist.ProcessGroup, name) or torch.__version__ < "2.13"


def test_no_hook_is_seen_outside_of_backward() -> None:
    assert attachment.current_hook() is None


def test_a_hook_is_waited_for_until_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def hook(gradient: torch.Tensor) -> None:
        found = attachment.current_hook()
        assert found is not None
        seen.append((found, found._running()))

    parameter = torch.ones(2, requires_grad=True)
    parameter.register_hook(hook)
    parameter.sum().backward()
    ((found, inside),) = seen
    assert inside
    assert not found._running()
    found.wait()

    # One that waits for its own Future must not wait for ever, and not be waited for again.
    monkeypatch.setattr(attachment, "PATIENCE_S", 0.05)

    def waits(gradient: torch.Tensor) -> None:
        found = attachment.current_hook()
        assert found is not None
        found.wait()
        monkeypatch.setattr(attachment, "PATIENCE_S", 1e9)
        found.wait()
        seen.append("went on")

    parameter.register_hook(waits)
    parameter.sum().backward()
    assert seen[-1] == "went on"


def test_allreduce_options_from_every_form() -> None:
    given = dist.AllreduceOptions()
    assert backend._allreduce_options(given, None) is given
    made = backend._allreduce_options(dist.ReduceOp.PRODUCT, timedelta(seconds=5))
    assert made.reduceOp == dist.ReduceOp.PRODUCT
    assert made.timeout == timedelta(seconds=5)
    assert backend._allreduce_options(None, None).reduceOp == dist.ReduceOp.SUM


def test_idle_threads_keep_no_tensor_alive() -> None:
    pool = CompletionPool("idle")
    for _ in range(2):  # the first task makes the thread, the second finds it idle
        buffer = torch.ones(3)
        alive, done = weakref.ref(buffer), threading.Event()
        pool.submit(lambda buffer=buffer, done=done: done.set())
        assert done.wait(20)
        del buffer
        end = time.monotonic() + 20
        while not pool.idle or alive() is not None:
            assert time.monotonic() < end, "an idle thread holds its task"
            gc.collect()
            time.sleep(0.01)
    assert pool.threads == 1
    pool.close()
