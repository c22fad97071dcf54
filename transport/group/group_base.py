"""GroupBase: all collectives of a `contract.Group` as one method that takes a `CallRequest`."""

from concurrent.futures import Future
from typing import Any, Self

from switchagg.codecs.array_codec import Tensors
from switchagg.description import CallSignature
from transport.contracts.group_contract import NOTHING, Array, CallRequest, own_shard


class GroupBase:
    """A group that need only say what becomes of a `CallRequest`, and how it closes."""

    rank: int
    workers: int

    def submit(self, request: CallRequest, array: Array) -> "Future[Any]":
        """Begin this call, which isn't checked yet; its future resolves to `result_of` it."""
        raise NotImplementedError

    def close(self) -> None:
        """See `Group`."""
        raise NotImplementedError

    def result_of(self, ask: CallRequest, array: Array) -> Array | None:
        """The value to which the future of a call resolves."""
        if ask.kind == "reduce_scatter":
            return own_shard(array, self.rank, self.workers)
        return None if ask.kind == "barrier" else array

    def allreduce(
        self,
        array: Array,
        op: str = "sum",
        *,
        key: int | None = None,
        priority: int = 0,
        requested_op: int = 0,
        signature: CallSignature | None = None,
        tensors: Tensors | None = None,
    ) -> "Future[Array]":
        """See `Group`."""
        return self.submit(CallRequest("allreduce", op, key, priority, 0, requested_op, signature, tensors), array)

    def reduce_scatter(
        self,
        array: Array,
        op: str = "sum",
        *,
        key: int | None = None,
        priority: int = 0,
        signature: CallSignature | None = None,
    ) -> "Future[Array]":
        """See `Group`."""
        return self.submit(CallRequest("reduce_scatter", op, key, priority, signature=signature), array)

    def reduce(
        self,
        array: Array,
        op: str = "sum",
        root: int = 0,
        *,
        key: int | None = None,
        priority: int = 0,
        signature: CallSignature | None = None,
    ) -> "Future[Array]":
        """See `Group`."""
        return self.submit(CallRequest("reduce", op, key, priority, root, signature=signature), array)

    def all_gather(
        self, array: Array, *, key: int | None = None, priority: int = 0, signature: CallSignature | None = None
    ) -> "Future[Array]":
        """See `Group`."""
        return self.submit(CallRequest("all_gather", "sum", key, priority, signature=signature), array)

    def broadcast(
        self,
        array: Array,
        root: int = 0,
        *,
        key: int | None = None,
        priority: int = 0,
        signature: CallSignature | None = None,
    ) -> "Future[Array]":
        """See `Group`."""
        return self.submit(CallRequest("broadcast", "sum", key, priority, root, signature=signature), array)

    def barrier(self, *, key: int | None = None, priority: int = 0) -> "Future[None]":
        """See `Group`."""
        return self.submit(CallRequest("barrier", "sum", key, priority), NOTHING)

    def compare(self, signature: CallSignature) -> "Future[None]":
        """See `Group`."""
        return self.submit(CallRequest("barrier", signature=signature), NOTHING)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
