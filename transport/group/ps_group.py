"""PsGroup: a worker's place in a parameter-server job in real time; PsClient: the same for weights kept at the servers.

`open_ps_group` connects a mesh of workers and servers and runs a `PsWorker` on it, or, where no servers are named, a
mesh of workers and a `Colocated` worker and server on each. `PsServerHost` runs a `PsServer` in a process of its own
(`switchagg server`).
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from switchagg.calls.call_request import CallRequest, with_integers
from switchagg.description import COMBINING, KINDS
from switchagg.errors import AggregationFailed, JobError
from transport.contracts.group_contract import Array
from transport.group.host_group import HostGroup
from transport.group.staging import SERVERS, Staged, as_carried, checked, stage
from transport.links.link import Address
from transport.meshes.mesh import Mesh
from transport.meshes.mesh_loop import CREDIT_BYTES, MeshLoop
from transport.meshes.mesh_opening import BoundPlace, connect_mesh
from transport.ps.coded import CodedPushes
from transport.ps.colocated import Colocated
from transport.ps.config import ASYNCHRONOUS, PsConfig
from transport.ps.ps_calls import OPS, op_of
from transport.ps.ps_messages import DTYPES
from transport.ps.ps_server import PsServer, adopting
from transport.ps.ps_worker import PsWorker

Kind = TypeVar("Kind", bound="PsGroup")

METHOD = "ps"
LINGER_S = 2.0
"""How long `close` waits for the last messages to leave."""


@dataclass(frozen=True)
class PsOptions:
    """How a member of a job is opened.

    timeout_s: within which all must have met. credit_bytes, token: as in GroupOptions. link: what the link takes, see
    `connect_mesh`; the same on all members. log: told a line per event by servers.
    """

    timeout_s: float = 30.0
    credit_bytes: int | None = CREDIT_BYTES
    token: str = field(default="", repr=False)
    link: Mapping[str, Any] = field(default_factory=dict)
    log: Callable[[str], None] = lambda line: None


class PsGroup(HostGroup):
    """A worker of a parameter-server job: a `transport.contracts.group_contract.Group`. Made by `open_ps_group`.

    config: what all members agreed on. `staging` says how each type travels. op "avg" of allreduce and reduce_scatter
    divides by the number of workers that are in the sum: with backup workers, or after the job has shrunk, that isn't
    `workers`.
    """

    def __init__(
        self, mesh: Mesh, config: PsConfig, *, job: str = "", names: Sequence[str] = (), options: PsOptions
    ) -> None:
        """Takes over the mesh. Without members for servers, every rank has one."""
        largest = config.slice_elements * max(dtype.itemsize for dtype in DTYPES)
        if largest > mesh.message_bytes_max:
            raise JobError(f"slices of {largest} bytes: link {mesh.link} carries {mesh.message_bytes_max}")
        self.config = config
        alone = mesh.members > config.workers
        self._linger_s = LINGER_S if alone else config.call_timeout_s
        self._member = (PsWorker if alone else Colocated)(mesh.member, config, job=job, names=names)
        self._log = options.log
        self._left = threading.Event()
        super().__init__(
            mesh,
            self._member,
            self._member.submit,
            workers=config.workers,
            method=METHOD,
            job=job,
            credit_bytes=options.credit_bytes,
        )

    @property
    def counters(self) -> Mapping[str, int]:
        """The mesh's, and what this member counted."""
        return {**self._mesh.counters, **self._member.counters}

    @property
    def live_workers(self) -> int:
        """How many workers are left, as far as known ("shrink")."""
        return self._member.count

    def finished_without(self, sizes: Sequence[int]) -> bool:
        """Whether the others have finished our next calls without a key, means of so many values each ("backup"): the
        results are here."""
        behind: Future[int] = Future()
        self._loop.submit(lambda now_ns: behind.set_result(self._member.behind), lambda reason: behind.set_result(0))
        return behind.result() >= len(sizes)

    def close(self) -> None:
        """Leave the job; what is pending fails. A server on this rank serves on while others need it."""
        if not self._closed and os.getpid() == self._pid:
            self._loop.submit(lambda now_ns: self._member.leave(), lambda reason: self._left.set())
            self._left.wait(self._linger_s)
            super().close()

    def _staged(self, request: CallRequest, array: Array) -> tuple[CallRequest, Staged]:
        if request.kind in KINDS:
            request = checked(request, array, self.workers, tuple(OPS))
            combines = request.kind in COMBINING
            staged = stage(array, request.op, SERVERS, "a parameter server") if combines else as_carried(array)
            if request.kind == "reduce_scatter" and len(staged.wire) != len(
                array
            ):  # a complex number's two floats would fall into two shards
                request = request._replace(kind="allreduce")
        else:
            request, staged = with_integers(request), Staged(array, request.op, None)
        op_of(request.kind, staged.wire, staged.op, request.root, None, self.workers)
        return request, staged

    def _abandon(self, reason: str) -> None:
        self._loop.submit(lambda now_ns: self._member.leave(), lambda failure: None)

    def _finish(self) -> None:
        super()._finish()
        lines, self._member.notices[:] = list(self._member.notices), []
        for line in lines:
            self._log(line)
        for server in self._member.lost_servers():
            self._mesh.give_up(server)
        if self._member.has_left:
            self._left.set()

    def _end(self, failure: BaseException) -> None:
        self._left.set()
        super()._end(failure)


class PsClient(PsGroup):
    """A worker of a job whose servers keep the weights. Made by `open_ps_client`. Keys are the tensors' numbers."""

    @property
    def pushes(self) -> CodedPushes | None:
        """How gradients are coded, and what they left over; None without a codec."""
        return self._member.pushes

    def init(self, key: int, array: Array, *, root: int = 0) -> "Future[Array]":
        """All workers call it once per tensor: the root's values become the servers' weights, and go to all."""
        return self.submit(CallRequest("init", "sum", key, 0, root), array)

    def push_pull(self, key: int, gradient: Array, weights: Array, *, priority: int = 0) -> "Future[Array]":
        """The servers apply the gradient, when the mode says so, and the weights come back; one at a time per key."""
        op_of("push_pull", gradient, "sum", 0, weights, self.workers)
        return self.submit(CallRequest("push_pull", "sum", key, priority, target=weights), gradient)

    def pull(self, key: int, weights: Array, *, priority: int = 0) -> "Future[Array]":
        """The weights as they are now."""
        return self.submit(CallRequest("pull", "sum", key, priority), weights)


class PsServerHost:
    """A server in real time, in a thread of its own, until all workers have left or the job has failed.

    adopt: take the configuration of the first worker.
    """

    def __init__(
        self,
        mesh: Mesh,
        config: PsConfig,
        *,
        adopt: bool = False,
        job: str = "",
        names: Sequence[str] = (),
        options: PsOptions,
    ) -> None:
        self._mesh = mesh
        self._server = PsServer(mesh.member, config, adopt=adopt, names=names)
        self._log = options.log
        self._over = threading.Event()
        self._loop = MeshLoop(
            mesh,
            self._server,
            job=job,
            on_iteration=self._turned,
            on_end=self._ended,
            credit_bytes=options.credit_bytes,
        )

    @property
    def failure(self) -> str | None:
        """Why the job failed, or None."""
        if self._server.failure is not None:
            return self._server.failure
        broken = self._loop.failure
        return None if broken is None or self._over.is_set() else repr(broken)

    @property
    def config(self) -> PsConfig:
        """The configuration of the job, once a worker has sent it."""
        return self._server.config

    @property
    def counters(self) -> Mapping[str, int]:
        return {**self._mesh.counters, **self._server.counters}

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the job; False after the timeout."""
        return self._over.wait(timeout_s)

    def stop(self, reason: str) -> None:
        """End the job now: all workers get the reason, and a moment to leave."""
        self._loop.submit(lambda now_ns: self._server.stop(reason), lambda failure: None)

    def close(self) -> None:
        """End the thread and the mesh; again does nothing."""
        self._loop.close(LINGER_S)

    def _turned(self) -> None:
        notices, self._server.notices = self._server.notices, []
        for line in notices:
            self._log(line)
        if self._server.may_end:
            self._over.set()

    def _ended(self, reason: BaseException) -> None:
        if not self._over.is_set() and not isinstance(reason, AggregationFailed):
            self._log(f"the server failed: {reason!r}")
        self._over.set()


class _Opening(NamedTuple):
    """Settings that all members of one process share. config None: the first worker's."""

    link: str
    workers: Sequence[Address]
    servers: Sequence[Address]
    config: PsConfig | None
    job: str
    options: PsOptions

    @property
    def names(self) -> list[str]:
        return [f"{host}:{port}" for host, port in (*self.workers, *self.servers)]

    @property
    def sized(self) -> PsConfig:
        """The configuration, its numbers of members those of the addresses. Raises JobError."""
        workers, servers = len(self.workers), len(self.servers) or len(self.workers)
        if self.config is not None and self.config.moves and not self.servers:
            raise JobError("on_server_loss move: needs servers of their own; one beside a rank dies with its rank")
        try:
            if self.config is None:
                return adopting(workers, servers)
            return replace(self.config, workers=workers, servers=servers)
        except ValueError as error:
            raise JobError(str(error)) from error

    def connect(self, member: int, bound: BoundPlace | None) -> Mesh:
        # dedicated servers take the codec from the workers' first message, and compare it
        codec = "" if self.servers or self.config is None else self.config.codec
        return connect_mesh(
            self.link,
            member,
            [*self.workers, *self.servers],
            job=self.job,
            method=", ".join(filter(None, (METHOD, codec))),
            timeout_s=self.options.timeout_s,
            token=self.options.token,
            options=self.options.link,
            bound=bound,
        )

    def serve(self, server: int, bound: BoundPlace | None) -> PsServerHost:
        if not 0 <= server < len(self.servers):
            raise JobError(f"server {server} of {len(self.servers)}: 0 to {len(self.servers) - 1}")
        config = self.sized
        mesh = self.connect(len(self.workers) + server, bound)
        adopt = self.config is None
        return PsServerHost(mesh, config, adopt=adopt, job=self.job, names=self.names, options=self.options)

    def work(self, kind: type[Kind], rank: int, bound: BoundPlace | None) -> Kind:
        if not 0 <= rank < len(self.workers):
            raise JobError(f"rank {rank} of {len(self.workers)} workers: 0 to {len(self.workers) - 1}")
        config = self.sized
        mesh = self.connect(rank, bound)
        try:
            return kind(mesh, config, job=self.job, names=self.names, options=self.options)
        except BaseException:
            mesh.close(0.0)
            raise


def open_ps_group(
    link: str,
    rank: int,
    workers: Sequence[Address],
    servers: Sequence[Address] = (),
    *,
    config: PsConfig | None = None,
    job: str = "ps",
    options: PsOptions = PsOptions(),  # frozen
    bound: BoundPlace | None = None,
) -> PsGroup:
    """Join a parameter-server job as worker `rank`, within options.timeout_s.

    workers, servers: a (host, port) each; without servers, every rank has one beside its worker. config: its numbers of
    workers and servers follow from the addresses; None: "bsp". bound: our own port, where it had to be known before.
    Raises JobError: which members are missing, or what doesn't fit, naming both sides.
    """
    opening = _Opening(link, workers, servers, config or PsConfig(max(len(workers), 1)), job, options)
    return opening.work(PsGroup, rank, bound)


def open_ps_client(
    link: str,
    rank: int,
    workers: Sequence[Address],
    servers: Sequence[Address] = (),
    *,
    config: PsConfig,
    job: str = "ps",
    options: PsOptions = PsOptions(),  # frozen
    bound: BoundPlace | None = None,
) -> PsClient:
    """As `open_ps_group`, for servers that keep weights; in modes `bsp` and `backup` without a codec."""
    if config.moves:
        raise JobError("on_server_loss move: weights at servers don't move to others; leave it out")
    if config.codec and not config.keeps_weights:
        raise JobError(f"codec {config.codec}: pushes are coded in modes {', '.join(ASYNCHRONOUS)}, not {config.mode}")
    return _Opening(link, workers, servers, config, job, options).work(PsClient, rank, bound)


def open_ps_server(
    link: str,
    server: int,
    workers: Sequence[Address],
    servers: Sequence[Address] = (),
    *,
    config: PsConfig | None = None,
    job: str = "ps",
    options: PsOptions = PsOptions(),  # frozen
    bound: BoundPlace | None = None,
) -> PsServerHost:
    """Run server number `server` of a job in a thread. config None: the first worker's. Raises JobError."""
    return _Opening(link, workers, servers, config, job, options).serve(server, bound)
