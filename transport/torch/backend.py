"""The process group behind `init_process_group("switchagg")`; the package's docstring says which path a call takes."""

import logging
import math
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import profiler
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroup, Store

from switchagg.codecs.compression import Compression
from switchagg.description import COMBINING, CallSignature, Kind
from switchagg.job import MAX_CHILDREN
from transport.contracts.group_contract import Group
from transport.group.method_name import MethodName
from transport.torch.alike import METHOD_VARIABLE, compare_with_first, raise_unlike
from transport.torch.calls.contiguous import ContiguousCopies
from transport.torch.calls.reducer import Reducer
from transport.torch.calls.tensor_layout import (
    LINEAR,
    GroupCall,
    RankContext,
    ReduceOperation,
    array_dtype,
    compared,
    comparison,
    refuse_shared,
    refuse_type,
    signature_of,
    size_bytes,
)
from transport.torch.calls.work import SwitchWork, TimeoutWork
from transport.torch.collectives import GLOO, Collectives, Forward, TrafficCounts, leave_out_of_graphs
from transport.torch.elastic.membership_rounds import NEW, GroupGeneration, MembershipRounds
from transport.torch.gloo import gloo_devices, make_gloo
from transport.torch.rendezvous import Rendezvous, SwitchOptions, start_name

logger = logging.getLogger(__name__)

DEVICES = ("cpu", "cuda")

FORM_S = 10.0
"""How long the ranks of an elastic group's generation may take to meet: they are all there. Else one has died."""


def create(options: Any, backend_options: SwitchOptions | None) -> ProcessGroup:
    """Make one rank's process group; PyTorch calls this for init_process_group and new_group.

    options: PyTorch's _DistributedBackendOptions. backend_options: the caller's `pg_options`, default the environment.
    The default group joins the switch here, so that a missing switch is an error at once; other groups join at their
    first collective, since many never have one. Raises DistBackendError if the switch can't be joined.
    """
    if backend_options is not None and not isinstance(backend_options, SwitchOptions):
        raise TypeError(f"pg_options of backend switchagg: a SwitchOptions, not {type(backend_options).__name__}")
    switch_options = backend_options or SwitchOptions.from_environment()
    is_default = not options.global_ranks_in_group  # PyTorch's mark of the default group
    waits = getattr(options, "enable_reconfigure", False)  # since PyTorch 2.14
    elastic = is_default and bool(switch_options.elastic) and not waits
    if elastic:
        switch_options.require_elastic()
    rank, size = options.group_rank, options.group_size
    if is_default and not waits:
        compare_with_first(options.store, rank, size, switch_options.alike())
    group = SwitchProcessGroup(
        *(options.store, rank, size, options.timeout, switch_options),
        name=str(options.group_id),
        forms=not (waits or elastic),
    )
    group.is_reconfigurable = waits
    if elastic:
        group.enter(rank, size)
    elif is_default and not waits:
        group.connect()
    return group


def _join(*args: Any, **kwargs: Any) -> Group:
    from transport.group.switch_group import SwitchGroup  # imports ZeroMQ: only for the switch

    return SwitchGroup.join(*args, **kwargs)


class SwitchProcessGroup(Collectives):
    """Collectives through the switch, or by a host method; Gloo does the others. traffic: calls and bytes by path.

    store, rank, size, timeout: as PyTorch hands them to a backend. name: the group's, for errors. join: the function
    that joins the switch. Constructing it is a collective of the group's ranks; unless `forms` is false: then all calls
    fail until `reconfigure` or `enter`.
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
        join: Callable[..., Group] = _join,
        forms: bool = True,
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # stub lacks this constructor
        self._store, self._name, self._options, self._join = store, name, options, join
        self._set_default_backend(ProcessGroup.BackendType.GLOO)
        for device in DEVICES:  # `_get_backend` knows which Gloo: C++ would keep the first one, connected, to its end
            self._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, None)
        self._group_name = self._group_desc = ""
        self._method = options.name
        spec = self._method.spec
        self._exact = spec is not None and spec.exact
        self._warned = False
        self._warns_of_sum = self._method.is_switch and bool(options.backups or options.close_after_ns)
        self._aim = "the switch" if self._method.is_switch else str(self._method)
        self.traffic = TrafficCounts()
        self._handle = uuid.uuid4().hex
        self._uuids: set[int] = set()
        self._is_later = False
        self.is_reconfigurable = False
        """It was made with enable_reconfigure=True."""
        self.membership: MembershipRounds | None = None
        """Of an elastic group: who its ranks are."""
        if forms:
            self._form(store, rank, size, timeout.total_seconds(), timeout)
            return
        self._form(PrefixStore(f"alone/{self._handle}", store), 0, 1, timeout.total_seconds(), timeout)
        self._rank, self._size = rank, size
        self.reducer.fail(dist.DistBackendError("it has no other ranks yet: call reconfigure() first"))

    def _form(self, store: Store, rank: int, size: int, limit_s: float, timeout: timedelta) -> None:
        """Begin a generation of the group: a collective of its ranks. limit_s: how long they may take to meet."""
        options, limit = self._options, timedelta(seconds=limit_s)
        job = start_name(store, rank, size, limit_s)
        store = PrefixStore(job, store)  # Gloo would take addresses of ranks that died before a restart
        # They are kept, or the next group would make them anew.
        self._devices = gloo_devices(options.network_address) if size > 1 else []
        gloo: Any = make_gloo(store, rank, size, limit, self._devices)
        gloo._set_default_timeout(timeout)
        gloo._set_sequence_number_for_group()
        # Gloo's dispatcher: it has every operation under the old and the new names, whatever PyTorch's version. Calling
        # our own base class instead would come back to our overrides.
        self._gloo: Any = ProcessGroup(store, rank, size)
        self._gloo._set_default_backend(ProcessGroup.BackendType.GLOO)
        for device in DEVICES:
            self._gloo._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, gloo)
        self._backend: Any = gloo
        self._met_within_s = limit_s
        self._begin(store, rank, size, job)

    def _begin(self, store: Store, rank: int, size: int, job: str) -> None:
        """Have a rendezvous and a reducer of this generation."""
        options, limit_s = self._options, self._met_within_s
        self._rank, self._size = rank, size
        most = {"switch": MAX_CHILDREN, "gloo": size if self._exact else 0}.get(self._method.method, size)
        self._switchable = (0 if self._exact else 1) < size <= most
        is_later = len(self._uuids) > 1 or (self.generation is not None and self.generation.generation > 0)
        self.rendezvous = rendezvous = Rendezvous(
            store, rank, size, job, options, limit_s, self._join, is_later=is_later
        )
        self._what = f"switchagg group {self._name} (job {job or 'none'}, rank {rank} of {size})"
        self._agreed = False
        # Gloo's options have the time-out that was set last (`_set_pg_timeout`); they don't hold Gloo's group.
        self._limits = self._backend.options
        self._limit_s = now_s = partial(_limit_s, self._limits)
        # The ranks of a later generation know that the others are coming.
        self._meeting_s = meeting_s = partial(_meeting_s, now_s, limit_s if self._is_later else math.inf)
        self._is_later = True
        self.reducer = Reducer(lambda lane: replace(rendezvous, timeout_s=meeting_s()).open(lane), self._what, now_s)
        self._ended = False
        # At interpreter exit too: our threads that outlive it would abort the process.
        self._close_reducer = weakref.finalize(self, _close_unless_forked, self.reducer, rendezvous, os.getpid())

    def getRank(self) -> int:
        """This rank's number in the group's present generation; PyTorch's `rank()` asks for it."""
        return self._rank

    def getSize(self) -> int:
        """How many ranks that generation has; PyTorch's `size()` asks for it."""
        return self._size

    rank, size = getRank, getSize

    # PyTorch's own would keep these with the backends that it has registered.

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, desc: str) -> None:
        self._group_desc = desc

    def getGroupDesc(self) -> str:
        return self._group_desc

    def _get_backend(self, device: torch.device) -> Any:
        """The present generation's Gloo, which has the group's time-out; with enable_reconfigure=True the group itself,
        which outlives it."""
        return self if self.is_reconfigurable else self._backend

    get_backend = _get_backend  # since PyTorch 2.14

    def connect(self) -> bool:
        """Join the switch, or connect for the host method, unless that has happened; True if collectives go there.

        All ranks must call it. Raises DistBackendError, with what to do, if there is no switch to join, or the ranks
        have different methods.
        """
        if self.reducer.is_open:
            return True
        if self.size() > 1 and not self._agreed:
            replace(self.rendezvous, timeout_s=self._meeting_s()).agree()
            self._agreed = True
        if not self._switchable:
            if self._exact:
                raise dist.DistBackendError(
                    f"{self._what}: {self.size()} workers are more than a switch's {MAX_CHILDREN}, and codec exact "
                    f"lets no sum go another way: {METHOD_VARIABLE}=ring~exact"
                )
            if self.rank() == 0 and not self._warned and self._method.method != "gloo":
                n = self.size()
                reason = "it has one worker" if n == 1 else f"{n} workers are more than a switch's {MAX_CHILDREN}"
                logger.warning("%s uses Gloo instead of %s: %s", self._what, self._aim, reason)
            self._warned = True
            return False
        if self._method.is_switch:
            self.rendezvous.options.require_switch()
        return self.reducer.open()

    def getBackendName(self) -> str:
        return "switchagg"

    def run(
        self,
        kind: Kind,
        tensors: list[torch.Tensor],
        build: Callable[[RankContext], list[GroupCall] | None],
        options: Any,
        forward: Forward,
        *,
        op: ReduceOperation = ReduceOperation(),  # noqa: B008  # immutable
        results: list[torch.Tensor] | None = None,
    ) -> dist.Work:
        """The Work of a collective: by the group's calls that `build` gives, or else by Gloo, through `forward`.

        A collective that can only fail gets a Work too: DDP calls this inside backward, and can't handle an exception.
        """
        results = tensors if results is None else results
        self._warn_of_partial_sum(kind, op, tensors)
        parts: list[GroupCall] = []
        if self.reducer.failure is None:
            try:
                joined = self.connect()
            except Exception as error:
                self.reducer.fail(error)
            else:
                able = joined and self._carries(kind, op, tensors)
                able = able and all(t.device.type in DEVICES and t.layout == torch.strided for t in tensors)
                calls = build(self.reducer.ranks()) if able else None
                parts = compared(calls, self.reducer.ranks()) if calls else []
                if calls is None:
                    if self._exact and _sums_floats(kind, op, tensors):
                        raise TypeError(
                            f"{kind} ({op.name}) of {tensors[0].dtype}: codec exact sums dense tensors of float32, "
                            "float64, bfloat16, float16 in memory, or on CUDA devices; give such a tensor"
                        )
                    if results and results[0].layout == torch.strided:
                        refuse_type(kind, op, results[0].dtype)
                    seen = (
                        signature_of(kind, op, tensors[0].dtype, sum(t.numel() for t in tensors)) if tensors else None
                    )
                    return self.by_gloo(seen, forward, results, size_bytes(tensors))
                for tensor, _ in [place for part in parts for place in part.takes]:
                    refuse_shared(tensor)
                if fault := self._unnamed(parts):
                    return self.reducer.refused(fault, parts, results)
        size = sum(
            part.signature.elements * part.signature.dtype.itemsize for part in parts if part.request.kind != "barrier"
        )
        self.traffic.count(kind, self._method.method, size)
        # PyTorch passes -1 ms for "none given".
        limit_s = options.timeout.total_seconds() if options.timeout > timedelta(0) else None
        begin = partial(self.reducer.start, parts, results, limit_s)
        if not profiler._is_profiler_enabled:
            return begin()
        inputs = [tensor for part in parts for tensor, _ in part.gives]
        return _profiled(begin, kind, inputs or tensors)

    def _carries(self, kind: Kind, op: ReduceOperation, tensors: list[torch.Tensor]) -> bool:
        """Whether the group has such calls. Of exact sums no method leaves any to Gloo."""
        method = self._method.method
        if method not in ("ps", "gloo") or (kind == "allreduce" and method == "ps"):
            return True
        return self._exact and _sums_floats(kind, op, tensors)

    @property
    def method(self) -> MethodName:
        """The method that sums, with its link and codec."""
        return self._method

    @property
    def compression(self) -> Compression | None:
        """The coding of float sums, with its memory; None without a codec, and before `connect`."""
        return self.reducer.compression

    def _unnamed(self, parts: list[GroupCall]) -> Exception | None:
        """The error of a sum that doesn't name its parameters, where the codec keeps residuals by name."""
        compression = self.compression
        if compression is None or not compression.remembers:
            return None
        for part in parts:
            request, dtype, values = part.request, array_dtype(part.dtype), part.elements
            if request.kind != "allreduce" or request.op == "max" or request.tensors is not None:
                continue
            if compression.takes(dtype, values):
                return dist.DistBackendError(
                    f"codec {compression.spec} remembers what each parameter lost, and this sum of {values} values "
                    "doesn't say of which it is: gradients of DDP do after transport.torch.compress(ddp), other sums "
                    "by group.allreduce_tensors(flat, tensors); float64 and integers are never coded"
                )
        return None

    def _warn_of_partial_sum(self, kind: Kind, op: ReduceOperation, tensors: list[torch.Tensor]) -> None:
        """Warn once of a plain sum in a backward pass, probably DDP's own, where sums may lack some ranks."""
        if not (self._switchable and self._warns_of_sum) or kind != "allreduce" or op.name != "sum":
            return
        if torch._C._current_graph_task_id() < 0 or not any(tensor.is_floating_point() for tensor in tensors):
            return
        self._warns_of_sum = False
        options = self.rendezvous.options
        logger.warning(
            "%s: a backward pass asks for plain sums, which may lack some ranks (backups %d, close_after_ns %d); DDP "
            "without a hook divides them by all: register transport.torch.switchagg_hook, or use compress",
            *(self._what, options.backups, options.close_after_ns),
        )

    def by_gloo(
        self, seen: CallSignature | None, forward: Forward, results: list[torch.Tensor], size_bytes: int
    ) -> dist.Work:
        """The Work of a collective that Gloo carries out, which fails as soon as the ranks turn out to differ.

        seen: the call that ranks compare, once the group is joined, except in callbacks, where calls have no order.
        """
        work = forward()
        if seen is not None:
            self.traffic.count(seen.kind, GLOO, size_bytes)
        if self._size == 1:  # nothing to wait for; Gloo's reduce-scatter would have no Future
            work.wait()
            return SwitchWork.ended(self._what, tensors=results)
        if seen is None or not self.reducer.compares or self.reducer.in_callback:
            return work
        return self.reducer.start([comparison(seen)], results, None, work)

    def delegate(self, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dist.Work:
        """Call Gloo's operation of the first of these names that exists, on contiguous tensors."""
        operation = next(getattr(self._gloo, name) for name in names if hasattr(self._gloo, name))
        tensors = ContiguousCopies()
        writes = names[0] != "send"  # all others write their first argument
        arguments = [tensors.of(argument, writes and not place) for place, argument in enumerate(args)]
        return tensors.done_by(operation(*arguments, **kwargs))

    def limited(self, work: dist.Work) -> dist.Work:
        """See `Collectives`. Gloo's connections keep the limit with which they were made."""
        limit_s = self._limit_s()
        return work if limit_s == self._met_within_s else TimeoutWork(work, timedelta(seconds=limit_s))

    def split_group(self, new_ranks: Any, *args: Any, **kwargs: Any) -> ProcessGroup:
        """Raises NotImplementedError: PyTorch's own would split Gloo alone."""
        raise NotImplementedError(f"backend switchagg doesn't split groups: use dist.new_group({list(new_ranks)})")

    def merge_remote_group(self, *args: Any, **kwargs: Any) -> ProcessGroup:
        """Raises NotImplementedError, as `split_group`."""
        raise NotImplementedError(
            "backend switchagg doesn't merge groups: use dist.new_group in one world of all ranks"
        )

    def shutdown(self) -> None:
        """Leave the switch and end our threads; pending calls fail. It is idempotent; destroy_process_group calls
        it."""
        if self.membership is not None:
            self._end_membership()
        self._close_reducer()
        if not self._ended:
            self._ended = True
            if self._backend is not None:
                self._backend.shutdown()

    def abort(self) -> None:
        """Fail all pending calls and all later ones, here and, through the switch, on the other ranks. It waits for
        nothing, and any thread may call it; `reconfigure` makes the group usable again, and it is idempotent."""
        self.rendezvous.cancelled.set()
        self.reducer.fail(dist.DistBackendError(f"rank {self._rank} of {self._size} aborted the group"))

    def errored(self) -> dist.DistBackendError | None:
        """Why the group no longer works: a failed call, `abort`, or a dead rank that no call has met yet; else None."""
        if (failure := self.reducer.errored) is None:
            return None
        error = dist.DistBackendError(f"{self._what}: {failure}")
        error.__cause__ = failure
        return error

    def get_error(self) -> Any:
        """What `errored` says, as PyTorch's `ErrorType`. An aborted group has SUCCESS, as Gloo's has."""
        kinds = torch._C._distributed_c10d.ErrorType
        failure = self.errored()
        if failure is None or self.rendezvous.cancelled.is_set():
            return kinds.SUCCESS
        return kinds.TIMEOUT if "timed out" in str(failure) else kinds.COMM_ERROR

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the limit of later calls that have none of their own."""
        if self._backend is None:  # the last generation did not come about; this is of the next
            self._limits._timeout = timeout
        else:
            self._backend._set_default_timeout(timeout)

    @property
    def supports_reconfigure(self) -> bool:
        """Whether `reconfigure` can be called: PyTorch 2.14 asks for it."""
        return True

    def get_reconfigure_handle(self) -> str:
        """What the others must know of this rank to form a group with it; it stays the same."""
        return f"switchagg:{self._handle}"

    def reconfigure(self, opts: Any) -> dist.Work:
        """Leave the present generation, whose pending calls fail, and form a new one of the ranks with these handles.

        opts: a PyTorch `ReconfigureOptions`, or anything with its fields. uuid: a number that no earlier generation of
        these ranks had. handles: in a list by rank; in a set in any order, the same on all ranks. timeout: how long
        meeting may take; not positive: as the group's. All of them must call it. The Work returned is done.

        Raises RuntimeError for a uuid that was used before, ValueError where this rank's handle is missing or handles
        aren't a backend's of this kind, DistBackendError where the ranks don't meet: the group then stays aborted, and
        can be reconfigured again.
        """
        handles = sorted(opts.handles) if isinstance(opts.handles, set | frozenset) else list(opts.handles)
        handle = self.get_reconfigure_handle()
        if odd := [text for text in handles if not text.startswith("switchagg:")]:
            raise ValueError(f"{self._what}: {odd[0]!r} is no handle of backend switchagg: get_reconfigure_handle()")
        if handles.count(handle) != 1 or len(set(handles)) != len(handles):
            raise ValueError(f"{self._what}: reconfigure needs the handle of this rank, {handle!r}, and each only once")
        if opts.uuid in self._uuids:
            raise RuntimeError(f"{self._what}: reconfigure uuid {opts.uuid} was already used; choose another one")
        self._uuids.add(opts.uuid)
        limit_s = opts.timeout.total_seconds() if opts.timeout > timedelta(0) else self._limit_s()
        store = PrefixStore(f"reconfigure/{opts.uuid}", self._store)
        self.form_again(store, handles.index(handle), len(handles), limit_s)
        return SwitchWork.ended(self._what)

    def enter(self, rank: int, size: int) -> None:
        """Make the group elastic, and wait for its first generation, of `size` ranks in the order of `rank`; or, where
        that has begun long ago, for the next one, with this rank at any place. Raises DistBackendError."""
        if self._method.is_switch:  # what takes its time is done before the others wait
            import transport.group.switch_group
        else:
            import transport.group.group_opening  # noqa: F401
        self.membership = members = MembershipRounds(
            PrefixStore("elastic", self._store), self._options.elastic, partial(raise_unlike, self._store)
        )
        self._end_membership = weakref.finalize(self, _end_unless_forked, members, os.getpid())
        self._take_part(members.begin(rank, size, self._limit_s()), NEW)

    @property
    def generation(self) -> GroupGeneration | None:
        """The present generation of an elastic group; None for other groups."""
        return None if self.membership is None else self.membership.decision

    def form_next(self, step: int) -> GroupGeneration:
        """Leave this generation of an elastic group, and form the next with all who are alive, which must do so too.
        step: of this rank's state. Raises DistBackendError if there are too few ranks for the group's time-out."""
        assert self.membership is not None
        suspects = getattr(self.reducer.errored, "missing", ())
        self.abort()
        return self._take_part(self.membership.next(step, self._limit_s(), suspects), step)

    def _take_part(self, generation: GroupGeneration, step: int) -> GroupGeneration:
        """Form this generation; or a later one, if ranks of it die before it stands."""
        assert self.membership is not None
        deadline = time.monotonic() + self._limit_s()
        while True:
            store = PrefixStore(f"generation/{generation.generation}", self._store)
            rank, size = generation.members.index(self.membership.identity), len(generation.members)
            limit_s = min(FORM_S, self._limit_s())
            try:
                self.membership.meet(limit_s)
                self.membership.on_death = lambda: self.rendezvous.cancelled.set()  # who waits for it waits in vain
                self.form_again(store, rank, size, limit_s)
                return generation
            except Exception as error:
                if time.monotonic() > deadline:
                    raise
                logger.warning("elastic: generation %d did not begin: %s", generation.generation, error)
            finally:
                self.membership.on_death = None
            suspects = getattr(self.reducer.errored, "missing", ())
            generation = self.membership.next(step, max(0.0, deadline - time.monotonic()), suspects)

    def form_again(self, store: Store, rank: int, size: int, limit_s: float) -> None:
        """Leave the present generation and form another with the ranks that have this store. Raises what forming
        raises; the group then stays aborted."""
        timeout = timedelta(seconds=self._limit_s())
        self.abort()
        close, gloos = self._close_reducer, [self._gloo, self._backend]
        self._gloo = self._backend = None
        # The end of Gloo waits for its calls, which may wait for ranks that haven't come here yet; it closes the
        # connections, and so ends calls of others.
        threading.Thread(target=gloos.clear, name="switchagg-gloo-end", daemon=True).start()
        try:
            self._form(store, rank, size, limit_s, timeout)
            self.connect()
        except Exception as error:
            self.reducer.fail(error)
            raise
        finally:
            close()


leave_out_of_graphs(SwitchProcessGroup)


def _sums_floats(kind: Kind, op: ReduceOperation, tensors: list[torch.Tensor]) -> bool:
    floats = any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
    return kind in COMBINING and op.name in LINEAR and floats


def _limit_s(gloo: Any) -> float:
    """The time limit of calls without one. gloo: options of the group's Gloo."""
    limit: timedelta = gloo._timeout
    return limit.total_seconds()


def _profiled(begin: Callable[..., SwitchWork], kind: str, tensors: list[torch.Tensor]) -> SwitchWork:
    """Start a call inside an event `switchagg:all_reduce` or the like of the profiler, with the shapes that this rank
    gives: asynchronous, as those of PyTorch's own back ends are; it ends when the results are there.

    begin: called with `ended`, a Future that must be done when the call is.
    """
    name = f"switchagg:{'all_reduce' if kind == 'allreduce' else kind}"
    event = torch._C._autograd._record_function_with_args_enter(name, *tensors)
    ended: torch.futures.Future[Any] = torch.futures.Future()
    # Record as record_function does, of a call that returns a Future; that context manager takes no tensors.
    torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(event, ended)
    return begin(ended=ended)


def _meeting_s(now_s: Callable[[], float], most_s: float) -> float:
    return min(now_s(), most_s)


def _end_unless_forked(membership: MembershipRounds, pid: int) -> None:
    if os.getpid() == pid:
        membership.close()


def _close_unless_forked(reducer: Reducer, rendezvous: Rendezvous, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has none of the threads
        rendezvous.cancelled.set()
        reducer.close()
