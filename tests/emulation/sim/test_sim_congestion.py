"""Marks in virtual time (G2 to G8): a job keeps the queues of a narrow up-link short, and loses no time by it."""

from dataclasses import replace

import numpy as np

from emulation.scenario.topologies.topology import Fabric
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.switch_simulation import SwitchSimulation
from tests.oracles.oracle_network import oracle

RATE = 1_000_000_000
ECN_BYTES = 30_000
UP = "leaf1", "spine1"
# two racks of two, whose up-links carry half of what a worker's link does
CONFIG = SimulationConfig(
    4, LinkConfig(RATE, 20_000, ecn_bytes=ECN_BYTES), fabric=Fabric("leaf_spine", 2, 4.0), streams=1
)


def measured(config: SimulationConfig) -> tuple[int, float, SwitchSimulation]:
    """Duration of the second of two equal calls in ns, p99 of the up-link's queue in it, and the simulation."""
    simulation = SwitchSimulation(config)
    time, queues = simulation.shared.time, []

    def sample(*_: object) -> None:
        queues.append(simulation.shared.links[UP].backlog_bytes(time.now_ns))
        time.schedule(time.now_ns + 20_000, sample)

    sample()
    for _ in range(2):
        queues.clear()
        start_ns, left = time.now_ns, config.workers

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                time.stop()

        arrays = [np.full(250_000, rank, np.int32) for rank in range(config.workers)]
        for rank, array in enumerate(arrays):
            simulation.launch(rank, array, "sum", done)
        time.run()
        assert all((array == sum(range(config.workers))).all() for array in arrays)
    return time.now_ns - start_ns, float(np.percentile(queues, 99)), simulation


def test_marks_keep_the_queue_of_a_narrow_up_link_short_at_full_rate() -> None:
    with_marks, short, simulation = measured(oracle(CONFIG))  # whose endpoints show their windows
    link = simulation.shared.links[UP]
    windows = [[window.congestion.chunks for window in host.endpoint._windows] for host in simulation.hosts]
    assert link.marked_frames > 100
    assert windows.count(windows[0]) == 4  # on all ranks alike
    without, long, _ = measured(replace(CONFIG, congestion="none"))
    assert short <= long / 4
    assert with_marks <= without / 0.97
