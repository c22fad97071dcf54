"""How long recovery takes (W7, W8): bounded by round trips for what was lost, and a few timeouts, whatever was lost.

Every loss is of a first copy: of a worker's chunk, or of a result on its way to one worker; a path that is down is
another matter. A failure prints its seed; `--seeds 10000` runs more.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from switchagg.calls.array_calls import array_call
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.endpoint import CallCompleted, Endpoint
from switchagg.job import JobConfig, StreamConfig
from switchagg.native.library import missing
from switchagg.native.native_endpoint import NativeEndpoint
from switchagg.window import PROBES
from switchagg.wire import FLAG_RETRANSMISSION, Bundle, headers

ROUND_TRIP_NS = 100_000
RTO_INITIAL_NS, RTO_MIN_NS, RTO_MAX_NS = 20 * ROUND_TRIP_NS, 10 * ROUND_TRIP_NS, 100 * ROUND_TRIP_NS

requires_native = pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")
CORES = [
    pytest.param(Endpoint, "reference", id="python"),
    pytest.param(NativeEndpoint, "native", id="native", marks=requires_native),
]


@dataclass(frozen=True)
class Losses:
    """One call of so many chunks. up, down: (rank, chunk) whose first copy to, or result from, the switch is lost."""

    workers: int
    window: int
    chunks: int
    starts_ns: tuple[int, ...]
    up: frozenset[tuple[int, int]] = frozenset()
    down: frozenset[tuple[int, int]] = frozenset()

    @property
    def lost(self) -> int:
        return len(self.up) + len(self.down)

    def without_loss(self) -> "Losses":
        return Losses(self.workers, self.window, self.chunks, self.starts_ns)


def drawn(seed: int) -> Losses:
    """Runs of chunks, prefixes, suffixes and single ones, on each rank others, up or down; ranks start at any time."""
    rng = random.Random(seed)
    workers, window = rng.choice([2, 2, 3, 4, 8]), rng.choice([4, 16, 64, 256])
    chunks = rng.choice([window, window, window + 1, window + 2, window + 5, 2 * window, 3 * window])
    up: set[tuple[int, int]] = set()
    down: set[tuple[int, int]] = set()
    for rank in range(workers):
        first, last = sorted((rng.randrange(chunks), rng.randrange(chunks)))
        share = rng.random()
        spans = {
            "none": (),
            "all": range(chunks),
            "window": range(window),
            "prefix": range(last),
            "suffix": range(first, chunks),
            "last": range(chunks - rng.choice([1, 2, 3, 4, 5, 8, 12]) % chunks, chunks),
            "run": range(first, last),
            "any": [chunk for chunk in range(chunks) if rng.random() < share],
        }
        (down if rng.random() < 0.3 else up).update((rank, chunk) for chunk in spans[rng.choice(list(spans))])
    starts = (0, rng.randrange(3 * ROUND_TRIP_NS), rng.randrange(2 * RTO_INITIAL_NS), rng.randrange(RTO_MAX_NS))
    return Losses(
        workers, window, chunks, tuple(rng.choice(starts) for _ in range(workers)), frozenset(up), frozenset(down)
    )


class World:
    """Workers and one switch, half a round trip apart, in virtual time. `run` returns when the last sum is there."""

    def __init__(self, losses: Losses, endpoint: Callable[[JobConfig, int], Any], plane: str) -> None:
        self.losses = losses
        self.job = JobConfig(
            1, 1, losses.workers, 1, (StreamConfig(0, losses.window),), RTO_INITIAL_NS, RTO_MIN_NS, RTO_MAX_NS, 1000
        )
        self.switch = DATAPLANES[plane](losses.window, 1)
        self.switch.admit(self.job, range(losses.workers))
        self.endpoints = [endpoint(self.job, rank) for rank in range(losses.workers)]
        self.arrays = [np.arange(losses.chunks, dtype=np.int32) * (rank + 1) for rank in range(losses.workers)]
        self.retransmitted_before_all = 0
        self._undelivered = set(losses.down)
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def run(self) -> int:
        for rank, start_ns in enumerate(self.losses.starts_ns):
            self._at(start_ns, self._start, rank)
        ended: set[int] = set()
        now_ns = 0
        while len(ended) < self.losses.workers:
            now_ns, _, action, arguments = heapq.heappop(self._events)
            action(now_ns, *arguments)
            for rank, endpoint in enumerate(self.endpoints):
                while (event := endpoint.next_event()) is not None:
                    assert isinstance(event, CallCompleted), event
                    ended.add(rank)
        workers = self.losses.workers
        want = np.arange(self.losses.chunks, dtype=np.int32) * (workers * (workers + 1) // 2)
        for array in self.arrays:
            assert (array == want).all()
        return now_ns

    def _at(self, time_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time_ns, self._sequence, action, arguments))

    def _start(self, now_ns: int, rank: int) -> None:
        if now_ns == max(self.losses.starts_ns):
            self.retransmitted_before_all = sum(end.counters["retransmitted"] for end in self.endpoints)
        self.endpoints[rank].submit(0, array_call(self.arrays[rank], "sum", self.job))
        self._pump(now_ns, rank)

    def _pump(self, now_ns: int, rank: int) -> None:
        endpoint = self.endpoints[rank]
        while len(frames := endpoint.frames_to_send(now_ns)):
            fields = headers(frames).tolist()
            arrive = [bool(row[0] & FLAG_RETRANSMISSION) or (rank, row[7]) not in self.losses.up for row in fields]
            self._at(now_ns + ROUND_TRIP_NS // 2, self._at_switch, rank, frames[np.array(arrive)])
        deadline_ns = endpoint.next_deadline_ns()
        if deadline_ns is not None:
            self._at(max(now_ns + 1, deadline_ns), self._timer, rank)

    def _timer(self, now_ns: int, rank: int) -> None:
        deadline_ns = self.endpoints[rank].next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= now_ns:
            self.endpoints[rank].handle_timer(now_ns)
            self._pump(now_ns, rank)

    def _at_switch(self, now_ns: int, rank: int, frames: Bundle) -> None:
        if not len(frames):
            return
        for output in self.switch.process(frames, rank):
            chunks = headers(output.bundle)["chunk"].tolist()
            for port in output.ports:
                arrive = [(port, chunk) not in self._undelivered for chunk in chunks]
                self._undelivered -= {(port, chunk) for chunk in chunks}
                if any(arrive):
                    bundle = output.bundle[np.array(arrive)]
                    self._at(now_ns + ROUND_TRIP_NS // 2, self._at_worker, port, bundle)

    def _at_worker(self, now_ns: int, rank: int, results: Bundle) -> None:
        self.endpoints[rank].receive(results, now_ns)
        self._pump(now_ns, rank)


def extra_ns(losses: Losses, endpoint: Any, plane: str) -> int:
    """How much longer the call takes than without loss."""
    return World(losses, endpoint, plane).run() - World(losses.without_loss(), endpoint, plane).run()


def most_ns(losses: Losses) -> int:
    """A round trip for every `PROBES` packets lost; a timeout for each rank, which may learn of its losses only when
    another one's are repaired, and two more."""
    return -(-losses.lost // PROBES) * ROUND_TRIP_NS + (losses.workers + 2) * RTO_MAX_NS


@requires_native
def test_recovery_takes_round_trips_for_what_was_lost(seed: int) -> None:
    """The cores agree packet for packet (tests/conformance/test_endpoint_lockstep.py), so one of them will do."""
    losses = drawn(seed)
    assert extra_ns(losses, NativeEndpoint, "native") <= most_ns(losses), f"seed {seed}"


@pytest.mark.parametrize(("endpoint", "plane"), CORES)
@pytest.mark.parametrize("window", [64, 256])
def test_a_lost_window_here_and_the_last_chunks_there(endpoint: Any, plane: str, window: int) -> None:
    """Each rank's repairs wait for what the other one doesn't know that it lost; not for a timeout per few chunks."""
    up = {(0, chunk) for chunk in range(window)} | {(1, chunk) for chunk in range(window - 8, window)}
    losses = Losses(2, window, window, (0, 2 * ROUND_TRIP_NS), frozenset(up))
    assert extra_ns(losses, endpoint, plane) <= 10 * RTO_INITIAL_NS


@pytest.mark.parametrize(("endpoint", "plane"), CORES)
def test_waiting_for_a_slow_rank_resends_a_few_chunks_per_timeout(endpoint: Any, plane: str) -> None:
    """A rank comes 10,000 round trips late: timeouts have doubled up to the longest by then."""
    world = World(Losses(2, 256, 512, (0, 10_000 * ROUND_TRIP_NS)), endpoint, plane)
    world.run()
    doublings = (RTO_MAX_NS // RTO_INITIAL_NS).bit_length()
    assert world.retransmitted_before_all <= PROBES * (doublings + 10_000 * ROUND_TRIP_NS // RTO_MAX_NS)
    after = sum(endpoint.counters["retransmitted"] for endpoint in world.endpoints) - world.retransmitted_before_all
    assert after <= 4 * PROBES  # answered, the last ones let a few more follow
