"""Tensors as the arrays that a group works on, and back.

A group takes 1-D C-contiguous arrays in host memory. A contiguous CPU tensor that is the whole array, and travels as it
is, is worked on where it lies; all others are copied to a buffer and back: float16 and bfloat16 as float32 where sums
are made of them, strided tensors compacted, CUDA tensors through pinned memory.
"""

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from switchagg.calls.call_request import CallRequest
from transport.torch.calls.tensor_layout import GroupCall, array_of, bits, lies_plain

Array = NDArray[Any]


class TensorStage(Protocol):
    """The tensors of one call, on their way to the group and back."""

    request: CallRequest
    """The group's call of `array`."""
    array: Array
    """The group works on this array; it is valid once `fetch` has returned."""
    needs_fetch: bool
    """Whether `fetch` may block."""

    def fetch(self) -> None:
        """Wait until `array` holds the tensors' values."""

    def restore(self) -> None:
        """Write the results to the tensors; on a CUDA device this is only started."""

    def synchronize(self) -> None:
        """Make the current stream of the tensors' device wait for `restore`."""

    def on_its_stream(self) -> AbstractContextManager[Any]:
        """While open, the stream that `restore` uses is its device's current one."""


class HostStage:
    """CPU tensors."""

    needs_fetch = False

    def __init__(self, call: GroupCall) -> None:
        self._call, self.request = call, call.request
        home = call.home
        in_place = home is not None and lies_plain(home) and home.dtype == call.dtype
        self._home = home if in_place else None
        if in_place:
            assert home is not None
            self._buffer = home.detach().view(-1)
        else:
            self._buffer = _buffer(call, False)
        for tensor, start in call.gives:
            if tensor is not self._home:
                _copy(_slice(self._buffer, tensor, start), tensor.detach())
        if call.before is not None:
            call.before(self._buffer)
        self.array: Array = array_of(self._buffer)

    def fetch(self) -> None:
        pass

    def restore(self) -> None:
        if self._call.after is not None:
            self._call.after(self._buffer)
        for tensor, start in self._call.takes:
            if tensor is not self._home:
                _write(tensor.detach(), _slice(self._buffer, tensor, start))

    def synchronize(self) -> None:
        pass

    def on_its_stream(self) -> AbstractContextManager[Any]:
        return nullcontext()


class CudaStage:
    """CUDA tensors of one device: copied to and from pinned memory on a stream of its own, beside the caller's kernels.

    The copy out waits for what is queued on the caller's current stream; types change on the device. cuda:
    `torch.cuda`, or its replacement where there is no GPU. pin: whether the buffer is pinned.
    """

    needs_fetch = True

    def __init__(self, call: GroupCall, side: Any, *, cuda: Any = torch.cuda, pin: bool = True) -> None:
        self._call, self.request = call, call.request
        self._side = side
        self._cuda = cuda
        # PyTorch caches pinned blocks, and reuses one only when the copies that were queued on it are done.
        self._host = _buffer(call, pin)
        self._fetched = cuda.Event()
        self._restored = cuda.Event()
        self._tensors = {id(tensor): tensor.detach() for tensor, _ in (*call.gives, *call.takes)}
        self._device = next(iter(self._tensors.values())).device if self._tensors else None
        side.wait_stream(cuda.current_stream(self._device))
        with cuda.stream(side):
            for tensor, start in call.gives:
                values = self._tensors[id(tensor)].resolve_neg().to(call.dtype).contiguous()
                _slice(self._host, tensor, start).copy_(values, non_blocking=True)
            self._fetched.record(side)
        # The caller may free a tensor while our stream still works on it.
        for tensor in self._tensors.values():
            tensor.record_stream(side)
        self.array: Array = bits(self._host).numpy()

    def fetch(self) -> None:
        self._fetched.synchronize()
        if self._call.before is not None:
            self._call.before(self._host)

    def restore(self) -> None:
        if self._call.after is not None:
            self._call.after(self._host)
        with self._cuda.stream(self._side):
            for taker, start in self._call.takes:
                tensor = self._tensors[id(taker)]
                # In two steps: copy_ between types would convert on the host, in memory that isn't pinned.
                _write(tensor, _slice(self._host, tensor, start).to(tensor.device, non_blocking=True))
            self._restored.record(self._side)

    def synchronize(self) -> None:
        self._cuda.current_stream(self._device).wait_event(self._restored)

    def on_its_stream(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._cuda.stream(self._side)
        return context


class GlooStage:
    """A call that sends nothing: the ranks compare a collective. work: of Gloo, which carries it out, or None."""

    needs_fetch = False

    def __init__(self, call: GroupCall, work: Any = None) -> None:
        self._work, self.request = work, call.request
        self.array: Array = np.empty(0, np.uint8)

    def fetch(self) -> None:
        pass

    def restore(self) -> None:
        if self._work is not None:
            self._work.wait()

    def synchronize(self) -> None:
        self.restore()

    def on_its_stream(self) -> AbstractContextManager[Any]:
        return nullcontext()


def _buffer(call: GroupCall, pin: bool) -> torch.Tensor:
    """Room for the array; zeros where there may be gaps between the tensors."""
    allocate = torch.zeros if len(call.gives) > 1 else torch.empty
    return allocate(call.elements, dtype=call.dtype, pin_memory=pin)


def _slice(buffer: torch.Tensor, tensor: torch.Tensor, start: int) -> torch.Tensor:
    """The part of an array that belongs to a tensor, in its shape."""
    return buffer[start : start + tensor.numel()].view(tensor.shape)


def _copy(to: torch.Tensor, tensor: torch.Tensor) -> None:
    if to.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():  # FSDP2 gathers from the output's own shard
        to.copy_(tensor.resolve_neg())  # a copy of a negated float16 to float32 has the wrong signs


def _write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    tensor.copy_(values.to(tensor.dtype) if tensor.is_neg() else values)


class SideStreams:
    """A CUDA stream per device for our copies. It is thread-safe."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._lock = threading.Lock()
        self._streams: dict[torch.device, Any] = {}

    def of(self, device: torch.device) -> Any:
        with self._lock:
            if device not in self._streams:
                self._streams[device] = self._cuda.Stream(device)
            return self._streams[device]
