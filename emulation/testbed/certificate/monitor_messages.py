"""Commands to the measuring process, and its reports."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from emulation.testbed.children import ChildCommand, ChildReport


class PortPlace(msgspec.Struct, frozen=True):
    """A shaped interface, in the namespace of `pid`. cuts_bundles: what leaves it are segments, never a GSO bundle.
    followed: each look at it is reported, too."""

    pid: int
    interface: str
    ifindex: int
    rate_bps: int
    cuts_bundles: bool
    followed: bool = False


class MonitorPlace(msgspec.Struct, frozen=True):
    parent_pid: int  # it ends with that
    ports: tuple[PortPlace, ...]


class Watch(ChildCommand):
    """Judge the waiting of one thread (a kernel thread id), or of all threads of a process."""

    pid: int
    thread: int | None


class PauseMonitor(ChildCommand):
    """Departures don't count until `Resume`."""


class ResumeMonitor(ChildCommand):
    """It does again."""


class StopMonitor(ChildCommand):
    """Report, and end."""


class QueueReading(NamedTuple):
    """What an interface has sent until then, and what is queued. at_ns: CLOCK_MONOTONIC."""

    at_ns: int
    sent_bytes: int
    backlog_bytes: int


class MonitorMeasured(ChildReport):
    """measures: JSON-able, as `judge` takes it: it goes into results.json as it is. looks: by followed interface."""

    measures: dict[str, Any]
    looks: dict[str, list[QueueReading]]
