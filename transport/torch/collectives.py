"""The collectives of PyTorch's process group in all the forms of its API.

A method here names the group's calls (`tensor_layout`) that it consists of, and Gloo's call that may take its place.
"""

import functools
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions
from torch._compile import _disable_dynamo
from torch.distributed.distributed_c10d import BarrierOptions, BroadcastOptions, ProcessGroup, ReduceOp

from switchagg.codecs.array_codec import Tensors
from switchagg.description import ROOTED, CallSignature, Kind
from transport.torch.calls import tensor_layout
from transport.torch.calls.reducer import Reducer
from transport.torch.calls.tensor_layout import (
    LINEAR,
    GroupCall,
    RankContext,
    ReduceOperation,
    op_of,
    real,
    signature_of,
    size_bytes,
)

Forward = Callable[[], dist.Work]
"""Hands a call to Gloo."""

GLOO = "gloo"
"""The path of calls that Gloo carries out."""


class TrafficCounts:
    """Counts of calls and bytes by kind and path. It is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, dict[str, int]]] = {}

    def count(self, kind: str, path: str, size_bytes: int) -> None:
        """Count a call. kind: as in switchagg.description, or "send" and the like. path: a method's name, or "gloo"."""
        with self._lock:
            count = self._counts.setdefault(kind, {}).setdefault(path, {"calls": 0, "bytes": 0})
            count["calls"] += 1
            count["bytes"] += size_bytes

    def counts(self) -> dict[str, dict[str, dict[str, int]]]:
        """kind -> path -> "calls" and "bytes" (of whole arrays: what a reduce-scatter takes, an all-gather gives)."""
        with self._lock:
            return {kind: {path: dict(count) for path, count in paths.items()} for kind, paths in self._counts.items()}


def _delegate(name: str) -> Callable[..., dist.Work]:
    """A method that hands a call to Gloo, uncompared: of sizes that differ Gloo ends a process, or fills a part."""

    def method(group: "Collectives", *args: Any, **kwargs: Any) -> dist.Work:
        group.reducer.raise_failure()
        group.traffic.count(name, GLOO, size_bytes(_tensors(args[:1])))
        work = group.delegate((name,), args, kwargs)
        return work if work is None else group.limited(work)

    method.__name__ = name
    method.__doc__ = f"{name}, done by Gloo; not compared: ranks that differ wait for the time-out."
    return method


def _elsewhere(kind: Kind, *names: str) -> Callable[..., dist.Work]:
    """A method for a collective that is Gloo's, under the first of these names that this PyTorch has."""

    def method(group: "Collectives", outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> dist.Work:
        group.reducer.raise_failure()
        tensors = _tensors(outputs if kind == "scatter" else inputs)
        values = [*args, *kwargs.values()]
        root = next((value.rootRank for value in values if hasattr(value, "rootRank")), None)
        if root is None:
            root = next((value for value in values if isinstance(value, int)), 0) if kind in ROOTED else 0
        even = len(tensors) == 1 and not any(isinstance(value, list) and value for value in values)
        seen = signature_of(kind, ReduceOperation(), tensors[0].dtype, tensors[0].numel() if even else 0, root)
        forward = partial(group.delegate, names, (outputs, inputs, *args), kwargs)
        return group.by_gloo(seen, forward, _tensors(outputs), size_bytes(tensors))

    method.__name__ = names[0]
    method.__doc__ = f"{names[0]}, done by Gloo, and compared among the ranks."
    return method


class Collectives(ProcessGroup):
    """The collectives of a process group; the subclass carries them out. traffic: calls and bytes by path."""

    reducer: Reducer
    traffic: TrafficCounts

    @abstractmethod
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
        """The Work of a collective: by the group's calls that `build` gives, or else by Gloo, through `forward`."""

    @abstractmethod
    def by_gloo(
        self, seen: CallSignature | None, forward: Forward, results: list[torch.Tensor], size_bytes: int
    ) -> dist.Work:
        """The Work of a collective that Gloo carries out. seen: what the ranks compare."""

    @abstractmethod
    def delegate(self, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dist.Work:
        """Call Gloo's operation of the first of these names that exists."""

    @abstractmethod
    def limited(self, work: dist.Work) -> dist.Work:
        """The Work of a message that Gloo sends or receives, with the limit that was set last for the group."""

    def allreduce(  # type: ignore[override]  # the stub's three forms in one
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, **kwargs: Any
    ) -> dist.Work:
        """Reduce tensors in place. Takes all of PyTorch's forms: (list, options), (list or one tensor, op, timeout)."""
        options = _options(dist.AllreduceOptions, opts, timeout, reduceOp=kwargs.get("op", opts))
        return self._allreduce("allreduce", _tensors(tensors), options)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """Reduce each of these tensors in place; all by the group or all through Gloo."""
        return self._allreduce("allreduce_coalesced", tensors, opts or dist.AllreduceCoalescedOptions())

    def allreduce_tensors(self, flat: torch.Tensor, tensors: Tensors, op: Any = ReduceOp.SUM) -> dist.Work:
        """Reduce `flat`, 1-D and of floats, in place, which consists of these parameters, one behind the other: a codec
        with error feedback keeps residuals by their names. op: SUM or AVG."""
        options = dist.AllreduceOptions()
        options.reduceOp = op
        forward = partial(self.delegate, ("allreduce",), ([flat], options), {})

        def build(ranks: RankContext) -> list[GroupCall] | None:
            calls = tensor_layout.allreduce([flat], op_of(op), ranks)
            return calls and [part._replace(request=part.request._replace(tensors=tensors)) for part in calls]

        return self.run("allreduce", [flat], build, options, forward, op=op_of(op))

    def _allreduce(self, name: str, tensors: list[torch.Tensor], options: Any) -> dist.Work:
        op = op_of(options.reduceOp)
        floats = [real(tensor) for tensor in tensors] if op.name in LINEAR else tensors
        forward = partial(self.delegate, (name,), (tensors, options), {})
        build = partial(tensor_layout.allreduce, floats, op)
        return self.run("allreduce", floats, build, options, forward, op=op, results=tensors)

    def broadcast(  # type: ignore[override]
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, **kwargs: Any
    ) -> dist.Work:
        """Give each of these tensors the root's values; PyTorch's forms: options, or (root, timeout)."""
        options = _options(BroadcastOptions, opts, timeout, rootRank=kwargs.get("root", opts))
        many, root = _tensors(tensors), options.rootRank
        forward = partial(self.delegate, ("broadcast",), (many, options), {})
        return self.run(
            "broadcast",
            many,
            lambda ranks: [tensor_layout.broadcast(tensor, root, ranks) for tensor in many],
            options,
            forward,
        )

    def reduce(  # type: ignore[override]
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None, **kwargs: Any
    ) -> dist.Work:
        """Reduce each of these tensors at the root; PyTorch's forms: options, or (root, op, timeout)."""
        options = _options(dist.ReduceOptions, opts, timeout, rootRank=kwargs.get("root", opts), reduceOp=op)
        how, many, root = op_of(options.reduceOp), _tensors(tensors), options.rootRank
        floats = [real(tensor) for tensor in many] if how.name in LINEAR else many
        forward = partial(self.delegate, ("reduce",), (many, options), {})

        def build(ranks: RankContext) -> list[GroupCall] | None:
            return _all([tensor_layout.reduce(tensor, how, root, ranks) for tensor in floats])

        return self.run("reduce", floats, build, options, forward, op=how, results=many)

    def allgather(  # type: ignore[override]
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None, **kwargs: Any
    ) -> dist.Work:
        """Gather every rank's tensor on all ranks; outputs may differ in size. It takes lists, or a tensor."""
        options = _options(AllgatherOptions, opts, timeout)
        single = isinstance(inputs, torch.Tensor)
        lists, shards = ([outputs], [inputs]) if single else (outputs, inputs)
        forward = partial(self.delegate, ("allgather",), (lists, shards, options), {})
        return self._all_gather(lists, shards, options, forward)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """As allgather, of several tensors; outputs: a list for each rank."""
        options = _options(AllgatherOptions, opts, None)
        forward = partial(self.delegate, ("allgather_coalesced",), (outputs, inputs, options), {})
        return self._all_gather([list(shards) for shards in zip(*outputs, strict=True)], inputs, options, forward)

    def all_gather_single(self, output: torch.Tensor, shard: torch.Tensor, opts: Any = None) -> dist.Work:
        """Gather every rank's tensor on all ranks, into a single tensor."""
        return self.all_gather_single_coalesced([output], [shard], opts, ("all_gather_single", "_allgather_base"))

    def all_gather_single_coalesced(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        opts: Any = None,
        names: tuple[str, str] = ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    ) -> dist.Work:
        """Gather every rank's tensors on all ranks, each into a single tensor. names: Gloo's."""
        options = _options(AllgatherOptions, opts, None)
        arguments = (outputs, inputs) if names[0].endswith("coalesced") else (outputs[0], inputs[0])
        forward = partial(self.delegate, names, (*arguments, options), {})
        return self._all_gather([[output] for output in outputs], inputs, options, forward)

    def _all_gather(
        self, lists: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any, forward: Forward
    ) -> dist.Work:
        def build(ranks: RankContext) -> list[GroupCall] | None:
            return _all(
                [tensor_layout.all_gather(all_of, tensor, ranks) for all_of, tensor in zip(lists, inputs, strict=True)]
            )

        return self.run("all_gather", [*_tensors(lists), *inputs], build, options, forward, results=_tensors(lists))

    def reduce_scatter(  # type: ignore[override]
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None, **kwargs: Any
    ) -> dist.Work:
        """Reduce; each rank gets the shard of its number, of any size. PyTorch calls it with lists, or a tensor."""
        options = _options(dist.ReduceScatterOptions, opts, timeout, reduceOp=kwargs.get("op", opts))
        single = isinstance(outputs, torch.Tensor)
        takers, lists = ([outputs], [inputs]) if single else (outputs, inputs)
        forward = partial(self.delegate, ("reduce_scatter",), (takers, lists, options), {})
        return self._reduce_scatter(takers, lists, options, forward)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> dist.Work:
        """Reduce one tensor; each rank gets the shard of its number."""
        names = ("reduce_scatter_single", "_reduce_scatter_base")
        return self.reduce_scatter_single_coalesced([output], [tensor], opts, names)

    def reduce_scatter_single_coalesced(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        opts: Any = None,
        names: tuple[str, str] = ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
    ) -> dist.Work:
        """Reduce each of these tensors; each rank gets the shards of its number. names: Gloo's."""
        options = _options(dist.ReduceScatterOptions, opts, None)
        arguments = (outputs, inputs) if names[0].endswith("coalesced") else (outputs[0], inputs[0])
        forward = partial(self.delegate, names, (*arguments, options), {})
        return self._reduce_scatter(outputs, [[tensor] for tensor in inputs], options, forward)

    def _reduce_scatter(
        self, outputs: list[torch.Tensor], lists: list[list[torch.Tensor]], options: Any, forward: Forward
    ) -> dist.Work:
        op = op_of(options.reduceOp)
        as_floats = real if op.name in LINEAR else torch.Tensor.detach
        takers, inputs = (
            [as_floats(tensor) for tensor in outputs],
            [[as_floats(tensor.resolve_conj()) for tensor in many] for many in lists],
        )

        def build(ranks: RankContext) -> list[GroupCall] | None:
            both = zip(takers, inputs, strict=True)
            return _all([tensor_layout.reduce_scatter(taker, many, op, ranks) for taker, many in both])

        tensors = [*_tensors(inputs), *takers]
        return self.run("reduce_scatter", tensors, build, options, forward, op=op, results=outputs)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:  # type: ignore[override]
        """A Work that is done when every rank has called this."""
        options = _options(BarrierOptions, opts, timeout)
        forward = partial(self.delegate, ("barrier",), (options,), {})
        return self.run("barrier", [], lambda ranks: [tensor_layout.barrier()], options, forward)

    gather = _elsewhere("gather", "gather")
    scatter = _elsewhere("scatter", "scatter")
    alltoall = _elsewhere("all_to_all", "alltoall")
    send = _delegate("send")
    recv = _delegate("recv")
    recv_anysource = _delegate("recv_anysource")
    monitored_barrier = _delegate("monitored_barrier")
    # Renamed in PyTorch 2.13; either may be asked for.
    all_to_all_single = _elsewhere("all_to_all", "all_to_all_single", "alltoall_base")
    alltoall_base = all_to_all_single
    _allgather_base = all_gather_single  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]


def _options(kind: Any, opts: Any, timeout: timedelta | None, **fields: Any) -> Any:
    """PyTorch's options of a call, which may have come as such, or field by field."""
    if isinstance(opts, kind):
        return opts
    options = kind()
    for name, value in fields.items():
        if value is not None:
            setattr(options, name, value)
    if timeout is not None:
        options.timeout = timeout
    return options


def _tensors(nested: Any) -> list[torch.Tensor]:
    """A tensor, a list of them, or a list of lists, as one list; of anything else none."""
    if isinstance(nested, torch.Tensor):
        return [nested]
    return [tensor for inner in nested for tensor in _tensors(inner)] if isinstance(nested, list | tuple) else []


def _all(lists: list[list[GroupCall] | None]) -> list[GroupCall] | None:
    """The parts of several; None if one is None."""
    parts: list[GroupCall] = []
    for some in lists:
        if some is None:
            return None
        parts += some
    return parts


def _outside_of_graphs(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that torch.compile calls as it is, in place of tracing into it.

    torch.compile is torch._dynamo, which takes seconds to load: a program that hasn't compiles nothing.
    """
    untraced = _disable_dynamo(method)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (untraced if "torch._dynamo" in sys.modules else method)(*args, **kwargs)

    return call


def leave_out_of_graphs(group: type) -> None:
    """torch.compile shall call the methods of PyTorch's that this class has as they are."""
    for name, method in list(vars(group).items()):
        if callable(method) and hasattr(ProcessGroup, name) and not name.startswith("__"):
            setattr(group, name, _outside_of_graphs(method))


leave_out_of_graphs(Collectives)
