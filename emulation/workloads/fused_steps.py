"""Steps of PyTorch's fused optimisers for ranks in virtual time, without `torch.optim`.

The constructor of PyTorch's optimisers imports its compiler, which takes longer than a small run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""`torch.optim.AdamW`'s defaults."""


class FusedSteps:
    """SGD, or with a `weight_decay` AdamW: the same bits as `torch.optim.SGD` and `AdamW` with `fused=True`.

    param_groups: as of an optimiser of PyTorch's: one group, whose "lr" counts at each step.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], rate: float, weight_decay: float | None = None) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": rate}]
        self._weight_decay = weight_decay
        self._moments: dict[torch.Tensor, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients."""
        assert set_to_none, "gradients are dropped, not zeroed"
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Step those parameters that have a gradient."""
        (group,) = self.param_groups
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        gradients = [parameter.grad for parameter in parameters]
        unscaled: dict[str, Any] = {"lr": group["lr"], "maximize": False, "grad_scale": None, "found_inf": None}
        if self._weight_decay is None:
            plain: dict[str, Any] = {
                "weight_decay": 0.0,
                "momentum": 0.0,
                "dampening": 0.0,
                "nesterov": False,
                "is_first_step": False,
            }
            torch._fused_sgd_(parameters, gradients, [], **plain, **unscaled)
            return
        means, squares, counts = zip(*map(self._moments_of, parameters), strict=True)
        torch._foreach_add_(counts, 1)
        options: dict[str, Any] = {"amsgrad": False, "beta1": BETAS[0], "beta2": BETAS[1], "eps": EPSILON}
        torch._fused_adamw_(
            parameters, gradients, means, squares, [], counts, weight_decay=self._weight_decay, **options, **unscaled
        )

    def _moments_of(self, parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mean and mean square of a parameter's gradients, and how many steps they cover."""
        if parameter not in self._moments:
            self._moments[parameter] = torch.zeros_like(parameter), torch.zeros_like(parameter), torch.zeros(())
        return self._moments[parameter]
