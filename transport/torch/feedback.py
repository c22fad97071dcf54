"""What error feedback needs of a model in training: its parameters' names, changes of learning rates, checkpoints."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from switchagg.codecs.array_codec import Tensor
from switchagg.codecs.compression import Compression


def tensor_of(name: str, values: torch.Tensor) -> Tensor:
    """As codecs know it. Complex numbers are two."""
    return Tensor(name, (*values.shape, 2) if values.is_complex() else tuple(values.shape))


class RateFollower:
    """Keeps what is left over in step with an optimiser's learning rates.

    What a sum lost stays as a gradient, and will be multiplied by the rate of the step that it takes part in; it is
    owed at that of the step that lost it. names: of its parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> None:
        self._optimizer = optimizer
        self._names = [[names[one] for one in group["params"] if one in names] for group in optimizer.param_groups]
        self._rates = self._now()

    def _now(self) -> list[float]:
        return [float(group["lr"]) for group in self._optimizer.param_groups]

    def follow(self, compression: Compression) -> None:
        """Before an iteration's first sum. A rate of 0 changes nothing: the next one counts against the one before."""
        for number, (old, new) in enumerate(zip(self._rates, self._now(), strict=False)):
            if new not in (0.0, old):
                compression.rescale(old / new, self._names[number])
                self._rates[number] = new


def saved(state: Any) -> Any:
    """A codec's state with tensors in place of arrays, for `torch.load(weights_only=True)`."""
    if isinstance(state, Mapping):
        return {key: saved(value) for key, value in state.items()}
    return torch.from_numpy(state.copy()) if isinstance(state, np.ndarray) else state


def loaded(state: Any) -> Any:
    """What `saved` was given."""
    if isinstance(state, Mapping):
        return {key: loaded(value) for key, value in state.items()}
    return state.numpy().copy() if isinstance(state, torch.Tensor) else state
