"""SwitchGroup: every collective through the switch, on a SwitchSession.

Sums and maxima are those of the session. Where nothing is combined, in a broadcast and an all-gather, the switch passes
bytes on, so any type arrives bit by bit, NaN patterns included.

The session reports ranks that make different calls (W12): a barrier sends a description alone.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from switchagg.calls.call_request import CallRequest
from switchagg.description import COMBINING
from transport.contracts.group_contract import Array, Group, Matching
from transport.group.staging import SWITCH, Staged, checked, ops_of, stage
from transport.worker.codec_thread import ended_future, pass_on
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

if TYPE_CHECKING:
    from transport.group.moving_session import MovingSession


class SwitchGroup(Group):
    """A rank's place. `join` makes it, or a caller with a session, which the group owns then.

    `staging` says as which type each type travels. float32 and float64 have the error bound of
    `switchagg.codecs.fixed_point`; any NaN makes a maximum NaN; there are no maxima of 64 bits. With partial sums
    allreduce also takes "avg" of floats: the mean of the ranks in each chunk (Q6). priority: the nearest class that the
    session's streams have.
    """

    method = "switch"
    matching: Matching = "class"

    def __init__(self, session: "SwitchSession | MovingSession") -> None:
        self.rank, self.workers = session.rank, session.workers
        super().__init__()
        self._session, self.job = session, session.name
        self.compression = session.compression
        self.classes, self.row = session.classes, session.job.room
        if self.compression is not None and self.compression.spec.divides:
            self.means = COMBINING
        elif session.job.partial:
            self.means = ("allreduce",)

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

    def submit(self, request: CallRequest, array: Array) -> "Future[Any]":
        """See `Group`."""
        request = checked(request, array, self.workers, ops_of(request.kind, array.dtype, self.means))
        mean = request.op == "avg"
        if request.kind in COMBINING:
            staged = stage(array, "sum" if mean else request.op, SWITCH, "the switch")
        else:
            staged = Staged(array.view(np.int32) if request.kind == "barrier" else array, "sum", None)
        chosen = min(self.classes, key=lambda priority: (abs(priority - request.priority), priority))
        op, result = "avg" if mean else staged.op, request.result_of(array, self.rank, self.workers)
        signature = request.signature_of(array)
        done = self._session.call(
            staged.wire, request._replace(op=op, priority=chosen, signature=signature, unit=staged.unit)
        )
        if staged.restore is None and result is staged.wire:
            return done
        future, ended = ended_future(result, staged.restore)
        done.add_done_callback(partial(pass_on, ended))
        return future

    @property
    def link(self) -> str:
        """The session's."""
        return self._session.link

    @property
    def core(self) -> str:
        """The session's."""
        return self._session.core

    def give_up(self, reason: str) -> None:
        """See `Group`."""
        self._session.give_up(reason)

    def finished_without(self, sizes: Sequence[int]) -> bool:
        """The session's."""
        return self._session.finished_without(sizes)

    @property
    def counters(self) -> Mapping[str, int]:
        """The session's."""
        return self._session.counters

    @property
    def failure(self) -> BaseException | None:
        """See `Group`."""
        return self._session.failure

    def set_credit(self, credit_bytes: int | None) -> None:
        """See `Group`: nothing."""

    def status(self) -> Mapping[str, Any]:
        """The session's."""
        return self._session.status()

    def close(self) -> None:
        """See `Group`."""
        self._session.close()
