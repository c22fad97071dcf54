"""Handwritten digits that ship with scikit-learn, learnt by a convolutional net of 1.0 M parameters."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn

from emulation.workloads.tasks.task import SPLIT_SEED, Batch, convolutional_net


class DigitsTask:
    """8x8 images of handwritten digits: 1437 to learn from, 360 held out. Shifted at random by up to a pixel."""

    name = "digits"
    description = "convolutional net, 4 convolutions and 3 linear layers, on 8x8 handwritten digits"
    peak_learning_rate = 2e-3
    sgd_learning_rate = 0.1
    held_out_samples = 360

    def __init__(self) -> None:
        images, labels, self.source_sha256 = _digits()
        order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
        held_out, learnt = order[: self.held_out_samples], order[self.held_out_samples :]
        self.samples = len(learnt)
        self.source = f"scikit-learn load_digits: {len(learnt)} images to learn from, {len(held_out)} held out"
        self._padded = np.pad(images[learnt], ((0, 0), (0, 0), (1, 1), (1, 1)))
        self._labels = labels[learnt]
        self._held_out = torch.from_numpy(images[held_out]), torch.from_numpy(labels[held_out])

    def build_model(self) -> nn.Module:
        channels, hidden, classes = (32, 64, 128, 64), (544, 512), 10
        layers: list[nn.Module] = []
        width = 1
        for position, outputs in enumerate(channels):
            layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.ReLU()]
            if position == len(channels) - 2:
                layers.append(nn.MaxPool2d(2))
            width = outputs
        layers.append(nn.Flatten())
        width *= 4 * 4
        for outputs in hidden:
            layers += [nn.Linear(width, outputs), nn.ReLU()]
            width = outputs
        return convolutional_net(layers, width, classes)

    def batch(self, indices: np.ndarray, generator: np.random.Generator) -> Batch:
        rows, columns = generator.integers(0, 3, (2, len(indices), 1, 1))
        grid = np.arange(8)
        sample = indices[:, None, None]
        shifted = self._padded[sample, 0, grid[None, :, None] + rows, grid[None, None, :] + columns]
        return torch.from_numpy(shifted[:, None]), torch.from_numpy(self._labels[indices])

    def held_out(self) -> Iterator[Batch]:
        yield self._held_out


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray, str]:
    """Images float32 (n, 1, 8, 8) in 0 … 1, labels int64 (n,), sha256 of both."""
    package = find_spec("sklearn")  # the place alone: an import takes a second and a half of every rank's start
    table = Path(package.origin).parent / "datasets/data/digits.csv.gz" if package and package.origin else None
    if table is not None and table.exists():
        rows = np.loadtxt(table, delimiter=",")
        data, target = rows[:, :-1], rows[:, -1]
    else:
        from sklearn.datasets import load_digits

        data, target = load_digits(return_X_y=True)
    images = (data / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = target.astype(np.int64)
    return images, labels, hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
