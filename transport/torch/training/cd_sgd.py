"""CD-SGD: OD-SGD whose gradients are compressed, but for every k-th step's, which corrects them.

Step t after the warm-up: if k divides t, g_t is summed in full; else r <- r + g_t, the codes of r are summed, and
r <- r - what they stand for. Full steps neither send nor clear r. Yu et al., *CD-SGD: Distributed Stochastic Gradient
Descent with Compression and Delay Compensation*, ICPP 2021.

The codes come from a codec, `cd_sgd:period=5~ternary`, whose error feedback is r; or from a compressor, a function of
(values, group). It starts a Work that turns values, a 1-D array, into the sum over the group of the ranks' decoded
codes, and returns this rank's decoded codes and the Work. It is called for each piece of the gradients, in the same
order in every step.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from switchagg.codecs.spec import CodecSpec
from switchagg.option_syntax import count, option
from transport.torch.training.flat_tensors import FlatTensors
from transport.torch.training.od_sgd import OdSgd, OneStepDelay
from transport.torch.training.replica import PendingCollectives, Replica
from transport.torch.training.training_method import AttachedMethod

Compressor = Callable[[torch.Tensor, dist.ProcessGroup], tuple[torch.Tensor, Any]]


def exact(values: torch.Tensor, group: dist.ProcessGroup) -> tuple[torch.Tensor, Any]:
    """A compressor that leaves every value as it is."""
    coded = values.clone()
    return coded, dist.all_reduce(values, group=group, async_op=True)


@dataclass(frozen=True)
class CdSgd(OdSgd):
    """period: k; with 1 every step is full, as in OD-SGD. codec or compressor: for the other steps; not both."""

    name = "cd_sgd"
    label = "CD-SGD"
    summary = "OD-SGD with compressed gradients, but for every k-th step's"
    exactly = "it sends every k-th step's gradients in full: name the codec behind the method instead, cd_sgd~CODEC"

    period: int = option("period", count(1), 5)
    compressor: Compressor = exact

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.codec and self.compressor is not exact:
            raise ValueError(f"{self.name}: codec {self.codec}, and a compressor, too")

    @property
    def round_steps(self) -> int:
        return self.period

    @property
    def spec(self) -> CodecSpec | None:
        spec = super().spec
        return spec if spec is None or spec.feedback else replace(spec, feedback="ef")

    def begin(self, replica: Replica) -> AttachedMethod:
        return _Compressed(self, replica)


class _Compressed(OneStepDelay):
    def __init__(self, method: CdSgd, replica: Replica) -> None:
        super().__init__(method, replica)
        self._options = method
        self._residual = FlatTensors(replica.parameters)

    def send(self, gradients: FlatTensors, step: int) -> PendingCollectives:
        if step % self._options.period == 0:
            return self._replica.start_sum(gradients, exact=True)
        if self._options.codec:
            return super().send(gradients, step)
        residuals = iter(self._residual.pieces())

        def compressed(piece: torch.Tensor) -> Any:
            residual = next(residuals)
            piece.copy_(residual.add_(piece))
            coded, work = self._options.compressor(piece, self._replica.group)
            residual.sub_(coded)
            return work

        return self._replica.start(gradients, compressed)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "residual": self._residual.state()}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self._residual.load(state["residual"])
