"""A rank of a chaos run in virtual time: known calls and a sum of floats in each step, and a little computing."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from emulation.experiments.chaos.known_calls import known_calls, stop_call, stop_fault
from emulation.experiments.chaos.rank_reports import CheckpointSaved, RankLeft, StepDone, SumWrong
from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.host_uplink import Done
from switchagg.calls.call_request import CallRequest
from switchagg.priority import BEST_EFFORT

if TYPE_CHECKING:
    from emulation.experiments.virtual_chaos.virtual_site import VirtualSite

PARAMETERS = 4_000
CHECKPOINT_STEPS = 10
COMPUTE_NS = 5_000_000
RATE = np.float32(0.05)


def initial_parameters() -> NDArray[np.float32]:
    """Those with which training begins."""
    return np.random.Generator(np.random.PCG64(7)).normal(size=PARAMETERS).astype(np.float32)


class VirtualRank:
    """The user's program of one rank. status: of its process, once it has ended."""

    def __init__(self, site: VirtualSite, rank: int, first: int, last: int, lap: int) -> None:
        self.status: int | None = None
        self._site, self._rank, self._first, self._last, self._lap = site, rank, first, last, lap
        self._workers = site.options.workers
        self._step = first
        self._parameters = site.checkpoints[first].copy() if first else initial_parameters()
        self._gradient = np.empty(0, np.float32)
        self._stop = stop_call(False)
        self._open = 0
        self._right, self._faults = 0, list[str]()

    def begin(self) -> None:
        """A step."""
        step, site = self._step, self._site
        if step % self._lap == 0 and step != self._first:
            self._parameters = initial_parameters()
        if not self._rank and step % CHECKPOINT_STEPS == 0 and step != self._first:
            site.checkpoints[step] = self._parameters.copy()
            site.checkpoints.pop(step - 2 * CHECKPOINT_STEPS, None)
            site.report(self._rank, CheckpointSaved(step))
        self._begun_ns, self._right, self._faults = site.now_ns, 0, []
        calls = known_calls(self._rank, self._workers, step)
        self._stop = stop_call(not self._rank and site.asked_to_stop)
        noise = np.sin(np.arange(PARAMETERS, dtype=np.float32) * (self._rank + 1) + step % self._lap)
        self._gradient = (self._parameters * np.float32(0.1 * (self._rank + 1)) + noise).astype(np.float32)
        self._open = len(calls) + 2
        for call in calls:
            result = call.array[call.shard] if call.kind == "reduce_scatter" else call.array
            self._launch(call.array, partial(self._check, call, result), call.kind, call.op, call.root)
        self._launch(self._gradient, self._ended)
        self._launch(self._stop, self._check_stop)

    def _launch(self, array: NDArray[Any], done: Done, kind: str = "allreduce", op: str = "sum", root: int = 0) -> None:
        request = CallRequest(kind, op, priority=BEST_EFFORT, root=root)
        self._site.simulation.begin(self._rank, SimulatedCall(array, request, done))

    def _check(self, call: Any, result: NDArray[Any]) -> None:
        self._note(call.fault(result))

    def _check_stop(self) -> None:
        self._note(stop_fault(self._stop, self._workers))

    def _note(self, fault: str) -> None:
        if fault:
            self._faults.append(fault)
        else:
            self._right += 1
        self._ended()

    def _ended(self) -> None:
        self._open -= 1
        if not self._open:
            self._site.simulation.after(self._rank, COMPUTE_NS, self._finish)

    def _finish(self) -> None:
        """All calls have ended, and the step is computed."""
        if self.status is not None:
            return
        site, step = self._site, self._step
        for fault in self._faults:
            site.report(self._rank, SumWrong(step, fault))
        self._parameters -= RATE * self._gradient
        sha256 = hashlib.sha256(self._parameters.tobytes()).hexdigest()
        site.report(self._rank, StepDone(step, self._begun_ns, site.now_ns, sha256, self._right, self._workers))
        self._step += 1
        if self._stop[0] or self._step == self._last:
            self.status = 0
            site.simulation.leave(self._rank)
            site.report(self._rank, RankLeft())
        else:
            self.begin()
