"""What FSDP2 gathers and reduces together: a unit for each block of a model, and one for all the rest.

The same units in real time (`fully_shard` on each of them) and in virtual time, where `Shards` are a rank's.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from emulation.training.workload import Workload

Array = NDArray[np.float32]


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that become units of their own, by name: those of the first list, or else all children with
    parameters."""
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    if lists:
        name, found = lists[0]
        return {f"{name}.{number}": block for number, block in enumerate(found)}
    return {name: child for name, child in model.named_children() if next(child.parameters(), None) is not None}


class Shards:
    """A rank's shares of its units' parameters, and the optimiser that steps them. arrays: by unit, (elements,)."""

    def __init__(self, workload: Workload, arrays: Mapping[str, Array]) -> None:
        self.arrays = dict(arrays)
        self._workload = workload
        self._tensors = {unit: torch.from_numpy(array).requires_grad_() for unit, array in arrays.items()}
        workload.optimizer = workload.optimizer_of(self._tensors.values())

    def set_gradient(self, unit: str, gradient: Array) -> None:
        """The mean over all ranks, of this rank's shard."""
        self._tensors[unit].grad = torch.from_numpy(gradient)

    def step(self, iteration: int) -> None:
        """One step of the optimiser along the gradients, which are dropped then."""
        self._workload.step(iteration)
