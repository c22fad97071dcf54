"""What a collective takes by a method on a star or racks of equal links: measured packet by packet at two sizes.

The one place that chooses how exact a forecast is. Beyond PACKETS_WORKERS the formulas of `transport.collectives.cost`
stand in for packets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from emulation.bounds import LONG_BYTES, Network, bound, bound_together
from emulation.scenario import Scenario, parse
from emulation.sim.network.timing import time_allreduce
from emulation.sim.run import simulation_config
from switchagg.description import KINDS, Kind
from transport.collectives.collective import LinkCost
from transport.collectives.cost import predict, switch_seconds
from transport.group.method_name import MethodName, host_methods

SMALL_BYTES, LARGE_BYTES, LEAST_BYTES = 4_000, 1_000_000, 128_000
TOTAL_BYTES = 8_000_000
"""Of all ranks' arrays in a measurement; a switch's codec that packs values is measured with so many more."""
PACKETS_WORKERS = 64
RACK = 32
"""Workers of a rack, where one switch can't have them all."""
SLOWED = 1.1
"""A method whose bytes take so many times what its links need is held up by its window."""


@dataclass(frozen=True)
class Link:
    """Of every host: bits/s each way, delay one way."""

    rate_bps: int
    delay_ns: int


@dataclass(frozen=True)
class CallCost:
    """Of one call alone: alpha_ns + beta_ns_per_byte × bytes. bound: the least beta that its links allow."""

    alpha_ns: float
    beta_ns_per_byte: float
    bound_ns_per_byte: float

    def time_ns(self, size_bytes: float) -> float:
        return self.alpha_ns + self.beta_ns_per_byte * size_bytes

    @property
    def slowed(self) -> bool:
        return self.beta_ns_per_byte > SLOWED * self.bound_ns_per_byte


def scenario_of(link: Link, workers: int) -> Scenario:
    """Workers on such links, with queues that hold what is in flight. Raises ScenarioError."""
    racks = "" if workers <= PACKETS_WORKERS else f'kind = "leaf_spine"\nracks = {-(-workers // RACK)}\n'
    text = (
        f'name = "whatif"\ntitle = "whatif"\n[topology]\n{racks}workers = {workers}\nrate_bps = {link.rate_bps}\n'
        f'delay_ns = {link.delay_ns}\nqueue_bytes = 16_000_000\n[methods]\nmininet = []\nsim = ["ring", "switch"]\n'
        '[workload]\nname = "digits"\ncompute_ns = 1\n'
    )
    return parse(text, "whatif")


@cache
def call_cost(name: MethodName, kind: Kind, workers: int, link: Link) -> CallCost:
    """Of a call of this kind among so many. AggregationFailed, ScenarioError, ValueError."""
    if workers < 2:
        return CallCost(0.0, 0.0, 0.0)
    scenario = scenario_of(link, workers)
    plain = _plain(name)
    least = _least(plain, scenario.network)
    large = max(LEAST_BYTES, min(LARGE_BYTES, TOTAL_BYTES // workers))
    if plain.in_packets:  # as many packets, so that a window which is too small shows
        large = round(large * max(1.0, _least(replace(plain, codec=""), scenario.network) / least))
    times = [allreduce_ns(plain, size, scenario) for size in (SMALL_BYTES, large)]
    beta = max(least, (times[1] - times[0]) / (large - SMALL_BYTES))
    alpha = max(0.0, times[0] - least * SMALL_BYTES)
    if kind == "allreduce":
        return CallCost(alpha, beta, least)
    share = _share(plain, kind, scenario.network) / least
    steps = 1.0 if plain.in_packets else 0.5  # a ring passes a reduce-scatter in half its steps
    return CallCost(alpha * steps, beta * share, least * share)


def allreduce_ns(name: MethodName, size_bytes: int, scenario: Scenario) -> float:
    """One allreduce alone: in packets, or by a formula where they would be too many."""
    workers = scenario.topology.workers
    if workers <= PACKETS_WORKERS or name.method not in (*host_methods(), "switch"):
        config = simulation_config(scenario, name.codec)
        return float(time_allreduce(config, name.method, size_bytes, "float32").duration_ns)
    hops = 2 if scenario.topology.fabric.racks else 1
    most = bound(name, size_bytes, scenario.network)
    link = LinkCost(2e-9 * hops * scenario.topology.delay_ns, 8 / scenario.topology.rate_bps, 0.0)
    if name.is_switch:
        return 1e9 * switch_seconds(0, link) + most.communication_ns
    return 1e9 * predict(name.method, workers, size_bytes, link)


def _least(name: MethodName, network: Network) -> float:
    """ns per byte of a long array on the busiest link."""
    return bound(name, LONG_BYTES, network).communication_ns / LONG_BYTES


def _plain(name: MethodName) -> MethodName:
    """Without what a schedule does, and what a codec remembers: not of one call alone."""
    spec = name.spec and replace(name.spec, feedback="", momentum=0.0, least=0, warmup=0)
    return replace(name, schedule="", codec=str(spec) if spec else name.codec)


def _share(name: MethodName, kind: Kind, network: Network) -> float:
    """ns per byte that links need for a kind. What no method here does for itself goes straight from rank to rank."""
    if kind in KINDS:
        return bound_together(name, {kind: LONG_BYTES}, LONG_BYTES, network).communication_ns / LONG_BYTES
    return 8e9 / network.rate_bps * (network.workers - 1) / network.workers
