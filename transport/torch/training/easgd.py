"""Elastic averaging: a centre, which all ranks keep, pulls each rank, and is pulled by all of them.

    every period steps:  w_i <- w_i - alpha (w_i - c) - step(g_i);   c <- c + alpha sum(w_i - c)

with the gradients of the parameters before the pull; the sum travels while they are computed. Zhang et al., *Deep
learning with Elastic Averaging SGD*, NeurIPS 2015, its synchronous form with an allreduce instead of a server.
"""

from dataclasses import dataclass
from typing import Any

from switchagg.option_syntax import count, decimal, option
from transport.torch.training.flat_tensors import FlatTensors
from transport.torch.training.replica import PendingCollectives, Replica
from transport.torch.training.training_method import AttachedMethod, TrainingMethod


@dataclass(frozen=True)
class Easgd(TrainingMethod):
    """period: in steps. alpha: how far a rank is pulled to the centre; of n ranks at most 1/n; None: 0.9/n, the
    paper's."""

    name = "easgd"
    label = "EASGD"
    summary = "ranks and a centre pull each other; they never agree before the end"

    period: int = option("period", count(1), 10)
    alpha: float | None = option("alpha", decimal(1), None)

    @property
    def round_steps(self) -> int:
        return self.period

    def begin(self, replica: Replica) -> AttachedMethod:
        if self.alpha is not None and self.alpha * replica.workers > 1:
            raise ValueError(
                f"{self.name}: alpha={self.alpha}: with {replica.workers} ranks at most 1/{replica.workers}"
            )
        return _Elastic(self, replica)


class _Elastic(AttachedMethod):
    def __init__(self, method: Easgd, replica: Replica) -> None:
        super().__init__(method, replica)
        self._period = method.period
        self._alpha = 0.9 / replica.workers if method.alpha is None else method.alpha
        self._centre = FlatTensors(replica.parameters).read(replica.parameters)
        self._due = False  # whether a pull comes before the next step
        self._flight: PendingCollectives | None = None

    def _apart(self) -> FlatTensors:
        """How far this rank is from the centre."""
        apart = FlatTensors(self._replica.parameters).read(self._replica.parameters)
        for array, centre in zip(apart.arrays, self._centre.arrays, strict=True):
            array.sub_(centre)
        return apart

    def after_step(self, step: int) -> None:
        if step % self._period == 0:
            self._due = True
            self._flight = self._replica.start_sum(self._apart())

    def before_step(self, step: int) -> None:
        if not self._due:
            return
        distance = self._apart()  # as when it was sent: nothing has stepped since
        total = (self._flight or self._replica.start_sum(self._apart())).wait()
        self._due, self._flight = False, None
        for parameter, apart in zip(self._replica.parameters, distance.views, strict=True):
            parameter.sub_(apart.to(parameter.dtype), alpha=self._alpha)
        for centre, pull in zip(self._centre.arrays, total.arrays, strict=True):
            centre.add_(pull, alpha=self._alpha)

    def complete(self) -> None:
        self.before_step(self.steps)
        self._centre.write(self._replica.parameters)

    def state(self) -> dict[str, Any]:
        return {"centre": self._centre.state(), "due": self._due}

    def load(self, state: dict[str, Any]) -> None:
        if self._flight is not None:
            self._flight.wait()
            self._flight = None  # it is made again, of the parameters that were loaded
        self._centre.load(state["centre"])
        self._due = state["due"]
