"""Codecs that send less, and add, on what carries sums: a ring, servers, a switch; in real and in virtual time."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from switchagg.codecs.array_codec import ArrayCodec, Tensor
from switchagg.codecs.compression import Compression
from switchagg.codecs.spec import parse_codec
from switchagg.lockstep import sum_together
from tests.transport.group.test_compressed_groups import SOON_S, TENSORS, WORKERS, gradients, groups

pytestmark = pytest.mark.filterwarnings("ignore:the Python core carries")

EXACT = ["randomk:ratio=0.1+ef", "agreed:ratio=0.2,block=16+ef", "nonzero:block=16", "agreed:ratio=0.2,inner=lanes8+ef"]
"""They add values as they are; those of this test in any order, and in fixed point, to the same bits."""

NEAR = ["powersgd+ef", "sketch:top=0.05,rho=0.5"]
"""They add other numbers, which depend on the order."""

METHODS = ["ring", "ps", "switch"]


def eighths(step: int) -> list[Any]:
    values = [(np.rint(one * 8) / 8).astype(np.float32) for one in gradients(step)]
    for one in values:
        one[1000:2000] = 0
    return values


def check(codec: str, sum_all: Callable[[Sequence[Any]], None]) -> None:
    """Step after step the sums are those in lockstep, the same on all ranks; a NaN reaches all of them, once."""
    in_lockstep = [Compression(parse_codec(codec), rank, WORKERS) for rank in range(WORKERS)]
    for step in range(4):
        expected, arrays = eighths(step), eighths(step)
        if step == 2:
            arrays[1][3333] = np.nan
        sum_together(in_lockstep, expected, TENSORS, step)
        sum_all(arrays)
        assert all(one.tobytes() == arrays[0].tobytes() for one in arrays)
        assert np.isnan(arrays[0][3333]) == (step == 2)
        if step >= 2:
            assert np.isfinite(arrays[0]).all() == (step == 3)
        elif codec in EXACT:
            assert (arrays[0] == expected[0]).all()
        else:
            np.testing.assert_allclose(arrays[0], expected[0], atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("codec", [*EXACT, *NEAR])
def test_groups(method: str, codec: str) -> None:
    with groups(method, codec) as ranks:

        def sum_all(arrays: Sequence[Any]) -> None:
            for future in [group.allreduce(one, tensors=TENSORS) for group, one in zip(ranks, arrays, strict=True)]:
                future.result(SOON_S)

        check(codec, sum_all)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("codec", [*EXACT, *NEAR])
def test_virtual_time(method: str, codec: str) -> None:
    simulation = SIMULATIONS[method](SimulationConfig(WORKERS, LinkConfig(10**9, 10_000), codec=codec))

    def sum_all(arrays: Sequence[Any]) -> None:
        done: list[int] = []

        def end() -> None:
            done.append(1)
            if len(done) == WORKERS:
                simulation.network.stop()

        for rank, array in enumerate(arrays):
            simulation.launch(rank, array, "sum", partial(end), tensors=TENSORS)
        simulation.run("sums")

    check(codec, sum_all)


@pytest.mark.parametrize("codec", ["randomk:ratio=0.1,block=16", "agreed:ratio=0.1", "sketch", "nonzero"])
def test_bytes_on_the_wire(codec: str) -> None:
    """As many each way as the codec says it moves, and headers."""
    simulation = SIMULATIONS["switch"](SimulationConfig(WORKERS, LinkConfig(10**9, 10_000), codec=codec))
    size, ended = 400_000, [0]

    def end() -> None:
        ended[0] += 1
        if ended[0] == WORKERS:
            simulation.network.stop()

    for rank, array in enumerate(gradients(0, size)):
        simulation.launch(rank, array, "sum", end, tensors=[Tensor("all", (size,))])
    simulation.run("a sum")
    sent, received = simulation.wire_bytes(0)
    chosen = parse_codec(codec).codec
    assert isinstance(chosen, ArrayCodec)
    assert sent == received == pytest.approx(chosen.moved(size, WORKERS)["allreduce"], rel=0.1)
