"""A rank of a chaos run, a process of its own: it trains with DistributedDataParallel, and sums known integers beside.

Nothing here knows of faults: it is the script of somebody who trains, with checks. A rank whose call fails reports the
error and ends as a script ends whose exception nobody catches; in an elastic job it goes on with those that are left.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import select
import signal
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel

from emulation.experiments.chaos.known_sums import KnownSums
from emulation.experiments.chaos.rank_reports import (
    ChaosRankPlace,
    CheckpointSaved,
    LapReplayed,
    RankFailed,
    RankLeft,
    StepDone,
    StepFailed,
    SumWrong,
)
from emulation.testbed.children import send_report
from emulation.workloads.workload import RankWorkload, build_workload, compute_on_one_thread, learning_task
from transport.switch.daemon import run_switch
from transport.switch.daemon_options import DaemonOptions
from transport.torch.elastic import ElasticTraining
from transport.torch.hook import switch_group
from transport.torch.registration import register

WORKLOAD, BATCH, RATE, MOMENTUM = "images", 8, 0.05, 0.9
BUCKET_MB = 0.1
"""Several buckets, so that several calls are in flight."""

CHECKPOINT_STEPS = 10
ERROR_LENGTH_MAX = 4000

# DDP keeps its buckets as they are with find_unused_parameters: else the first step after a checkpoint, or of a new
# generation, would sum in other rows than the same step of a run that went on, and round otherwise.
distribute = partial(
    DistributedDataParallel, bucket_cap_mb=BUCKET_MB, find_unused_parameters=True, gradient_as_bucket_view=True
)


def checkpoint_path(folder: str, step: int) -> Path:
    return Path(folder) / f"checkpoint-{step}.pt"


def prepare() -> None:
    """Loads, before processes are forked, what takes a rank seconds."""
    import torch._dynamo  # noqa: F401  # what optimisers import

    import transport.torch.backend
    import transport.torch.elastic.elastic_training
    import transport.torch.process_group
    import transport.worker.session  # noqa: F401

    register()
    learning_task(WORKLOAD)


def serve_store(words: str) -> int:
    """The job's store, in a process of its own that no fault meets, as torchrun's agent has it. Prints its port."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    store = TCPStore(words, 0, is_master=True, wait_for_workers=False)
    print(store.port, flush=True)
    while True:
        signal.pause()


def serve_switch(words: str) -> int:
    """The switch daemon, as `switchagg switch` runs it, until it is asked to end. words: DaemonOptions as JSON."""
    return run_switch(msgspec.json.decode(words, type=DaemonOptions))


def run_rank(words: str) -> int:
    """The whole life of a rank. words: a ChaosRankPlace as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us ends us
    faulthandler.register(signal.SIGUSR1)  # a rank that hangs is asked where
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    place = msgspec.json.decode(words, type=ChaosRankPlace)
    try:
        register()
        compute_on_one_thread()
        replay(place) if place.lap_plans else ChaosTraining(place).run()
    except Exception as error:
        words = str(error).partition("\n\nAt:\n")[0]  # what follows is a traceback, which the log has
        send_report(RankFailed(" ".join(f"{type(error).__name__}: {words}".split())[:ERROR_LENGTH_MAX]))
        logging.exception("rank %d", place.rank)
        return 1
    send_report(RankLeft())
    return 0


def _join(place: ChaosRankPlace) -> None:
    timeout = timedelta(seconds=place.timeout_s)
    store = PrefixStore(f"start{place.start}", TCPStore(*place.store, is_master=False, timeout=timeout))
    dist.init_process_group("switchagg", store=store, rank=place.rank, world_size=place.workers, timeout=timeout)


def _workload(place: ChaosRankPlace, workers: int) -> RankWorkload:
    workload = build_workload(WORKLOAD, place.seed, place.rank, workers, BATCH, place.lap)
    workload.use_sgd(RATE, MOMENTUM)
    return workload


class ChaosTraining:
    """The job of one rank: joins, trains until all are asked to end, leaves."""

    def __init__(self, place: ChaosRankPlace) -> None:
        self.place = place
        self.workload = _workload(place, place.workers)
        self.initial = {name: value.clone() for name, value in self.workload.model.state_dict().items()}
        if place.first:
            state = torch.load(checkpoint_path(place.folder, place.first), weights_only=True)
            self.workload.model.load_state_dict(state["model"])
            self.workload.optimizer.load_state_dict(state["optimizer"])
        _join(place)
        self.training = ElasticTraining(self.workload.model, self.workload.optimizer, distributed=distribute)
        self.training.step = self.training.step or place.first
        self.sums = KnownSums()

    def run(self) -> None:
        stop = False
        while not stop and self.training.step != self.place.last:
            stop = self._step()
        self.training.close()
        del self.training  # first: a group that ends with DDP's reducer ends with the GIL held
        dist.destroy_process_group()

    def _step(self) -> bool:
        """One step; whether it was the last."""
        training, workload, stop = self.training, self.workload, False
        done: StepDone | None = None
        with training:
            begun_ns = time.monotonic_ns()
            step, generation = training.step, self._generation
            position = step % self.place.lap
            workload.rank, workload.workers = training.rank, training.workers
            if position == 0:
                workload.model.load_state_dict(self.initial)
                workload.optimizer.state.clear()
            self._save(step)
            self.sums.start(training.rank, training.workers, step, _asked_to_stop())
            workload.loss(training, position).backward()
            right, faults, stop = self.sums.check()
            for fault in faults:
                send_report(SumWrong(step, fault))
            workload.step(position)
            sha256, done_ns = workload.parameter_sha256(), time.monotonic_ns()
            done = StepDone(step, begun_ns, done_ns, sha256, right, training.workers, generation)
        send_report(done or StepFailed(step, generation))
        return stop

    @property
    def _generation(self) -> int:
        decision = switch_group(None).generation
        return 0 if decision is None else decision.generation

    def _save(self, step: int) -> None:
        """Rank 0 saves the state before this step, in one piece or not at all, and keeps the one before. The ranks of
        an elastic job have it from each other."""
        elastic = switch_group(None).generation is not None
        if self.training.rank or elastic or step % CHECKPOINT_STEPS or step == self.place.first:
            return
        path = checkpoint_path(self.place.folder, step)
        partial = path.with_suffix(".partial")
        torch.save(
            {"model": self.workload.model.state_dict(), "optimizer": self.workload.optimizer.state_dict()}, partial
        )
        os.replace(partial, path)
        send_report(CheckpointSaved(step))
        with contextlib.suppress(FileNotFoundError):
            checkpoint_path(self.place.folder, step - 2 * CHECKPOINT_STEPS).unlink()


def replay(place: ChaosRankPlace) -> None:
    """Trains laps with as many ranks in each step as have done it in an elastic job, and without any fault: the others
    wait, and get the state when they come in."""
    _join(place)
    sizes = {number for lap in place.lap_plans for number, _ in lap}
    groups: dict[int, Any] = {number: dist.new_group(range(number)) for number in sorted(sizes)}
    for number, lap in enumerate(place.lap_plans):
        digests: list[str] = []
        state: list[Any] = [None]
        for workers, steps in lap:
            if digests:
                dist.broadcast_object_list(state, 0)
            first, digests = len(digests), digests + [""] * steps
            if place.rank < workers:
                workload = _workload(place, workers)
                if state[0]:
                    workload.model.load_state_dict(state[0][0])
                    workload.optimizer.load_state_dict(state[0][1])
                model = distribute(workload.model, process_group=groups[workers])
                for position in range(first, len(digests)):
                    workload.loss(model, position).backward()
                    workload.step(position)
                    digests[position] = workload.parameter_sha256()
                state = [(workload.model.state_dict(), workload.optimizer.state_dict())]
                del model
        if place.rank == 0:
            send_report(LapReplayed(number, digests))
    dist.destroy_process_group()


def _asked_to_stop() -> bool:
    """Whether something came on stdin, or it was closed."""
    return bool(select.select([sys.stdin], [], [], 0)[0])
