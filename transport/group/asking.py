"""AskingGroup: all collectives of a `contract.Group` as one method that takes an `Ask`."""

from concurrent.futures import Future
from typing import Any, Self

from switchagg.codecs.array_codec import Tensors
from switchagg.description import Shown
from transport.group.contract import NOTHING, Array, Ask, own_shard


class AskingGroup:
    """A group that need only say what becomes of an `Ask`, and how it closes."""

    rank: int
    workers: int

    def ask(self, ask: Ask, array: Array) -> "Future[Any]":
        """Begin this call, which isn't checked yet; its future resolves to `result_of` it."""
        raise NotImplementedError

    def close(self) -> None:
        """See `Group`."""
        raise NotImplementedError

    def result_of(self, ask: Ask, array: Array) -> Array | None:
        """What the future of a call resolves to."""
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
        asked: int = 0,
        shown: Shown | None = None,
        tensors: Tensors | None = None,
    ) -> "Future[Array]":
        """See `Group`."""
        return self.ask(Ask("allreduce", op, key, priority, 0, asked, shown, tensors), array)

    def reduce_scatter(
        self, array: Array, op: str = "sum", *, key: int | None = None, priority: int = 0, shown: Shown | None = None
    ) -> "Future[Array]":
        """See `Group`."""
        return self.ask(Ask("reduce_scatter", op, key, priority, shown=shown), array)

    def reduce(
        self,
        array: Array,
        op: str = "sum",
        root: int = 0,
        *,
        key: int | None = None,
        priority: int = 0,
        shown: Shown | None = None,
    ) -> "Future[Array]":
        """See `Group`."""
        return self.ask(Ask("reduce", op, key, priority, root, shown=shown), array)

    def all_gather(
        self, array: Array, *, key: int | None = None, priority: int = 0, shown: Shown | None = None
    ) -> "Future[Array]":
        """See `Group`."""
        return self.ask(Ask("all_gather", "sum", key, priority, shown=shown), array)

    def broadcast(
        self, array: Array, root: int = 0, *, key: int | None = None, priority: int = 0, shown: Shown | None = None
    ) -> "Future[Array]":
        """See `Group`."""
        return self.ask(Ask("broadcast", "sum", key, priority, root, shown=shown), array)

    def barrier(self, *, key: int | None = None, priority: int = 0) -> "Future[None]":
        """See `Group`."""
        return self.ask(Ask("barrier", "sum", key, priority), NOTHING)

    def compare(self, shown: Shown) -> "Future[None]":
        """See `Group`."""
        return self.ask(Ask("barrier", shown=shown), NOTHING)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
