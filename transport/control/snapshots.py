"""HostSnapshots: counters and slots of the data plane's host for status answers, read in a thread of its own.

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
from switchagg.join import ROOT
from switchagg.membership import JobAdmitted
from transport.contracts.switch_host import SwitchHost
from transport.control.control_client import query_status
from transport.control.shares import Slots, merged
from transport.zeromq.keys import Keys

Key = TypeVar("Key")

BELOW_S = 1.0
"""How long a switch below may take to report its slots."""

SLOTS_NS = 1_000_000_000
"""How long a job's slots serve all who ask: the ranks of a stalled job do so at about the same time."""

WAITING_MAX = 256


@dataclass(frozen=True)
class HostSnapshot:
    """Empty if the host didn't answer. slots: (slot, version) -> its contents, of the requested job."""

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
        self._slots: dict[tuple[int, int], tuple[int, Slots]] = {}  # by job and generation, each with its time
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
        """Snapshots since the last call, each with the key of its request."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        return [self._answered.get() for _ in range(self._answered.qsize())]

    def close(self) -> None:
        """End the thread, after the present snapshot, however long its host takes; a second call does nothing."""
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
        self._slots = {key: entry for key, entry in self._slots.items() if now_ns - entry[0] < SLOTS_NS}
        if which not in self._slots:
            slots = self._host.slots_of(job) if admitted.is_at(ROOT) else {}
            if admitted.shares:
                slots = merged(admitted.shares, {ROOT: slots, **self._slots_below(admitted)})
            self._slots[which] = (time.monotonic_ns(), slots)
        return self._slots[which][1]

    def _slots_below(self, admitted: JobAdmitted) -> dict[str, Slots]:
        """Slots of a job at its other switches, as far as they answer."""
        slots_of: dict[str, Slots] = {}
        for share in admitted.shares:
            with contextlib.suppress(SwitchaggError):
                if share.offer is not None:
                    answer = query_status(
                        share.offer.control, admitted.name, BELOW_S, self._keys, incarnation=share.offer.incarnation
                    )
                    jobs = (job for job in answer.jobs if job.generation == admitted.job.generation)
                    slots_of[share.switch] = {
                        (slot.slot, slot.version): SlotView(slot.chunk, tuple(slot.ranks))
                        for job in jobs
                        for slot in job.slots
                    }
        return slots_of
