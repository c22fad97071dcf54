"""The time of an iteration, predicted from profile, policy and network. This module is pure.

The model has one rank, since all are alike, and one first-in-first-out network under a priority queue with a byte
credit. Forward: a layer begins when the one before is done and its own sums are here. Backward: gradients exist at the
times of the profile. With `crossing`, the next forward pass begins at once, else when all sums are here.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from transport.schedule.policy import Policy
from transport.schedule.profile import LinearCost, Profile
from transport.schedule.schedule_plan import Transfer, classes_of
from transport.schedule.schedule_table import parse_policy


@dataclass(frozen=True)
class Network:
    """beta_ns_per_byte: time on the busiest link per byte of a transfer, all copies and headers counted.

    latency_ns: from there until the sum is here; transfers share it. overhead_ns: what each transfer adds to the link's
    time. grain_bytes: in what pieces transfers queue; None: whole. host_ns: what hosts have to do for each, beside
    others' bytes; later_ns(bytes): what that adds to a transfer alone. answer_share: of a transfer's time on the
    link, what comes back once all was sent, beside what others send. calls_at_once: transfers that may be between start
    and sum; 0: any number.
    """

    beta_ns_per_byte: float
    latency_ns: float = 0.0
    overhead_ns: float = 0.0
    grain_bytes: int | None = None
    host_ns: float = 0.0
    later_ns: Callable[[int], float] = lambda _: 0.0
    answer_share: float = 0.0
    calls_at_once: int = 0

    def beside(self, size_bytes: int) -> "TransferOverhead":
        """The needs of a transfer beside the link."""
        answer_ns = self.answer_share * self.beta_ns_per_byte * size_bytes
        return TransferOverhead(self.host_ns, answer_ns, self.later_ns(size_bytes))

    @classmethod
    def of_star(cls, traffic: float, rate_bps: float, *, overhead_ns: float = 0.0, framing: float = 1.0) -> "Network":
        """A star of equal links. traffic: how often each byte crosses the busiest of them
        (`transport.group.method_name.traffic`). framing: bytes on the wire per byte of payload."""
        return cls(8e9 / rate_bps * framing * traffic, overhead_ns=overhead_ns)


class TransferOverhead(NamedTuple):
    """The needs of a transfer beside the link, in ns. host: from its start, of hosts that do one after the other;
    answer: once it has left the link, on another, one after the other; after: at last, beside all others."""

    host_ns: float = 0.0
    answer_ns: float = 0.0
    after_ns: float = 0.0


NO_OVERHEAD = TransferOverhead()
"""The needs of transfers that use the link and nothing else."""


class PredictedTransfer(NamedTuple):
    """A transfer in the model: nanoseconds from the start of the backward pass."""

    key: int
    ready_ns: float
    launched_ns: float
    completed_ns: float


@dataclass(frozen=True)
class Prediction:
    """An iteration in the steady state.

    compute_ns: forward and backward alone. bound_ns: no schedule can be faster. waits_ns: how long each layer of the
    next forward pass waits for its sums; its first is the queue wait of the first layer. services: in order of launch.
    """

    iteration_ns: float
    compute_ns: float
    bound_ns: float
    waits_ns: tuple[float, ...]
    services: tuple[PredictedTransfer, ...]


def predict(
    policy: Policy | str,
    profile: Profile,
    network: Network,
    *,
    credit_bytes: int | None = None,
    crossing: bool = True,
    classes: int | None = None,
) -> Prediction:
    """An iteration under a policy. credit_bytes: what may lie in the network; None: the policy's.

    classes: how many priorities the network tells apart, as a switch's streams or queues; None: all.
    """
    if isinstance(policy, str):
        policy = parse_policy(policy)
    cost = LinearCost(network.overhead_ns + network.latency_ns + network.later_ns(0), network.beta_ns_per_byte)
    transfers = policy.plan(profile, cost)
    if classes is not None:
        transfers = tuple(
            transfer._replace(priority=number)
            for transfer, number in zip(transfers, classes_of(transfers, classes), strict=True)
        )
    services = serve(
        transfers,
        ready_times(transfers, profile, policy.cycle_ns),
        network,
        policy.credit_bytes if credit_bytes is None else credit_bytes,
    )
    arrived = [0.0] * len(profile.layers)
    for service in services:
        for part in transfers[service.key].parts:
            place = profile.tensors[part.tensor].layer
            arrived[place] = max(arrived[place], service.completed_ns)
    compute_ns = float(profile.backward_ns + profile.forward_ns)
    clock = float(profile.backward_ns)
    if not crossing:
        arrived[:1] = [max(arrived, default=0.0)]
    waits = []
    for layer, sums_ns in zip(profile.layers, arrived, strict=True):
        waits.append(max(0.0, sums_ns - clock))
        clock = max(clock, sums_ns) + layer.forward_ns
    busy_ns = profile.size_bytes * network.beta_ns_per_byte
    return Prediction(clock, compute_ns, max(compute_ns, busy_ns), tuple(waits), tuple(services))


def ready_times(transfers: Sequence[Transfer], profile: Profile, cycle_ns: int = 0) -> list[float]:
    """When each transfer's last gradient exists, or the cycle ends in which it does."""
    first = min((tensor.ready_ns for tensor in profile.tensors), default=0)
    times = []
    for transfer in transfers:
        ready = max(profile.tensors[part.tensor].ready_ns for part in transfer.parts)
        times.append(float(first + ((ready - first) // cycle_ns + 1) * cycle_ns if cycle_ns else ready))
    return times


def launch_order(
    transfers: Sequence[Transfer], profile: Profile, cost: LinearCost, credit_bytes: int | None
) -> list[int]:
    """Keys in the order in which rank 0 would start them: a fixed order for groups that match calls by order alone.

    Without a cost, transfers take no time, and this is the order of arrival.
    """
    network = Network(cost.beta_ns_per_byte, overhead_ns=cost.alpha_ns)
    return [service.key for service in serve(transfers, ready_times(transfers, profile), network, credit_bytes)]


def serve(
    transfers: Sequence[Transfer], ready_ns: Sequence[float], network: Network, credit_bytes: int | None
) -> list[PredictedTransfer]:
    """Carry transfers that become ready at these times, from an idle network; in order of their starts."""
    carrier = NetworkQueue(network, credit_bytes)
    for transfer in transfers:
        size_bytes = transfer.size_bytes
        carrier.submit(transfer.key, ready_ns[transfer.key], transfer.priority, size_bytes, network.beside(size_bytes))
    carrier.carry()
    return [
        PredictedTransfer(key, ready_ns[key], launched, carrier.completed[key])
        for key, launched in carrier.launched.items()
    ]


class NetworkQueue:
    """The network and the queue above it, idle at first. launched, completed: times by key, in order."""

    def __init__(self, network: Network, credit_bytes: int | None) -> None:
        self.launched: dict[int, float] = {}
        self.completed: dict[int, float] = {}
        self._network, self._credit_bytes = network, credit_bytes
        self._arrivals: list[tuple[float, int, int, int]] = []  # heap of (ready, priority, key, bytes)
        self._waiting: list[tuple[int, int, int, int]] = []  # heap of (priority, key, piece, bytes)
        self._below: deque[tuple[int, int, int]] = deque()  # (key, piece, bytes)
        self._below_bytes, self._busy_until = 0, 0.0
        self._left: dict[int, int] = {}
        self._beside: dict[int, TransferOverhead] = {}
        self._host_ns = self._answer_ns = 0.0  # when those are free again
        self._frees_ns: list[float] = []  # heap: when sums will be here, where few calls may be at once

    def submit(
        self, key: int, ready_ns: float, priority: int, size_bytes: int, beside: TransferOverhead = NO_OVERHEAD
    ) -> None:
        """A transfer that is ready then: not before what has been carried already."""
        self._beside[key] = beside
        heappush(self._arrivals, (ready_ns, priority, key, size_bytes))

    def carry(self, until: int | None = None) -> None:
        """Go on until this key is complete; None: until nothing is left."""
        arrivals, below, network = self._arrivals, self._below, self._network
        while (arrivals or below or self._waiting) and (until is None or until not in self.completed):
            begins_ns = arrivals[0][0] if arrivals else inf
            frees_ns = self._frees_ns[0] if self._waiting and self._frees_ns else inf
            now = min(self._busy_until if below else inf, begins_ns, frees_ns)
            while self._frees_ns and self._frees_ns[0] <= now:
                heappop(self._frees_ns)
            if below and self._busy_until <= now:
                now = self._busy_until
                key, _, size = below.popleft()
                self._below_bytes -= size
                self._left[key] -= 1
                if not self._left[key]:
                    self.completed[key] = self._ended(key, now)
                if below:
                    self._busy_until = now + _service_ns(network, below[0])
            elif begins_ns <= now:
                now, priority, key, size_bytes = heappop(arrivals)
                pieces = _pieces(size_bytes, None if network.calls_at_once else network.grain_bytes)
                self._left[key] = len(pieces)
                for piece, size in enumerate(pieces):
                    heappush(self._waiting, (priority, key, piece, size))
                if arrivals and arrivals[0][0] == now:
                    continue  # all that is ready at one time is compared before any starts
            self._start(now)

    def _ended(self, key: int, now: float) -> float:
        """It has left the link: when its sum is here."""
        beside = self._beside.pop(key)
        self._host_ns = max(self._host_ns, self.launched[key]) + beside.host_ns
        self._answer_ns = max(self._answer_ns, now) + beside.answer_ns
        completed_ns = max(self._host_ns, self._answer_ns + beside.after_ns) + self._network.latency_ns
        if self._network.calls_at_once:
            heappush(self._frees_ns, completed_ns)
        return completed_ns

    def _start(self, now: float) -> None:
        credit_bytes, at_once = self._credit_bytes, self._network.calls_at_once
        while self._waiting and (credit_bytes is None or self._below_bytes < credit_bytes):
            if at_once and len(self._below) + len(self._frees_ns) >= at_once:
                break
            _, key, piece, size = heappop(self._waiting)
            self.launched.setdefault(key, now)
            if not self._below:
                self._busy_until = now + _service_ns(self._network, (key, piece, size))
            self._below.append((key, piece, size))
            self._below_bytes += size


def _service_ns(network: Network, item: tuple[int, int, int]) -> float:
    _, piece, size = item
    return network.beta_ns_per_byte * size + (network.overhead_ns if piece == 0 else 0.0)


def _pieces(size_bytes: int, grain_bytes: int | None) -> list[int]:
    if grain_bytes is None or size_bytes <= grain_bytes:
        return [size_bytes]
    full, rest = divmod(size_bytes, grain_bytes)
    return [grain_bytes] * full + ([rest] if rest else [])
