"""Jobs and flows on one network in C against its oracle in Python: every event of small worlds.

Hosts in Python are on links in C beside those that C drives: members whose connections are TCP or RoCE, or that ask
for Python, and both ends of flows.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulation.scenario.scenario_flows import own_hosts
from emulation.scenario.scenario_tables import FIRST_COME, MAX_MIN, FlowOptions, JobOptions
from emulation.scenario.topologies.topology import Fabric
from emulation.sim.host_costs import HostCosts
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.network.virtual_clock import SimulationError
from emulation.sim.sharing.background_jobs import BackgroundJobs, servers_of
from emulation.sim.size_only import SizeOnlyArray
from emulation.sim.traffic.scenario_traffic import ScenarioTraffic
from switchagg.errors import AggregationFailed
from switchagg.native import library
from tests.emulation.scenario.test_graph import TENANT
from tests.oracles.oracle_network import oracle
from transport.meshes.reliable import ReliableConfig

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=library.missing())

MS = 1_000_000
FABRICS = (
    Fabric(),
    Fabric("leaf_spine", racks=2),
    Fabric("leaf_spine", racks=2, spines=2),
    Fabric("leaf_spine", racks=2, spines=3, paths="flow"),
)
World = tuple[SimulationConfig, str, list[JobOptions], list[FlowOptions]]


def world(source: random.Random) -> World:
    """A measured job, others on its hosts or their own, flows between them; queues and faults at their worst."""
    faulty = source.random() < 0.5  # a switch's first timeouts are longer than the run
    chances = [source.choice((0.0, 0.01, 0.05)) * faulty for _ in range(4)]
    queue_bytes = source.choice((20_000, 200_000))
    marks = source.choice((None, queue_bytes // 4))
    rate_bps = source.choice((200_000_000, 1_000_000_007))
    link = LinkConfig(rate_bps, source.choice((999, 50_000)), queue_bytes, *chances, ecn_bytes=marks)
    method = source.choice(("switch", "switch", "ring", "halving_doubling"))
    workers = source.choice((2, 4))
    others = ("switch", "switch", "switch", "switch", "ring", "gloo", "tree", "ps")
    replays = source.random() < 0.2
    jobs = [
        JobOptions(
            f"job{number}",
            on=source.choice(((), (0, 1), (1, 0))),
            method=source.choice(others),
            profile="tenant.goal" if replays else "",
            weight=source.choice((1, 3)),
            size_bytes=source.choice((400, 9_000)),
            in_flight=source.choice((1, 3)),
            compute_ns=source.choice((0, 100_000)),
            start_ns=source.choice((0, MS, 2 * MS)),
            stop_ns=source.choice((0, 4 * MS)),
        )
        for number in range(source.choice((0, 2, 3)))
    ]
    flows = [
        FlowOptions(
            source.choice(("cubic", "reno", "bbr", "dcqcn", "short", "incast")),
            to_rank=source.choice((0, 1, -1)),
            from_rank=source.choice((-1, -1, 1)),
            count=source.choice((1, 2)),
            start_ns=source.choice((0, MS)),
            size_bytes=9_000,
            period_ns=2 * MS,
            load=0.3,
        )
        for _ in range(source.randint(0 if jobs else 1, 2))
    ]
    config = SimulationConfig(
        workers=workers,
        link=link,
        fabric=source.choice(FABRICS),
        other_hosts=own_hosts(flows) + sum(2 * (not job.on) + servers_of(job, method) for job in jobs),
        switch_latency_ns=source.choice((0, 700)),
        seed=source.randrange(1000),
        elements=64,
        window_slots=16,
        streams=source.choice((1, 2, 3)),
        split_calls=True,
        first_slot=None,
        pool_slots=source.choice((16, 40)),
        strict_priority=source.random() < 0.3,
        tcp=source.choice(("cubic", "dcqcn", "", "")) if method == "switch" else "",
        costs=HostCosts(source.choice((0, 0, 5_000))),
        reliable=ReliableConfig(window_bytes=30_000),
        dataplane="native",
        trace=True,
    )
    return config, method, jobs, flows


def told(made: World, seed: int, folder: Path) -> dict[str, Any]:
    """All there is to see of them within some milliseconds. Of some, the measured job's arrays have no values."""
    config, method, jobs, flows = made
    replays = all(job.profile for job in jobs)
    size_only = replays or seed % 3 == 0
    first = SIMULATIONS[method](config)
    beside = ScenarioTraffic(first, flows)
    tenants = BackgroundJobs(first, method, jobs, 2, (MAX_MIN, FIRST_COME)[seed % 2], 32, own_hosts(flows), str(folder))
    time, ends = first.network, list[tuple[int, int]]()

    def launch(rank: int) -> None:
        values = SizeOnlyArray(600, "int32") if size_only else np.full(600, rank + 1, np.int32)
        first.launch(rank, values, "sum", lambda: done(rank, values))

    def done(rank: int, values: Any) -> None:
        assert size_only or set(values) == {config.workers * (config.workers + 1) // 2}
        ends.append((time.now_ns, rank))
        launch(rank)

    for rank in range(config.workers):
        time.schedule(100 * rank, lambda _frame, rank, _to: launch(rank), None, rank)
    time.schedule(8 * MS, lambda *_: time.stop())
    failed = ""
    try:
        first.run("the end")
    except (AggregationFailed, SimulationError) as error:
        failed = repr((error, vars(error)))
    every = first.shared.links.values()
    return {
        "trace": "" if replays else time.trace_hash(),
        "events": time.events,
        "ends": ends,
        "failed": failed,
        "links": [(each.sent_bytes, each.delivered_frames, each.marked_frames, each.faults) for each in every],
        "flows": beside.document(),
        "tenants": tenants.document(),
        "again": [each.retransmissions() for each in (first, *(job.simulation for job in tenants.jobs))],
        "damaged": first.drop_checksum(),
    }


def test_jobs_and_flows_are_event_for_event_those_of_python(tmp_path: Path) -> None:
    (tmp_path / "tenant.goal").write_text(TENANT)
    seen: Counter[str] = Counter()
    for seed in (*range(18), 27, 62):  # 27: flows that begin before their links are watched; 62: trees take turns anew
        made = world(random.Random(seed))
        found = told(made, seed, tmp_path)
        assert found == told((oracle(made[0]), *made[1:]), seed, tmp_path), f"seed {seed}: {made}"
        seen["events"] += found["events"]
        seen["calls"] += len(found["ends"])
        seen["again"] += sum(found["again"])
        tenants, links = found["tenants"]["tenants"]["jobs"][1:], found["flows"]["shared_links"]
        seen["sums"] += sum(job["sums"] for job in tenants)
        seen["moves"] += sum(len(job["slots"]) for job in tenants)
        seen["users"] += sum(len(link["bytes"]) for link in links)
    least = {"events": 80_000, "calls": 500, "again": 400, "sums": 300, "moves": 15, "users": 100}
    assert all(seen[name] > count for name, count in least.items()), seen
