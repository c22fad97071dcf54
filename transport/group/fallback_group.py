"""FallbackGroup: a job's calls through the switch while that has slots for it, by a host method while it has not.

Calls of a class are numbered, alike on all ranks. To move, the ranks agree on a number for each class, the largest that
any of them has come to: calls below it end where the others began them, the rest go the new way. They agree over the
host method: unlike a session it doesn't end with a switch. As long as a job is away from the switch its ranks tell each
other, several times a second, whether they are back in it, so all decide by the same table: no rank moves alone (C22).
"""

import atexit
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from switchagg.calls.call_request import CallRequest, own_shard
from switchagg.calls.round_calls import Ended
from switchagg.description import COMBINING
from switchagg.errors import AggregationFailed, JobError
from switchagg.join import TIMEOUT_NS_MAX
from switchagg.priority import BEST_EFFORT, class_of
from transport.contracts.group_contract import Array, Group, Matching
from transport.group.group_base import GroupBase
from transport.group.staging import SWITCH, checked, conversion_of, ops_of
from transport.group.switch_group import SwitchGroup
from transport.meshes.mesh_opening import BoundPlace
from transport.worker.codec_thread import ended_future, pass_on
from transport.worker.join_options import JoinOptions

logger = logging.getLogger(__name__)

LOOK_S = 0.2
"""How often a rank looks whether it shall move, and away from the switch tells the others where it is."""

REJOIN_S = 2.0
"""Pause after a refused join."""

CLOSE_S = 5.0
_NUMBERS = 48
"""Bits of a call's number in its key; the class is above."""

_EXCHANGE = 8 << _NUMBERS
"""Keys of the exchanges between ranks lie above those of all classes."""


@dataclass(frozen=True)
class FallbackPaths:
    """join(options, cancelled): joins the switch; raises JobError. meet: opens the host method's group. place: the port
    that the group will take; closed if the group never takes it."""

    join: Callable[[JoinOptions, threading.Event], SwitchGroup]
    meet: Callable[[], Group]
    place: BoundPlace | None
    options: JoinOptions
    host_method: str


class _DelayedCall(NamedTuple):
    lane: int
    number: int
    request: CallRequest
    array: Array
    ended: Ended


class FallbackGroup(GroupBase):
    """A rank's place: a `contract.Group`. `open_fallback_group` makes it on all ranks; the caller closes it."""

    method = "switch"
    matching: Matching = "class"
    compression = None

    def __init__(
        self, job: str, rank: int, workers: int, paths: FallbackPaths, closing: threading.Event | None = None
    ) -> None:
        """Join, or where the switch has no room begin without it. Raises JobError."""
        self.job, self.rank, self.workers = job, rank, workers
        self._paths = replace(paths, options=replace(paths.options, can_fall_back=True))
        super().__init__()
        options = paths.options
        self.row = options.terms.resolved(options.packet_elements, workers).room
        self.means = COMBINING if options.codec_spec.divides else ()
        self.classes = tuple(sorted({class_of(priority) for priority in options.priorities or (BEST_EFFORT,)}))
        self._lock = threading.RLock()  # guards all of the following; around what must be in order of number
        self._calls = dict.fromkeys(self.classes, 0)
        self._first = dict(self._calls)  # number of each class from which on calls go by the present path
        self._delayed: list[_DelayedCall] | None = None  # while the ranks agree
        self._pending: list[Future[Any]] = []  # calls on the present path
        self._earlier_pending: list[Future[Any]] = []
        self._moves = {"moves_to_hosts": 0, "moves_to_switch": 0}
        self._rounds = 0
        self._stays = False
        self._closed = False
        self._closing = closing or threading.Event()
        self._switch: SwitchGroup | None = None
        self._hosts: Group | None = None
        self._joined: SwitchGroup | None = None  # A thread joins the switch in the background.
        try:
            self._switch = paths.join(self._paths.options, self._closing)
        except JobError as error:
            if not error.lacks_room:
                raise
            self._say(f"begins with {paths.host_method}, without the switch: {error}")
            self._hosts = paths.meet()
        self._present: Group = self._switch or cast(Group, self._hosts)
        self._earlier = self._present
        self._thread = threading.Thread(target=self._run, name=f"mover-{job}-{rank}", daemon=True)
        if self._switch is None:
            self._join_again()
        self._thread.start()
        self._close_first()

    @property
    def link(self) -> str:
        """Link of the present path; the properties below describe that path, too."""
        return self._present.link

    @property
    def core(self) -> str:
        """See `Group`."""
        return self._present.core

    @property
    def counters(self) -> dict[str, int]:
        """Also how often the job moved."""
        return {**self._present.counters, **self._moves}

    @property
    def failure(self) -> BaseException | None:
        """See `Group`."""
        return self._present.failure

    def set_credit(self, credit_bytes: int | None) -> None:
        """See `Group`."""
        self._present.set_credit(credit_bytes)

    def give_up(self, reason: str) -> None:
        """See `Group`. Calls that are held fail with what the ranks tell each other."""
        for group in {self._present, self._earlier, self._hosts or self._present}:
            group.give_up(reason)

    def status(self) -> Any:
        """See `Group`."""
        return self._present.status()

    def close(self) -> None:
        """See `Group`."""
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._closing.set()
        self._thread.join(CLOSE_S)
        for group in (self._switch, self._joined, self._hosts):
            if group is not None:
                group.close()
        if self._paths.place is not None:
            self._paths.place.close()

    # Private methods that any thread calls

    def submit(self, request: CallRequest, array: Array) -> "Future[Any]":
        """See `GroupBase`: begun where its number belongs, or held while the ranks agree on that."""
        self._require_process()
        request = checked(request, array, self.workers, ops_of(request.kind, array.dtype, self.means))
        if request.kind in COMBINING:  # a call that every path refuses gets no number
            conversion_of(array.dtype, "sum" if request.op == "avg" else request.op, SWITCH, "the switch")
        lane = min(self.classes, key=lambda priority: (abs(priority - request.priority), priority))
        with self._lock:
            number = self._calls[lane]
            self._calls[lane] = number + 1
            if self._delayed is None:
                return self._begin(lane, number, request, array)
            future, ended = ended_future(request.result_of(array, self.rank, self.workers))
            self._delayed.append(_DelayedCall(lane, number, request, array, ended))
            return future

    def _begin(self, lane: int, number: int, request: CallRequest, array: Array) -> "Future[Any]":
        """Begin a call; under the lock."""
        early = number < self._first[lane]
        pending = self._earlier_pending if early else self._pending
        while pending and pending[0].done():
            pending.pop(0)
        request = request._replace(priority=lane, key=lane << _NUMBERS | number)
        future = (self._earlier if early else self._present).submit(request, array)
        pending.append(future)
        return future

    def _release(self) -> None:
        """Begin what was held; under the lock."""
        held, self._delayed = self._delayed or [], None
        for lane, number, request, array, ended in held:
            try:
                self._begin(lane, number, request, array).add_done_callback(partial(pass_on, ended))
            except BaseException as error:
                ended(error)

    # Methods that run in the mover's thread

    def _run(self) -> None:
        try:
            while not self._stays and not self._closing.wait(LOOK_S):
                if self._present is self._hosts:
                    self._go_back()
                elif self._present.failure is None and self._switch is not None and self._switch.asked_to_leave:
                    self._leave(self._switch.asked_to_leave)
            if not self._stays and self._hosts is not None and self._is_away:
                self._exchange(0)  # the others shall wait for this rank no more
        except (AggregationFailed, JobError) as error:  # the job stays where it is; its calls fail if that fails
            logger.info("job %s, rank %d: moves no more: %s", self.job, self.rank, error)
        finally:
            self._stays = True
            with self._lock:
                self._release()

    @property
    def _is_away(self) -> bool:
        """Whether the others may wait for what this rank tells."""
        return self._present is self._hosts or (self._switch is not None and bool(self._switch.asked_to_leave))

    def _leave(self, reason: str) -> None:
        """Move from the switch to the hosts."""
        if self._hosts is None:
            hosts = self._hosts = self._paths.meet()
            if self._closed:  # its caller waited no longer
                hosts.close()
            self._close_first()
        if self._agree(lambda: int(self._is_drained()), self._hosts, "moves_to_hosts"):
            self._say(f"leaves the switch and goes on with {self._paths.host_method}: {reason}")
            while not self._is_drained() and not self._closing.wait(LOOK_S / 10):
                pass
            if not self._closing.is_set():
                assert self._switch is not None
                self._switch.close()
                self._switch = None
                self._join_again()

    def _go_back(self) -> None:
        """Tell the others where this rank is; move to the switch if all are in it."""
        if self._joined is not None and (self._joined.failure is not None or self._joined.asked_to_leave):
            self._joined.close()
            self._joined = None
            self._join_again()
        joined = self._joined
        generation = 0 if joined is None or not self._is_drained() else joined.generation + 1

        def ready() -> int:
            return generation if joined is not None and joined.failure is None else 0

        if self._agree(ready, joined, "moves_to_switch"):
            self._switch, self._joined = joined, None
            self._say("goes through the switch again")

    def _join_again(self) -> None:
        threading.Thread(target=self._rejoin, name=f"rejoin-{self.job}-{self.rank}", daemon=True).start()

    def _rejoin(self) -> None:
        """Wait for slots, in a thread of its own."""
        unlimited = replace(self._paths.options, wait_for_slots=True, timeout_s=TIMEOUT_NS_MAX / 1e9)
        while not self._closing.is_set():
            try:
                joined = self._joined = self._paths.join(unlimited, self._closing)
                if self._closing.is_set():
                    joined.close()
                self._close_first()
                return
            except (JobError, OSError, TimeoutError) as error:
                logger.info("job %s, rank %d: %s", self.job, self.rank, error)
                self._closing.wait(REJOIN_S)

    def _agree(self, ready: Callable[[], int], to: Group | None, count: str) -> bool:
        """Whether all moved there. ready: 0 while this rank can't; else a number that must be the same on all."""
        if not _same(self._exchange(ready())) or self._stays:
            return False
        with self._lock:
            self._delayed = []
            calls = [self._calls[lane] for lane in self.classes]
        table = self._exchange(ready(), calls)
        with self._lock:
            if agreed := _same(table) and not self._stays:
                assert to is not None
                self._first = dict(zip(self.classes, table[:, 1:].max(axis=0).tolist(), strict=True))
                self._earlier, self._present = self._present, to
                self._earlier_pending, self._pending = self._pending, []
                self._moves[count] += 1
            self._release()
        return agreed

    def _exchange(self, ready: int, calls: Sequence[int] = ()) -> Any:
        """A row for each rank: whether and how it is ready, and how many calls of each class it has made."""
        row = 2 + len(self.classes)
        table = np.zeros(row * self.workers, np.int64)
        own_shard(table, self.rank, self.workers)[: 2 + len(calls)] = (self._closing.is_set(), ready, *calls)
        self._rounds += 1
        assert self._hosts is not None
        self._hosts.all_gather(table, key=_EXCHANGE + self._rounds).result()
        rows = table.reshape(self.workers, row)
        self._stays = bool(rows[:, 0].any())
        return rows[:, 1:]

    def _is_drained(self) -> bool:
        """Whether all calls on the earlier path have ended on this rank."""
        with self._lock:
            if any(self._calls[lane] < first for lane, first in self._first.items()):
                return False
            self._earlier_pending = [future for future in self._earlier_pending if not future.done()]
            return not self._earlier_pending

    def _close_first(self) -> None:
        """At the program's end, before the groups in use."""
        atexit.unregister(self.close)
        if not self._closed:
            atexit.register(self.close)

    def _say(self, words: str) -> None:
        if self.rank == 0:
            logger.warning("switchagg: job %s %s", self.job, words)


def _same(rows: Any) -> bool:
    """Whether all ranks are ready for the same."""
    return bool(rows[0, 0] > 0 and (rows[:, 0] == rows[0, 0]).all())
