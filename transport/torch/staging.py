"""Tensors as the arrays that a group reduces, and back.

A group takes 1-D C-contiguous arrays in host memory. A contiguous CPU tensor whose type travels as it is
(`transport.group.staging`) is reduced where it lies; all others in a buffer: float16 and bfloat16 as float32, strided
tensors compacted, CUDA tensors through pinned memory.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from transport.group.staging import Adds, tensor_dtype

Array = NDArray[Any]

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8,
                  torch.int8, torch.int16, torch.bool)
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def wire_dtype(dtype: torch.dtype, op: str = "sum", adds: Adds | None = None) -> torch.dtype | None:
    """What tensors of a type travel as; None: Gloo reduces them (`transport.group.staging.tensor_dtype`)."""
    name = tensor_dtype(_NAMES.get(dtype, ""), op, adds)
    return None if name is None else _DTYPES[name]


class Stage(Protocol):
    """One tensor of a call, on its way to the switch and back."""

    array: Array
    """What the session reduces: (numel,), valid once `fetch` has returned."""
    needs_fetch: bool
    """Whether `fetch` may block."""
    dtype: str
    """The tensor's own."""

    def fetch(self) -> None:
        """Wait until `array` holds the tensor's values."""

    def restore(self) -> None:
        """Write the reduced array back to the tensor; on a CUDA device this is only started."""

    def synchronize(self) -> None:
        """Make the current stream of the tensor's device wait for `restore`."""

    def on_its_stream(self) -> AbstractContextManager[Any]:
        """While open, the stream that `restore` uses is its device's current one."""


class HostStage:
    """A CPU tensor. divisor: None for a plain reduction, n for the mean of n workers."""

    needs_fetch = False

    def __init__(self, tensor: torch.Tensor, divisor: int | None) -> None:
        self._tensor = tensor.detach()
        self._divisor = divisor
        self.dtype = _NAMES[tensor.dtype]
        self._buffer: torch.Tensor | None = None
        wire = wire_dtype(tensor.dtype)
        assert wire is not None
        if wire == tensor.dtype and tensor.is_contiguous() and not tensor.is_neg():
            flat = self._tensor.view(-1)
        else:
            self._buffer = torch.empty(tensor.shape, dtype=wire)
            self._buffer.copy_(self._tensor)
            flat = self._buffer.view(-1)
        self.array: Array = flat.numpy()

    def fetch(self) -> None:
        pass

    def restore(self) -> None:
        if self._divisor is not None:
            _divide(self.array, self._divisor)
        if self._buffer is not None:
            _once(self._tensor).copy_(_once(self._buffer, self._tensor))

    def synchronize(self) -> None:
        pass

    def on_its_stream(self) -> AbstractContextManager[Any]:
        return nullcontext()


class CudaStage:
    """A CUDA tensor: copied to and from pinned memory on a stream of its own, beside the caller's kernels.

    The copy out waits for what is queued on the caller's current stream; types change on the device. divisor as for
    HostStage. cuda: `torch.cuda`, or its replacement where there is no GPU. pin: whether the buffer is pinned.
    """

    needs_fetch = True

    def __init__(
        self, tensor: torch.Tensor, divisor: int | None, side: Any, *, cuda: Any = torch.cuda, pin: bool = True
    ) -> None:
        self._tensor = tensor.detach()
        self._divisor = divisor
        self.dtype = _NAMES[tensor.dtype]
        self._side = side
        self._cuda = cuda
        # PyTorch caches pinned blocks, and reuses one only when the copies that were queued on it are done.
        wire = wire_dtype(tensor.dtype)
        assert wire is not None
        self._host = torch.empty(tensor.shape, dtype=wire, pin_memory=pin)
        self._fetched = cuda.Event()
        self._restored = cuda.Event()
        side.wait_stream(cuda.current_stream(tensor.device))
        with cuda.stream(side):
            self._host.copy_(self._tensor.to(wire).contiguous(), non_blocking=True)
            self._fetched.record(side)
        # The caller may free the tensor while our stream still works on it.
        self._tensor.record_stream(side)
        self.array: Array = self._host.view(-1).numpy()

    def fetch(self) -> None:
        self._fetched.synchronize()

    def restore(self) -> None:
        if self._divisor is not None:
            _divide(self.array, self._divisor)
        with self._cuda.stream(self._side):
            # In two steps: copy_ between types would convert on the host, in memory that isn't pinned.
            _once(self._tensor).copy_(_once(self._host, self._tensor).to(self._tensor.device, non_blocking=True))
            self._restored.record(self._side)

    def synchronize(self) -> None:
        self._cuda.current_stream(self._tensor.device).wait_event(self._restored)

    def on_its_stream(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._cuda.stream(self._side)
        return context


def _once(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """Each place in the memory of an expanded tensor once; of another one the elements that belong to them."""
    like = tensor if like is None else like
    for dimension, stride in enumerate(like.stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _divide(array: Array, divisor: int) -> None:
    """In place; integers towards zero, as NCCL does it."""
    if array.dtype.kind == "f":
        np.divide(array, divisor, out=array)
    else:
        np.subtract(array, np.fmod(array, divisor), out=array)
        np.floor_divide(array, divisor, out=array)


class SideStreams:
    """One CUDA stream per device for our copies. Not thread-safe: the caller holds a lock."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._streams: dict[torch.device, Any] = {}

    def of(self, device: torch.device) -> Any:
        if device not in self._streams:
            self._streams[device] = self._cuda.Stream(device)
        return self._streams[device]
