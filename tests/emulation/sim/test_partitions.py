"""Racks as partitions: the same bytes for any number of threads, and event for event what the oracle does."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulation.scenario.topologies.topology import Fabric
from emulation.sim.engine import packet_clock
from emulation.sim.engine.packet_clock import PacketClock
from emulation.sim.host_costs import FREE, HostCosts
from emulation.sim.network import switched_network
from emulation.sim.network.simulated_link import LinkConfig, Tail
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.network.virtual_clock import SimulationError
from emulation.sim.size_only import SizeOnlyArray
from switchagg.errors import AggregationFailed, JobError
from switchagg.native import library
from tests.oracles.oracle_network import oracle
from transport.meshes.reliable import ReliableConfig

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=library.missing())

FABRICS = (
    Fabric("leaf_spine", racks=2),
    Fabric("leaf_spine", racks=4, oversubscription=2.0),
    Fabric("leaf_spine", racks=2, spines=3),
    Fabric("leaf_spine", racks=(2, 6), placement="one"),
    Fabric("fat_tree", racks=2),
    Fabric("leaf_spine", racks=2, ranks_per_host=2, inside_bps=10**11),
)
CALLS = 3


@pytest.fixture(autouse=True)
def small_racks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rack is a partition, and every window has all threads."""
    monkeypatch.setattr(switched_network, "RACK_HOSTS_LEAST", 0)
    monkeypatch.setattr(packet_clock, "THREADED_EVENTS_LEAST", 0)


def world(source: random.Random) -> tuple[SimulationConfig, str]:
    """Eight workers in racks, links with faults of every kind, a method."""
    chances = [source.choice((0.0, 0.0, 0.01)) for _ in range(4)]
    link = LinkConfig(source.choice((10**9, 10**11)), source.choice((999, 5_000)), 200_000, *chances)
    config = SimulationConfig(
        workers=8,
        link=replace(link, tail=source.choice((None, None, Tail(3.0, 2_000, 100_000)))),
        fabric=source.choice(FABRICS),
        switch_latency_ns=source.choice((0, 700)),
        seed=source.randrange(1000),
        streams=source.choice((1, 4)),
        window_slots=source.choice((16, 256)),
        strict_priority=source.random() < 0.3,
        retry_limit=source.choice((1, 30, 30)),
        reliable=ReliableConfig(window_bytes=source.choice((30_000, 4 << 20))),
        dataplane="native",
        costs=source.choice((FREE, FREE, HostCosts(transfer_ns=2_000), HostCosts(flow_bps=10**9))),
        trace=True,
    )
    return config, source.choice(("switch", "switch", "ring", "halving_doubling", "direct"))


def seen(config: SimulationConfig, method: str, seed: int, size_only: bool) -> dict[str, Any]:
    """All there is to see of calls, the last one made in the middle of an event, beside events of Python's own."""
    simulation = SIMULATIONS[method](config)
    time, source, workers = simulation.network, random.Random(seed), config.workers
    counts = [source.choice((100, 50_000, 150_000)) for _ in range(CALLS)]
    arrays = {
        (rank, call): np.random.default_rng(rank).integers(-99, 99, count).astype("int32")
        for rank in range(workers)
        for call, count in enumerate(counts)
    }
    ends, looks = list[tuple[int, int, int]](), list[tuple[int, int]]()

    def launch(_frame: None, rank: int, call: int) -> None:
        array = SizeOnlyArray(counts[call], "int32") if size_only else arrays[rank, call]
        simulation.launch(rank, array, "sum", lambda: done(rank, call))

    def done(rank: int, call: int) -> None:
        ends.append((time.now_ns, rank, call))
        if call == 0:
            launch(None, rank, CALLS - 1)
        if len(ends) == workers * CALLS:
            time.stop()

    def look(_frame: None, _sender: int, _to: int) -> None:
        looks.append((time.now_ns, sum(link.sent_bytes for link in simulation.shared.links.values())))
        if len(looks) < 20:
            time.schedule(time.now_ns + 40_000, look)

    for rank in range(workers):
        for call in range(CALLS - 1):
            time.schedule(300 * rank * call, launch, None, rank, call)
    time.schedule(0, look)
    failed = ""
    try:
        simulation.run("the calls")
    except (AggregationFailed, SimulationError) as error:
        failed = repr((error, vars(error)))
    links = simulation.shared.links.values()
    after = (
        [(link.sent_bytes, link.delivered_frames, link.marked_frames, link.faults) for link in links],
        [array.tobytes() for array in arrays.values()],
        (time.events, time.now_ns, simulation.retransmissions(), simulation.drop_checksum()),
        simulation.switch_counters(),
    )
    windows = time.state.windows if isinstance(time, PacketClock) else None
    return {
        "trace": time.trace_hash(),
        "ends": ends,
        "looks": looks,
        "failed": failed,
        "windows": windows,
        "after": None if failed else after,  # others are ahead of what failed, by less than a window
    }


@pytest.mark.parametrize("seed", [0, 2, 3, 5, *range(7, 20)])  # those with windows
def test_bytes_are_the_oracles_for_any_number_of_threads(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config, method = world(random.Random(seed))
    alone = seen(config, method, seed, seed % 2 > 0)
    for threads in (2, 3, 4):
        monkeypatch.setenv(packet_clock.THREADS_VARIABLE, str(threads))
        assert seen(config, method, seed, seed % 2 > 0) == alone, f"{threads} threads"
    if seed % 2 == 0:
        assert {**seen(oracle(config), method, seed, False), "windows": alone["windows"]} == alone
    assert alone["windows"] > 0


@pytest.mark.parametrize("text", ["0", "257", "two"])
def test_a_wrong_number_of_threads_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHAGG_SIM_THREADS", text)
    with pytest.raises(JobError, match=f"SWITCHAGG_SIM_THREADS must be a number from 1 to 256, not '{text}'"):
        PacketClock()


if __name__ == "__main__":  # what a sanitizer watches
    packet_clock.THREADED_EVENTS_LEAST, switched_network.RACK_HOSTS_LEAST = 0, 0
    for number in (0, 2, 3, 7, 9, 18, 19):
        chosen, name = world(random.Random(number))
        assert seen(chosen, name, number, number % 2 > 0)["windows"] > 0
