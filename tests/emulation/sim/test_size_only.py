"""Arrays without values: as long, in time and on the wire, as arrays of zeros."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.size_only import SizeOnlyArray
from switchagg.description import Kind


def test_it_has_the_lengths_of_an_array() -> None:
    size_only = SizeOnlyArray(1001, "float32")
    assert (size_only.size, size_only.dtype, size_only.nbytes) == (1001, np.float32, 4004)
    assert size_only == SizeOnlyArray(1001, np.float32)
    assert size_only != SizeOnlyArray(1001, np.int32)
    with pytest.raises(ValueError, match="0 or more"):
        SizeOnlyArray(-1, np.int32)


def took(method: str, kind: Kind, array: NDArray[Any] | SizeOnlyArray) -> tuple[int, str, list[tuple[int, int]]]:
    """When a collective of three ranks is over, with hash of all events and bytes by rank."""
    simulation = SIMULATIONS[method](SimulationConfig(3, LinkConfig(10**9, 1000, loss=0.01), trace=True))
    left = [0, 1, 2]

    def done() -> None:
        left.pop()
        if not left:
            simulation.network.stop()

    def launch(_frame: None, rank: int, _to: int) -> None:
        simulation.launch(rank, array, "sum", done, kind=kind)

    for rank in range(3):
        simulation.network.schedule(0, launch, None, rank)
    simulation.run("a collective")
    return simulation.network.now_ns, simulation.network.trace_hash(), list(map(simulation.wire_bytes, range(3)))


@pytest.mark.parametrize("method", ["switch", "ring", "ps"])
@pytest.mark.parametrize("kind", ["allreduce", "reduce_scatter"])
def test_a_simulation_takes_one_for_an_array_of_zeros(method: str, kind: Kind) -> None:
    size_only = took(method, kind, SizeOnlyArray(5000, np.float32))
    assert size_only == took(method, kind, np.zeros(5000, np.float32))
    assert all(sent > 5000 * 4 / 2 for sent, _ in size_only[2])
