"""How ours are made: one allreduce in virtual time, and an iteration whose servers answer only what has been pushed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from transport.schedule.policy import Policy
from transport.schedule.profile import LinearCost, Profile
from transport.schedule.schedule_model import Network, ready_times, serve
from transport.schedule.schedule_table import parse_policy


def allreduce_ns(
    method: str, workers: int, rate_bps: float, size_bytes: int, *, delay_ns: int = 0, servers: int = 0
) -> int:
    """By packets, without loss, on a star of links of that rate and one-way delay, each way. Every sum is checked."""
    link = LinkConfig(round(rate_bps), delay_ns, queue_bytes=1 << 30)
    config = SimulationConfig(workers=workers, link=link, window_slots=2048, servers=servers)
    timing = time_allreduce(config, method, size_bytes)
    assert not timing.wrong_elements, "a wrong sum"
    return timing.duration_ns


def push_pull_ns(
    policy: Policy | str,
    profile: Profile,
    beta_ns_per_byte: float,
    *,
    overhead_ns: float = 0.0,
    latency_ns: float = 0.0,
    crossing: bool = True,
) -> float:
    """An iteration in which a transfer is pulled once it has been pushed whole, over a link as fast each way.

    As parameter servers of the papers do it: the two directions of a link are busy at the same time only with
    different transfers. overhead_ns, latency_ns: of a transfer each way, of the link's time and beside others.
    crossing: a layer of the next forward pass begins when its own parameters are there, else when all are.
    """
    if isinstance(policy, str):
        policy = parse_policy(policy)
    transfers = policy.plan(profile, LinearCost(overhead_ns, beta_ns_per_byte))
    link = Network(beta_ns_per_byte, latency_ns, overhead_ns)
    pushed = serve(transfers, ready_times(transfers, profile, policy.cycle_ns), link, policy.credit_bytes)
    at_server = [0.0] * len(transfers)
    for service in pushed:
        at_server[service.key] = service.completed_ns
    arrived = [0.0] * len(profile.layers)
    for service in serve(transfers, at_server, link, policy.credit_bytes):
        for part in transfers[service.key].parts:
            place = profile.tensors[part.tensor].layer
            arrived[place] = max(arrived[place], service.completed_ns)
    return forward_end_ns(profile, arrived if crossing else [max(arrived)] * len(arrived))


def servers_beside_ns(
    policy: Policy | str, profile: Profile, link_ns_per_byte: float, server_ns_per_byte: float
) -> float:
    """An iteration in which each machine has a worker and a server: pushes and answers share its link, each way alike,
    and its server works on what was pushed before it answers, one transfer after the other, the most urgent first."""
    if isinstance(policy, str):
        policy = parse_policy(policy)
    transfers = policy.plan(profile, LinearCost(0.0, link_ns_per_byte))
    byte_ns = (link_ns_per_byte, server_ns_per_byte, link_ns_per_byte)  # of a push, the server's work, an answer
    events = [(ready_ns, False, key, 0) for key, ready_ns in enumerate(ready_times(transfers, profile))]
    heapify(events)
    waiting: tuple[list[tuple[int, int, int, int]], ...] = ([], [])  # for the link, for the server
    is_busy, comers, arrived = [False, False], count(), [0.0] * len(profile.layers)
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, is_end, key, stage = heappop(events)
            if is_end:
                is_busy[(stage - 1) % 2] = False
            if stage < len(byte_ns):
                heappush(waiting[stage % 2], (transfers[key].priority, next(comers), key, stage))
                continue
            for part in transfers[key].parts:
                arrived[profile.tensors[part.tensor].layer] = now
        for queue in range(2):
            if waiting[queue] and not is_busy[queue]:
                _, _, key, stage = heappop(waiting[queue])
                is_busy[queue] = True
                heappush(events, (now + byte_ns[stage] * transfers[key].size_bytes, True, key, stage + 1))
    return forward_end_ns(profile, arrived)


def busy_share(workers: int, servers: int) -> float:
    """The part of the time in which servers' links are busy where each worker has one partition at a time under way,
    with a server that a hash of its key says: a closed network of queues, whose customers are the workers (Gordon and
    Newell, 1967)."""
    return workers / (workers + servers - 1)


def forward_end_ns(profile: Profile, arrived_ns: Sequence[float]) -> float:
    """End of the next forward pass, whose layers begin when their parameters are there, one after the other."""
    clock = float(profile.backward_ns)
    for layer, sums_ns in zip(profile.layers, arrived_ns, strict=True):
        clock = max(clock, sums_ns) + layer.forward_ns
    return clock


def rate_for(goal: float, of: Callable[[float], float], least: float, most: float) -> float:
    """The argument between `least` and `most` for which `of`, which grows with it, comes nearest to `goal`."""
    for _ in range(40):
        middle = (least + most) / 2
        least, most = (middle, most) if of(middle) < goal else (least, middle)
    return (least + most) / 2
