"""The time of a collective by a method on a star or racks of equal links: measured alone, at two sizes.

This module alone chooses how exact a forecast is: beyond PACKETS_BYTES calls are flows (`emulation.sim.flow`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from emulation.scenario.bounds import LONG_BYTES, Needs, NetworkParameters, bound_of_links, bound_together, needs
from emulation.scenario.scenario import Scenario, parse
from emulation.scenario.scenario_tables import AUTO, FORMULA, PACKET
from emulation.sim.fidelity_level import flow_seconds
from emulation.sim.flow.flow_methods import FLOWS
from emulation.sim.network.timing import time_allreduce
from emulation.sim.simulated_run import simulation_config
from switchagg.description import KINDS, Kind
from transport.collectives.programs import SEGMENT_BYTES
from transport.group.method_name import MethodName

SMALL_BYTES, LARGE_BYTES, SHARE_BYTES = 4_000, 1_000_000, 16_000
"""A small array is measured, and one so large that each of a ring's pieces has several segments, too."""
PACKETS_BYTES = 8_000_000
"""All ranks' arrays together are measured in packets up to so many bytes; larger ones as flows."""
STAR_WORKERS, DIRECT_WORKERS = 64, 64
"""The most workers of a star, and of a method in which all send to all at once."""
RACK = 32
"""Workers of a rack, where one switch can't have them all."""
HOST_KEYS: dict[str, dict[str, int]] = {
    "tcp": {"hosts.transfer_ns": 22_600, "hosts.calls_at_once": 1},
    "rdma": {"hosts.transfer_ns": 7_000, "hosts.calls_at_once": 1},
    "free": {},
}
"""Keys of hosts with NCCL over TCP and over RDMA (sources: docs/emulate.md); and of hosts that cost nothing."""


@dataclass(frozen=True)
class HostLink:
    """The link of every host: bits/s each way, delay one way. keys: of a scenario's [hosts] and [ps], and their values.
    fidelity_level: of measured calls; auto: packets, or flows for large calls."""

    rate_bps: int
    delay_ns: int
    keys: tuple[tuple[str, int | str], ...] = ()
    fidelity_level: str = AUTO


@dataclass(frozen=True)
class CallCost:
    """The cost of a call alone: alpha_ns + beta_ns_per_byte × bytes. bound: the least beta that its links allow.
    hidden: alpha at larger sizes, in pairs (bytes, ns), since hosts handle long messages while links are busy."""

    alpha_ns: float
    beta_ns_per_byte: float
    bound_ns_per_byte: float
    hidden: tuple[tuple[float, float], ...] = ()

    def later_ns(self, size_bytes: float) -> float:
        """The time beside the bytes of a call of this size."""
        sizes, times = zip((0.0, self.alpha_ns), *self.hidden, strict=True)
        return float(np.interp(size_bytes, sizes, times)) if self.hidden else self.alpha_ns

    def time_ns(self, size_bytes: float) -> float:
        return self.later_ns(size_bytes) + self.beta_ns_per_byte * size_bytes


def needs_of(name: MethodName, kind: Kind, workers: int, link: HostLink, size_bytes: float, link_ns: float) -> Needs:
    """The resources that a call needs whose links are busy for link_ns."""
    return needs(name, size_bytes, link_ns, scenario_of(link, workers, name).network, kind)


@cache
def scenario_of(link: HostLink, workers: int, name: MethodName) -> Scenario:
    """Workers on such links, with queues that hold what is in flight. Raises ScenarioError."""
    racks = "" if workers <= STAR_WORKERS else f'kind = "leaf_spine"\nracks = {-(-workers // RACK)}\n'
    text = (
        f'name = "whatif"\ntitle = "whatif"\n[topology]\n{racks}workers = {workers}\nrate_bps = {link.rate_bps}\n'
        f'delay_ns = {link.delay_ns}\nqueue_bytes = 16_000_000\n[methods]\nmininet = []\nsim = ["{name}"]\n'
        '[workload]\nprofile = "resnet50"\n'
    )
    return parse(text, "whatif", dict(link.keys))


@cache
def call_cost(name: MethodName, kind: Kind, workers: int, link: HostLink) -> CallCost:
    """The cost of a call of this kind. Raises AggregationFailed, ScenarioError, ValueError."""
    if workers < 2:
        return CallCost(0.0, 0.0, 0.0)
    named = _alone(name)
    scenario = scenario_of(link, workers, named)
    least = _least(named, scenario.network)
    cost = _measured(named, scenario, least, link.fidelity_level)
    if kind == "allreduce":
        return cost
    share = _share(named, kind, scenario.network) / least
    steps = 1.0 if named.in_packets else 0.5  # a ring passes a reduce-scatter in half its steps
    hidden = tuple((size_bytes, steps * ns) for size_bytes, ns in cost.hidden)
    return CallCost(cost.alpha_ns * steps, cost.beta_ns_per_byte * share, least * share, hidden)


def _measured(name: MethodName, scenario: Scenario, least: float, level: str) -> CallCost:
    """The cost of an allreduce: in packets, with the codec, or in flows, whose bytes a codec makes fewer."""
    workers, bare = scenario.topology.workers, replace(name, codec="")
    least_bare = _least(bare, scenario.network)
    sizes = [SMALL_BYTES, max(LARGE_BYTES, SHARE_BYTES * workers)]
    if scenario.hosts.transfer_ns and not name.in_packets:  # pieces have one segment, or two
        sizes = [SMALL_BYTES, SEGMENT_BYTES * workers, max(sizes[1], 2 * SEGMENT_BYTES * workers)]
    large = sizes[-1]
    if level == PACKET or (level == AUTO and workers * large <= PACKETS_BYTES):
        if name.in_packets:  # as many packets of a codec, so that a window which is too small shows
            sizes[-1] = round(large * max(1.0, least_bare / least))
        config = simulation_config(scenario, name)
        times = [time_allreduce(config, name.method, size, "float32").duration_ns for size in sizes]
        return _fitted(sizes, times, least)
    if name.method not in FLOWS or (name.method == "direct" and workers > DIRECT_WORKERS):
        raise ValueError(f"{name.method}: {workers} workers are too many")
    config = simulation_config(scenario)
    formula = level == FORMULA
    flows = [1e9 * flow_seconds(FLOWS[name.method](config, by_formula=formula), size) for size in sizes]
    cost = _fitted(sizes, flows, least_bare)
    return replace(cost, beta_ns_per_byte=cost.beta_ns_per_byte * least / least_bare, bound_ns_per_byte=least)


def _fitted(sizes: Sequence[int], times: Sequence[float], least: float) -> CallCost:
    """A line through the smallest and the largest size; sizes between them keep their own alpha."""
    beta = max(least, (times[-1] - times[0]) / (sizes[-1] - sizes[0]))
    alpha = max(0.0, times[0] - least * sizes[0])
    later = [(size, max(0.0, time - beta * size)) for size, time in zip(sizes[1:], times[1:], strict=True)]
    return CallCost(alpha, beta, least, tuple(later) if len(sizes) > 2 else ())


def _least(name: MethodName, network: NetworkParameters) -> float:
    """ns per byte of a long array on the busiest link."""
    return bound_of_links(name, LONG_BYTES, network).communication_ns / LONG_BYTES


def _alone(name: MethodName) -> MethodName:
    """The method without its schedule and its codec's memory, which a single call doesn't have."""
    spec = name.spec and replace(name.spec, feedback="", momentum=0.0, least=0, warmup=0)
    return replace(name, schedule="", codec=str(spec) if spec else name.codec)


def _share(name: MethodName, kind: Kind, network: NetworkParameters) -> float:
    """ns per byte that links need for a kind. A kind that no method has goes straight from rank to rank."""
    if kind in KINDS:
        free = replace(network, transfer_ns=0, push_then_pull=False)
        return bound_together(name, {kind: LONG_BYTES}, LONG_BYTES, free).communication_ns / LONG_BYTES
    return 8e9 / network.rate_bps * (network.workers - 1) / network.workers
