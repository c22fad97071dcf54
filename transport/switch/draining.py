"""Draining: a switch that is to stop takes no more jobs, and first lets those leave that can go on without it (C27)."""

import time
from collections.abc import Callable

from transport.control.control_server import ControlServer
from transport.control.leaf import LeafAgent


class Draining:
    """The drain of one daemon. `begin` may be called from any thread, `look` in the control plane's thread alone.

    bound_s: how long jobs may take to leave. log: called with a line when it begins.
    """

    def __init__(
        self, server: ControlServer, leaf: LeafAgent | None, bound_s: float, log: Callable[[str], None]
    ) -> None:
        self._server, self._leaf = server, leaf
        self._bound_s, self._log = bound_s, log
        self._reason = ""
        self._end_s: float | None = None

    def begin(self, reason: str) -> None:
        """Begin with this reason; a further call changes nothing."""
        self._reason = self._reason or reason

    def look(self) -> str:
        """Act on a drain that has begun; the reason to stop with, once no job is left or the bound has passed."""
        if not self._reason:
            return ""
        if self._end_s is None:
            self._start()
        jobs = self._server.running
        if not jobs:
            return self._reason
        if self._end_s is None or time.monotonic() < self._end_s:
            return ""
        names = ", ".join(repr(job.admitted.name) for job in jobs)
        return f"{self._reason}; within {self._bound_s:g} s these jobs had not left: {names}"

    def _start(self) -> None:
        reason = f"{self._reason}, and waits until its jobs have left"
        self._end_s = time.monotonic() + self._bound_s
        self._server.drain(reason)
        if self._leaf is not None:
            self._leaf.drain(reason)
        if jobs := self._server.running:
            able = sum(job.admitted.terms.can_fall_back for job in jobs)
            request = f"{able} of {len(jobs)} jobs can go on without it, and are asked to leave"
            self._log(f"drains: {request}; what runs after {self._bound_s:g} s fails; a second signal ends the wait")
