"""The network in C against its oracle in Python: every event of small random worlds, one by one."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulation.scenario.topologies.topology import Fabric
from emulation.sim.host_costs import FREE, NO_PACKET_COSTS, HostCosts, PacketCosts
from emulation.sim.lossless.pausing import PfcConfig, Red
from emulation.sim.network.simulated_link import LinkConfig, Tail
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.network.switch_simulation import SwitchSimulation
from emulation.sim.network.switched_network import SwitchedNetwork
from emulation.sim.network.virtual_clock import SimulationError
from emulation.sim.size_only import SizeOnlyArray
from switchagg.errors import AggregationFailed, JobError
from switchagg.native import library
from switchagg.wire import HEADER_BYTES
from tests.oracles.oracle_network import oracle

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=library.missing())

FABRICS = (
    Fabric(),
    Fabric("leaf_spine", racks=2),
    Fabric("leaf_spine", racks=2, oversubscription=2.0, placement="one"),
    Fabric("leaf_spine", racks=2, spines=2),
    Fabric("leaf_spine", racks=2, spines=3, paths="flow"),
    Fabric("fat_tree", racks=2),
    Fabric(ranks_per_host=2, inside_bps=10**10),
)
DTYPES = ("int32", "int64", "float32", "float64")
KINDS = ("allreduce", "allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce")


PACKET_COSTS = (
    NO_PACKET_COSTS,
    NO_PACKET_COSTS,
    PacketCosts(2_000, 700),
    PacketCosts(wake_ns=3_000, cpus=2),
    PacketCosts(11_000, 5_000, 20_000, cpus=1),
    PacketCosts(switch_packet_ns=999, cpus=3),
)


def world(source: random.Random) -> SimulationConfig:
    """Two to eight workers and links at their worst: slow or fast, tiny queues, marks, faults of every kind."""
    rate_bps = source.choice((10_000_000, 1_000_000_007, 10**10, 4 * 10**11))
    chances = [source.choice((0.0, 0.0, 0.02, 0.1)) for _ in range(4)]
    queue_bytes = source.choice((3_000, 20_000, 1_000_000))
    marks = source.choice((None, 0, queue_bytes // 4))
    link = LinkConfig(rate_bps, source.choice((0, 999, 50_000)), queue_bytes, *chances, ecn_bytes=marks)
    link = replace(link, tail=source.choice((None, None, Tail(3.0, 20_000, 100_000))))
    pfc = PfcConfig(
        xoff_bytes=source.choice((200, 2_000)),
        xon_bytes=source.choice((0, 200)),
        headroom_bytes=source.choice((None, None, 0)),
        classes=frozenset({source.choice((7, 7, 0))}),
        red=source.choice((None, Red(100, 6_000, 0.5))),
        strict=source.random() < 0.5,
    )
    streams = source.choice((1, 2, 3))
    priorities = tuple(source.choices((0, 3, 7), k=streams)) if source.random() < 0.5 else ()
    config = SimulationConfig(
        workers=source.randint(2, 8),
        link=link,
        fabric=source.choice(FABRICS),
        switch_latency_ns=source.choice((0, 700)),
        seed=source.randrange(1000),
        elements=source.choice((8, 64, 360)),
        window_slots=source.choice((1, 8, 64)),
        streams=streams,
        priorities=priorities,
        strict_priority=source.random() < 0.5,
        congestion=source.choice(("none", "dctcp", "reno", "friendly")),
        split_calls=source.random() < 0.3,
        retry_limit=source.choice((3, 30)),
        codec=source.choice(("", "", "lanes8", "lanes8+ef")),
        codec_seed=source.randrange(9),
        dataplane="native",
        costs=HostCosts(source.choice((0, 0, 5_000)), source.choice((0, 0, rate_bps // 3)), source.choice((0, 0, 1))),
        tail_rank=source.choice((-1, 1)),
        pfc=source.choice((None, None, pfc)),
        trace=True,
    )
    return config if config.pfc else replace(config, packet_costs=source.choice(PACKET_COSTS))


def told(config: SimulationConfig, seed: int, array: Any = None, method: str = "switch") -> dict[str, Any]:
    """All there is to see of calls that ranks make in turn, some from within others' ends."""
    simulation = SIMULATIONS[method](config)
    source, time, workers = random.Random(seed), simulation.network, config.workers
    calls = [
        (
            np.dtype(source.choice(DTYPES)),
            source.choice((0, 1, 7, 400, 2_000)),
            source.choice(sorted(set(config.priorities)) or [7]),
            source.choice(KINDS),
        )
        for _ in range(4)
    ]
    made = {
        (rank, number): (np.random.default_rng(rank).integers(-99, 99, count) * 1.5).astype(dtype)
        for rank in range(workers)
        for number, (dtype, count, _, _) in enumerate(calls)
    }
    left = workers * len(calls)
    ends: list[tuple[int, int, int]] = []

    def launch(_frame: None, rank: int, number: int) -> None:
        dtype, count, priority, kind = calls[number]
        given = made[rank, number] if array is None else array(count, dtype)
        simulation.launch(rank, given, "sum", lambda: done(rank, number), priority=priority, kind=kind, key=number)

    def done(rank: int, number: int) -> None:
        nonlocal left
        left -= 1
        ends.append((time.now_ns, rank, number))
        if number == 0:
            launch(None, rank, 2)  # at once, in the middle of an event
        elif number == 2:
            time.schedule(time.now_ns + 10 * rank, launch, None, rank, 3)
        if not left:
            time.stop()

    for rank in range(workers):
        for number in (0, 1):
            time.schedule(1000 * rank, launch, None, rank, number)
    failed = ""
    try:
        simulation.run("the calls")
    except (AggregationFailed, SimulationError) as error:
        failed = repr((error, vars(error)))
    counters = [
        (
            link.sent_frames,
            link.sent_bytes,
            link.delivered_frames,
            link.delivered_bytes,
            link.marked_frames,
            link.faults,
        )
        for link in simulation.shared.links.values()
    ]
    return {
        "trace": time.trace_hash(),
        "events": time.events,
        "now_ns": time.now_ns,
        "ends": ends,
        "failed": failed,
        "links": counters,
        "sums": [each.tobytes() for each in made.values()] if array is None else None,
        "switches": simulation.switch_counters(),
        "damaged": simulation.drop_checksum(),
        "documents": [document() for document in simulation.shared.documents],
        "endpoints": [dict(host.endpoint.counters) for host in simulation.hosts],
        "again": simulation.retransmissions(),
    }


@pytest.mark.parametrize("seed", range(24))
def test_events_results_and_counters_are_those_of_python(seed: int) -> None:
    config = world(random.Random(seed))
    assert told(config, seed) == told(oracle(config), seed)


@pytest.mark.parametrize("seed", range(100, 112))
def test_without_values_every_event_is_that_of_zeros(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(world(random.Random(seed)), codec=("", "lanes8")[seed % 2])
    monkeypatch.setattr(SwitchedNetwork, "traced_bytes", HEADER_BYTES)
    size_only = told(config, seed, SizeOnlyArray)
    zeros = told(config, seed, lambda count, dtype: np.zeros(count, dtype))
    assert size_only == zeros


def test_values_after_arrays_that_have_none_are_refused() -> None:
    simulation = SwitchSimulation(SimulationConfig(2, LinkConfig(10**9), dataplane="native"))
    simulation.launch(0, SizeOnlyArray(9, "int32"), "sum", simulation.network.stop)
    with pytest.raises(JobError, match="SizeOnlyArray"):
        simulation.launch(1, np.zeros(9, np.int32), "sum", simulation.network.stop)


@pytest.mark.parametrize("seed", range(200, 206))
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("switch", {"dataplane": "reference"}),
        ("switch", {"backups": 1, "congestion": "none", "fabric": Fabric()}),
        ("switch", {"codec": "topk+ef"}),
        ("atp", {"costs": FREE, "codec": ""}),
        ("esa", {"costs": FREE, "codec": "", "aggregators": 4}),
    ],
    ids=["program in Python", "partial sums", "codec of whole arrays", "aggregators", "aggregators that are few"],
)
def test_so_are_those_of_programs_and_hosts_in_python(method: str, changes: dict[str, Any], seed: int) -> None:
    config = replace(world(random.Random(seed)), **changes)
    assert told(config, seed, method=method) == told(oracle(config), seed, method=method)


def test_without_the_compiled_core_it_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "missing", lambda: "it was not built; run make native")
    config = SimulationConfig(2, LinkConfig(10**9))
    with pytest.raises(JobError, match=r"packet by packet needs the compiled core: it was not built; run make native"):
        config.network(config.built())
