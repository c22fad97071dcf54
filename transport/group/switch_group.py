"""SwitchGroup: every collective through the switch, on a SwitchSession.

Sums and maxima are those of the session. Where nothing is combined, in a broadcast and an all-gather, the switch passes
bytes on, so any type arrives bit by bit, NaN patterns included.

Ranks that make different calls are told by the session (W12): a description is all that a barrier sends.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

import numpy as np

from switchagg.codecs.array_codec import Tensors
from switchagg.description import Kind, Shown
from switchagg.layout import shares_of
from transport.group.contract import NOTHING, Array, Ask, Matching, checked, own_shard
from transport.group.staging import SWITCH, Restore, Staged, stage
from transport.worker.options import JoinOptions
from transport.worker.session import SwitchSession


class SwitchGroup:
    """One rank's place: a `contract.Group`. Made by `join`, or on a session, which it owns then.

    What travels for each type: `staging`. float32 and float64 have the error bound of `switchagg.codecs.fixed_point`;
    any NaN makes a maximum NaN. priority: the nearest class that the session's streams have. partial: whether sums of
    all ranks may lack some (Q1).
    """

    method = "switch"
    matching: Matching = "class"

    def __init__(self, session: SwitchSession) -> None:
        self.rank, self.workers, self.link, self.core = session.rank, session.workers, session.link, session.core
        self._session = session
        self.compression = session.compression
        self.classes, self.row, self.partial = session.classes, session.job.elements, session.job.partial

    @classmethod
    def join(
        cls,
        switch: str,
        job: str,
        rank: int,
        workers: int,
        options: JoinOptions | None = None,
        cancelled: threading.Event | None = None,
    ) -> "SwitchGroup":
        """Join a job on the switch whose control address is given, as SwitchSession does. Raises JobError."""
        return cls(SwitchSession.join(switch, job, rank, workers, options, cancelled))

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
        """See `Group`. ValueError for a maximum of 64 bit numbers. With partial sums also "avg" of floats: the mean of
        the ranks in each chunk (Q6)."""
        mean = op == "avg" and self.partial and array.dtype.kind == "f"
        ops = ("sum", "max", "avg") if mean else ("sum", "max")
        ask = checked(Ask("allreduce", op, key, priority, 0, asked, shown, tensors), array, self.workers, ops)
        staged = stage(array, "sum" if mean else op, SWITCH, "the switch")
        return self._call(ask, array, staged._replace(op="avg") if mean else staged, array)

    def finished_without(self, sizes: Sequence[int]) -> bool:
        """The session's."""
        return self._session.finished_without(sizes)

    def reduce_scatter(
        self, array: Array, op: str = "sum", *, key: int | None = None, priority: int = 0, shown: Shown | None = None
    ) -> "Future[Array]":
        """See `Group`."""
        ask = checked(Ask("reduce_scatter", op, key, priority, shown=shown), array, self.workers)
        mine = own_shard(array, self.rank, self.workers)
        return self._call(ask, array, stage(array, op, SWITCH, "the switch"), mine)

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
        ask = checked(Ask("reduce", op, key, priority, root, shown=shown), array, self.workers)
        return self._call(ask, array, stage(array, op, SWITCH, "the switch"), array)

    def all_gather(
        self, array: Array, *, key: int | None = None, priority: int = 0, shown: Shown | None = None
    ) -> "Future[Array]":
        """See `Group`."""
        ask = checked(Ask("all_gather", "sum", key, priority, shown=shown), array, self.workers)
        return self._call(ask, array, Staged(array, "sum", None), array)

    def broadcast(
        self, array: Array, root: int = 0, *, key: int | None = None, priority: int = 0, shown: Shown | None = None
    ) -> "Future[Array]":
        """See `Group`."""
        ask = checked(Ask("broadcast", "sum", key, priority, root, shown=shown), array, self.workers)
        return self._call(ask, array, Staged(array, "sum", None), array)

    def barrier(self, *, key: int | None = None, priority: int = 0) -> "Future[None]":
        """See `Group`."""
        ask = checked(Ask("barrier", "sum", key, priority), NOTHING, self.workers)
        return self._call(ask, NOTHING, Staged(NOTHING.view(np.int32), "sum", None), None)

    def compare(self, shown: Shown) -> "Future[None]":
        """See `Group`."""
        ask = Ask("barrier", shown=shown)
        return self._call(ask, NOTHING, Staged(NOTHING.view(np.int32), "sum", None), None)

    @property
    def counters(self) -> Mapping[str, int]:
        """The session's."""
        return self._session.counters

    @property
    def failure(self) -> BaseException | None:
        """See `Group`."""
        return self._session.failure

    @property
    def asked_to_leave(self) -> str:
        """The session's."""
        return self._session.asked_to_leave

    @property
    def generation(self) -> int:
        """The job's."""
        return self._session.job.generation

    def set_credit(self, credit_bytes: int | None) -> None:
        """See `Group`: nothing."""

    def status(self) -> Mapping[str, Any]:
        """The session's."""
        return self._session.status()

    def close(self) -> None:
        """See `Group`."""
        self._session.close()

    def __enter__(self) -> "SwitchGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Private

    def _call(self, ask: Ask, array: Array, staged: Staged, result: object) -> "Future[Any]":
        shown = ask.shown or Shown(cast(Kind, ask.kind), ask.op, array.dtype, len(array), ask.root, ask.asked)
        chosen = min(self.classes, key=lambda one: (abs(one - ask.priority), one))
        shares = shares_of(cast(Kind, ask.kind), ask.root, staged.unit)
        tensors = self._session.tensors_of(staged.wire, ask)
        done = self._session.call(staged.wire, staged.op, shown, shares, priority=chosen, tensors=tensors)
        if staged.restore is None and result is staged.wire:
            return done
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        done.add_done_callback(partial(_settle, future, staged.restore, result))
        return future


def _settle(future: "Future[Any]", restore: Restore | None, result: object, done: "Future[Any]") -> None:
    """Give the call's future its end. In the session's thread."""
    if (failure := done.exception()) is not None:
        future.set_exception(failure)
        return
    if restore is not None:
        restore()
    future.set_result(result)
