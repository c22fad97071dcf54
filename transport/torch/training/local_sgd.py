"""Local SGD: each rank takes H steps alone, then all take the mean of their parameters.

    w_i <- w_i - step(g_i);   every H steps: w_i <- sum(w) / n

Stich, *Local SGD Converges Fast and Communicates Little*, ICLR 2019.
"""

from dataclasses import dataclass

import torch

from switchagg.option_syntax import count, one_of, option
from transport.torch.training.replica import Replica
from transport.torch.training.training_method import AttachedMethod, TrainingMethod

KEEP, AVERAGE, RESET = "keep", "average", "reset"


@dataclass(frozen=True)
class LocalSgd(TrainingMethod):
    """period: H, in steps. momentum: of the optimiser's state: each rank keeps its own, or it is averaged, too (AdamW:
    three times the bytes), or set to zero."""

    name = "local_sgd"
    label = "Local SGD"
    summary = "each rank steps by itself; after each period parameters are averaged"
    coded = False
    exactly = (
        "it sums parameters, which must not be rounded; diloco:rate=1,momentum=0 does the same by how far ranks have "
        "moved"
    )

    period: int = option("period", count(1), 8)
    momentum: str = option("momentum", one_of(KEEP, AVERAGE, RESET), KEEP)

    @property
    def synchronous_steps(self) -> int:
        """How many steps come first that are ordinary synchronous ones."""
        return 0

    @property
    def round_steps(self) -> int:
        return self.period

    def begin(self, replica: Replica) -> AttachedMethod:
        return _Averaging(self, replica)


@dataclass(frozen=True)
class PostLocalSgd(LocalSgd):
    """Synchronous SGD at first, while parameters change quickly; then local SGD. start: the last synchronous step; in
    the paper the first decay of the rate. Lin et al., *Don't Use Large Mini-batches, Use Local SGD*, ICLR 2020."""

    name = "post_local_sgd"
    label = "Post-local SGD"
    summary = "synchronous at first, then local SGD"

    period: int = option("period", count(1), 16)
    start: int = option("start", count(0), 100)

    @property
    def synchronous_steps(self) -> int:
        return self.start


class _Averaging(AttachedMethod):
    def __init__(self, method: LocalSgd, replica: Replica) -> None:
        super().__init__(method, replica)
        self._options = method

    def synchronous(self, step: int) -> bool:
        return step <= self._options.synchronous_steps

    def after_step(self, step: int) -> None:
        if not self.synchronous(step) and self._local_steps % self._options.period == 0:
            self._average()

    def complete(self) -> None:
        if self._local_steps > 0 and self._local_steps % self._options.period:
            self._average()

    @property
    def _local_steps(self) -> int:
        return self.steps - self._options.synchronous_steps

    def _average(self) -> None:
        momenta = self._momenta() if self._options.momentum == AVERAGE else []
        self._replica.average([*self._replica.parameters, *self._replica.buffers, *momenta])
        if self._options.momentum == RESET:
            for momentum in self._momenta():
                momentum.zero_()

    def _momenta(self) -> list[torch.Tensor]:
        """The optimiser's state that has the shape of its parameter: momentum, AdamW's two averages."""
        state = self._replica.optimizer.state
        return [
            tensor
            for parameter in self._replica.parameters
            for tensor in state.get(parameter, {}).values()
            if isinstance(tensor, torch.Tensor) and tensor.shape == parameter.shape and tensor.is_floating_point()
        ]
