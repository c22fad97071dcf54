"""Several jobs on one network in virtual time: links and switches once, a data plane for all that aggregate there."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulation.scenario.topologies.topology import Fabric
from emulation.scenario.topologies.topology_kinds import seen_by
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS

ELEMENTS = 60_000


def jobs(config: SimulationConfig, methods: tuple[str, ...], of_first: tuple[int, ...] = ()) -> list[Simulation]:
    """A job of two workers by each method, on hosts of its own, or on those ranks' of the first."""
    others = 0 if of_first else 2 * (len(methods) - 1)
    config = replace(config, other_hosts=others, pool_slots=len(methods) * config.job().slots[1])
    made = [SIMULATIONS[methods[0]](config)]
    network = made[0].shared
    for number, method in enumerate(methods[1:], 1):
        hosts = network.topology.other_hosts[2 * number - 2 : 2 * number]
        if of_first:
            hosts = tuple(network.topology.workers[rank] for rank in of_first)
        place = seen_by(network.topology, hosts, config.fabric.placement)
        its = replace(config, workers=2, place=place, job_id=number + 1, first_slot=number * config.job().slots[1])
        made.append(SIMULATIONS[method](its, network))
    return made


def sum_together(made: list[Simulation]) -> list[list[np.ndarray[Any, Any]]]:
    """One sum by each job at once; the arrays of all ranks, by job."""
    waiting = sum(job.config.workers for job in made)

    def done() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            made[0].network.stop()

    arrays = [
        [np.arange(ELEMENTS, dtype=np.int32) * (n + r) for r in range(job.config.workers)] for n, job in enumerate(made)
    ]
    for job, its in zip(made, arrays, strict=True):
        for rank, array in enumerate(its):
            job.launch(rank, array, "sum", done)
    made[0].run("all sums")
    return arrays


@pytest.mark.parametrize(
    "fabric", [Fabric(), Fabric("leaf_spine", (2, 2), spines=2, paths="hash"), Fabric("leaf_spine", (2, 2), 2.0, "one")]
)
@pytest.mark.parametrize("of_first", [(), (1, 3)], ids=["own hosts", "shared hosts"])
def test_jobs_of_any_methods_sum_beside_each_other(fabric: Fabric, of_first: tuple[int, ...]) -> None:
    link = LinkConfig(1_000_000_000, 10_000, loss=0.003, reorder=0.003)
    config = SimulationConfig(4, link, fabric=fabric, window_slots=32, dataplane="reference")
    made = jobs(config, ("switch", "switch", "ring", "gloo", "ps"), of_first)
    for number, arrays in enumerate(sum_together(made)):
        factor = sum(number + rank for rank in range(len(arrays)))
        for array in arrays:
            assert np.array_equal(array, np.arange(ELEMENTS, dtype=np.int32) * factor)
    top = made[0].shared.switches[made[0].topology.root]
    assert top.dataplane is not None
    assert top.dataplane.counters["broadcast"] > 0


def test_jobs_slow_each_other_where_they_share_links_and_nowhere_else() -> None:
    took = []
    for of_first in ((), (0, 1)):
        made = jobs(SimulationConfig(4, LinkConfig(200_000_000), window_slots=32), ("switch", "switch"), of_first)
        sum_together(made)
        took.append(made[0].network.now_ns)
    alone_ns = ELEMENTS * 4 * 1502 / 1440 * 40
    assert took[0] == pytest.approx(alone_ns, rel=0.03)
    assert took[1] == pytest.approx(2 * alone_ns, rel=0.03)
