"""Host methods in the packet engine in C against the one in Python: every event of small random worlds, one by one."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulation.sim.engine.compiled_network import CompiledNetwork
from emulation.sim.hollow import Hollow
from emulation.sim.host_costs import HostCosts
from emulation.sim.network.host_simulation import HostSimulation
from emulation.sim.network.link import LinkConfig
from emulation.sim.network.network import SimulationError
from emulation.sim.network.simulation import SimulationConfig
from emulation.topologies.topology import Fabric
from switchagg.description import Kind
from switchagg.errors import AggregationFailed, JobError
from switchagg.native import library
from transport.collectives.table import COLLECTIVES
from transport.meshes.reliable import ReliableConfig

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
MS = 1_000_000


def world(source: random.Random) -> tuple[SimulationConfig, str]:
    """Two to eight workers and links at their worst: slow or fast, tiny queues, faults of every kind."""
    rate_bps = source.choice((50_000_000, 1_000_000_007, 10**10, 4 * 10**11))
    chances = [source.choice((0.0, 0.0, 0.01, 0.1)) for _ in range(3)]
    link = LinkConfig(rate_bps, source.choice((0, 999, 50_000)), source.choice((5_000, 50_000, 1_000_000)), *chances)
    fabric, workers = source.choice(FABRICS), source.randint(2, 8)
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
        trace=True,
    )
    return config, source.choice([name for name, each in ALLREDUCES.items() if each.fits(config.workers)])


def told(config: SimulationConfig, method: str, seed: int, hollow: bool = False) -> dict[str, Any]:
    """All there is to see of calls that ranks make in turn, some from within others' ends, some in any order by key."""
    simulation = HostSimulation(config, method=method)
    source, time, workers = random.Random(seed), simulation.network, config.workers
    keyed = source.random() < 0.5
    calls = [
        (
            np.dtype(source.choice(("int32", "int64", "float32", "float64"))),
            source.choice((0, 1, 7, 2_000, 20_000)),
            source.choice((None, 0, 3, 7)),
            source.choice(KINDS),
        )
        for _ in range(4)
    ]
    made = {
        (rank, number): (np.random.default_rng(rank).integers(-99, 99, count) * 1.5).astype(dtype)
        for rank in range(workers)
        for number, (dtype, count, _, _) in enumerate(calls)
    }
    left, ends = workers * len(calls), list[tuple[int, int, int]]()

    def launch(_frame: None, rank: int, number: int) -> None:
        dtype, count, priority, kind = calls[number]
        given = Hollow(count, dtype) if hollow else made[rank, number]
        key = number % 2 if keyed else None  # free again once the first call with it has ended
        simulation.launch(rank, given, "sum", lambda: done(rank, number), priority, key, kind)

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
    failed = ""
    try:
        simulation.run("the calls")
    except (AggregationFailed, SimulationError) as error:
        failed = repr((error, vars(error)))
    links = simulation.shared.links.values()
    return {
        "trace": time.trace_hash(),
        "events": time.events,
        "now_ns": time.now_ns,
        "ends": ends,
        "failed": failed,
        "links": [(each.sent_bytes, each.delivered_frames, each.delivered_bytes, each.faults) for each in links],
        "sums": None if hollow else [each.tobytes() for each in made.values()],
        "damaged": simulation.drop_checksum(),
        "again": simulation.retransmissions(),
    }


def test_events_results_and_counters_are_those_of_python() -> None:
    failures = resent = 0
    for seed in range(30):
        config, method = world(random.Random(seed))
        compiled = replace(config, engine="compiled")
        found = told(compiled, method, seed)
        assert found == told(config, method, seed), f"seed {seed}: {method}"
        failures += bool(found["failed"])
        resent += found["again"]
        hollow = told(compiled, method, seed, hollow=True)  # lengths alone: the same events, frames of zeros
        assert hollow | {"trace": found["trace"], "sums": found["sums"]} == found, f"seed {seed}: {method}"
        if seed % 5 == 0:
            assert hollow == told(config, method, seed, hollow=True), f"seed {seed}: {method}"
    assert 0 < failures < 15
    assert resent > 200


def test_what_the_engine_in_c_lacks_stays_with_python() -> None:
    config = SimulationConfig(2, LinkConfig(10**9), engine="auto")
    for lacking in ({"tcp": "reno"}, {"codec": "lanes8"}, {"costs": HostCosts(transfer_ns=1)}):
        simulation = HostSimulation(replace(config, **lacking), method="ring")
        assert not isinstance(simulation.shared, CompiledNetwork)
        with pytest.raises(JobError, match="SWITCHAGG_SIM_ENGINE=python can"):
            HostSimulation(replace(config, engine="compiled", **lacking), method="ring")
    simulation = HostSimulation(config, method="ring")
    assert isinstance(simulation.shared, CompiledNetwork)
    with pytest.raises(JobError, match=r"no sum of float16"):
        simulation.launch(0, np.ones(3, np.float16), "sum", simulation.network.stop)
