"""OD-SGD: gradients travel during the next step, which a local update of the parameters makes possible.

Step t, with gradients g_t of the parameters that this rank has now:

    W_{t-1} = step(W_{t-2}, mean of g_{t-1})      the user's optimiser; the same on all ranks, one step late
    w       = W_{t-1} - local_rate g_t            this rank's parameters in the next forward and backward pass
                                                  meanwhile the sum of g_t travels

The first warm_up steps are plain synchronous SGD. Learning rates are those of the moment at which the optimiser steps.
Xu et al., *OD-SGD: One-step Delay Stochastic Gradient Descent for Distributed Training*, 2020.
"""

from dataclasses import dataclass
from typing import Any

import torch

from switchagg.option_syntax import count, decimal, option
from transport.torch.training.flat_tensors import FlatTensors
from transport.torch.training.replica import PendingCollectives, Replica
from transport.torch.training.training_method import AttachedMethod, TrainingMethod


@dataclass(frozen=True)
class OdSgd(TrainingMethod):
    """local_rate: of the local update, plain SGD. warm_up: in steps."""

    name = "od_sgd"
    label = "OD-SGD"
    summary = "gradients travel during the next step, whose parameters a local update makes"
    rates = True

    local_rate: float = option("local_rate", decimal(), 0.01)
    warm_up: int = option("warm_up", count(0), 1000)

    def begin(self, replica: Replica) -> AttachedMethod:
        return OneStepDelay(self, replica)


class OneStepDelay(AttachedMethod):
    """At most the sum of the last step's gradients is in flight."""

    def __init__(self, method: OdSgd, replica: Replica) -> None:
        super().__init__(method, replica)
        self._rate, self._warm_up = method.local_rate, method.warm_up
        self._shared = FlatTensors(replica.parameters)  # W, once the warm-up is over
        self._flight: PendingCollectives | None = None
        self._mean: FlatTensors | None = None  # the mean that has arrived, by which the optimiser will step
        self._gradients: list[torch.Tensor | None] = []  # this step's, put aside while the optimiser steps

    def synchronous(self, step: int) -> bool:
        return step <= self._warm_up

    def send(self, gradients: FlatTensors, step: int) -> PendingCollectives:
        """Start the sum of this step's gradients, in place."""
        return self._replica.start_sum(gradients)

    def before_step(self, step: int) -> None:
        if self.synchronous(step):
            return
        parameters = self._replica.parameters
        self._gradients = [parameter.grad for parameter in parameters]
        if self._replica.compression is not None:  # residuals of the last sum take part in this one
            self._land()
        flight = self.send(FlatTensors(parameters).read(self._gradients), step)
        self._land()
        self._put()
        self._flight = flight

    def after_step(self, step: int) -> None:
        if self.synchronous(step):
            return
        self._shared.read(self._replica.parameters)
        for parameter, gradient in zip(self._replica.parameters, self._gradients, strict=True):
            parameter.grad = gradient
            if gradient is not None:
                parameter.sub_(gradient, alpha=self._rate)
        self._gradients = []

    def _land(self) -> None:
        if self._flight is not None:
            self._mean, self._flight = self._flight.mean(), None

    def _put(self) -> None:
        """Let the optimiser step W by the mean. Before there is a mean it steps nothing: parameters without gradients,
        and their state, are left out."""
        parameters = self._replica.parameters
        if self._mean is None:
            for parameter in parameters:
                parameter.grad = None
            return
        self._shared.write(parameters)
        for parameter, mean in zip(parameters, self._mean.views, strict=True):
            parameter.grad = mean.to(parameter.dtype)
        self._mean = None

    def complete(self) -> None:
        self._land()
        if self._mean is None:
            return
        gradients = [parameter.grad for parameter in self._replica.parameters]
        self._put()
        self._step_alone()
        for parameter, gradient in zip(self._replica.parameters, gradients, strict=True):
            parameter.grad = gradient

    def state(self) -> dict[str, Any]:
        self._land()
        return {"shared": self._shared.state(), "mean": None if self._mean is None else self._mean.state()}

    def load(self, state: dict[str, Any]) -> None:
        self._land()
        self._shared.load(state["shared"])
        mean = state["mean"]
        self._mean = None if mean is None else FlatTensors(self._replica.parameters).load(mean)
