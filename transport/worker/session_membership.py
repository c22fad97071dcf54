"""SessionMembership: a session's place in a job at the switch: admission, departures of members, failure, leave."""

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from switchagg.calls.member_calls import CallLedger
from switchagg.endpoint import StreamFailed, WrongSum
from switchagg.errors import AggregationFailed, JobError, SwitchaggError
from switchagg.join import Join
from transport.control import control_messages
from transport.control.control_client import ControlClient
from transport.worker.join_options import JoinOptions
from transport.worker.worker_loop import CallLoop
from transport.zeromq.keys import as_keys

STATUS_S = 5.0
LEAVE_S = 1.0
"""How long `leave` waits for the switch's echo; without it the lease ends for the others."""

CANCEL_S = 0.1
"""How soon a wait for the admission ends when it is cancelled."""

ANSWER_MARGIN_S = 5.0
"""How much longer than its own timeout a join may take to report that it failed."""

GOES_ON = "goes on without the switch: "
"""How the reason of a member begins that leaves the switch, and waits for the others at the hosts (L6)."""

Lost = Callable[[AggregationFailed, bool], None]
"""on_failure(failure, recoverable): the membership has ended. recoverable: perhaps the switch alone is lost, or the
path to it."""


class SessionMembership:
    """One rank's. Any fault ends in one `failure`, which fails the loop and tells the switch.

    on_beat: called by the control thread with every heartbeat; it gives this rank's counters. lock: of the calls, where
    the job outlives this membership. on_failure: is told of a failure, which fails no call if it is recoverable; quick.
    """

    def __init__(
        self,
        switch: str,
        join: Join,
        options: JoinOptions,
        on_beat: Callable[[], Mapping[str, int]],
        lock: "threading.RLock | None" = None,
        on_failure: Lost | None = None,
    ) -> None:
        self.job, self.rank, self.workers, self._switch = join.job, join.rank, join.workers, switch
        self._on_failure = on_failure
        self.is_outlived = False
        """Whether the job goes on after the failure."""
        self.lock = lock or threading.RLock()
        """It guards the ledger and the next three fields."""
        self.ledger = CallLedger(())  # until the switch has admitted the job
        self.departed: list[control_messages.DepartedMember] = []
        self.failure: AggregationFailed | None = None
        self._closed = False
        self._pid = os.getpid()
        self._departed_ns = self.lease_ns = 0
        self._timeout_s = join.timeout_ns / 1e9 + ANSWER_MARGIN_S
        self._generation: int | None = None
        self._loop: CallLoop | None = None
        keys = as_keys(options.keys)
        patience_s = options.switch_patience_s
        self.client = ControlClient(
            switch, join, self._on_departure, self._on_end, on_beat, keys=keys, patience_s=patience_s
        )
        self.client.start()

    # Methods that any thread calls

    def admission(self, cancelled: threading.Event | None) -> control_messages.Admitted:
        """Wait for the admission. Raises JobError, TimeoutError."""
        admitted = self._await_admission(cancelled)
        self._generation, self.lease_ns = admitted.generation, admitted.lease_ns
        return admitted

    def start(self, loop: CallLoop) -> None:
        """The loop that fails with this member; at once if it has failed."""
        with self.lock:
            self._loop = loop
            failure = None if self.is_outlived else self.failure
        if failure is not None:
            loop.fail(failure)

    def check_process(self) -> None:
        """Raise SwitchaggError in a forked child."""
        if os.getpid() != self._pid:
            raise SwitchaggError(
                f"job {self.job}, rank {self.rank}: this session belongs to process {self._pid}; a forked child must "
                f"join on its own"
            )

    def status(self) -> dict[str, Any]:
        """See `SwitchSession.status`."""
        self.check_process()
        if self._closed:
            raise JobError(f"job {self.job}, rank {self.rank}: the session is closed")
        try:
            return control_messages.as_dict(self.client.query(self.job).result(STATUS_S))
        except TimeoutError:
            raise JobError(f"no answer from switch {self._switch} within {STATUS_S:g} s") from None

    def check_departures(self) -> None:
        """Fail if a call is pending that a member left without finishing (C7)."""
        with self.lock:
            late = time.monotonic_ns() - self._departed_ns >= self.lease_ns if self.departed else False
            # Earlier calls may still be on their way to us, whole: they get a lease's time.
            leavers = [member for member in self.departed if self.ledger.waits_for(member.calls, late=late)]
            gone_on = [member for member in self.departed if member.reason.startswith(GOES_ON)]
        if self._on_failure is not None and gone_on:
            first = gone_on[0]
            self.fail(f"{first.place} {first.reason}", recoverable=True)
        elif leavers:
            who = "; ".join(
                f"{member.place} left after {sum(member.calls)} calls" + (f": {member.reason}" if member.reason else "")
                for member in leavers
            )
            self.fail(who, tuple(member.place.rank for member in leavers), recoverable=True)

    def fail(
        self,
        detail: str,
        missing: tuple[int, ...] = (),
        event: StreamFailed | None = None,
        *,
        recoverable: bool = False,
    ) -> None:
        """Fail every pending and later call, unless the job outlives this, and leave, so that the others learn of it at
        once. recoverable: see `Lost`."""
        failure = AggregationFailed(
            detail if event and event.rank is not None else f"rank {self.rank}: {detail}",
            job=self.job,
            generation=self._generation,
            stream=event.stream if event else None,
            slot=event.slot if event else None,
            chunk=event.chunk if event else None,
            missing=missing,
        )
        with self.lock:
            if self.failure is not None or self._closed:
                return
            self.failure = failure
            self.is_outlived = recoverable and self._on_failure is not None
            calls_finished = self.ledger.finished()
            loop = self._loop
        if loop is not None and not self.is_outlived:
            loop.fail(failure)
        if self._on_failure is not None:
            self._on_failure(failure, recoverable)
        reason = f"{GOES_ON if self.is_outlived else ''}{failure}"
        self.client.leave(calls_finished, reason, 0.0, isinstance(event, WrongSum))

    def warn(self, reason: str) -> None:
        """Warn of what slows this rank; where warnings are errors, it ends no training."""
        with contextlib.suppress(Warning):
            warnings.warn(f"job {self.job}, rank {self.rank}: {reason}", stacklevel=1)

    def give_up_joining(self, error: BaseException) -> None:
        """Leave a job that this rank could not take up."""
        self.client.leave([], str(error), LEAVE_S if isinstance(error, SwitchaggError) else 0.0)
        self.client.close()

    def close(self) -> bool:
        """Fail no more; False if it was closed already."""
        with self.lock:
            was_open, self._closed = not self._closed, True
        return was_open

    def leave(self, reason: str, timeout_s: float = LEAVE_S) -> None:
        """Tell the switch which calls are finished, and end the control thread."""
        with self.lock:
            calls_finished = self.ledger.finished()
        self.client.leave(calls_finished, str(self.failure or "") or reason, timeout_s)
        self.client.close()

    def _await_admission(self, cancelled: threading.Event | None) -> control_messages.Admitted:
        if cancelled is None:
            return self.client.admitted.result(self._timeout_s)
        end_s = time.monotonic() + self._timeout_s
        while not cancelled.is_set():
            with contextlib.suppress(TimeoutError):
                return self.client.admitted.result(min(CANCEL_S, max(0.0, end_s - time.monotonic())))
            if time.monotonic() >= end_s:
                raise TimeoutError(f"job {self.job}, rank {self.rank}: not admitted within {self._timeout_s:g} s")
        raise JobError(f"job {self.job}, rank {self.rank}: it waits no longer")

    # Methods that the control thread calls

    def _on_departure(self, departed: list[control_messages.DepartedMember]) -> None:
        with self.lock:
            self.departed = departed
            self._departed_ns = time.monotonic_ns()
        if self._loop is not None:
            self.check_departures()

    def _on_end(self, dead: list[control_messages.RankAddress], reason: str) -> None:
        ranks = tuple(place.rank for place in dead)
        if self.rank in ranks:
            reason += "; this rank was taken for dead: was it stopped, or in one long call that holds the GIL?"
        self.fail(reason, ranks, recoverable=True)
