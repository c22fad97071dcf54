"""What a collective takes by a method on a star or racks of equal links: measured alone, at two sizes.

The one place that chooses how exact a forecast is: beyond PACKETS_BYTES calls are flows (`emulation.sim.flow`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from emulation.bounds import LONG_BYTES, Network, bound, bound_together
from emulation.scenario import Scenario, parse
from emulation.sim.flow.methods import FLOWS
from emulation.sim.network.timing import time_allreduce
from emulation.sim.run import simulation_config
from emulation.sim.zoom import flow_seconds
from switchagg.description import KINDS, Kind
from transport.group.method_name import MethodName

SMALL_BYTES, LARGE_BYTES, SHARE_BYTES = 4_000, 1_000_000, 16_000
"""Measured are a small array, and one so large that each of a ring's pieces is some segments long, too."""
PACKETS_BYTES = 8_000_000
"""All ranks' arrays together are measured in packets up to so many bytes; larger ones as flows."""
STAR_WORKERS, DIRECT_WORKERS = 64, 64
"""More need racks; and more don't all send to all at once."""
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
    racks = "" if workers <= STAR_WORKERS else f'kind = "leaf_spine"\nracks = {-(-workers // RACK)}\n'
    text = (
        f'name = "whatif"\ntitle = "whatif"\n[topology]\n{racks}workers = {workers}\nrate_bps = {link.rate_bps}\n'
        f'delay_ns = {link.delay_ns}\nqueue_bytes = 16_000_000\n[methods]\nmininet = []\nsim = ["ring", "switch"]\n'
        '[workload]\nprofile = "resnet50"\n'
    )
    return parse(text, "whatif")


@cache
def call_cost(name: MethodName, kind: Kind, workers: int, link: Link) -> CallCost:
    """Of a call of this kind among so many. AggregationFailed, ScenarioError, ValueError."""
    if workers < 2:
        return CallCost(0.0, 0.0, 0.0)
    scenario, named = scenario_of(link, workers), _alone(name)
    least = _least(named, scenario.network)
    alpha, beta = _measured(named, scenario, least)
    if kind == "allreduce":
        return CallCost(alpha, beta, least)
    share = _share(named, kind, scenario.network) / least
    steps = 1.0 if named.in_packets else 0.5  # a ring passes a reduce-scatter in half its steps
    return CallCost(alpha * steps, beta * share, least * share)


def _measured(name: MethodName, scenario: Scenario, least: float) -> tuple[float, float]:
    """ns of an allreduce, and per byte: of packets, codec and all, or of flows, whose bytes a codec has fewer of."""
    workers, bare = scenario.topology.workers, replace(name, codec="")
    least_bare = _least(bare, scenario.network)
    large = max(LARGE_BYTES, SHARE_BYTES * workers)
    if workers * large <= PACKETS_BYTES:
        if name.in_packets:  # as many packets of a codec, so that a window which is too small shows
            large = round(large * max(1.0, least_bare / least))
        config = simulation_config(scenario, name.codec)
        times = [time_allreduce(config, name.method, size, "float32").duration_ns for size in (SMALL_BYTES, large)]
        return max(0.0, times[0] - least * SMALL_BYTES), max(least, (times[1] - times[0]) / (large - SMALL_BYTES))
    if name.method not in FLOWS or (name.method == "direct" and workers > DIRECT_WORKERS):
        raise ValueError(f"{name.method}: {workers} workers are too many")
    config = simulation_config(scenario)
    flows = [1e9 * flow_seconds(FLOWS[name.method](config), size) for size in (SMALL_BYTES, large)]
    beta = max(least_bare, (flows[1] - flows[0]) / (large - SMALL_BYTES))
    return max(0.0, flows[0] - least_bare * SMALL_BYTES), beta * least / least_bare


def _least(name: MethodName, network: Network) -> float:
    """ns per byte of a long array on the busiest link."""
    return bound(name, LONG_BYTES, network).communication_ns / LONG_BYTES


def _alone(name: MethodName) -> MethodName:
    """Without what a schedule does, and what a codec remembers: not of one call alone."""
    spec = name.spec and replace(name.spec, feedback="", momentum=0.0, least=0, warmup=0)
    return replace(name, schedule="", codec=str(spec) if spec else name.codec)


def _share(name: MethodName, kind: Kind, network: Network) -> float:
    """ns per byte that links need for a kind. What no method here does for itself goes straight from rank to rank."""
    if kind in KINDS:
        return bound_together(name, {kind: LONG_BYTES}, LONG_BYTES, network).communication_ns / LONG_BYTES
    return 8e9 / network.rate_bps * (network.workers - 1) / network.workers
