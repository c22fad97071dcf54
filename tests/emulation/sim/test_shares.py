"""Reduce-scatter and all-gather through the switch in virtual time (W13): they send what the arithmetic says, keep the
busier direction of every link busy, and share both directions."""

from typing import Any

import numpy as np
import pytest

from emulation.sim.network.simulated_link import UDP_FRAMING_BYTES, LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from switchagg.description import WORDS
from switchagg.wire import frame_bytes

WORKERS, ELEMENTS, RATE_BPS = 4, 360, 200_000_000
FULL, HEADER_ONLY = (frame_bytes(elements) + UDP_FRAMING_BYTES for elements in (ELEMENTS, 0))
ROWS = 300
SIZE = WORKERS * ROWS * ELEMENTS


def timed(kinds: list[Any], **link: float) -> tuple[float, list[int], list[np.ndarray]]:
    """Seconds, bytes each rank sent, and the arrays: rank after rank, of each kind."""
    config = SimulationConfig(workers=WORKERS, link=LinkConfig(RATE_BPS, 50_000, **link), elements=ELEMENTS)  # type: ignore[arg-type]
    simulation = SIMULATIONS["switch"](config)
    arrays: list[np.ndarray] = []
    left = [len(kinds) * WORKERS]

    def done() -> None:
        left[0] -= 1
        if not left[0]:
            simulation.network.stop()

    for kind in kinds:
        for rank in range(WORKERS):
            arrays.append(np.random.default_rng(rank).integers(-(2**31), 2**31, SIZE).astype(np.int32))
            simulation.launch(rank, arrays[-1], "sum", done, kind=kind)
    simulation.network.run("the collectives")
    return simulation.network.now_ns / 1e9, [uplink.sent_bytes for uplink in simulation.uplinks], arrays


def check(kind: str, arrays: list[np.ndarray]) -> None:
    given = [np.random.default_rng(rank).integers(-(2**31), 2**31, SIZE).astype(np.int32) for rank in range(WORKERS)]
    shards = [slice(rank * SIZE // WORKERS, (rank + 1) * SIZE // WORKERS) for rank in range(WORKERS)]
    total = np.sum(given, axis=0, dtype=np.int32)
    for rank, array in enumerate(arrays):
        if kind == "reduce_scatter":
            assert (array[shards[rank]] == total[shards[rank]]).all()
        else:
            assert all((array[shard] == given[other][shard]).all() for other, shard in enumerate(shards))


DESCRIBED = -(-WORDS * WORKERS // ELEMENTS)


@pytest.mark.parametrize(("kind", "full"), [("reduce_scatter", WORKERS - 1), ("all_gather", 1)])
def test_one_alone_fills_its_busier_direction(kind: str, full: int) -> None:
    seconds, sent, arrays = timed([kind])
    check(kind, arrays)
    assert sent == [(full * ROWS + DESCRIBED) * FULL + (WORKERS - full) * ROWS * HEADER_ONLY] * WORKERS
    bound = (WORKERS - 1) * ROWS * FULL * 8 / RATE_BPS
    assert bound / seconds > 0.95


def test_both_at_once_fill_both_directions() -> None:
    """n/(n-1) of the longer alone, and what header-only packets take: one for each with values."""
    seconds, sent, arrays = timed(["reduce_scatter", "all_gather"])
    check("reduce_scatter", arrays[:WORKERS])
    check("all_gather", arrays[WORKERS:])
    assert sent == [(WORKERS * ROWS + 2 * DESCRIBED) * FULL + WORKERS * ROWS * HEADER_ONLY] * WORKERS
    assert WORKERS * ROWS * (FULL + HEADER_ONLY) * 8 / RATE_BPS / seconds > 0.95


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather"])
def test_faults_change_no_value(kind: str) -> None:
    check(kind, timed([kind], loss=0.02, duplicate=0.02, reorder=0.05)[2])


def test_a_call_behind_another_one_s_queue_is_not_resent() -> None:
    """W7: its stream last saw round trips of an idle link, but what the other stream measures counts for both."""
    simulation = SIMULATIONS["switch"](
        SimulationConfig(workers=WORKERS, link=LinkConfig(RATE_BPS, 50_000), elements=ELEMENTS)
    )
    left = [3 * WORKERS]

    def done() -> None:
        left[0] -= 1
        if not left[0]:
            simulation.network.stop()

    def launch(kind: Any, rows: int) -> None:
        for rank in range(WORKERS):
            simulation.launch(rank, np.ones(WORKERS * rows * ELEMENTS, np.int32), "sum", done, kind=kind)

    launch("reduce_scatter", 20)
    simulation.network.schedule(20_000_000, lambda *_: launch("all_gather", ROWS))
    simulation.network.schedule(24_000_000, lambda *_: launch("reduce_scatter", 20))
    simulation.network.run("the collectives")
    assert simulation.retransmissions() == 0
