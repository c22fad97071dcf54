"""An optimizer that steps one parameter at a time, with what its user's `step()` call would have used.

The user's own optimizer does the arithmetic, restricted to one parameter and to a copy of its group's options taken
when `step()` was called: so schedulers of learning rates may go on before the sums are here, and the bits are those of
an ordinary step. It is right for optimizers that treat each parameter separately.
"""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

COUPLED = (torch.optim.LBFGS,)
"""Optimizers of PyTorch that don't treat each parameter separately."""

Options = list[dict[str, Any]]


class PartialSteps:
    """Takes over `step` and `zero_grad` of an optimizer until `release`.

    on_step, on_zero_grad(set_to_none): functions that replace them. Raises ValueError for an optimizer that can't be
    stepped by parts; elementwise=True: the caller knows that one from elsewhere can.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        on_step: Callable[[], None],
        on_zero_grad: Callable[[bool], None],
        *,
        elementwise: bool = False,
    ) -> None:
        kind = type(optimizer)
        if isinstance(optimizer, COUPLED):
            raise ValueError(
                f"attach: {kind.__name__} doesn't treat each parameter by itself, so it can't step by parts"
            )
        if not elementwise and not kind.__module__.startswith("torch.optim"):
            raise ValueError(
                f"attach: {kind.__module__}.{kind.__name__} isn't PyTorch's own; if it treats each parameter by "
                f"itself, say so: AttachOptions(elementwise_optimizer=True)"
            )
        self._optimizer = optimizer
        self._step = optimizer.step  # perhaps already wrapped by a scheduler of learning rates
        self._on_step: Callable[[], None] | None = on_step
        self._on_zero_grad: Callable[[bool], None] | None = on_zero_grad
        self._before = {name: optimizer.__dict__[name] for name in ("step", "zero_grad") if name in optimizer.__dict__}

        def step(_: torch.optim.Optimizer, closure: Any = None) -> Any:
            if self._on_step is None:
                return self._step(closure)
            if closure is not None:
                raise ValueError("optimizer.step(closure) can't be scheduled: its sums would be needed at once")
            self._on_step()
            return None

        def zero_grad(_: torch.optim.Optimizer, set_to_none: bool = True) -> None:
            if self._on_zero_grad is None:
                type(optimizer).zero_grad(optimizer, set_to_none)
            else:
                self._on_zero_grad(set_to_none)

        # Bound methods: schedulers of learning rates that come later look for the function in them.
        if getattr(self._step, "_wrapped_by_lr_sched", False):
            step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # earlier ones look for their mark
        self._step_method = types.MethodType(step, optimizer)
        optimizer.step = self._step_method  # type: ignore[method-assign]
        optimizer.zero_grad = types.MethodType(zero_grad, optimizer)  # type: ignore[method-assign]

    def options(self) -> Options:
        """The options of all groups as they are now; later changes don't reach them."""
        return [
            {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in group.items()
                if name != "params"
            }
            for group in self._optimizer.param_groups
        ]

    def step_one(self, parameter: nn.Parameter, options: dict[str, Any]) -> None:
        """Step one parameter, whose gradient is in place."""
        live = self._optimizer.param_groups
        self._optimizer.param_groups = [{**options, "params": [parameter]}]
        try:
            with torch.inference_mode(False):  # else state made during an evaluation would be of no use for training
                self._step()
        finally:
            self._optimizer.param_groups = live

    def release(self) -> None:
        """Give `step` and `zero_grad` back."""
        self._on_step = self._on_zero_grad = None
        for name in ("step", "zero_grad"):
            if name == "step" and self._optimizer.__dict__.get(name) is not self._step_method:
                continue  # a scheduler's wrapper, which holds ours, and ours passes on from now on
            if name in self._before:
                setattr(self._optimizer, name, self._before[name])
            else:
                self._optimizer.__dict__.pop(name, None)
