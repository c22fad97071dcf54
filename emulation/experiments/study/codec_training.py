"""A run of n replicas in this process, whose gradients are summed in memory by the codec's own codes; or, by a training
method, of n processes (`method_training`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from emulation.experiments.study.method_training import train_by_method
from emulation.experiments.study.probe import probe
from emulation.experiments.study.study_plan import StudyCell, is_method
from emulation.experiments.study.wire_bytes import ELEMENTS, CountedCompression, WireTraffic
from emulation.workloads.replicas import Replicas
from switchagg.codecs import Array, Codec
from switchagg.codecs.array_codec import SUM, Reduction, SumTerms, Tensor, Tensors
from switchagg.codecs.spec import CodecSpec
from switchagg.lockstep import combine, sum_together
from switchagg.native.native_codec import begin_in_c

PROBES = 12
"""Moments of a run, evenly spread, at which errors are measured."""


class ProbedCompression(CountedCompression):
    """A compression that keeps copies of its inputs while `keep` is set. snapshots: inputs, and whether coded."""

    def __init__(self, spec: CodecSpec, rank: int, workers: int, seed: int) -> None:
        super().__init__(spec, rank, workers, seed)
        self.keep = False
        self.snapshots: list[tuple[Array, bool]] = []

    def rounds(self, array: Array, tensors: Tensors | None, key: int = 0, terms: SumTerms = SUM) -> Iterator[Reduction]:
        """As of `Compression`."""
        for number, reduction in enumerate(super().rounds(array, tensors, key, terms)):
            if self.keep and number == 0:
                exact = reduction.codec is None and reduction.array is array
                self.snapshots.append((array.copy(), not exact))
            yield reduction


def train(cell: StudyCell) -> dict[str, Any]:
    """The record of a finished run: plain numbers. Raises WorkloadError; ValueError for a codec that can't."""
    return train_by_method(cell) if is_method(cell.codec) else _in_lockstep(cell)


def _in_lockstep(cell: StudyCell) -> dict[str, Any]:
    replicas = Replicas(cell.workload, cell.seed, cell.workers, cell.batch_per_worker, cell.iterations)
    for workload in replicas.workloads:
        workload.use_sgd(cell.rate, cell.momentum)
    ranks = range(cell.workers)
    spec = cell.spec
    summing = [] if spec is None else [ProbedCompression(spec, rank, cell.workers, cell.seed) for rank in ranks]
    plain = WireTraffic(cell.workers)
    names = [(name, tuple(parameter.shape)) for name, parameter in replicas.workloads[0].model.named_parameters()]
    tensors = [[Tensor(*names[index]) for index in bucket.parameters] for bucket in replicas.buckets]
    every = max(1, cell.iterations // PROBES)
    curve: list[list[float]] = []
    errors: list[dict[str, Any]] = []
    diverged = False
    rate = replicas.workloads[0].learning_rate(0)
    for iteration in range(cell.iterations):
        gradients = replicas.gradients(iteration)
        diverged = not all(map(math.isfinite, replicas.losses))
        if diverged:
            break
        last, rate = rate, replicas.workloads[0].learning_rate(iteration)
        for compression in summing:
            if rate != last and rate > 0:
                compression.rescale(last / rate)
            compression.keep, compression.snapshots = iteration % every == every // 2, []
        for number, of_bucket in enumerate(tensors):
            arrays = [gradients[rank][number] for rank in ranks]
            if summing:
                sum_together(summing, arrays, of_bucket, iteration * len(tensors) + number, ELEMENTS, begin_in_c)
            else:
                plain.add(Reduction(arrays[0]))
                combine(arrays)
        if summing and summing[0].keep:
            errors.append({"iteration": iteration, **_errors(summing, gradients, iteration)})
        for buckets in gradients:
            for bucket in buckets:
                bucket /= np.float32(cell.workers)
        replicas.apply(iteration, gradients)
        if (iteration + 1) % cell.evaluate_every == 0 or iteration + 1 == cell.iterations:
            score = replicas.evaluate()
            curve.append([iteration + 1, score.accuracy, score.loss])
    traffic = summing[0].traffic if summing else plain
    done = cell.iterations if not diverged else iteration + 1
    alike = len(set(replicas.parameter_hashes())) == 1
    return {
        "curve": [point for point in curve if math.isfinite(point[2])],
        "accuracy": 0.0 if diverged or not curve else curve[-1][1],
        "loss": None if diverged or not math.isfinite(curve[-1][2]) else curve[-1][2],
        "diverged": diverged,
        "ranks_alike": alike,
        "errors": errors,
        "up_bytes": traffic.up / done,
        "down_bytes": traffic.down / done,
        "rounds": traffic.rounds / done,
        "parameters": replicas.parameters,
    }


def _errors(summing: Sequence[ProbedCompression], sums: Sequence[Sequence[Array]], iteration: int) -> dict[str, Any]:
    """Relative squared errors of an iteration's sums, see `probe`, and the norm of residuals."""
    codec = summing[0].spec.codec
    fed = bool(summing[0].spec.feedback)
    inputs = [
        np.concatenate([values for values, coded in compression.snapshots if coded] or [np.empty(0)])
        for compression in summing
    ]
    coded = [number for number, (_, coded) in enumerate(summing[0].snapshots) if coded]
    errors: dict[str, Any] = {"own": None, "mean": None, "clipped": None, "carried": None, "residual": None}
    if not coded:
        return errors
    total = np.asarray(np.sum(np.stack(inputs), axis=0, dtype=np.float64))
    if summing[0].spec.feedback != "ef21":  # its result is another sum
        result = np.concatenate([sums[0][number] for number in coded])
        errors["mean"] = _share(result - total, total)
    if isinstance(codec, Codec):
        errors |= probe(
            codec, [[compression.snapshots[number][0] for compression in summing] for number in coded], fed, iteration
        )
    if summing[0].spec.feedback == "ef":
        residuals = [compression.state_dict()["kept"]["residual"] for compression in summing]
        left = [np.concatenate([np.ravel(part) for part in of.values()]) for of in residuals]
        errors["residual"] = float(np.mean([np.linalg.norm(array) for array in left]))
        if errors["own"] is None:
            norms = [float(np.square(array, dtype=np.float64).sum()) for array in inputs]
            energies = [float(np.square(array, dtype=np.float64).sum()) for array in left]
            errors["own"] = float(np.mean([e / v for e, v in zip(energies, norms, strict=True) if v]))
    return errors


def _share(error: Array, values: Array) -> float | None:
    """||error||² / ||values||²."""
    norm = float(np.square(values, dtype=np.float64).sum())
    return float(np.square(error, dtype=np.float64).sum()) / norm if norm else None
