"""The compute time of a rank of a real run, where the scenario gives it: as in virtual time, but in real time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from emulation.scenario.compute import ComputeTimes
from emulation.scenario.scenario import Scenario
from emulation.workloads.replicas import Replicas
from emulation.workloads.workload import RankWorkload


class ComputePace:
    """Makes computing last as long as in virtual time: `ComputeTimes`, with the same draws. sleep: seconds.

    If `Scenario.paced`, the forward pass, and in the backward pass the gradient of each parameter, end no earlier than
    their shares of `[workload] compute_ns`, by their operations as in virtual time: the rank sleeps until then, as a
    rank whose GPU computes leaves the CPU free. Computing that takes longer isn't shortened.

    Without a compute_ns a straggler sleeps between the two passes, as often as its factor says what it took for its
    last iteration: in CPU time of the calling thread, since that others want the CPU, too, makes no rank a straggler.
    """

    def __init__(self, scenario: Scenario, rank: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self._scenario, self._rank, self._sleep = scenario, rank, sleep
        self._paced = scenario.paced
        self._forward_share = 0.0
        self._start_ns = self._planned_ns = self._cpu_start_ns = 0
        self._cpu_times_ns: list[int] = []

    def attach(self, workload: RankWorkload) -> None:
        """Paces the backward passes of a rank's model from now on."""
        if not self._paced:
            return
        plan = self._scenario.workload
        with torch.random.fork_rng(devices=[]):  # a forward pass may draw
            traced = Replicas(plan.name, self._scenario.seed, 1, plan.batch_per_worker, bucket_bytes=1)
        ready = {bucket.parameters[0]: bucket.ready_fraction for bucket in traced.buckets}
        parameters = list(workload.model.parameters())
        self.hold(traced.forward_fraction, parameters, [ready[index] for index in range(len(parameters))])

    def hold(self, forward_share: float, parameters: Sequence[torch.Tensor], ready: Sequence[float]) -> None:
        """ready: when each parameter's gradient may be there at the earliest, in shares of the backward pass."""
        self._forward_share = forward_share
        for parameter, fraction in zip(parameters, ready, strict=True):
            share = forward_share + (1 - forward_share) * fraction
            parameter.register_hook(lambda _, share=share: self._sleep_until(share))

    def begin(self, iteration: int) -> None:
        """The forward pass begins."""
        self._start_ns, self._cpu_start_ns = time.monotonic_ns(), time.thread_time_ns()
        cpu_ns = self._cpu_times_ns[-1] if self._cpu_times_ns else 0
        self._planned_ns = ComputeTimes(self._scenario, cpu_ns).ns(self._rank, iteration)

    def forward_done(self) -> None:
        """The forward pass is over."""
        if self._paced:
            self._sleep_until(self._forward_share)
        elif self._scenario.unequal_compute:
            cpu_ns = self._cpu_times_ns[-1] if self._cpu_times_ns else 0
            self._sleep(max(0, self._planned_ns - cpu_ns) / 1e9)

    def backward_done(self) -> None:
        """The backward pass is over."""
        self._cpu_times_ns.append(time.thread_time_ns() - self._cpu_start_ns)

    def notes(self) -> list[str]:
        """A sentence for the report that says how ranks were paced."""
        cpu_ms = statistics.median(self._cpu_times_ns or [0]) / 1e6
        needed = f"; rank {self._rank} itself needs {cpu_ms:.1f} ms of CPU time (median)."
        if self._paced:
            return [
                "Ranks compute real gradients, and sleep until each layer's share of [workload] compute_ns is over, as "
                f"with GPUs that leave the CPU free{needed}"
            ]
        if self._scenario.unequal_compute:
            return [
                "Between forward and backward pass stragglers sleep for as many times of what they take as the "
                f"scenario says, which counts as computing{needed}"
            ]
        return []

    def _sleep_until(self, share: float) -> None:
        """Until this share of the iteration's computing is over."""
        left_ns = self._start_ns + round(share * self._planned_ns) - time.monotonic_ns()
        if left_ns > 0:
            self._sleep(left_ns / 1e9)
