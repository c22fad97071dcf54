"""DDP's buckets: gradients that are reduced together. The module does without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bucket:
    """Gradients that are reduced together, as DDP lays them out.

    parameters: indices into the model's parameters, in the order in which their gradients arrive. elements: values of
    all of them. ready_fraction: the share (0 … 1] of the backward pass, counted in floating-point operations, after
    which the last of them is there.
    """

    parameters: tuple[int, ...]
    elements: int
    ready_fraction: float


def bucket_layout(arrivals: Sequence[int], sizes_bytes: Sequence[int], bucket_bytes: int) -> list[list[int]]:
    """Parameter indices in order of arrival, cut as DDP does: a bucket ends once it has reached `bucket_bytes`.

    sizes_bytes: sizes of the parameters, by index.
    """
    groups: list[list[int]] = [[]]
    size_bytes = 0
    for index in arrivals:
        if size_bytes >= bucket_bytes:
            groups.append([])
            size_bytes = 0
        groups[-1].append(index)
        size_bytes += sizes_bytes[index]
    return groups
