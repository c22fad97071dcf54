"""The scheduler: which transfers of an iteration start now. Pure; inputs: what became ready or completed, the time.

    transfers = plan_transfers("bytescheduler:partition=1MB,credit=4MB", profile)     # the same on all ranks
    scheduler = Scheduler(transfers)
    scheduler.ready(tensor, now_ns)                     # as gradients come to exist, in any order
    for transfer in scheduler.launches(now_ns): ...     # start these, in this order
    scheduler.completed(transfer, now_ns)

**Which ranks can't block each other.** Gradients become ready in another order on each rank. If a byte credit held
back *starts*, one rank could use it up with transfers that another hasn't started, and both would wait for ever. So:

- Calls that are matched by key (host collectives, parameter servers): all that is ready starts at once, most urgent
  first; the credit acts in the `CreditQueue` below, on messages, which leave and return it whatever the peers do.
- Calls that are matched by order (the switch's streams, Gloo): `lanes`, sequences of keys that are the same on all
  ranks; a transfer starts when it is ready and all before it in its lane have started. A lane may have a credit: the
  first of a lane that isn't completed is started by every rank sooner or later, so its credit comes back.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from switchagg.option_syntax import describe
from transport.schedule.policy import Policy
from transport.schedule.profile import LayerProfile, LinearCost, Profile, TensorProfile, fit_cost
from transport.schedule.schedule_plan import Lanes, TensorRange, Transfer, class_lanes, classes_of, tensors_of
from transport.schedule.schedule_table import parse_policy, plan_transfers

__all__ = [
    "RECORDS_MAX",
    "Lanes",
    "LayerProfile",
    "LinearCost",
    "Policy",
    "Profile",
    "Scheduler",
    "TensorProfile",
    "TensorRange",
    "Timing",
    "Transfer",
    "class_lanes",
    "classes_of",
    "describe",
    "fit_cost",
    "parse_policy",
    "plan_transfers",
    "tensors_of",
]

RECORDS_MAX = 100_000
"""Timings kept until they are taken; older ones are dropped."""


class Timing(NamedTuple):
    """The times at which a transfer was ready, was started and was complete, on the caller's clock."""

    iteration: int
    key: int
    priority: int
    size_bytes: int
    ready_ns: int
    launched_ns: int
    completed_ns: int


class Scheduler:
    """Starts the transfers of a plan, iteration after iteration: the next begins when all of one have completed.

    lanes: None for calls matched by key, else every key of the plan in one of them. credit_bytes: how much of a lane
    may be started and not completed, overdrawn by at most one transfer; None: no bound. cycle_ns: what is ready starts
    only at the end of a cycle (Horovod's), counted from the first gradient of an iteration; 0: at once.
    The class isn't thread-safe. Raises ValueError for lanes that don't fit the plan, or a credit without lanes.
    """

    def __init__(
        self,
        transfers: Sequence[Transfer],
        *,
        lanes: Lanes | None = None,
        credit_bytes: int | None = None,
        cycle_ns: int = 0,
    ) -> None:
        if [transfer.key for transfer in transfers] != list(range(len(transfers))):
            raise ValueError("transfers: numbered from 0 in order")
        if lanes is not None and sorted(key for lane in lanes for key in lane) != list(range(len(transfers))):
            raise ValueError("lanes: every key of the plan once")
        if credit_bytes is not None and (lanes is None or credit_bytes < 1):
            raise ValueError("credit_bytes: 1 or more, and only with lanes: ranks could wait for each other's starts")
        self.transfers = tuple(transfers)
        self.lanes = lanes
        self.credit_bytes = credit_bytes
        self.cycle_ns = cycle_ns
        self.iteration = 0
        self._users: dict[int, list[int]] = {}  # tensor -> keys
        for transfer in self.transfers:
            for tensor in {part.tensor for part in transfer.parts}:
                self._users.setdefault(tensor, []).append(transfer.key)
        self._tensors_of = [len({part.tensor for part in transfer.parts}) for transfer in self.transfers]
        self._lane_of = [0] * len(self.transfers)
        for number, lane in enumerate(lanes or ()):
            for key in lane:
                self._lane_of[key] = number
        self._timings: deque[Timing] = deque(maxlen=RECORDS_MAX)
        self._begin()

    def _begin(self) -> None:
        count = len(self.transfers)
        self._missing = list(self._tensors_of)
        self._unready = set(self._users)
        self._ready_ns = [0] * count
        self._launched_ns = [-1] * count
        self._left = count
        self._startable: list[tuple[int, int]] = []  # heap of (priority, key), for calls matched by key
        self._may_start = [False] * count  # for lanes
        self._next = [0] * len(self.lanes or ())
        self._under_way_bytes = [0] * len(self.lanes or ())
        self._touched: set[int] = set()  # lanes in which something may have become possible
        self._held: list[int] = []  # ready, waiting for the end of the cycle
        self._cycles_from_ns = -1
        self._tick_ns = 0

    @property
    def idle(self) -> bool:
        """Nothing of an iteration has begun, or all of it has completed."""
        return len(self._unready) == len(self._users)

    @property
    def unready(self) -> frozenset[int]:
        """Tensors without a gradient so far in this iteration."""
        return frozenset(self._unready)

    def ready(self, tensor: int, now_ns: int) -> None:
        """A tensor's gradient exists; call it once per tensor and iteration."""
        assert tensor in self._unready, f"tensor {tensor} was ready before, or is in no transfer"
        self._unready.remove(tensor)
        if self._cycles_from_ns < 0:
            self._cycles_from_ns = now_ns
        for key in self._users[tensor]:
            self._missing[key] -= 1
            if not self._missing[key]:
                self._ready_ns[key] = now_ns
                if self.cycle_ns:
                    self._hold(key, now_ns)
                else:
                    self._allow(key)

    def backward_done(self, now_ns: int) -> None:
        """The backward pass is over: tensors without a gradient take part with zeros, as they must on every rank.

        Only if there are such: where none is, the iteration may be complete, and this would belong to the next one.
        """
        for tensor in sorted(self._unready):
            self.ready(tensor, now_ns)

    def _hold(self, key: int, now_ns: int) -> None:
        if not self._held:
            cycles = (now_ns - self._cycles_from_ns) // self.cycle_ns + 1
            self._tick_ns = self._cycles_from_ns + cycles * self.cycle_ns
        self._held.append(key)

    def _allow(self, key: int) -> None:
        if self.lanes is None:
            heappush(self._startable, (self.transfers[key].priority, key))
        else:
            self._may_start[key] = True
            self._touched.add(self._lane_of[key])

    def launches(self, now_ns: int) -> list[Transfer]:
        """Transfers to start now, in this order, each handed out once."""
        if self._held and now_ns >= self._tick_ns:
            for key in self._held:
                self._allow(key)
            self._held = []
        if self.lanes is None:
            started = []
            while self._startable:
                started.append(self.transfers[heappop(self._startable)[1]])
        elif self._touched:
            started = [
                self.transfers[key] for lane in sorted(self._touched) for key in self._advance(lane, self.lanes[lane])
            ]
            self._touched.clear()
        else:
            return []
        for transfer in started:
            self._launched_ns[transfer.key] = now_ns
        return started

    def _advance(self, lane: int, keys: tuple[int, ...]) -> list[int]:
        started = []
        while self._next[lane] < len(keys) and self._may_start[keys[self._next[lane]]]:
            if self.credit_bytes is not None and self._under_way_bytes[lane] >= self.credit_bytes:
                break
            key = keys[self._next[lane]]
            self._next[lane] += 1
            self._under_way_bytes[lane] += self.transfers[key].size_bytes
            started.append(key)
        return started

    def completed(self, transfer: Transfer, now_ns: int) -> None:
        """A started transfer's sums are here. The last one of an iteration makes room for the next."""
        key = transfer.key
        assert self._launched_ns[key] >= 0, f"transfer {key} is not under way"
        self._timings.append(
            Timing(
                self.iteration,
                key,
                transfer.priority,
                transfer.size_bytes,
                self._ready_ns[key],
                self._launched_ns[key],
                now_ns,
            )
        )
        self._launched_ns[key] = -1
        if self.lanes is not None:
            lane = self._lane_of[key]
            self._under_way_bytes[lane] -= transfer.size_bytes
            self._touched.add(lane)
        self._left -= 1
        if not self._left:
            self.iteration += 1
            self._begin()

    def next_deadline_ns(self) -> int | None:
        """When `launches` will have more though nothing else happens: at the end of a cycle; else None."""
        return self._tick_ns if self._held else None

    def take_timings(self) -> list[Timing]:
        """Timings of transfers completed since the last call, in order of completion."""
        timings = list(self._timings)
        self._timings.clear()
        return timings
