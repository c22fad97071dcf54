"""GroupBase: all collectives of a `group_contract.Group` as one method that takes a `CallRequest`."""

import os
from concurrent.futures import Future
from typing import Any, Self

import numpy as np

from switchagg.calls.call_request import CallRequest
from switchagg.codecs.array_codec import Tensors
from switchagg.description import Kind
from switchagg.errors import SwitchaggError
from transport.contracts.group_contract import Array


class GroupBase:
    """A group that need only say what becomes of a `CallRequest`, and how it closes."""

    job: str
    rank: int
    workers: int
    means: tuple[Kind, ...] = ()

    def __init__(self) -> None:
        self._pid = os.getpid()

    def _require_process(self) -> None:
        """Raise SwitchaggError in a forked child."""
        if os.getpid() != self._pid:
            raise SwitchaggError(
                f"job {self.job}, rank {self.rank}: this group belongs to process {self._pid}; a forked child must "
                f"open its own"
            )

    def submit(self, request: CallRequest, array: Array) -> "Future[Any]":
        """Begin this call, which isn't checked yet; its future resolves to the request's `result_of`."""
        raise NotImplementedError

    def close(self) -> None:
        """See `Group`."""
        raise NotImplementedError

    def allreduce(
        self,
        array: Array,
        op: str = "sum",
        *,
        key: int | None = None,
        priority: int = 0,
        tensors: Tensors | None = None,
    ) -> "Future[Array]":
        """See `Group`."""
        return self.submit(CallRequest("allreduce", op, key, priority, tensors=tensors), array)

    def reduce_scatter(
        self, array: Array, op: str = "sum", *, key: int | None = None, priority: int = 0
    ) -> "Future[Array]":
        """See `Group`."""
        return self.submit(CallRequest("reduce_scatter", op, key, priority), array)

    def reduce(
        self, array: Array, op: str = "sum", root: int = 0, *, key: int | None = None, priority: int = 0
    ) -> "Future[Array]":
        """See `Group`."""
        return self.submit(CallRequest("reduce", op, key, priority, root), array)

    def all_gather(self, array: Array, *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """See `Group`."""
        return self.submit(CallRequest("all_gather", "sum", key, priority), array)

    def broadcast(self, array: Array, root: int = 0, *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """See `Group`."""
        return self.submit(CallRequest("broadcast", "sum", key, priority, root), array)

    def barrier(self, *, key: int | None = None, priority: int = 0) -> "Future[None]":
        """See `Group`."""
        return self.submit(CallRequest("barrier", "sum", key, priority), np.empty(0, np.uint8))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
