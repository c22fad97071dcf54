"""Host methods on the network in C against its oracle in Python: every event of small random worlds, one by one."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulation.scenario.topologies.topology import Fabric
from emulation.sim.host_costs import FREE, NO_PACKET_COSTS, HostCosts, PacketCosts
from emulation.sim.lossless.pausing import PfcConfig
from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.ps_simulation import PsSimulation
from emulation.sim.network.simulated_link import LinkConfig, Tail
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.network.virtual_clock import SimulationError
from emulation.sim.size_only import SizeOnlyArray
from switchagg.calls.call_request import CallRequest
from switchagg.description import Kind
from switchagg.errors import AggregationFailed
from switchagg.native import library
from tests.oracles.oracle_network import oracle
from transport.bounded.bounded_table import BOUNDED
from transport.collectives.collective_table import COLLECTIVES
from transport.meshes.reliable import ReliableConfig
from transport.ps.config import ASYNCHRONOUS, BACKUP, BSP, SSP

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=library.missing())

FABRICS = (
    Fabric(),
    Fabric("leaf_spine", racks=2, oversubscription=2.0),
    Fabric("leaf_spine", racks=2, spines=3, paths="flow"),
    Fabric("leaf_spine", racks=2, spines=2),
    Fabric(ranks_per_host=2, inside_bps=10**10),
    Fabric("torus", sides=(2, 2)),
)
KINDS: tuple[Kind, ...] = ("allreduce", "allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "barrier")
ALLREDUCES = {name: each.kinds["allreduce"] for name, each in COLLECTIVES.items() if "allreduce" in each.kinds}
OPS = ("sum", "sum", "max")
CODECS = ("", "", "", "lanes8+ef", "topk+ef")
COSTS = (
    FREE,
    FREE,
    HostCosts(transfer_ns=7_000),
    HostCosts(flow_bps=300_000_000),
    HostCosts(999, 10**9 + 7),
    HostCosts(transfer_ns=7_000, calls_at_once=1),
    HostCosts(calls_at_once=2, call_ns=3_000),
)

PACKET_COSTS = (NO_PACKET_COSTS, NO_PACKET_COSTS, PacketCosts(2_000), PacketCosts(3_000, 0, 20_000, cpus=2))


def world(source: random.Random) -> tuple[SimulationConfig, str]:
    """Two to eight workers and links at their worst: slow or fast, tiny queues, faults of every kind."""
    rate_bps = source.choice((50_000_000, 1_000_000_007, 10**10, 4 * 10**11))
    chances = [source.choice((0.0, 0.0, 0.01, 0.1)) for _ in range(3)]
    link = LinkConfig(rate_bps, source.choice((0, 999, 50_000)), source.choice((5_000, 50_000, 1_000_000)), *chances)
    link = replace(link, tail=source.choice((None, None, Tail(3.0, 20_000, 100_000))))
    fabric, workers = source.choice(FABRICS), source.randint(2, 8)
    pfc = PfcConfig(3_000, 2_000, source.choice((None, None, 0)), strict=False)
    config = SimulationConfig(
        workers=4 if fabric.sides else workers,
        link=replace(link, corrupt=source.choice((0.0, 0.0, 0.002))),
        fabric=fabric,
        switch_latency_ns=source.choice((0, 700)),
        seed=source.randrange(1000),
        strict_priority=source.random() < 0.5,
        reliable=ReliableConfig(window_bytes=source.choice((3_000, 30_000, 4 << 20))),
        message_bytes=source.choice((300, 5_000, 65_160)),
        credit_bytes=source.choice((None, 600, 1 << 20)),  # two messages of 300 exactly
        retry_limit=source.choice((2, 30)),
        tail_rank=source.choice((-1, 1)),
        pfc=source.choice((None, pfc)),
        trace=True,
    )
    if config.pfc is None:
        config = replace(config, packet_costs=source.choice(PACKET_COSTS))
    return config, source.choice([name for name, each in ALLREDUCES.items() if each.fits(config.workers)])


def served(source: random.Random, modes: tuple[str, ...]) -> SimulationConfig:
    """Such a world with parameter servers, on hosts of their own or beside the workers."""
    config, mode = world(source)[0], source.choice(modes)
    ps = {"mode": mode, "dead_after_s": 3.0, "push_then_pull": mode == BSP and source.random() < 0.5}
    ps |= {"backups": int(mode == BACKUP), "staleness": int(mode == SSP)}
    servers = 0 if config.fabric.sides else source.choice((0, 1, 3))
    return replace(config, servers=servers, ps=ps, costs=source.choice(COSTS))


def seen(simulation: Simulation, failed: str) -> dict[str, Any]:
    """All that is left of a run."""
    time, links = simulation.network, simulation.shared.links.values()
    return {
        "trace": time.trace_hash(),
        "events": time.events,
        "now_ns": time.now_ns,
        "failed": failed,
        "links": [(each.sent_bytes, each.delivered_frames, each.delivered_bytes, each.faults) for each in links],
        "damaged": simulation.drop_checksum(),
        "again": simulation.retransmissions(),
        "documents": [document() for document in simulation.shared.documents],
    }


def ran(simulation: Simulation) -> str:
    """How it failed, or ""."""
    try:
        simulation.run("the calls")
    except (AggregationFailed, SimulationError) as error:
        return repr((error, vars(error)))
    return ""


def told(config: SimulationConfig, method: str, seed: int, size_only: bool = False) -> dict[str, Any]:
    """All there is to see of calls that ranks make in turn, some from within others' ends, some in any order by key."""
    simulation = SIMULATIONS[method](config)
    source, time, workers = random.Random(seed), simulation.network, config.workers
    keyed = source.random() < 0.5
    calls = [
        (
            np.dtype(source.choice(("int32", "int64", "float32", "float64" if method == "ps" else "float16"))),
            source.choice((0, 1, 7, 2_000, 20_000)),
            source.choice((None, 0, 3, 7)),
            source.choice(KINDS),
            source.choice(OPS),
        )
        for _ in range(4)
    ]
    if method in BOUNDED:  # the calls that may lose
        calls = [(np.dtype("float32"), count, priority, "allreduce", "sum") for _, count, priority, _, _ in calls]
    made = {
        (rank, number): (np.random.default_rng(rank).integers(-99, 99, count) * 1.5).astype(dtype)
        for rank in range(workers)
        for number, (dtype, count, _, _, _) in enumerate(calls)
    }
    left, ends = workers * len(calls), list[tuple[int, int, int]]()

    def launch(_frame: None, rank: int, number: int) -> None:
        dtype, count, priority, kind, op = calls[number]
        given = SizeOnlyArray(count, dtype) if size_only else made[rank, number]
        key = number % 2 if keyed else None  # free again once the first call with it has ended
        simulation.launch(rank, given, op, lambda: done(rank, number), priority, key, kind)

    def done(rank: int, number: int) -> None:
        nonlocal left
        left -= 1
        ends.append((time.now_ns, rank, number))
        if number == 0:
            launch(None, rank, 2)  # at once, in the middle of an event
        elif number == 1:
            time.schedule(time.now_ns + 10 * rank, launch, None, rank, 3)
        if not left:
            time.stop()

    for rank in range(workers):
        for number in (0, 1) if rank % 2 or not keyed else (1, 0):
            time.schedule(1000 * rank * number, launch, None, rank, number)
    found = seen(simulation, ran(simulation))
    return {**found, "ends": ends, "sums": None if size_only else [each.tobytes() for each in made.values()]}


def trained(config: SimulationConfig, seed: int) -> dict[str, Any]:
    """All there is to see of ranks that push gradients and get weights, each as fast as it is, and leave."""
    simulation = PsSimulation(config)
    source, time, workers = random.Random(seed), simulation.network, config.workers
    sizes = [source.choice((1, 700, 20_000)) for _ in range(2)]
    weights = [[np.full(size, 1.0, np.float32) for size in sizes] for _ in range(workers)]
    left, passes = [2] * workers, [3] * workers

    def begin(kind: str, rank: int) -> None:
        left[rank] = len(sizes)
        for key, target in enumerate(weights[rank]):
            array, into = (target * rank, {"target": target}) if kind == "push_pull" else (target, {})
            request = CallRequest(kind, key=key, priority=key, **into)
            simulation.begin(rank, SimulatedCall(array, request, lambda: done(rank)))

    def done(rank: int) -> None:
        left[rank] -= 1
        if not left[rank]:
            passes[rank] -= 1
            time.schedule(time.now_ns + 20_000 * (rank + 1), lambda *_: go_on(rank))

    def go_on(rank: int) -> None:
        if passes[rank]:
            begin("push_pull", rank)
            return
        simulation.leave(rank)
        if not any(passes):
            time.stop()

    for rank in range(workers):
        begin("init", rank)
    found = seen(simulation, ran(simulation))
    counters = [each.counters for each in (*simulation.workers, *simulation.servers)]
    return {**found, "weights": [each.tobytes() for own in weights for each in own], "counters": counters}


def test_events_results_and_counters_are_those_of_python() -> None:
    failures = resent = 0
    for seed in range(28):
        source = random.Random(seed)
        config, method = world(source)
        config = replace(config, codec=source.choice(CODECS), costs=source.choice(COSTS))
        found = told(config, method, seed)
        assert found == told(oracle(config), method, seed), f"seed {seed}: {method}"
        failures += bool(found["failed"])
        resent += found["again"]
        size_only = told(config, method, seed, size_only=True)  # lengths alone: the same events, frames of zeros
        assert size_only | {"trace": found["trace"], "sums": found["sums"]} == found, f"seed {seed}: {method}"
        if seed % 5 == 0:
            assert size_only == told(oracle(config), method, seed, size_only=True), f"seed {seed}: {method}"
    assert 0 < failures < 15
    assert resent > 200


def test_so_are_those_of_parameter_servers() -> None:
    failures = resent = 0
    for seed in range(16):
        config = served(random.Random(seed), (BSP, BACKUP))
        found = told(config, "ps", seed)
        assert found == told(oracle(config), "ps", seed), f"seed {seed}"
        failures += bool(found["failed"])
        resent += found["again"]
    for seed in range(8):
        config = served(random.Random(seed), ASYNCHRONOUS)
        found = trained(config, seed)
        assert found == trained(oracle(config), seed), f"seed {seed}"
        failures += bool(found["failed"])
        resent += found["again"]
    assert 0 < failures < 12
    assert resent > 100


@pytest.mark.parametrize(("delay_ns", "number"), [(700, 1), (0, 2)])
def test_worlds_of_many_links_whose_frames_are_fetched_ahead(delay_ns: int, number: int) -> None:
    config = SimulationConfig(
        120,
        LinkConfig(10**10, delay_ns, 50_000, 0.005, 0.005, 0.02),
        fabric=Fabric("leaf_spine", racks=4, spines=3, paths="flow"),
        reliable=ReliableConfig(window_bytes=30_000),
        message_bytes=5_000,
        retry_limit=30,
        trace=True,
    )
    found = told(config, "tree", number)
    assert found == told(oracle(config), "tree", number)
    assert found["again"] > 10


def upon_python(source: random.Random, config: SimulationConfig, method: str) -> tuple[SimulationConfig, str]:
    """The world where a method's hosts are in Python, and the method."""
    config = replace(config, fabric=source.choice(FABRICS[:3]))
    config = replace(config, link=replace(config.link, ecn_bytes=source.choice((None, 2_000)), drop_bytes=3_000))
    if method in ("ring", "ps"):
        config = replace(config, tcp=source.choice(("cubic", "bbr", "dcqcn", "roce")), fabric=FABRICS[0])
    return config, method


PYTHON_HOSTS = ("ring", "ps", *BOUNDED)


@pytest.mark.parametrize("seed", range(len(PYTHON_HOSTS) * 3))
def test_so_are_those_of_hosts_in_python(seed: int) -> None:
    """Members over TCP and RoCE, members with bounded loss; with pauses and without."""
    source = random.Random(seed)
    config, method = upon_python(source, world(source)[0], PYTHON_HOSTS[seed % len(PYTHON_HOSTS)])
    found = told(config, method, seed)
    assert found == told(oracle(config), method, seed)
