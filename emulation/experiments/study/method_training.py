"""A run by a training method: a process for each rank, as in real training, over Gloo on this machine.

Ranks exchange by `transport.torch.training`; bytes are those that the same collectives would take through a switch.
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import numpy as np
import torch.distributed as dist

from emulation.experiments.study.study_plan import StudyCell
from emulation.experiments.study.wire_bytes import WireTraffic
from emulation.scenario.errors import RunFailed, WorkloadError
from emulation.workloads.workload import build_workload, compute_on_one_thread
from switchagg.codecs.array_codec import Reduction
from transport.torch.training import attach
from transport.torch.training.coded_collectives import CodedSum

HOST = "127.0.0.1"
_PR_SET_PDEATHSIG = 1
_TCPStore: Any = dist.TCPStore  # type: ignore[attr-defined]  # the stubs don't list it


def train_by_method(cell: StudyCell) -> dict[str, Any]:
    """The record of a finished run, without its time. Raises WorkloadError, ValueError, RunFailed."""
    context = multiprocessing.get_context("spawn")
    store = _TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    ends = [context.Pipe(duplex=False) for _ in range(cell.workers)]
    ranks = [
        context.Process(target=_train, args=(cell, rank, store.port, end, os.getpid()))
        for rank, (_, end) in enumerate(ends)
    ]
    try:
        for process, (_, end) in zip(ranks, ends, strict=True):
            process.start()
            end.close()
        results = dict(_received({receiver: rank for rank, (receiver, _) in enumerate(ends)}))
    finally:
        for process in ranks:
            if process.pid is not None:
                process.kill()
                process.join()
    first: dict[str, Any] = results[0]
    alike = len({result.pop("parameters_sha256") for result in results.values()}) == 1
    diverged = any([result.pop("diverged") for result in results.values()])
    ended = not diverged and math.isfinite(first["curve"][-1][2])
    return {
        **first,
        "curve": [point for point in first["curve"] if math.isfinite(point[2])],
        "accuracy": 0.0 if diverged else first["curve"][-1][1],
        "loss": first["curve"][-1][2] if ended else None,
        "diverged": diverged,
        "ranks_alike": alike,
        "errors": [],
    }


def _received(ends: dict[Connection, int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(rank, its record). Raises a rank's exception; RunFailed if it ended without a result."""
    while ends:
        for end in cast(list[Connection], wait(list(ends))):
            rank = ends.pop(end)
            try:
                result = end.recv()
            except EOFError:
                raise RunFailed(f"rank {rank} ended without a result") from None
            if isinstance(result, Exception):
                raise result
            yield rank, result


def _train(cell: StudyCell, rank: int, port: int, end: Connection, parent: int) -> None:
    """A rank in its own process, which doesn't outlive its parent. port: of the parent's store."""
    with suppress(AttributeError, OSError):  # only Linux has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        store = _TCPStore(HOST, port)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=cell.workers)
        record = _trained(cell, rank)
        dist.barrier()  # a rank that has sent is killed when all have
        end.send(record)
    except (WorkloadError, ValueError) as error:
        end.send(error)


def _trained(cell: StudyCell, rank: int) -> dict[str, Any]:
    compute_on_one_thread()
    workload = build_workload(cell.workload, cell.seed, rank, cell.workers, cell.batch_per_worker, cell.iterations)
    workload.use_sgd(cell.rate, cell.momentum)
    method = attach(workload.model, workload.optimizer, cell.codec)
    traffic = WireTraffic(cell.workers)

    def started(size_bytes: int, work: Any) -> None:
        if not isinstance(work, CodedSum):
            traffic.add(Reduction(np.empty(size_bytes // 4, np.float32)))

    method.observe(started, traffic.add)
    curve: list[list[float]] = []
    diverged = False
    for iteration in range(cell.iterations):
        loss = workload.loss(workload.model, iteration)
        loss.backward()
        diverged = diverged or not math.isfinite(loss.item())
        workload.step(iteration)
        last = iteration + 1 == cell.iterations
        if last:
            carried = {"up_bytes": traffic.up, "down_bytes": traffic.down, "rounds": traffic.rounds}
            method.finish()
        if rank == 0 and (last or (iteration + 1) % cell.evaluate_every == 0):
            score = workload.evaluate()  # of its own parameters; all have the same in the end
            curve.append([iteration + 1, score.accuracy, score.loss])
    return {
        "curve": curve,
        "diverged": diverged,
        **{name: count / cell.iterations for name, count in carried.items()},
        "parameters": workload.parameters,
        "parameters_sha256": workload.parameter_sha256(),
    }
