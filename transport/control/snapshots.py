"""HostSnapshots: what status answers contain of the data plane's host, asked for in a thread of its own.

A job of many slots takes its host a while, and a host that hangs seconds; heartbeats, which are answered in the control
plane's thread, must not wait for either.
"""

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, TypeVar

from switchagg.aggregator import SlotView
from switchagg.errors import SwitchaggError
from switchagg.membership import JobAdmitted
from switchagg.sharing.switches import ROOT
from transport.control.control_client import query_status
from transport.control.shares import Slots, merged
from transport.switch.host import SwitchHost
from transport.zeromq.keys import Keys

Key = TypeVar("Key")

BELOW_S = 1.0
"""How long one switch below may take to say what it holds."""

SLOTS_NS = 1_000_000_000
"""How long a job's slots serve all who ask: the ranks of a stalled job do so at about the same time."""

WAITING_MAX = 256


@dataclass(frozen=True)
class HostSnapshot:
    """Both empty if the host didn't answer. slots: (slot, version) -> what it holds, of the job that was asked for."""

    counters: dict[str, int] = field(default_factory=dict)
    slots: Slots = field(default_factory=dict)


class HostSnapshots(Generic[Key]):
    """Takes snapshots of a host, in order. `descriptor` polls readable when `answers` has any.

    All methods belong to one thread, which none of them but `close` blocks.
    """

    def __init__(self, host: SwitchHost, keys: Keys | None = None) -> None:
        self._host = host
        self._keys = keys
        self._requests: SimpleQueue[tuple[Key, JobAdmitted | None] | None] = SimpleQueue()
        self._answered: SimpleQueue[tuple[Key, HostSnapshot]] = SimpleQueue()
        self._slots: dict[tuple[int, int], tuple[int, Slots]] = {}  # by job and generation, with their time
        self._lock = threading.Lock()
        self._closed = False
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="switch-status", daemon=True)
        self._thread.start()

    def ask(self, key: Key, job: JobAdmitted | None) -> bool:
        """Have a snapshot taken, with the slots of this job; False if too many are waiting."""
        if self._requests.qsize() >= WAITING_MAX:
            return False
        self._requests.put((key, job))
        return True

    def answers(self) -> list[tuple[Key, HostSnapshot]]:
        """Those that were taken since the last call, with what they were asked for by."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        return [self._answered.get() for _ in range(self._answered.qsize())]

    def close(self) -> None:
        """End the thread; again is allowed. One that is being taken is waited for, as long as its host may take."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.descriptor)
                self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None and not self._closed:
            key, job = request
            self._answered.put((key, self._snapshot(job)))
            with self._lock:
                if not self._closed:
                    os.eventfd_write(self.descriptor, 1)

    def _snapshot(self, job: JobAdmitted | None) -> HostSnapshot:
        try:
            return HostSnapshot(self._host.counters(), {} if job is None else self._slots_of(job))
        except SwitchaggError:
            return HostSnapshot()

    def _slots_of(self, admitted: JobAdmitted) -> Slots:
        job = admitted.job
        now_ns, which = time.monotonic_ns(), (job.job_id, job.generation)
        self._slots = {kept: entry for kept, entry in self._slots.items() if now_ns - entry[0] < SLOTS_NS}
        if which not in self._slots:
            slots = self._host.slots_of(job) if admitted.is_at(ROOT) else {}
            if admitted.shares:
                slots = merged(admitted.shares, {ROOT: slots, **self._slots_below(admitted)})
            self._slots[which] = (time.monotonic_ns(), slots)
        return self._slots[which][1]

    def _slots_below(self, admitted: JobAdmitted) -> dict[str, Slots]:
        """What the other switches of a job hold, as far as they say so."""
        found: dict[str, Slots] = {}
        for share in admitted.shares:
            with contextlib.suppress(SwitchaggError):
                if share.offer is not None:
                    answer = query_status(
                        share.offer.control, admitted.name, BELOW_S, self._keys, incarnation=share.offer.incarnation
                    )
                    jobs = (job for job in answer.jobs if job.generation == admitted.job.generation)
                    found[share.switch] = {
                        (slot.slot, slot.version): SlotView(slot.chunk, tuple(slot.ranks))
                        for job in jobs
                        for slot in job.slots
                    }
        return found
