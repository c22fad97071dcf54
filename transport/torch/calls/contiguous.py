"""Contiguous stand-ins for the tensors of a call that Gloo carries out.

Gloo works on as many elements as a tensor has, from its first address on, whatever its strides (pytorch#192920).
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from transport.torch.calls.tensor_layout import lies_plain, refuse_shared


class ContiguousCopies:
    """The tensors of one call, or contiguous copies of those that Gloo can't take as they lie."""

    def __init__(self) -> None:
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def of(self, value: Any, writes: bool) -> Any:
        """A tensor, or lists of them, as Gloo takes it; anything else as it is. written: whether the call writes it.

        Raises ValueError for a tensor that is written and whose elements share memory.
        """
        if isinstance(value, list | tuple):
            return [self.of(element, writes) for element in value]
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or lies_plain(value):
            return value
        if writes:
            refuse_shared(value)
        plain = value.detach().resolve_conj().resolve_neg()
        copy = torch.clone(plain, memory_format=torch.contiguous_format)
        if writes:
            self._copies.append((value.detach(), copy))
        return copy

    def done_by(self, work: dist.Work) -> dist.Work:
        """The Work of the call, after which the tensors themselves hold the results."""
        return CopiedWork(work, self._copies) if self._copies else work


class CopiedWork(dist.Work):
    """Gloo's Work of contiguous copies: results are in the tensors before it says that the call is done.

    copies: pairs of a tensor and the copy that Gloo works on.
    """

    def __init__(self, work: Any, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._work = work
        self._copies = copies
        self._tensors = {id(copy): tensor for tensor, copy in copies}

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._work.wait(timeout or timedelta(0))
        self._write_back()
        return True

    def is_completed(self) -> bool:
        if done := self._work.is_completed():
            self._write_back()
        return bool(done)

    def get_future(self) -> torch.futures.Future[Any]:
        return self._work.get_future().then(lambda future: self._originals(future.value()))  # type: ignore[no-any-return]

    def result(self) -> Any:
        self.wait()
        return self._originals(self._work.result())

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return int(self._work._source_rank())

    _source_rank = source_rank

    def _originals(self, value: Any) -> Any:
        self._write_back()
        if isinstance(value, list):
            return [self._originals(element) for element in value]
        return self._tensors.get(id(value), value)

    def _write_back(self) -> None:
        for tensor, copy in self._copies:
            tensor.copy_(copy)
