"""PathDiagnosis: why a session gets no results: the switch is asked what it has of this rank (C13, W9)."""

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from switchagg.endpoint import StreamFailed, WrongSum
from switchagg.job import MODULUS, JobConfig
from switchagg.wire import frame_bytes
from transport.control import control_messages
from transport.worker.session_membership import SessionMembership

STALL_S = 10.0
"""Time without any result after which the data path is looked into; a round trip takes milliseconds."""

STALL_CHECK_S = 5.0
STALL_TIMEOUTS = 3
"""Resends without a result that make a stall of the path: with fewer, perhaps only our own thread was stalled."""


@dataclass(slots=True)
class Stall:
    """The present time without results."""

    results: int = -1
    timeouts: int = 0
    since_ns: int = 0
    asked_ns: int = 0
    strikes: int = 0


@dataclass
class PathDiagnosis:
    """The diagnosis of one rank's data path. What it finds fails the membership."""

    membership: SessionMembership
    job: JobConfig
    members: Mapping[int, control_messages.RankAddress]
    """The ranks' addresses."""
    address: tuple[str, int]
    """The rank's own."""
    switch_address: tuple[str, int]
    framing_bytes: int
    """Bytes of a packet beside its frame."""

    def __post_init__(self) -> None:
        self.stall = Stall()

    def watch(self, counters: Mapping[str, int]) -> None:
        """Look into a stall (C13); called with every heartbeat."""
        membership, stall, now_ns = self.membership, self.stall, time.monotonic_ns()
        if not membership.ledger or counters["results"] != stall.results or membership.client.is_silent:
            self.stall = Stall(counters["results"], counters["timeouts"], now_ns)
        elif (
            now_ns - stall.since_ns >= STALL_S * 1e9
            and now_ns - stall.asked_ns >= STALL_CHECK_S * 1e9
            and counters["timeouts"] - stall.timeouts >= STALL_TIMEOUTS
        ):
            stall.asked_ns = now_ns
            membership.client.query(membership.job).add_done_callback(partial(self._look_into, stall))

    def stream_failed(self, event: StreamFailed) -> None:
        """Ask the switch which ranks are missing, unless another rank makes another call (W12) or a sum is wrong (V7);
        the loop, whose thread calls this, fails by itself if no answer comes (W9)."""
        if event.rank is not None:
            self.membership.fail(event.reason, tuple(sorted((event.rank, self.membership.rank))), event)
            return
        if isinstance(event, WrongSum):
            self.membership.fail(
                f"{event.reason}: the switch at {_text(self.switch_address)}, one above it, a wire or a forger changes "
                "sums; no value of this one was taken",
                event=event,
                recoverable=True,
            )
            return
        self.name_missing(f"no result in {event.timeouts} timeouts in a row", event)

    def loop_ended(self, reason: str, event: StreamFailed | None = None) -> None:
        """The loop of this rank carries nothing any more: to a job that can go on without the switch that is one more
        way to lose it."""
        self.membership.fail(reason, event=event, recoverable=True)

    def name_missing(self, waited: str, event: StreamFailed | None = None) -> None:
        """Fail with the ranks that the switch lacks: in the event's chunk, or else in the one that lacks the fewest."""
        membership = self.membership
        membership.client.query(membership.job).add_done_callback(partial(self._name_missing, waited, event))

    def _look_into(self, stall: Stall, answer: "Future[control_messages.StatusAnswer]") -> None:
        """If no unfinished slot holds our contribution, our packets or the switch's are lost (C13)."""
        slots, rank, job = self._slots(answer), self.membership.rank, self.job
        if slots is None or len(slots) >= control_messages.SLOTS_REPORTED_MAX or stall is not self.stall:
            return
        if any(rank in slot.ranks for slot in slots if len(slot.ranks) < job.workers):
            stall.strikes = 0
            return
        stall.strikes += 1
        if stall.strikes >= 2:
            seconds = (time.monotonic_ns() - stall.since_ns) / 1e9
            arrived = any(rank in slot.ranks for slot in slots)
            what = "packets are lost between" if arrived else "no packet gets through between"
            self.membership.fail(
                f"{what} this rank at {_text(self.address)} and the switch at {_text(self.switch_address)} (UDP), for "
                f"{seconds:.0f} s, though its control plane answers; look for a firewall that drops UDP "
                f"{self.switch_address[1]}, or an MTU below {frame_bytes(job.elements) + self.framing_bytes}, which "
                f"{job.elements} elements per packet need (SWITCHAGG_ELEMENTS)",
                recoverable=True,
            )

    def _name_missing(
        self, waited: str, event: StreamFailed | None, answer: "Future[control_messages.StatusAnswer]"
    ) -> None:
        if (slots := self._slots(answer)) is None:
            return
        rank, workers = self.membership.rank, self.job.workers
        if event is None:
            candidates = [slot.ranks for slot in slots if rank in slot.ranks and len(slot.ranks) < workers]
        else:
            place = (event.slot, event.version, event.chunk % MODULUS)
            candidates = [slot.ranks for slot in slots if (slot.slot, slot.version, slot.chunk) == place]
        seen = max(candidates, key=len, default=[])
        missing = tuple(other for other in range(workers) if other not in seen)
        if event is None and not candidates:  # none of its sums waits there: it has moved on, or is late itself
            detail, missing = waited, ()
        elif not missing:
            detail = f"{waited}: the switch at {_text(self.switch_address)} has it, but it does not arrive here"
        elif rank in missing:
            detail = f"{waited}: own packets do not arrive at the switch at {_text(self.switch_address)}"
        else:
            detail = f"{waited}; missing at the switch: {', '.join(str(self.members[other]) for other in missing)}"
        self.membership.fail(detail, missing, event, recoverable=event is not None and missing in ((), (rank,)))

    def _slots(self, answer: "Future[control_messages.StatusAnswer]") -> list[control_messages.SlotStatus] | None:
        """This job's slots in an answer; None if there was none."""
        jobs = answer.result().jobs if answer.exception() is None else []
        return next((job.slots for job in jobs if job.generation == self.job.generation), None)


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
