"""How the ranks of a group agree whether they use the switch, and under which job name.

All ranks must decide alike, or some would wait on the switch for others that went to Gloo. So each publishes the
outcome of its own join in the group's store, and all apply the same rule to the same outcomes.
"""

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroup, Store

from switchagg.errors import JobError
from transport.torch.reducer import Session

logger = logging.getLogger(__name__)

SWITCH_VARIABLE = "SWITCHAGG_SWITCH"
POLL_S = 0.02
GRACE_S = 10.0
"""How much longer than a join may take we wait to hear how the others' joins ended."""

JOINED, NO_ROOM, FAILED = "joined", "no room", "failed"


@dataclass(frozen=True)
class SwitchOptions:
    """How a group uses the switch: `pg_options` of init_process_group and new_group, or else the environment.

    Each field's variable is SWITCHAGG_ and its name in capitals, for example SWITCHAGG_SWITCH=tcp://10.0.0.9:5555.
    """

    switch: str = ""
    """The switch's control address, tcp://host:port."""
    elements: int = 360
    """Values per packet; 360 fill an Ethernet MTU of 1500."""
    streams: int = 2
    """Calls that are under way side by side, in turn."""
    window_slots: int = 256
    """Packets in flight per stream; the job takes streams times this many of the switch's slots."""
    join_timeout_s: float = 30.0
    """How long joining the switch may take once all ranks are there."""

    @classmethod
    def from_environment(cls) -> "SwitchOptions":
        """Raises ValueError naming the variable whose text isn't a number."""
        values: dict[str, Any] = {}
        for option in fields(cls):
            variable = f"SWITCHAGG_{option.name.upper()}"
            if text := os.environ.get(variable, "").strip():
                kind: Any = type(option.default)
                try:
                    values[option.name] = kind(text)
                except ValueError:
                    raise ValueError(f"{variable}={text!r}: not a number ({kind.__name__})") from None
        return cls(**values)

    def require_switch(self) -> None:
        """Raise DistBackendError with the remedy if no switch was named."""
        if not self.switch:
            raise dist.DistBackendError(
                f"{SWITCH_VARIABLE} is not set: start a switch with `switchagg switch` on a host that all workers "
                f"reach, and set {SWITCH_VARIABLE}=tcp://HOST:5555 for every worker"
            )


def share_job_name(gloo: ProcessGroup, rank: int) -> str:
    """A name no other job has, made by rank 0 and told to all through the group's own Gloo."""
    run = "".join(c for c in os.environ.get("TORCHELASTIC_RUN_ID", "torch") if c.isalnum() or c in "-_")[:40]
    made = f"{run}-{uuid.uuid4().hex}".ljust(80).encode()
    name = torch.frombuffer(bytearray(made), dtype=torch.uint8)
    options = dist.BroadcastOptions()
    options.rootRank = 0
    gloo.broadcast([name], options).wait()
    return bytes(name.numpy()).decode().strip()


Join = Callable[..., Session]
"""`SwitchSession.join`, or what stands in for it in a test."""


@dataclass(frozen=True)
class Rendezvous:
    """Joins the switch for one group. Every rank of it calls `open` for the same lane, at about the same time."""

    store: Store
    rank: int
    workers: int
    job: str
    options: SwitchOptions
    timeout_s: float
    """The process group's timeout: how long one rank may keep the others waiting in a call."""
    join: Join
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set when the group ends: nobody needs to be waited for any more."""

    def open(self, lane: int) -> Session | None:
        """Join the switch. None if it has no room for the job, in which case all ranks get None and rank 0 warns.

        Raises DistBackendError, on all ranks, if any couldn't join for another reason, or didn't come within the
        group's timeout; it names the rank.
        """
        # The switch's patience is short, the group's is not: a rank may legitimately come here minutes later.
        self._exchange(f"{self.job}/{lane}/here", "", self.timeout_s)
        outcome, session = self._try(lane)
        try:
            outcomes = self._exchange(f"{self.job}/{lane}/outcome", outcome, self.options.join_timeout_s + GRACE_S)
        except BaseException:
            if session is not None:
                session.close()
            raise
        troubles = {rank: told for rank, told in enumerate(outcomes) if told != JOINED}
        if not troubles:
            return session
        if session is not None:
            session.close()
        first = min(troubles)
        reason = troubles[first].partition(": ")[2]
        if lane == 0 and all(told.startswith(NO_ROOM) for told in troubles.values()):
            if self.rank == 0:
                logger.warning("switchagg: using Gloo instead of switch %s: %s", self.options.switch, reason)
            return None
        raise dist.DistBackendError(
            f"switchagg: rank {first} of {self.workers} could not join switch {self.options.switch}: {reason}"
        )

    def _try(self, lane: int) -> tuple[str, Session | None]:
        try:
            session = self.join(
                self.options.switch,
                f"{self.job}/{lane}",
                self.rank,
                self.workers,
                elements=self.options.elements,
                streams=self.options.streams,
                window_slots=self.options.window_slots,
                timeout_s=self.options.join_timeout_s,
                call_timeout_s=self.timeout_s,
            )
        except JobError as error:
            return f"{NO_ROOM if error.lacks_room else FAILED}: {error}", None
        except (OSError, ValueError, AssertionError) as error:
            return f"{FAILED}: {type(error).__name__}: {error}", None
        return JOINED, session

    def _exchange(self, prefix: str, told: str, timeout_s: float) -> list[str]:
        """What every rank tells under this prefix. Polls: a blocking wait would lock the store for Gloo's threads."""
        keys = [f"{prefix}/{rank}" for rank in range(self.workers)]
        self.store.set(keys[self.rank], told)
        deadline = time.monotonic() + timeout_s
        while not self.store.check(keys):
            if time.monotonic() > deadline:
                missing = [str(rank) for rank, key in enumerate(keys) if not self.store.check([key])]
                raise dist.DistBackendError(
                    f"switchagg: rank {', '.join(missing)} of {self.workers} did not come to join switch "
                    f"{self.options.switch} within {timeout_s:g} s"
                )
            if self.cancelled.wait(POLL_S):
                raise dist.DistBackendError("it was shut down while it waited for other ranks to join the switch")
        return [self.store.get(key).decode() for key in keys]
