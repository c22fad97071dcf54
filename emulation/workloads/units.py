"""The units that FSDP2 gathers and reduces together: a unit for each block of a model, and one for all other layers.

The same units in real time (`fully_shard` on each of them) and in virtual time, where `Shards` are a rank's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from emulation.workloads.workload import RankWorkload

Array = NDArray[np.float32]


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that become units of their own, by name: those of the first list, or else all children with
    parameters."""
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    if lists:
        name, blocks = lists[0]
        return {f"{name}.{number}": block for number, block in enumerate(blocks)}
    return {name: child for name, child in model.named_children() if next(child.parameters(), None) is not None}


class UnitLayout:
    """A unit's array as FSDP2 lays it out: rank by rank, its rows of each parameter, zeros where there are fewer.

    shapes: of the unit's parameters. elements: of the array, as many for every rank.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], workers: int) -> None:
        self._workers = workers
        self._sizes = [math.prod(shape) for shape in shapes]
        self._rank_elements = [
            -(-shape[0] // workers) * math.prod(shape[1:]) for shape in shapes
        ]  # the first rank's elements of each
        self.elements = workers * sum(self._rank_elements)

    def pack(self, parameters: Sequence[Array]) -> Array:
        """The unit's array, of the values of its parameters, (elements,) each."""
        rows = [np.zeros((self._workers, elements), np.float32) for elements in self._rank_elements]
        for row, values in zip(rows, parameters, strict=True):
            row.reshape(-1)[: values.size] = values
        return np.concatenate(rows, axis=1).reshape(-1)

    def unpack(self, array: Array, parameters: Sequence[Array]) -> None:
        """The way back, into memory for the parameters."""
        columns = np.split(array.reshape(self._workers, -1), np.cumsum(self._rank_elements)[:-1], axis=1)
        for column, values in zip(columns, parameters, strict=True):
            np.copyto(values, column.reshape(-1)[: values.size])

    def pieces(self, part: Array, rank: int) -> list[Array]:
        """A rank's piece of each parameter, without the padding, in its part of the array."""
        pieces, low = [], 0
        for size, most in zip(self._sizes, self._rank_elements, strict=True):
            pieces.append(part[low : low + min(max(size - rank * most, 0), most)])
            low += most
        return pieces


class Shards:
    """A rank's shares of its units' parameters, and the optimiser that steps them. arrays: by unit, (elements,).

    It steps tensors of the same shapes as under FSDP2, a piece of each parameter: PyTorch's fused AdamW rounds the last
    elements of a tensor, which don't fill a SIMD register, otherwise than the others.
    """

    def __init__(
        self, workload: RankWorkload, arrays: Mapping[str, Array], layouts: Mapping[str, UnitLayout], rank: int
    ) -> None:
        self.arrays = dict(arrays)
        self._workload, self._layouts, self._rank = workload, layouts, rank
        self._tensors = {
            unit: [torch.from_numpy(piece).requires_grad_() for piece in layouts[unit].pieces(array, rank)]
            for unit, array in arrays.items()
        }
        workload.optimizer = workload.fused_steps_of(tensor for unit in self._tensors.values() for tensor in unit)

    def set_gradient(self, unit: str, gradient: Array) -> None:
        """The mean over all ranks, of this rank's shard."""
        for tensor, piece in zip(self._tensors[unit], self._layouts[unit].pieces(gradient, self._rank), strict=True):
            tensor.grad = torch.from_numpy(piece)

    def step(self, iteration: int) -> None:
        """Step the optimiser along the gradients, and drop them."""
        self._workload.step(iteration)
