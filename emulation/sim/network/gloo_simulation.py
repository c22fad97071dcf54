"""Method `gloo` in virtual time: PyTorch's Gloo by its algorithms, without what it loses on a real host.

With a codec: what PyTorch's compress hooks do. Gradients are rounded to 16 bits, divided by the workers, summed in that
type, each addition rounded, and widened again.
"""

from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.host_simulation import HostSimulation
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.switched_network import SwitchedNetwork
from switchagg.codecs.codec import FLOAT32
from switchagg.description import Kind
from transport.group.method_name import GLOO_CODECS, METHODS


class BFloat16(np.ndarray[Any, np.dtype[np.uint16]]):
    """The upper halves of float32, which NumPy has no type for. Sums are rounded to the nearest, ties to even."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **_: Any) -> Any:
        assert ufunc is np.add
        assert method == "__call__"
        left, right = map(widened, inputs)
        out[0].view(np.ndarray)[:] = narrowed(left + right)
        return out[0]


def narrowed(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """To bfloat16."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def widened(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    """From bfloat16."""
    return (np.asarray(halves).astype(np.uint32) << np.uint32(16)).view(np.float32)


class GlooSimulation(HostSimulation):
    """Rings, as Gloo's; what it does by another kind of call, so does this."""

    def __init__(self, config: SimulationConfig, shared: SwitchedNetwork | None = None) -> None:
        self._hook = config.codec if config.codec in GLOO_CODECS else ""
        super().__init__(replace(config, codec="") if self._hook else config, shared, method="ring")
        if self._hook:
            self.mean_op = "avg"

    def begin(self, rank: int, call: SimulatedCall) -> None:
        if call.request.op == "avg":
            call = compressed(call, self._hook, self.config.workers)
        super().begin(rank, as_gloo_does(call))


def as_gloo_does(call: SimulatedCall) -> SimulatedCall:
    """The call by another kind, where Gloo has none of its own."""
    kind = cast(Kind, call.request.kind)
    return call.with_request(kind=METHODS["gloo"].does.get(kind, kind))


def compressed(call: SimulatedCall, codec: str, workers: int) -> SimulatedCall:
    """The hook's call in place of one for a mean. codec: fp16 or bf16."""
    values = call.array
    assert values.dtype == FLOAT32
    if codec == "fp16":
        with np.errstate(over="ignore"):
            half: NDArray[Any] = values.astype(np.float16) / np.float16(workers)
    else:
        half = narrowed(widened(narrowed(values)) / np.float32(workers)).view(BFloat16)

    def done() -> None:
        values[:] = half if codec == "fp16" else widened(half)
        call.done()

    return call._replace(array=half, done=done).with_request(op="sum")
