"""How long one allreduce takes in virtual time, without any training."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS


@dataclass(frozen=True)
class AllreduceTiming:
    """duration_ns: launched on all ranks at once, until the last rank has its result. Wire bytes include all framing.

    algbw is size_bytes over duration. trace: hash of all events if the simulation was asked for it.
    """

    size_bytes: int
    duration_ns: int
    wire_tx_bytes: tuple[int, ...]
    wire_rx_bytes: tuple[int, ...]
    retransmissions: int
    faults: dict[str, int]
    switch_counters: dict[str, int]
    drop_checksum: int
    wrong_elements: int
    trace: str | None

    @property
    def algbw_bps(self) -> float:
        return self.size_bytes * 8e9 / self.duration_ns


def time_allreduce(config: SimulationConfig, method: str, size_bytes: int, dtype: str = "int32") -> AllreduceTiming:
    """Sum one array of size_bytes per rank by `method` ("switch", "ring") on idle links, and check every element.

    The values are small seeded integers, so that the sum is exact in every dtype (int32, int64, float32, float64).
    AggregationFailed if the method gives up.
    """
    simulation = SIMULATIONS[method](config)
    generator = np.random.Generator(np.random.PCG64(config.seed))
    count = size_bytes // np.dtype(dtype).itemsize
    arrays: list[NDArray[Any]] = [
        generator.integers(-1000, 1000, count, np.int32).astype(dtype) for _ in range(config.workers)
    ]
    expected = np.sum(arrays, axis=0, dtype=dtype)
    waiting = config.workers
    finished_ns = 0

    def done() -> None:
        nonlocal waiting, finished_ns
        waiting -= 1
        if not waiting:
            finished_ns = simulation.network.now_ns
            simulation.network.stop()

    def launch_all(_frame: None, _sender: int, _to: int) -> None:
        for rank, array in enumerate(arrays):
            simulation.launch(rank, array, "sum", done)

    simulation.network.schedule(0, launch_all)
    simulation.run(f"an allreduce of {size_bytes} bytes by {method}")
    wire = [simulation.wire_bytes(rank) for rank in range(config.workers)]
    return AllreduceTiming(
        size_bytes=size_bytes,
        duration_ns=finished_ns,
        wire_tx_bytes=tuple(sent_bytes for sent_bytes, _ in wire),
        wire_rx_bytes=tuple(received for _, received in wire),
        retransmissions=simulation.retransmissions(),
        faults=simulation.faults(),
        switch_counters=simulation.switch_counters(),
        drop_checksum=simulation.drop_checksum(),
        wrong_elements=sum(int(np.count_nonzero(array != expected)) for array in arrays),
        trace=simulation.network.trace_hash() if config.trace else None,
    )
