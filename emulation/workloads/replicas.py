"""All ranks of a training run in one process: real models and gradients, for networks in virtual time.

Every rank has its own model and steps along the sums that the network gave *it*: a wrong sum on one rank makes its
parameters differ, as in reality. The same seed gives the same bits, from run to run on one machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from emulation.scenario.profiles.buckets import Bucket, bucket_layout
from emulation.scenario.scenario_tables import ADAMW
from emulation.workloads.operation_count import OperationCount
from emulation.workloads.workload import Score, build_workload, compute_on_one_thread
from switchagg.codecs.array_codec import Tensor
from transport.schedule.scheduler import LayerProfile, Profile, TensorProfile

BUCKET_BYTES_DEFAULT = 1 << 20
MEASURED_ITERATIONS = 5


@dataclass(frozen=True)
class Layer:
    """A module that has parameters, in the order of the forward pass.

    parameters: indices of the parameters that it is the first to use. forward_share: of the forward pass's operations,
    from its start to that of the next one.
    """

    name: str
    parameters: tuple[int, ...]
    forward_share: float


class Replicas:
    """`workers` replicas of a workload. bucket_bytes: DDP's `bucket_cap_mb`, in bytes.

    tensors: the parameters in each bucket. losses: of each rank's last `gradients_of`. forward_fraction: the forward
    pass's share of forward and backward, in operations. Raises WorkloadError. Sets the process to compute on one
    thread.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        workers: int,
        batch_per_worker: int,
        iterations: int = 150,
        bucket_bytes: int = BUCKET_BYTES_DEFAULT,
        optimizer: str = ADAMW,
    ) -> None:
        compute_on_one_thread()
        self.workloads = [
            build_workload(name, seed, *share, batch_per_worker, iterations, optimizer)
            for share in self._shares(workers)
        ]
        self._parameters = [list(workload.model.parameters()) for workload in self.workloads]
        for workload, parameters in zip(self.workloads, self._parameters, strict=True):
            workload.optimizer = workload.fused_steps_of(parameters)
        self.losses = [math.nan] * workers
        self.layers = self._trace_forward()
        self.buckets, self.forward_fraction = self._trace(bucket_bytes)
        named = [Tensor(name, tuple(parameter.shape)) for name, parameter in self.workloads[0].model.named_parameters()]
        self.tensors = [[named[index] for index in bucket.parameters] for bucket in self.buckets]

    def _shares(self, workers: int) -> Sequence[tuple[int, int]]:
        """The shares of the data, by rank: number, and number of shares."""
        return [(rank, workers) for rank in range(workers)]

    @property
    def parameters(self) -> int:
        return self.workloads[0].parameters

    @property
    def gradient_bytes(self) -> int:
        return self.workloads[0].gradient_bytes

    def ready_ns(self, compute_ns: int) -> list[int]:
        """When each bucket is ready, from the iteration's start, if forward and backward together take compute_ns."""
        forward, backward = self.forward_fraction, 1 - self.forward_fraction
        return [round(compute_ns * (forward + backward * bucket.ready_fraction)) for bucket in self.buckets]

    def profile(self, compute_ns: int) -> Profile:
        """The profile that schedules are made from, if forward and backward together take compute_ns.

        Tensors are the model's parameters in the order of `buckets`, so `bucket_bytes` must be 1: a bucket each.
        """
        assert all(len(bucket.parameters) == 1 for bucket in self.buckets), "bucket_bytes: 1, for a bucket a parameter"
        layer_of = {index: place for place, layer in enumerate(self.layers) for index in layer.parameters}
        names = [name for name, _ in self.workloads[0].model.named_parameters()]
        forward_ns = round(compute_ns * self.forward_fraction)
        tensors = [
            TensorProfile(
                names[bucket.parameters[0]], bucket.elements, layer_of[bucket.parameters[0]], ready_ns - forward_ns
            )
            for bucket, ready_ns in zip(self.buckets, self.ready_ns(compute_ns), strict=True)
        ]
        layers = [LayerProfile(layer.name, round(forward_ns * layer.forward_share)) for layer in self.layers]
        return Profile(tuple(tensors), tuple(layers), compute_ns - forward_ns)

    def gradients(self, iteration: int) -> list[list[np.ndarray]]:
        """`gradients_of` all ranks: [rank][bucket]."""
        return [self.gradients_of(rank, iteration) for rank in range(len(self.workloads))]

    def gradients_of(self, rank: int, iteration: int) -> list[np.ndarray]:
        """Forward and backward on one rank. Per bucket, float32 (elements,), not yet divided by the ranks.

        The arrays are the caller's, to write to as it likes.
        """
        workload = self.workloads[rank]
        workload.model.zero_grad(set_to_none=True)
        loss = workload.loss(workload.model, iteration)
        loss.backward()
        self.losses[rank] = loss.item()
        return [self._flat(rank, bucket) for bucket in self.buckets]

    def apply(self, iteration: int, averaged: Sequence[Sequence[np.ndarray]]) -> None:
        """`apply_to` all ranks: [rank][bucket]."""
        for rank, buckets in enumerate(averaged):
            self.apply_to(rank, iteration, buckets)

    def apply_to(self, rank: int, iteration: int, averaged: Sequence[np.ndarray]) -> None:
        """Step a rank's optimiser along the averaged gradients that reached it, in the layout of `gradients_of`.

        Call it after `gradients_of` this rank for the same iteration.
        """
        for bucket, flat in zip(self.buckets, averaged, strict=True):
            first = 0
            for index in bucket.parameters:
                gradient = self._gradient(rank, index)
                np.copyto(gradient.reshape(-1), flat[first : first + gradient.size])
                first += gradient.size
        self.workloads[rank].step(iteration)

    def weights_of(self, rank: int) -> list[np.ndarray]:
        """Per parameter, in the model's order, float32 (elements,): the memory that rank's model computes with."""
        return [parameter.detach().numpy().reshape(-1) for parameter in self._parameters[rank]]

    def evaluate(self) -> Score:
        """Rank 0's score, which is that of all ranks if all `parameter_hashes` are equal."""
        return self.workloads[0].evaluate()

    def parameter_hashes(self) -> list[str]:
        """sha256 of the parameters' bits, per rank."""
        return [workload.parameter_sha256() for workload in self.workloads]

    def measure_compute_ns(self) -> int:
        """Time of one rank's forward and backward pass, alone on a core: the median of a few, on the wall clock.

        It changes no parameters. It is a measurement: write down its result, and use that to repeat a run.
        """
        workload = self.workloads[0]
        times_ns = []
        for iteration in range(1 + MEASURED_ITERATIONS):  # the first one allocates memory and chooses kernels
            start_ns = time.monotonic_ns()
            workload.loss(workload.model, iteration).backward()
            times_ns.append(time.monotonic_ns() - start_ns)
            workload.optimizer.zero_grad(set_to_none=True)
        return sorted(times_ns[1:])[MEASURED_ITERATIONS // 2]

    def _gradient(self, rank: int, index: int) -> np.ndarray:
        gradient = self._parameters[rank][index].grad
        assert gradient is not None, f"rank {rank}: parameter {index} has no gradient; call gradients() first"
        return gradient.numpy()

    def _flat(self, rank: int, bucket: Bucket) -> np.ndarray:
        return np.concatenate([self._gradient(rank, index).reshape(-1) for index in bucket.parameters])

    def _trace_forward(self) -> tuple[Layer, ...]:
        """Layers and their shares, from one forward pass in which operations are counted.

        Parameters that a module uses of another, which is never called itself, belong to the first layer: it is safe to
        have them before anything begins.
        """
        model, names = self.workloads[0].model, {}
        entered: list[tuple[nn.Module, int]] = []
        hooks = []
        with OperationCount() as counter, torch.no_grad():
            for name, module in model.named_modules():
                if next(module.parameters(recurse=False), None) is not None:
                    names[module] = name or type(module).__name__

                    def begin(module: nn.Module, _: object) -> None:
                        if all(module is not other for other, _ in entered):
                            entered.append((module, counter.total))

                    hooks.append(module.register_forward_pre_hook(begin))
            self.workloads[0].loss(model, 0)
            total = counter.total
        for hook in hooks:
            hook.remove()
        place_of = {id(parameter): index for index, parameter in enumerate(self._parameters[0])}
        owned = [[place_of.pop(id(p), None) for p in module.parameters(recurse=False)] for module, _ in entered]
        owned[0] += place_of.values()
        starts = [0, *(flops for _, flops in entered[1:]), total]
        return tuple(
            Layer(names[module], tuple(index for index in indices if index is not None), (high - low) / total)
            for (module, _), indices, low, high in zip(entered, owned, starts, starts[1:], strict=False)
        )

    def _trace(self, bucket_bytes: int) -> tuple[tuple[Bucket, ...], float]:
        """Buckets and forward fraction, from one backward pass in which operations are counted."""
        workload = self.workloads[0]
        parameters = self._parameters[0]
        arrivals: list[tuple[int, int]] = []  # parameter, and operations that the passes took before its gradient
        with OperationCount() as counter:
            hooks = [
                parameter.register_post_accumulate_grad_hook(
                    lambda _, index=index: arrivals.append((index, counter.total))
                )
                for index, parameter in enumerate(parameters)
            ]
            loss = workload.loss(workload.model, 0)
            forward_flops = counter.total
            loss.backward()
            total_flops = counter.total
        for hook in hooks:
            hook.remove()
        workload.optimizer.zero_grad(set_to_none=True)
        backward_flops = total_flops - forward_flops
        fractions = {index: (flops - forward_flops) / backward_flops for index, flops in arrivals}
        sizes_bytes = [parameter.numel() * parameter.element_size() for parameter in parameters]
        groups = bucket_layout([index for index, _ in arrivals], sizes_bytes, bucket_bytes)
        return tuple(
            Bucket(
                tuple(group),
                sum(parameters[index].numel() for index in group),
                max(fractions[index] for index in group),
            )
            for group in groups
        ), forward_flops / total_flops
