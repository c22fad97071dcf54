"""Replicas that compute nothing: their gradients are size-only. In place of `emulation.workloads.replicas.Replicas`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace

from emulation.scenario.profiles.buckets import Bucket
from emulation.scenario.profiles.model_profile import ModelProfile
from emulation.sim.size_only import SizeOnlyArray
from switchagg.codecs.array_codec import Tensor
from transport.schedule.profile import Profile


class SizeOnlyReplicas:
    """Gradients of these tensors, a list for each bucket. Losses aren't numbers; nothing learns."""

    def __init__(self, tensors: Sequence[Sequence[Tensor]], workers: int) -> None:
        self.losses = [math.nan] * workers
        self.tensors = [list(of_bucket) for of_bucket in tensors]
        self.buckets: Sequence[Bucket | SimpleNamespace] = [
            SimpleNamespace(elements=sum(math.prod(tensor.shape) for tensor in of_bucket)) for of_bucket in tensors
        ]
        self.parameters = sum(bucket.elements for bucket in self.buckets)
        self.gradient_bytes = 4 * self.parameters

    def gradients_of(self, _rank: int, _iteration: int) -> list[SizeOnlyArray]:
        """Per bucket."""
        return [SizeOnlyArray(bucket.elements, "float32") for bucket in self.buckets]

    def apply_to(self, _rank: int, _iteration: int, _averaged: Sequence[SizeOnlyArray]) -> None:
        """Nothing learns."""

    def evaluate(self) -> None:
        """There is nothing to judge."""

    def parameter_hashes(self) -> list[str]:
        """The result is None: there are no values."""
        return []


class ProfileReplicas(SizeOnlyReplicas):
    """Size-only replicas of a model profile. bucket_bytes: as of `Replicas`; 1: a bucket for each tensor."""

    def __init__(self, model: ModelProfile, workers: int, bucket_bytes: int) -> None:
        buckets = model.buckets(bucket_bytes)
        names = model.tensor_names
        sizes = [elements for layer in model.layers for elements in layer.tensors.values()]
        tensors = [[Tensor(names[index], (sizes[index],)) for index in bucket.parameters] for bucket in buckets]
        super().__init__(tensors, workers)
        self.buckets: Sequence[Bucket] = buckets
        self.model = model
        self.forward_fraction = model.forward_fraction

    def ready_ns(self, compute_ns: int) -> list[int]:
        """As of `Replicas`."""
        forward, backward = self.forward_fraction, 1 - self.forward_fraction
        return [round(compute_ns * (forward + backward * bucket.ready_fraction)) for bucket in self.buckets]

    def profile(self, compute_ns: int) -> Profile:
        """As of `Replicas`."""
        return self.model.schedule_profile(compute_ns)
