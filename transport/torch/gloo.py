"""Gloo as a group here has it: made on the network of the job, and with a codec of plain collectives on top."""

import logging
import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from switchagg.calls.call_request import CallRequest
from switchagg.codecs.array_codec import Reduction
from switchagg.codecs.compression import Compression
from switchagg.codecs.spec import CodecSpec
from switchagg.description import COMBINING
from switchagg.errors import JobError
from switchagg.native.native_exact import in_c
from transport.contracts.group_contract import Array, Group, Matching
from transport.group.staging import SWITCH, checked, ops_of, stage
from transport.torch.process_group import TorchGroup
from transport.worker.codec_thread import ended_future, pass_on
from transport.worker.coded_calls import CodedSessionCalls

logger = logging.getLogger(__name__)

_devices: "weakref.WeakValueDictionary[tuple[Any, ...], Any]" = weakref.WeakValueDictionary()


def _device(**where: str) -> Any:
    """Gloo's device there, which all groups of this process share: it has a thread and sockets of its own."""
    key = (os.getpid(), *where.items())
    if (device := _devices.get(key)) is None:
        make: Any = dist.ProcessGroupGloo
        device = _devices[key] = make.create_device(**where)
    return device


def gloo_devices(network_address: Callable[[], str]) -> list[Any]:
    """At an address on the job's network, unless GLOO_SOCKET_IFNAME names others; [] for Gloo's own choice.

    By itself Gloo takes the address of the host's name, which may be 127.0.1.1 (Debian): other hosts can't connect, one
    rank gets an error that names 127.0.0.1, the others wait.
    """
    if names := os.environ.get("GLOO_SOCKET_IFNAME"):
        return [_device(interface=name) for name in names.split(",")]
    try:
        return [_device(hostname=network_address())]
    except JobError as error:
        logger.info("switchagg: Gloo chooses its own address: %s", error)
        return []


def make_gloo(store: Store, rank: int, workers: int, timeout: timedelta, devices: list[Any]) -> Any:
    """Gloo's process group; a collective of its ranks. devices: of `gloo_devices`; [] for Gloo's own choice."""
    make: Any = dist.ProcessGroupGloo
    if not devices:
        return make(store, rank, workers, timeout)
    how = make._Options()
    how._timeout, how._devices = timeout, devices
    return make(store, rank, workers, how)


class GlooGroup(Group):
    """Sums and means of floats by the codec, in plain allreduces of a Gloo of its own: a `Group` of these calls alone.

    They are matched by their order. A call that takes too long ends with Gloo's own time-out.
    """

    method, link, core = "gloo", "", "torch"
    matching: Matching = "order"
    means = COMBINING

    def __init__(self, gloo: Any, job: str, spec: CodecSpec) -> None:
        self._gloo, self._gloo_calls = gloo, TorchGroup(gloo)
        self.job, self.rank, self.workers = job, self._gloo_calls.rank, self._gloo_calls.workers
        super().__init__()
        self.compression = Compression(in_c(spec), self.rank, self.workers)
        self._coded = CodedSessionCalls(self._allreduce, self.compression, lambda reason: self.close())

    def submit(self, request: CallRequest, array: Array) -> "Future[Any]":
        """See `Group`."""
        self._require_process()
        request = checked(request, array, self.workers, ops_of(request.kind, array.dtype, self.means))
        if request.kind not in COMBINING:
            raise ValueError(f"{request.kind}: Gloo does it without a codec")
        staged = stage(array, "sum" if request.op == "avg" else request.op, SWITCH, "Gloo with a codec")
        op = request.op if staged.op == "sum" else staged.op
        request = request._replace(op=op, priority=0, unit=staged.unit, signature=request.signature_of(array))
        future, ended = ended_future(request.result_of(array, self.rank, self.workers), staged.restore)
        self._coded.begin(staged.wire, request).add_done_callback(lambda done: pass_on(ended, done))
        return future

    def _allreduce(self, array: Array, request: CallRequest, reduction: Reduction | None = None) -> "Future[Any]":
        """A round, or a call that the codec leaves alone; Gloo makes a reduce-scatter of an allreduce, too."""
        return self._gloo_calls.allreduce(array, request.op)

    @property
    def counters(self) -> dict[str, int]:
        """There are no counters."""
        return {}

    @property
    def failure(self) -> BaseException | None:
        """See `Group`."""
        return self._gloo_calls.failure

    def set_credit(self, credit_bytes: int | None) -> None:
        """Does nothing: see `AllreduceGroup`."""

    def status(self) -> dict[str, Any]:
        """Nothing is known."""
        return {}

    def give_up(self, reason: str) -> None:
        """Does nothing: Gloo doesn't say whom it waits for."""

    def close(self) -> None:
        """See `Group`."""
        if os.getpid() == self._pid:
            self._coded.close()
            self._gloo_calls.close()
            self._gloo.shutdown()
