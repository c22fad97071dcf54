"""What PyTorch's compress hooks do, in virtual time: held to PyTorch's own 16-bit types."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="the types are torch's")

import torch

from emulation.sim.network.gloo_simulation import BFloat16, GlooSimulation, narrowed, widened
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig

WORKERS, ELEMENTS = 3, 30_000
GENERATOR = np.random.default_rng(1)


def spread(elements: int) -> np.ndarray:
    """Values of all magnitudes, denormals and those that round up to infinity among them."""
    exponents = GENERATOR.integers(-149, 127, elements)
    found = np.ldexp(GENERATOR.uniform(-2, 2, elements), exponents).astype(np.float32)
    found[:5] = np.inf, -np.inf, np.nan, 0, 3.4e38
    return found


def test_bfloat16_is_torch_s() -> None:
    one, other = spread(ELEMENTS), spread(ELEMENTS)[::-1].copy()
    halves = [torch.from_numpy(values).to(torch.bfloat16) for values in (one, other)]
    assert np.array_equal(widened(narrowed(one)), halves[0].float().numpy(), equal_nan=True)
    sums = narrowed(one).view(BFloat16)
    np.add(sums, narrowed(other), out=sums)
    assert np.array_equal(widened(sums), (halves[0] + halves[1]).float().numpy(), equal_nan=True)


@pytest.mark.parametrize(("codec", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_gradients_are_divided_and_summed_in_16_bits(codec: str, dtype: "torch.dtype") -> None:
    """Each value is a sum of n in some order of the ring's, and half the bytes travel."""
    simulation = GlooSimulation(SimulationConfig(WORKERS, LinkConfig(10**9), codec=codec))
    arrays = [GENERATOR.standard_normal(ELEMENTS).astype(np.float32) for _ in range(WORKERS)]
    small = [torch.from_numpy(array.copy()).to(dtype).div_(WORKERS) for array in arrays]
    orders = [(small[k] + small[(k + 1) % 3] + small[(k + 2) % 3]).float().numpy() for k in range(WORKERS)]
    waiting = [WORKERS]

    def done() -> None:
        waiting[0] -= 1
        if not waiting[0]:
            simulation.network.stop()

    def begin(*_: object) -> None:
        for rank, array in enumerate(arrays):
            simulation.launch(rank, array, simulation.mean_op, done)

    simulation.network.schedule(0, begin)
    simulation.run("a mean")
    assert all((array == arrays[0]).all() for array in arrays)
    assert np.any([arrays[0] == order for order in orders], axis=0).all()
    values_bytes = 2 * ELEMENTS * 2 * (WORKERS - 1) / WORKERS
    assert values_bytes < simulation.wire_bytes(0)[0] < 1.15 * values_bytes
