"""The process group behind `init_process_group("switchagg")`; what goes where is in the package's docstring."""

import functools
import logging
import os
import sys
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo
from torch.autograd import profiler
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroup, ReduceOp, Store

from switchagg.job import MAX_WORKERS
from transport.group.contract import AllreduceGroup
from transport.group.staging import SWITCH
from transport.torch.recording import recorded
from transport.torch.reducer import Reducer
from transport.torch.rendezvous import Rendezvous, SwitchOptions, start_name
from transport.torch.staging import wire_dtype

logger = logging.getLogger(__name__)

DEVICES = ("cpu", "cuda")
_OPS = {ReduceOp.SUM: "sum", ReduceOp.AVG: "avg", ReduceOp.MAX: "max"}
WAIT_MARGIN_S = 10.0
"""A call's `wait()` ends this much after the group's timeout: the transport's own error knows more and comes first."""


def create(options: Any, backend_options: SwitchOptions | None) -> ProcessGroup:
    """Make one rank's process group; PyTorch calls this for init_process_group and new_group.

    options: PyTorch's _DistributedBackendOptions. backend_options: the caller's `pg_options`, default the environment.
    The default group joins the switch here, so that a missing switch is an error at once; other groups do so at their
    first eligible allreduce, since many never have one. Raises DistBackendError if that can't be.
    """
    if backend_options is not None and not isinstance(backend_options, SwitchOptions):
        raise TypeError(f"pg_options of backend switchagg: a SwitchOptions, not {type(backend_options).__name__}")
    group = SwitchProcessGroup(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        backend_options or SwitchOptions.from_environment(),
        name=str(options.group_id),
    )
    if not options.global_ranks_in_group:  # PyTorch's mark of the default group
        group.connect()
    return group


def _join(*args: Any, **kwargs: Any) -> AllreduceGroup:
    from transport.worker.session import SwitchSession  # imports ZeroMQ: only for the switch

    return SwitchSession.join(*args, **kwargs)


def _delegate(*names: str) -> Callable[..., dist.Work]:
    """A method that hands a collective to Gloo, under the first of these names that this PyTorch has."""

    def method(group: "SwitchProcessGroup", *args: Any, **kwargs: Any) -> dist.Work:
        group.reducer.raise_failure()
        return group.delegate(names, args, kwargs)

    method.__name__ = names[0]
    method.__doc__ = f"{names[0]}, done by Gloo."
    return method


def _outside_of_graphs(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that torch.compile calls as it is, in place of tracing into it.

    torch.compile is torch._dynamo, which takes seconds to load: a program that hasn't compiles nothing.
    """
    untraced = _disable_dynamo(method)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (untraced if "torch._dynamo" in sys.modules else method)(*args, **kwargs)

    return call


class SwitchProcessGroup(ProcessGroup):
    """Allreduces through the switch, or by a host method, everything else through Gloo.

    store, rank, size, timeout: as PyTorch hands them to a backend. name: the group's, for errors. join: what joins the
    switch. Constructing it is a collective of the group's ranks.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        options: SwitchOptions,
        *,
        name: str = "",
        join: Callable[..., AllreduceGroup] = _join,
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # stub lacks this constructor
        job = start_name(store, rank, size, timeout.total_seconds()) if size > 1 else ""
        store = PrefixStore(job, store)  # Gloo would take addresses of ranks that died before a restart
        gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        # Gloo's dispatcher: it has every operation under the old and the new names, whatever PyTorch's version. Calling
        # our own base class instead would come back to our overrides.
        self._gloo = ProcessGroup(store, rank, size)
        for group in (self, self._gloo):
            group._set_default_backend(ProcessGroup.BackendType.GLOO)
            for device in DEVICES:
                group._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, gloo)
        gloo._set_sequence_number_for_group()
        self._method = options.name
        most = {"switch": MAX_WORKERS, "gloo": 0}.get(self._method.method, size)
        self._switchable = 1 < size <= most
        self.rendezvous = Rendezvous(store, rank, size, job, options, timeout.total_seconds(), join)
        self._what = f"switchagg group {name} (job {job or 'none'}, rank {rank} of {size})"
        self._warned = False
        self._agreed = False
        self._aim = "the switch" if self._method.is_switch else str(self._method)
        self.reducer = Reducer(self.rendezvous.open, size, self._what, timeout.total_seconds() + WAIT_MARGIN_S)
        self._closed = False
        # At interpreter exit too: our threads that outlive it would abort the process.
        self._close_reducer = weakref.finalize(self, _close_in_own_process, self.reducer, self.rendezvous, os.getpid())

    def connect(self) -> bool:
        """Join the switch, or connect for the host method, unless that has happened; whether allreduces go there. A
        collective of all ranks.

        Raises DistBackendError, with what to do, if there is no switch to join, or the ranks have different
        methods.
        """
        if self.size() > 1 and not self._agreed:
            self.rendezvous.agree()
            self._agreed = True
        if not self._switchable:
            if self.rank() == 0 and not self._warned and self._method.method != "gloo":
                n = self.size()
                reason = "it has one worker" if n == 1 else f"{n} workers are more than a switch's {MAX_WORKERS}"
                logger.warning("%s uses Gloo instead of %s: %s", self._what, self._aim, reason)
            self._warned = True
            return False
        if self._method.is_switch:
            self.rendezvous.options.require_switch()
        return self.reducer.open()

    def getBackendName(self) -> str:
        return "switchagg"

    def allreduce(  # type: ignore[override]  # the stub's three forms in one
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, **kwargs: Any
    ) -> dist.Work:
        """Reduce tensors in place. Takes all of PyTorch's forms: (list, options), (list or one tensor, op, timeout)."""
        opts = kwargs.get("op", opts)
        many = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        op = opts.reduceOp if hasattr(opts, "reduceOp") else opts
        wish = getattr(opts, "timeout", timeout)
        work = self._through_switch(many, ReduceOp.SUM if op is None else op, wish)
        if work is not None:
            return work
        return self.delegate(("allreduce",), (many, _allreduce_options(opts, timeout)), {})

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """Reduce each of these tensors in place; all through the switch or all through Gloo."""
        options = opts or dist.AllreduceCoalescedOptions()
        work = self._through_switch(tensors, options.reduceOp, options.timeout)
        return work or self.delegate(("allreduce_coalesced",), (tensors, options), {})

    def _through_switch(self, tensors: list[torch.Tensor], op: Any, timeout: timedelta | None) -> dist.Work | None:
        """The Work of an eligible allreduce, also of one that can only fail; None for one that is Gloo's."""
        failed = self.reducer.failure is not None
        if not failed and not eligible(tensors, op, self._method.is_switch):
            return None
        if not failed:
            try:
                if not self.connect():
                    return None
            except Exception as error:
                # Not raised here: DDP calls this inside backward and can't go on after an exception from it.
                self.reducer.fail(error)
        # PyTorch passes -1 ms for "none given".
        wait_s = timeout.total_seconds() if timeout is not None and timeout > timedelta(0) else None
        name = "max" if op == ReduceOp.MAX else "sum"
        begin = partial(self.reducer.allreduce, tensors, name, average=op == ReduceOp.AVG, timeout_s=wait_s)
        return recorded(begin, tensors) if profiler._is_profiler_enabled else begin()

    broadcast = _delegate("broadcast")
    reduce = _delegate("reduce")
    allgather = _delegate("allgather")
    allgather_coalesced = _delegate("allgather_coalesced")
    gather = _delegate("gather")
    scatter = _delegate("scatter")
    reduce_scatter = _delegate("reduce_scatter")
    alltoall = _delegate("alltoall")
    send = _delegate("send")
    recv = _delegate("recv")
    recv_anysource = _delegate("recv_anysource")
    barrier = _delegate("barrier")
    monitored_barrier = _delegate("monitored_barrier")
    # Renamed in PyTorch 2.13; either may be asked for.
    all_gather_single = _delegate("all_gather_single", "_allgather_base")
    _allgather_base = all_gather_single
    reduce_scatter_single = _delegate("reduce_scatter_single", "_reduce_scatter_base")
    _reduce_scatter_base = reduce_scatter_single
    all_to_all_single = _delegate("all_to_all_single", "alltoall_base")
    alltoall_base = all_to_all_single
    all_gather_single_coalesced = _delegate("all_gather_single_coalesced", "allgather_into_tensor_coalesced")
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_single_coalesced = _delegate("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced")
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def delegate(self, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dist.Work:
        """Call Gloo's operation of the first of these names that exists."""
        operation = next(getattr(self._gloo, name) for name in names if hasattr(self._gloo, name))
        return cast(dist.Work, operation(*args, **kwargs))

    def shutdown(self) -> None:
        """Leave the switch and end our threads; pending calls fail. destroy_process_group calls this. Idempotent."""
        self._close_reducer()
        if not self._closed:
            self._closed = True
            self._gloo.shutdown()

    def abort(self) -> None:
        """As shutdown: pending calls fail, here and, through the switch, on the other ranks."""
        self.shutdown()


for _name, _method in list(vars(SwitchProcessGroup).items()):
    if callable(_method) and not _name.startswith("__"):
        setattr(SwitchProcessGroup, _name, _outside_of_graphs(_method))


def eligible(tensors: list[torch.Tensor], op: Any, switch: bool = True) -> bool:
    """Whether the switch, or else a host method, can reduce these: the same answer on every rank, since it asks type
    and op alone."""
    name = next((name for one, name in _OPS.items() if op == one), None)
    adds = SWITCH if switch else None
    return (
        bool(tensors)
        and name is not None
        and all(
            tensor.device.type in DEVICES
            and tensor.layout == torch.strided
            and wire_dtype(tensor.dtype, name, adds) is not None
            for tensor in tensors
        )
    )


def _allreduce_options(opts: Any, timeout: timedelta | None) -> dist.AllreduceOptions:
    if isinstance(opts, dist.AllreduceOptions):
        return opts
    options = dist.AllreduceOptions()
    if opts is not None:
        options.reduceOp = opts
    if timeout is not None:
        options.timeout = timeout
    return options


def _close_in_own_process(reducer: Reducer, rendezvous: Rendezvous, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has none of the threads
        rendezvous.cancelled.set()
        reducer.close()
