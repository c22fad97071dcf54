"""The contract of a workload's data and model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs (b, ...) and targets: class indices, int64, (b,) or (b, positions)."""

SPLIT_SEED = 0  # the held-out data are the same in every scenario, whatever its seed


class LearningTask(Protocol):
    """The task that a workload learns: data, model and rates. It knows nothing of ranks."""

    name: str
    description: str
    source: str  # the origin of the data, with their extent
    source_sha256: str
    samples: int  # size of the training data
    peak_learning_rate: float  # AdamW uses it
    sgd_learning_rate: float  # plain SGD along the mean gradient of all ranks uses it

    def build_model(self) -> nn.Module:
        """A model with initial parameters from torch's global generator. It returns logits (..., classes)."""

    def batch(self, indices: np.ndarray, generator: np.random.Generator) -> Batch:
        """The training samples with these indices (b,) in 0 … samples-1, varied by the generator if at all."""

    def held_out(self) -> Iterator[Batch]:
        """All held-out data, always the same."""


def convolutional_net(layers: Sequence[nn.Module], width: int, classes: int) -> nn.Sequential:
    """The layers and one from `width` values to logits, with initial parameters."""
    last = nn.Linear(width, classes)
    model = nn.Sequential(*layers, last)
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    nn.init.normal_(last.weight, std=0.01)  # begins near "every class is as likely"
    return model
