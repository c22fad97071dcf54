"""Images made here, learnt by a convolutional net of 122,000 parameters: as CIFAR-10 is, with nothing to download."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from emulation.workloads.tasks.task import SPLIT_SEED, Batch, convolutional_net

CLASSES, PATTERNS = 10, 2
"""Kinds of images, and patterns that each of them has."""

SIZE, CHANNELS = 16, 3
LEARNT, HELD_OUT = 8192, 2048
SHIFT = 3
"""Pixels that a pattern is moved by at most, each way; what leaves at an edge enters at the other."""

DISTRACTION = 0.6
"""Most of another class's pattern that lies over an image."""

NOISE = 0.8
"""Standard deviation per value, beside a pattern's 1. With this a net ends near 95 % of right answers."""


class ImagesTask:
    """16x16 images in colour of 10 classes: 8192 to learn from, 2048 held out. Mirrored, shifted by up to two pixels.

    A class has two patterns. An image is one of them, moved, in other colours and contrast, with some of another
    class's pattern over it, and noise.
    """

    name = "images"
    description = "convolutional net, 3 convolutions and 2 linear layers, on 16x16 images made here"
    source = f"made by this program: {LEARNT} images to learn from, {HELD_OUT} held out"
    samples = LEARNT
    peak_learning_rate = 2e-3
    sgd_learning_rate = 0.1

    def __init__(self) -> None:
        images, labels, self.source_sha256 = _images()
        self._padded = np.pad(images[HELD_OUT:], ((0, 0), (0, 0), (2, 2), (2, 2)))
        self._labels = labels[HELD_OUT:]
        self._held_out = torch.from_numpy(images[:HELD_OUT]), torch.from_numpy(labels[:HELD_OUT])

    def build_model(self) -> nn.Module:
        layers: list[nn.Module] = []
        width = CHANNELS
        for outputs in (24, 48, 96):
            layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            width = outputs
        return convolutional_net([*layers, nn.Flatten(), nn.Linear(width * 2 * 2, 176), nn.ReLU()], 176, CLASSES)

    def batch(self, indices: np.ndarray, generator: np.random.Generator) -> Batch:
        rows, columns = generator.integers(0, 5, (2, len(indices), 1, 1))
        grid = np.arange(SIZE)
        across = np.where(generator.integers(0, 2, (len(indices), 1)), grid, grid[::-1])
        sample = indices[:, None, None]
        shifted = self._padded[sample, :, grid[None, :, None] + rows, across[:, None, :] + columns]
        images = np.ascontiguousarray(shifted.transpose(0, 3, 1, 2))
        return torch.from_numpy(images), torch.from_numpy(self._labels[indices])

    def held_out(self) -> Iterator[Batch]:
        yield self._held_out


@functools.cache
def _images() -> tuple[np.ndarray, np.ndarray, str]:
    """Images float32 (n, 3, 16, 16), the held-out ones first, labels int64 (n,), sha256 of both."""
    generator = np.random.default_rng(SPLIT_SEED)
    patterns = _smooth(generator.standard_normal((CLASSES, PATTERNS, CHANNELS, SIZE, SIZE)))
    count = LEARNT + HELD_OUT
    labels = generator.integers(0, CLASSES, count)
    other_labels = (labels + generator.integers(1, CLASSES, count)) % CLASSES
    share = generator.uniform(0, DISTRACTION, (count, 1, 1, 1))
    images = _moved(patterns, labels, generator) + share * _moved(patterns, other_labels, generator)
    images *= generator.uniform(0.6, 1.4, (count, CHANNELS, 1, 1))
    images += NOISE * generator.standard_normal(images.shape)
    pixels = images.astype(np.float32)
    return pixels, labels, hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest()


def _moved(patterns: np.ndarray, classes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A pattern of each of these classes (n,), moved at random around the edges and mirrored: (n, 3, 16, 16)."""
    count = len(classes)
    chosen = patterns[classes, generator.integers(0, PATTERNS, count)]
    rows, columns = generator.integers(-SHIFT, SHIFT + 1, (2, count, 1, 1))
    mirrored = np.where(generator.integers(0, 2, (count, 1, 1)), 1, -1)
    grid = np.arange(SIZE)
    moved: np.ndarray = chosen[
        np.arange(count)[:, None, None], :, (grid[:, None] + rows) % SIZE, (mirrored * grid + columns) % SIZE
    ]
    moved = moved.transpose(0, 3, 1, 2)
    return moved


def _smooth(noise: np.ndarray) -> np.ndarray:
    """Fields without their high frequencies, around 0 with a deviation of 1 each."""
    frequencies = np.fft.fftfreq(SIZE) * SIZE
    low_pass = np.exp(-(frequencies[:, None] ** 2 + frequencies**2) / 18)
    fields: np.ndarray = np.fft.ifft2(np.fft.fft2(noise) * low_pass).real
    fields -= fields.mean((-3, -2, -1), keepdims=True)
    fields /= fields.std((-3, -2, -1), keepdims=True)
    return fields
