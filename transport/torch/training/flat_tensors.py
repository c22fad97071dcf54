"""Tensors one behind the other, so that a whole model takes few calls."""

from collections.abc import Sequence
from typing import Any

import torch

PIECE_BYTES = 25 << 20
"""An array goes in calls of at most this size, as DDP's buckets. Arrays are cut, not lists of tensors: every value
is in exactly one call, however large its tensor is."""

HALVES = (torch.float16, torch.bfloat16)


class FlatTensors:
    """Copies of tensors, in one array for each dtype and device. 16 bit floats are copied as float32: sums round once.

    arrays: what collectives take. views: each tensor's part of them, with its shape and, if it is dense, its strides.
    exact: float32 is copied as float64, which no codec takes.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], exact: bool = False) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], int] = {}
        places = []
        for tensor in tensors:
            dtype = torch.float32 if tensor.dtype in HALVES else tensor.dtype
            kind = (torch.float64 if exact and dtype == torch.float32 else dtype, tensor.device)
            places.append((kind, kinds.setdefault(kind, 0)))
            kinds[kind] += tensor.numel()
        arrays = {kind: torch.zeros(size, dtype=kind[0], device=kind[1]) for kind, size in kinds.items()}
        self.arrays = list(arrays.values())
        self._tensors, order = list(tensors), list(arrays)
        self._places = [(order.index(kind), first) for kind, first in places]
        self.views = [
            _view(arrays[kind][first : first + tensor.numel()], tensor)
            for tensor, (kind, first) in zip(tensors, places, strict=True)
        ]

    def read(self, tensors: Sequence[torch.Tensor | None]) -> "FlatTensors":
        """Copy the tensors in; zeros for None."""
        for view, tensor in zip(self.views, tensors, strict=True):
            if tensor is None:
                view.zero_()
            else:
                view.copy_(tensor.detach())
        return self

    def write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the values out to the tensors."""
        for view, tensor in zip(self.views, tensors, strict=True):
            tensor.detach().copy_(view)

    def pieces(self) -> list[torch.Tensor]:
        """All values, in arrays of at most PIECE_BYTES."""
        return [
            piece for array in self.arrays for piece in array.split(PIECE_BYTES // array.element_size()) if len(piece)
        ]

    def cut(self) -> list[tuple[torch.Tensor, list[tuple[torch.Tensor, int, int]]]]:
        """The pieces with their parts in order: (tensor, first value, end)."""
        pieces = []
        for number, array in enumerate(self.arrays):
            first = 0
            for piece in array.split(PIECE_BYTES // array.element_size()):
                end, parts = first + len(piece), []
                for tensor, (place, begin) in zip(self._tensors, self._places, strict=True):
                    low, high = max(first - begin, 0), min(end - begin, tensor.numel())
                    if place == number and low < high:
                        parts.append((tensor, low, high))
                if parts:
                    pieces.append((piece, parts))
                first = end
        return pieces

    def state(self) -> list[torch.Tensor]:
        """A copy, for a state_dict."""
        return [array.clone() for array in self.arrays]

    def load(self, state: Any) -> "FlatTensors":
        """Load the values that `state` gave. Raises ValueError if they aren't of such tensors."""
        if [array.shape for array in self.arrays] != [array.shape for array in state]:
            raise ValueError("the state is that of a model with other parameters")
        for array, saved in zip(self.arrays, state, strict=True):
            array.copy_(saved)
        return self


def _view(part: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Fused optimisers go through the memory of a parameter and its gradient side by side, so strides must agree."""
    dense = torch.empty_like(tensor, device="meta").stride() == tensor.stride()
    return part.as_strided(tensor.shape, tensor.stride(), part.storage_offset()) if dense else part.view(tensor.shape)
