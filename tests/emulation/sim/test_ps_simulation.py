"""Parameter servers in virtual time: exact, repeatable, near the bound; late workers cost what the mode allows."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.ps_simulation import PsSimulation
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from switchagg.calls.call_request import CallRequest
from transport.ps.config import BACKUP, BSP, SLICE_ELEMENTS, SSP

RATE_BPS = 1_000_000_000
LATE_NS = 50_000_000


def star(mode: str = BSP, workers: int = 4, servers: int = 2, **more: Any) -> PsSimulation:
    link = LinkConfig(rate_bps=RATE_BPS, delay_ns=10_000, **more.pop("link", {}))
    ps = {"slice_elements": SLICE_ELEMENTS, "mode": mode, **more}
    return PsSimulation(SimulationConfig(workers, link, servers=servers, ps=ps, trace=True))


def allreduce(made: PsSimulation, elements: int, late_ns: int = 0) -> tuple[list[int], list[np.ndarray[Any, Any]]]:
    """When each rank had its sum, and the sums; the last rank begins later."""
    arrays = [np.full(elements, rank + 1, np.int64) for rank in range(len(made.workers))]
    ended = [0] * len(arrays)

    def finish(rank: int) -> None:
        ended[rank] = made.network.now_ns
        if all(ended):
            made.network.stop()

    def begin(rank: int) -> None:
        made.launch(rank, arrays[rank], "sum", lambda: finish(rank))

    last = len(arrays) - 1
    for rank in range(last):
        begin(rank)
    made.network.schedule(late_ns, lambda *_: begin(last))
    made.run("the sums")
    return ended, arrays


def test_sums_are_exact_and_near_the_bound_of_the_servers_links() -> None:
    """p workers on k servers: p/k of the array crosses a server's link each way, the answers a slice behind."""
    made = star()
    ended, arrays = allreduce(made, 500_000)
    assert all((array == 10).all() for array in arrays)
    bound_ns = 4 / 2 * 500_000 * 8 * 8 * 1e9 / RATE_BPS * 1514 / 1448
    slices = 14 // 2  # of each server
    assert bound_ns < max(ended) < 1.15 * bound_ns * (slices + 1) / slices


def test_pushes_and_pulls_of_a_call_need_not_overlap() -> None:
    """A worker and a server, 7 slices of 40 full segments each: all of it there, an acknowledgement, all of it back."""
    elements = (40 * 1448 - 48) // 8
    config = SimulationConfig(1, LinkConfig(8_000_000_000, 500), servers=1)  # a byte in a nanosecond
    ended = []
    for apart in (True, False):
        ps = {"slice_elements": elements, "push_then_pull": apart}
        made = PsSimulation(replace(config, ps=ps))
        (one,), (array,) = allreduce(made, 7 * elements, late_ns=1_000_000)  # hellos are there
        assert (array == 1).all()
        ended.append(one - 1_000_000)
    whole = 7 * 40 * 1514 + 1514 + 2 * 500
    assert ended[0] == whole + (32 + 34) + whole
    assert ended[1] < whole + whole // 4


def test_servers_that_answer_whole_calls_sum_exactly_among_others() -> None:
    made = star(workers=5, servers=3, push_then_pull=True)
    sizes = [100_000, 3, 40_000, 250_001]  # with slices for all servers, for one, and for some
    arrays = [[np.full(size, rank + 1, np.int64) for size in sizes] for rank in range(5)]
    shards = [np.full(5, rank + 1, np.int64) for rank in range(5)]  # 5 slices: two servers have two, one has one
    left = 5 * (len(sizes) + 1)

    def finish() -> None:
        nonlocal left
        left -= 1
        if not left:
            made.network.stop()

    for rank, own in enumerate(arrays):
        for array in own:
            made.launch(rank, array, "sum", finish)
        made.launch(rank, shards[rank], "sum", finish, kind="reduce_scatter")
    made.run("the sums")
    assert all((array == 15).all() for own in arrays for array in own)
    assert [array[rank] for rank, array in enumerate(shards)] == [15] * 5
    assert all(server.idle for server in made.servers)


def test_the_same_seed_gives_the_same_trace_also_with_losses() -> None:
    faults = {"loss": 0.002}
    runs = []
    for _ in range(2):
        made = star(link=faults)
        ended, arrays = allreduce(made, 100_000)
        assert all((array == 10).all() for array in arrays)
        assert made.retransmissions() > 0
        runs.append((ended, made.network.trace_hash()))
    assert runs[0] == runs[1]


def test_a_late_worker_holds_up_all_unless_there_are_backups() -> None:
    everybody, _ = allreduce(star(BSP), 20_000, LATE_NS)
    assert min(everybody) > LATE_NS
    ended, arrays = allreduce(star(BACKUP, backups=1), 20_000, LATE_NS)
    assert max(ended[:3]) < LATE_NS <= ended[3]  # what the late one needs is there already
    assert all((array == 6).all() for array in arrays)  # also the late one's: the same result for all


@pytest.mark.parametrize("staleness", [0, 3])
def test_staleness_lets_others_get_ahead_of_a_slow_worker(staleness: int) -> None:
    """One worker computes 5 ms per iteration, the others 1 ms: what they have done when it has done its first."""
    made = star(SSP, staleness=staleness, learning_rate=1.0)
    weights = [np.zeros(10_000, np.float32) for _ in range(4)]
    done = [0] * 4

    def begin(rank: int) -> None:
        request = CallRequest("push_pull", key=0, target=weights[rank])
        made.begin(rank, SimulatedCall(np.ones(10_000, np.float32), request, lambda: finish(rank)))

    def compute(rank: int) -> None:
        slow_ns = 5_000_000 if rank == 3 else 1_000_000
        made.network.schedule(made.network.now_ns + slow_ns, lambda *_: begin(rank))

    def finish(rank: int) -> None:
        done[rank] += 1
        if rank == 3:
            made.network.stop()
        compute(rank)

    for rank in range(4):
        made.begin(rank, SimulatedCall(weights[rank], CallRequest("init", key=0), partial(compute, rank)))
    made.run("the first iteration of the slow one")
    assert done[3] == 1
    assert all(1 >= one >= 0 if staleness == 0 else one >= 3 for one in done[:3])
    assert max(done) <= 1 + staleness


@pytest.mark.parametrize("seed", [25, 27, 83])
def test_a_lost_hello_overtaken_by_pushes_of_another_class_costs_a_retransmission(seed: int) -> None:
    """Strict links have a connection for each class; with these seeds the hello's frame is lost."""
    link = LinkConfig(100_000_000, 5_000, loss=0.02)
    config = SimulationConfig(4, link, servers=2, strict_priority=True, seed=seed)
    timing = time_allreduce(config, "ps", 100_000)
    assert timing.wrong_elements == 0
