"""How ours are made: one allreduce in virtual time, and an iteration whose servers answer only what has been pushed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    crossing: bool = True,
) -> float:
    """An iteration in which a transfer is pulled once it has been pushed whole, over a link as fast each way.

    As parameter servers of the papers do it: the two directions of a link are busy at the same time only with different
    transfers. crossing: a layer of the next forward pass begins when its own parameters are there, else when all are.
    """
    if isinstance(policy, str):
        policy = parse_policy(policy)
    transfers = policy.plan(profile, LinearCost(overhead_ns, beta_ns_per_byte))
    link = Network(beta_ns_per_byte, overhead_ns=overhead_ns)
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
