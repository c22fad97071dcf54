"""A rank of a chaos run, a process of its own: it trains with DistributedDataParallel, and sums known integers beside.

Nothing here knows of faults: it is the script of somebody who trains, with checks. A rank whose call fails reports the
error and ends as a script ends whose exception nobody catches.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

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
    RankFailed,
    RankJoined,
    RankLeft,
    StepDone,
    SumWrong,
)
from emulation.testbed.children import send_report
from emulation.workloads.workload import build_workload, compute_on_one_thread, learning_task
from transport.torch.hook import compress
from transport.torch.registration import register
from transport.torch.rendezvous import SwitchOptions

WORKLOAD, BATCH, RATE, MOMENTUM = "images", 8, 0.05, 0.9
BUCKET_MB = 0.1
"""Several buckets, so that several calls are in flight."""

CHECKPOINT_STEPS = 10
ERROR_LENGTH_MAX = 4000


def checkpoint_path(folder: str, step: int) -> Path:
    return Path(folder) / f"checkpoint-{step}.pt"


def prepare() -> None:
    """Loads, before processes are forked, what takes a rank seconds."""
    import torch._dynamo  # noqa: F401  # what optimisers import

    import transport.torch.backend
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


def run_rank(words: str) -> int:
    """The whole life of a rank. words: a ChaosRankPlace as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us ends us
    faulthandler.register(signal.SIGUSR1)  # a rank that hangs is asked where
    place = msgspec.json.decode(words, type=ChaosRankPlace)
    try:
        ChaosTraining(place).run()
    except Exception as error:
        words = str(error).partition("\n\nAt:\n")[0]  # what follows is a traceback, which the log has
        send_report(RankFailed(" ".join(f"{type(error).__name__}: {words}".split())[:ERROR_LENGTH_MAX]))
        print(f"rank {place.rank}: {error}", file=sys.stderr, flush=True)
        return 1
    send_report(RankLeft())
    return 0


class ChaosTraining:
    """The job of one rank: joins, trains until all are asked to end, leaves."""

    def __init__(self, place: ChaosRankPlace) -> None:
        self.place = place
        register()
        compute_on_one_thread()
        timeout = timedelta(seconds=place.timeout_s)
        store = TCPStore(*place.store, is_master=False, timeout=timeout)
        dist.init_process_group(
            "switchagg",
            store=PrefixStore(f"start{place.start}", store),
            rank=place.rank,
            world_size=place.workers,
            timeout=timeout,
        )
        send_report(RankJoined())
        self.workload = build_workload(WORKLOAD, place.seed, place.rank, place.workers, BATCH, place.lap)
        self.workload.use_sgd(RATE, MOMENTUM)
        self.initial = {name: value.clone() for name, value in self.workload.model.state_dict().items()}
        if place.first:
            state = torch.load(checkpoint_path(place.folder, place.first), weights_only=True)
            self.workload.model.load_state_dict(state["model"])
            self.workload.optimizer.load_state_dict(state["optimizer"])
        # DDP keeps its buckets as they are with find_unused_parameters: else the first step after a checkpoint would
        # sum in other rows than the same step of a run that went on, and round otherwise.
        self.model = DistributedDataParallel(
            self.workload.model, bucket_cap_mb=BUCKET_MB, find_unused_parameters=True, gradient_as_bucket_view=True
        )
        if SwitchOptions.from_environment().name.codec:
            compress(self.model, self.workload.optimizer)
        self.sums = KnownSums(place.rank, place.workers)

    def run(self) -> None:
        step, stop = self.place.first, False
        while not stop and step != self.place.last:
            stop = self._step(step)
            step += 1
        del self.model  # first: a group that ends with DDP's reducer ends with the GIL held
        dist.destroy_process_group()

    def _step(self, step: int) -> bool:
        """One step; whether it was the last."""
        position = step % self.place.lap
        begun_ns = time.monotonic_ns()
        if position == 0 and step != self.place.first:
            self.workload.model.load_state_dict(self.initial)
            self.workload.optimizer.state.clear()
        self._save(step)
        self.sums.start(step, self.place.rank == 0 and _asked_to_stop())
        self.workload.loss(self.model, position).backward()
        right, faults, stop = self.sums.check()
        for fault in faults:
            send_report(SumWrong(step, fault))
        self.workload.step(position)
        send_report(StepDone(step, begun_ns, time.monotonic_ns(), self.workload.parameter_sha256(), right))
        return stop

    def _save(self, step: int) -> None:
        """Rank 0 saves the state before this step, in one piece or not at all, and keeps the one before."""
        if self.place.rank or step % CHECKPOINT_STEPS or step == self.place.first:
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


def _asked_to_stop() -> bool:
    """Whether something came on stdin, or it was closed."""
    return bool(select.select([sys.stdin], [], [], 0)[0])
