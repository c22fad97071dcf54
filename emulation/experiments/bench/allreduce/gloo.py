"""Gloo as torch.distributed ships it, unchanged, on float32 or int32 tensors that share the arrays' memory.

Gloo has no setting for TCP congestion control, and a namespace may choose only among those its kernel allows to
everybody. But its sockets are this process's own: they are found among its descriptors once Gloo has made them, and
set one by one. Nothing else about them changes.
"""

from __future__ import annotations

import os
import socket
import stat
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from emulation.experiments.bench.allreduce.bench_methods import BenchMethod
from emulation.experiments.bench.allreduce.rank_messages import RankPlace
from emulation.scenario.errors import RunFailed
from emulation.testbed.mininet.launch import RENDEZVOUS_PORT
from transport.meshes.tcp_gathering import congestion_control_of, set_congestion_control
from transport.torch.gloo import GlooGroup

TIMEOUT = timedelta(seconds=120)


class Gloo:
    """A process group of backend gloo; groups of other variants have connections of their own."""

    def __init__(self, method: BenchMethod, place: RankPlace) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = place.interface
        torch.set_num_threads(1)
        before = _tcp_sockets()
        if not dist.is_initialized():
            address = f"tcp://{place.addresses[0]}:{RENDEZVOUS_PORT}"
            dist.init_process_group(
                "gloo", init_method=address, rank=place.rank, world_size=place.workers, timeout=TIMEOUT
            )
        self._group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        spec = method.method.spec
        self._coded = GlooGroup(self._group, f"bench-{method.name}", spec) if spec is not None else None
        self._sixteen = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(method.method.codec)
        dist.barrier(self._group)  # all its connections are there
        self._controls = {_tell(descriptor, method.variant) for descriptor in _tcp_sockets() - before}
        if self._controls != {method.variant} and place.workers > 1:
            raise RunFailed(f"{method.name}: Gloo's sockets use {', '.join(sorted(self._controls)) or 'no TCP'}")

    def allreduce(self, array: NDArray[Any]) -> None:
        if self._coded is not None:
            self._coded.allreduce(array).result(TIMEOUT.total_seconds())
            return
        tensor = torch.from_numpy(array)
        if self._sixteen is None or array.dtype != np.float32:
            dist.all_reduce(tensor, group=self._group)
            return
        half = tensor.to(self._sixteen)
        dist.all_reduce(half, group=self._group)
        tensor.copy_(half)

    def counters(self) -> dict[str, int]:
        return {}

    def facts(self) -> dict[str, Any]:
        return {"congestion_control": ", ".join(sorted(self._controls)), "torch": str(torch.__version__)}

    def close(self) -> None:
        dist.destroy_process_group(self._group)


def _tcp_sockets() -> set[int]:
    """Descriptors of this process that are connected TCP sockets."""
    sockets = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    copy.getpeername()
                    sockets.add(int(name))
        except OSError:  # ended meanwhile, or listening
            continue
    return sockets


def _tell(descriptor: int, name: str) -> str:
    """Sets one socket's congestion control; returns what it has then."""
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        set_congestion_control(copy, name)
        return congestion_control_of(copy)
