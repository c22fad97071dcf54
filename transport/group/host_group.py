"""Groups: what every method offers to a program, and the host methods in real time.

A `HostGroup` is a party (a collective's, a parameter server's worker) on a mesh, in a thread; `open_group` makes one
from a method's and a link's name. `transport.group.switch_group.SwitchGroup` offers the same through the switch.
"""

import atexit
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from operator import index
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from switchagg.errors import AggregationFailed, JobError, SwitchaggError
from transport.collectives.auto import AutoParty
from transport.collectives.collective import Kind
from transport.collectives.execution import OPS, SEGMENT_BYTES
from transport.collectives.party import CollectiveParty
from transport.collectives.plan import shard
from transport.collectives.table import fitting
from transport.group.method_name import HOST_METHODS
from transport.links.link import Address
from transport.meshes.loop import CREDIT_BYTES, MeshLoop
from transport.meshes.mesh import Mesh, Party
from transport.meshes.opening import BoundPlace, connect_mesh

if TYPE_CHECKING:
    from transport.ps.config import PsConfig

logger = logging.getLogger(__name__)

Array = NDArray[Any]

CALL_TIMEOUT_S = 1800.0
"""How long a call waits for ranks that live: PyTorch's default for a process group."""

LONG_SEGMENT_BYTES = 4 * SEGMENT_BYTES
"""Most data of a message, by default: a quarter of the cost per byte in Python, and still 2 ms at 1 Gb/s."""

SEGMENT_BYTES_MAX = 1 << 24
"""What every link carries in one message."""

_OPTIONS_OF: dict[str, Callable[[str, bool], bool]] = {
    "segment_bytes": lambda method, servers: not servers,
    "ranks_per_group": lambda method, servers: method == "hierarchical",
    "ps": lambda method, servers: servers,
}
"""Options of methods, and whether a method, with dedicated servers or without, has them."""

_PIPELINES = ("tree", "double_tree")
"""Methods whose members pass a long array on piece by piece: short pieces fill the pipeline sooner."""


class Group(Protocol):
    """One rank's place among the workers of a job. Thread-safe. Every rank makes the same calls.

    Arrays are 1-D and C-contiguous, reduced in place, and the group's until the future is done. Futures resolve in a
    thread of the group's: what is chained to one must be quick. They fail with AggregationFailed, as all later ones do
    then; what can't be is ValueError at once.

    key: calls of all ranks are matched by it; default: the running number of the call. Where `ordered` is False, calls
    with keys may be made in any order; where it is True, those of one priority must be made in the same order on all
    ranks. priority: lower is more urgent; an urgent call overtakes others that are under way.
    """

    @property
    def rank(self) -> int: ...

    @property
    def workers(self) -> int: ...

    @property
    def method(self) -> str: ...

    @property
    def link(self) -> str: ...

    @property
    def ordered(self) -> bool: ...

    @property
    def counters(self) -> Mapping[str, int]: ...

    @property
    def failure(self) -> BaseException | None:
        """Why the group works no more; None while it does."""

    def allreduce(self, array: Array, op: str = "sum", *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """Combine the arrays of all ranks; the array on every rank."""

    def reduce_scatter(
        self, array: Array, op: str = "sum", *, key: int | None = None, priority: int = 0
    ) -> "Future[Array]":
        """Combine; a rank has its own shard then (`own_shard`), to which the future resolves. The rest is undefined."""

    def all_gather(self, array: Array, *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """Every rank has filled its own shard, and has all then."""

    def broadcast(self, array: Array, root: int = 0, *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """The array of rank `root` on every rank."""

    def barrier(self, *, key: int | None = None, priority: int = 0) -> "Future[None]":
        """Done when every rank has called it."""

    def close(self) -> None:
        """Leave; what is pending fails. Again, or in a forked child, it does nothing."""


def own_shard(array: Array, rank: int, workers: int) -> Array:
    """The elements of an array that belong to a rank: rank * E // n … (rank + 1) * E // n - 1."""
    low, high = shard(len(array), rank, workers)
    return array[low:high]


def check_call(array: Array, op: str, root: int, workers: int) -> None:
    """Raise ValueError for what no method can do."""
    if array.ndim != 1 or not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError("an array must be 1-D, C-contiguous and writable")
    if op not in OPS:
        raise ValueError(f"op '{op}': one of {', '.join(OPS)}")
    if array.dtype.hasobject or array.dtype.kind not in "biufc" or not array.dtype.isnative:
        raise ValueError(f"dtype {array.dtype}: numbers of this machine's byte order")
    if not 0 <= root < workers:
        raise ValueError(f"root {root}: 0 to {workers - 1}")


def _whole(key: int | None, priority: int, root: int) -> tuple[int | None, int, int]:
    """The numbers of a call. Raises ValueError for what is none."""
    try:
        return None if key is None else index(key), index(priority), index(root)
    except TypeError:
        raise ValueError(f"key {key}, priority {priority}, root {root}: whole numbers") from None


class GroupParty(Party, Protocol):
    """A Party that makes calls: of a collective, or a worker of a parameter server."""

    @property
    def failure(self) -> AggregationFailed | None: ...

    def events(self) -> Sequence[Any]:
        """What has ended since the last time: (call, failure or None)."""


Submit = Callable[..., Any]
"""submit(kind, array, op, now_ns=, key=, priority=, root=): begins a call of the party, and returns it."""


class HostGroup:
    """A group whose ranks talk to each other, or to servers; see `Group`. Made by `open_group`; `close` it.

    mesh, party: the group's from now on. submit: how the party begins a call. Doesn't survive a fork: in a child every
    method but `close` raises SwitchaggError. details: what is in use below, such as the congestion control.
    """

    ordered = False
    core = "python"  # what carries its messages

    def __init__(
        self,
        mesh: Mesh,
        party: GroupParty,
        submit: Submit,
        *,
        workers: int,
        method: str,
        job: str,
        credit_bytes: int | None = CREDIT_BYTES,
    ) -> None:
        self.rank, self.workers, self.method, self.link, self.job = mesh.member, workers, method, mesh.link, job
        self.details: dict[str, Any] = dict(getattr(mesh, "details", {}))
        self._pid = os.getpid()
        self._mesh, self._party, self._submit = mesh, party, submit
        self._pending: dict[int, tuple[Any, Future[Any], object]] = {}  # by the call's id; in the loop's thread
        self._closed = False
        self._loop = MeshLoop(mesh, party, job=job, on_turn=self._finish, on_end=self._end, credit_bytes=credit_bytes)
        atexit.register(self.close)

    def allreduce(self, array: Array, op: str = "sum", *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """See `Group`."""
        return self._call("allreduce", array, array, op, key, priority)

    def reduce_scatter(
        self, array: Array, op: str = "sum", *, key: int | None = None, priority: int = 0
    ) -> "Future[Array]":
        """See `Group`."""
        return self._call("reduce_scatter", array, own_shard(array, self.rank, self.workers), op, key, priority)

    def all_gather(self, array: Array, *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """See `Group`."""
        return self._call("all_gather", array, array, "sum", key, priority)

    def broadcast(self, array: Array, root: int = 0, *, key: int | None = None, priority: int = 0) -> "Future[Array]":
        """See `Group`."""
        return self._call("broadcast", array, array, "sum", key, priority, root)

    def barrier(self, *, key: int | None = None, priority: int = 0) -> "Future[None]":
        """See `Group`."""
        return self._call("barrier", np.empty(0, np.uint8), None, "sum", key, priority)

    @property
    def counters(self) -> Mapping[str, int]:
        """The mesh's."""
        return self._mesh.counters

    @property
    def failure(self) -> BaseException | None:
        """See `Group`."""
        return self._party.failure or self._loop.failure

    def set_credit(self, credit_bytes: int | None) -> None:
        """How much may lie below the queue that knows priorities, from now on; None for no bound."""
        self._loop.set_credit(credit_bytes)

    def close(self) -> None:
        """See `Group`."""
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._loop.close()

    def __enter__(self) -> "HostGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Private

    def _check(self, kind: str, array: Array, op: str, root: int) -> None:
        """Raise ValueError for what this method can't do."""
        check_call(array, op, root, self.workers)

    def _call(
        self,
        kind: str,
        array: Array,
        result: object,
        op: str,
        key: int | None,
        priority: int,
        root: int = 0,
        **more: Any,
    ) -> "Future[Any]":
        if os.getpid() != self._pid:
            raise SwitchaggError(
                f"job {self.job}, rank {self.rank}: this group belongs to process {self._pid}; a forked child must "
                f"open its own"
            )
        key, priority, root = _whole(key, priority, root)
        self._check(kind, array, op, root)
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # it can't be cancelled: the other ranks count on this one

        def order(now_ns: int) -> None:
            try:
                call = self._submit(kind, array, op, now_ns=now_ns, key=key, priority=priority, root=root, **more)
            except ValueError as error:
                future.set_exception(error)
                return
            except BaseException as error:  # such as no memory: nobody knows what was begun, so it ends the loop
                future.set_exception(error)
                raise
            self._pending[id(call)] = (call, future, result)

        def refuse(failure: BaseException) -> None:
            future.set_exception(failure)

        self._loop.submit(order, refuse)
        return future

    def _finish(self) -> None:
        """Resolve the futures of calls that have ended. In the loop's thread."""
        for call, failure in self._party.events():
            _, future, result = self._pending.pop(id(call))
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)

    def _end(self, failure: BaseException) -> None:
        self._finish()
        pending, self._pending = self._pending, {}
        for _, future, _ in pending.values():
            future.set_exception(failure)


def open_group(
    method: str,
    link: str,
    rank: int,
    addresses: Sequence[Address],
    *,
    job: str,
    servers: Sequence[Address] = (),
    timeout_s: float = 30.0,
    call_timeout_s: float = CALL_TIMEOUT_S,
    credit_bytes: int | None = CREDIT_BYTES,
    options: Mapping[str, Any] | None = None,
    bound: BoundPlace | None = None,
) -> Group:
    """Meet the other ranks, and the servers if there are any, within timeout_s.

    method, link: names as in transport/group/method_name.py. addresses: a (host, port) per rank; servers: of dedicated
    parameter servers. job: the same name on all. call_timeout_s: how long a call may stand still.
    credit_bytes: how much may lie in the queues below the one that knows priorities. bound: our own place, where its
    port had to be known before (`meshes.bind_place`). options, all the same on every rank: `segment_bytes` of a
    message, `ranks_per_group` (hierarchical), `ps` (with servers; a mapping: fields of PsConfig), `switch` (its
    control address) and other arguments of SwitchSession.join, and what the link takes (`meshes.connect_mesh`).

    Raises JobError: who is missing, what doesn't fit (naming both sides), or what this method or link can't.
    """
    told = dict(options or {})
    try:
        if servers and method != "ps":
            raise JobError(f"method {method} has no servers")
        if method == "switch":
            from transport.group.switch_group import SwitchGroup  # pulls in ZeroMQ: only for those who use the switch

            return SwitchGroup.join(
                told.pop("switch", ""), job, rank, len(addresses), link=link or "udp", timeout_s=timeout_s,
                call_timeout_s=call_timeout_s, **told,
            )  # fmt: skip
        if method not in (*HOST_METHODS, "ps", "auto"):
            raise JobError(f"method '{method}' is no group of ours")
        return _open_host_group(
            method, link, rank, addresses, servers, told,
            job=job, timeout_s=timeout_s, call_timeout_s=call_timeout_s, credit_bytes=credit_bytes, bound=bound,
        )  # fmt: skip
    except BaseException:
        if bound is not None:
            bound.close()
        raise


def _open_host_group(
    method: str,
    link: str,
    rank: int,
    addresses: Sequence[Address],
    servers: Sequence[Address],
    told: dict[str, Any],
    *,
    job: str,
    timeout_s: float,
    call_timeout_s: float,
    credit_bytes: int | None,
    bound: BoundPlace | None,
) -> HostGroup:
    workers = len(addresses)
    if not 0 <= rank < workers:
        raise JobError(f"rank {rank} of {workers} workers: 0 to {workers - 1}")
    by_method = {name: told.pop(name) for name in _OPTIONS_OF if name in told}
    for name in by_method:
        if not _OPTIONS_OF[name](method, bool(servers)):
            raise JobError(f"option {name}: method {method} {'with' if servers else 'without'} servers has none")
    option = _number("ranks_per_group", by_method.get("ranks_per_group", 0), 0, workers)
    segment_bytes = SEGMENT_BYTES if method in _PIPELINES else LONG_SEGMENT_BYTES
    segment_bytes = _number("segment_bytes", by_method.get("segment_bytes", segment_bytes), 1, SEGMENT_BYTES_MAX)
    ps = by_method.get("ps", {})
    if servers:
        from transport.ps.group import open_ps_group  # which builds on this file

        config = _ps_config(workers, len(servers), call_timeout_s, ps)
        return open_ps_group(
            link, rank, addresses, servers, config=config, job=job, timeout_s=timeout_s, credit_bytes=credit_bytes,
            options=told, bound=bound,
        )  # fmt: skip
    mesh = connect_mesh(link, rank, addresses, job=job, method=method, timeout_s=timeout_s, options=told, bound=bound)
    try:
        party = CollectiveParty(
            rank, workers, job=job, call_timeout_ns=round(call_timeout_s * 1e9), segment_bytes=segment_bytes
        )
        how: dict[str, Any] = {"workers": workers, "method": method, "job": job, "credit_bytes": credit_bytes}
        if method == "auto":
            auto = AutoParty(party, segment_bytes, logger.info if rank == 0 else lambda line: None)
            return HostGroup(mesh, auto, auto.submit, **how)
        return HostGroup(mesh, party, _submit_by(party, method, workers, option), **how)
    except BaseException:
        mesh.close(0.0)
        raise


def _number(name: str, given: Any, low: int, high: int) -> int:
    if type(given) is not int or not low <= given <= high:
        raise JobError(f"option {name} {given}: {low} to {high}")
    return given


def _ps_config(workers: int, servers: int, call_timeout_s: float, fields: Mapping[str, Any]) -> "PsConfig":
    from transport.ps.config import PsConfig

    try:
        return PsConfig(workers, servers, **{"call_timeout_s": call_timeout_s, **fields})
    except (TypeError, ValueError) as error:
        raise JobError(f"option ps: {error}") from error


def _submit_by(party: CollectiveParty, method: str, workers: int, option: int) -> Submit:
    """Calls of a party by the algorithm that belongs to the method."""
    name = "ps_colocated" if method == "ps" else method

    def submit(kind: Kind, array: Array, op: Any, **how: Any) -> Any:
        algorithm = fitting(kind, name, workers)
        return party.submit(kind, algorithm, array, op, option=option if algorithm == "hierarchical" else 0, **how)

    return submit
