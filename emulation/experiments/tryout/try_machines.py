"""A trial on machines of one's own: the same command on each, which meet at the address of node 0.

Node 0 starts ranks on the other nodes and hears them over a connection each; it alone decides on methods and steps, and
has the result. Nobody proves who he is, as with torchrun: it is for a network that you trust.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from emulation.experiments.tryout.try_messages import ScriptPlace
from emulation.experiments.tryout.try_site import (
    END_S,
    Report,
    Site,
    end_ranks,
    free_port,
    is_switch,
    method_variables,
    rank_log,
    start_here,
    torchrun_variables,
)
from emulation.scenario.errors import RunFailed, ScenarioError
from emulation.testbed.children import POLL_S, Child, CommandFailed
from switchagg.errors import JobError
from transport.links.addresses import resolve_host

PORT = 29_500
KEEPALIVE = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 4}
"""A machine that is gone, without a word, is missed after a minute."""
AGAIN_S = 0.5


@dataclass(frozen=True)
class Machines:
    """What torchrun calls so. local: ranks of each node. switch: control address; "": node 0 starts one."""

    nodes: int
    node: int
    local: int
    host: str
    port: int
    switch: str = ""


class NodeArrived(msgspec.Struct, tag=True):
    """A node is there, and starts the ranks that it is told to."""

    node: int
    local: int
    arguments: list[str]


class RankArrived(msgspec.Struct, tag=True):
    """The first line of a rank's connection."""

    number: int


class RankEnded(msgspec.Struct, tag=True):
    """A rank's process has ended. last_line: of its output."""

    number: int
    status: int
    last_line: str


class StartRank(msgspec.Struct, tag=True):
    number: int
    place: ScriptPlace


class EndRank(msgspec.Struct, tag=True):
    number: int


class TrialDone(msgspec.Struct, tag=True):
    """Nothing more is to be done. failure: why it ended early; "" if it has a result."""

    failure: str


class Line:
    """A connection that takes a line of JSON for each message. Raises OSError if the other end has gone."""

    def __init__(self, connection: socket.socket, kinds: Any) -> None:
        self.connection = connection
        self._decoder = msgspec.json.Decoder(kinds)
        self._rest = b""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def send(self, message: msgspec.Struct) -> None:
        self.connection.sendall(msgspec.json.encode(message) + b"\n")

    def read(self, wait_s: float = 0.0) -> list[Any]:
        """Messages that are there after so many seconds at most. Raises ConnectionError at the end."""
        if not select.select([self.connection], [], [], wait_s)[0]:
            return []
        data = self.connection.recv(1 << 16)
        if not data:
            raise ConnectionError("the other end has closed")
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._decoder.decode(line) for line in lines]


class RemoteProcess:
    """A rank on another node, with those of Popen's members that a `Child` needs."""

    def __init__(self, connection: socket.socket, poll: Callable[[], int | None], kill: Callable[[], None]) -> None:
        self.pid = os.getpid()  # for those who ask whether the machine is busy
        self.stdin, self.stdout = connection.makefile("wb", 0), connection.makefile("rb", 0)
        self.kill, self.poll = kill, poll
        connection.close()  # its files keep it

    def wait(self, timeout: float = END_S) -> int:
        end_s = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("a rank", timeout)
            time.sleep(0.05)
        return status


class RemoteRank(Child[Report]):
    """A rank on another node: its output is there."""

    def __init__(self, name: str, process: Any, last_line: Callable[[], str], log: IO[bytes]) -> None:
        super().__init__(name, process, Report | CommandFailed, log)
        self.last_line = last_line  # type: ignore[method-assign]


@dataclass
class _Node:
    line: Line
    ended: dict[int, RankEnded] = field(default_factory=dict)


class MachinesSite(Site):
    """The site of node 0. rate_bps: of the links, as its user says; 0: unknown. Raises RunFailed."""

    name = "machines"

    def __init__(self, machines: Machines, arguments: Sequence[str], rate_bps: int, timeout_s: float) -> None:
        super().__init__(machines.nodes * machines.local, rate_bps)
        self._machines, self._arguments, self._timeout_s = machines, list(arguments), timeout_s
        self._nodes: dict[int, _Node] = {}
        self._remote: list[RemoteRank] = []
        self._number = 0

    def __enter__(self) -> Self:
        self._listener = _listening(self._machines)
        try:
            self._meet()
        except BaseException as error:
            self.__exit__(None, error)
            raise
        return self

    def __exit__(self, _kind: object = None, error: BaseException | None = None, _traceback: object = None, /) -> None:
        failure = "" if error is None else str(error) or type(error).__name__
        for node in self._nodes.values():
            with contextlib.suppress(OSError):
                node.line.send(TrialDone(failure))
            node.line.connection.close()
        super().__exit__()
        self._listener.close()

    def start(self, place: ScriptPlace, logs: Path) -> list[Child[Report]]:
        machines, address, method = self._machines, resolve_host(self._machines.host), place.method
        port, ranks, waiting = free_port(address), list[Any](), dict[int, tuple[int, ScriptPlace]]()
        switch = (is_switch(method) and machines.switch) or self._switch_at(address, method)
        for rank in range(self.workers):
            placed = msgspec.structs.replace(place, rank=rank)
            variables = torchrun_variables(placed, address, port, machines.local) | method_variables(method, switch)
            placed = msgspec.structs.replace(placed, environment=variables)
            if (node := rank // machines.local) == 0:
                ranks.append(start_here(placed, rank_log(logs, placed)))
                self._ranks.append(ranks[-1])
                continue
            self._number += 1
            waiting[self._number] = node, placed
            self._tell(node, StartRank(self._number, placed))
        arrived = self._arrivals(waiting)
        for number, (node, placed) in waiting.items():
            remote = self._remote_rank(number, node, placed, arrived[number], logs)
            ranks.append(remote)
            self._remote.append(remote)
        return ranks

    def end(self, ranks: Sequence[Child[Report]]) -> None:
        super().end([child for child in ranks if child in self._ranks])
        for child in self._remote:
            if child in ranks:
                child.process.kill()
        self._remote = [child for child in self._remote if child not in ranks]

    def check(self) -> None:
        for number, node in self._nodes.items():
            try:
                node.ended |= {message.number: message for message in node.line.read()}
            except OSError as error:
                raise RunFailed(f"node {number} has left: its terminal says why ({error})") from error

    def _meet(self) -> None:
        """Waits for all other nodes."""
        wanted = set(range(1, self._machines.nodes))
        for arrived, line in self._accepted("nodes", lambda: wanted - set(self._nodes)):
            if not isinstance(arrived, NodeArrived):
                continue
            if arrived.node not in wanted - set(self._nodes):
                raise RunFailed(f"node {arrived.node} came twice, or is none of {self._machines.nodes} nodes")
            self._nodes[arrived.node] = _Node(line)
            if (arrived.local, arrived.arguments) != (self._machines.local, self._arguments):
                raise RunFailed(
                    f"node {arrived.node} was started with other words than node 0: {arrived.local} ranks, "
                    f"arguments {' '.join(arrived.arguments) or 'none'}"
                )

    def _arrivals(self, waiting: dict[int, tuple[int, ScriptPlace]]) -> dict[int, socket.socket]:
        arrived: dict[int, socket.socket] = {}
        for message, line in self._accepted("connections of ranks", lambda: set(waiting) - set(arrived)):
            if isinstance(message, RankArrived) and message.number in waiting:
                arrived[message.number] = line.connection
        return arrived

    def _accepted(self, what: str, missing: Callable[[], set[int]]) -> Iterator[tuple[Any, Line]]:
        """What new connections say first, until none is missing. Raises RunFailed after the time-out."""
        end_s = time.monotonic() + self._timeout_s
        while names := missing():
            self.check()
            if time.monotonic() > end_s:
                place = f"{self._machines.host}:{self._machines.port}"
                raise RunFailed(
                    f"{what} {', '.join(map(str, sorted(names)))} did not come to {place} within {self._timeout_s:g} s"
                )
            if not select.select([self._listener], [], [], POLL_S)[0]:
                continue
            connection, _ = self._listener.accept()
            line = Line(connection, NodeArrived | RankArrived | RankEnded)
            with contextlib.suppress(OSError, msgspec.MsgspecError):  # whoever else tries this port
                if messages := line.read(AGAIN_S):
                    yield messages[0], line

    def _tell(self, node: int, message: msgspec.Struct) -> None:
        with contextlib.suppress(OSError):  # the next check says so
            self._nodes[node].line.send(message)

    def _remote_rank(
        self, number: int, node: int, place: ScriptPlace, connection: socket.socket, logs: Path
    ) -> RemoteRank:
        def poll() -> int | None:
            self.check()
            ended = self._nodes[node].ended.get(number)
            return None if ended is None else ended.status

        def last_line() -> str:
            return (
                self._nodes[node].ended[number].last_line if number in self._nodes[node].ended else "it wrote nothing"
            )

        process = RemoteProcess(connection, poll, lambda: self._tell(node, EndRank(number)))
        name = f"{place.phase}: rank {place.rank} (node {node})"
        return RemoteRank(name, process, last_line, rank_log(logs, place))


def serve_node(
    machines: Machines,
    program: str,
    arguments: Sequence[str],
    folder: Path,
    timeout_s: float,
    say: Callable[[str], None],
) -> None:
    """A node other than 0: starts the ranks that node 0 asks for, until it is done. Raises RunFailed."""
    line = _connected(machines, timeout_s, StartRank | EndRank | TrialDone)
    ranks: dict[int, Child[Report]] = {}
    try:
        line.send(NodeArrived(machines.node, machines.local, list(arguments)))
        say(f"node {machines.node}: waits for node 0 to begin")
        while True:
            for order in line.read(POLL_S):
                if isinstance(order, TrialDone):
                    if order.failure:
                        raise RunFailed(f"node 0 has ended: {order.failure}")
                    return
                if isinstance(order, StartRank):
                    place = msgspec.structs.replace(order.place, program=program)
                    ranks[order.number] = _started(machines, order.number, place, folder)
                    say(f"node {machines.node}: {place.phase}: rank {place.rank} starts")
                elif order.number in ranks:
                    end_ranks([ranks.pop(order.number)], END_S)
            for number, child in list(ranks.items()):
                if (status := child.process.poll()) is not None:
                    line.send(RankEnded(number, status, child.last_line()))
                    end_ranks([ranks.pop(number)])
    except OSError as error:
        raise RunFailed(f"node 0 at {machines.host} has ended: its terminal says why ({error})") from error
    finally:
        end_ranks(list(ranks.values()))
        line.connection.close()


def _started(machines: Machines, number: int, place: ScriptPlace, folder: Path) -> Child[Report]:
    """A rank whose pipes are a connection to node 0."""
    if place.trace:
        folder.mkdir(parents=True, exist_ok=True)
        place = msgspec.structs.replace(place, trace=str((folder / "recording").absolute()))
    connection = socket.create_connection((machines.host, machines.port), timeout=AGAIN_S * 20)
    with connection:
        connection.settimeout(None)
        connection.sendall(msgspec.json.encode(RankArrived(number)) + b"\n")
        return start_here(place, rank_log(folder / "logs", place), connection.fileno())


def _listening(machines: Machines) -> socket.socket:
    try:
        return socket.create_server((machines.host, machines.port), backlog=machines.nodes * machines.local + 8)
    except OSError as error:
        where = f"--rendezvous {machines.host}:{machines.port}"
        raise RunFailed(f"{where}: {error.strerror}; it must be an address of node 0, and a free port") from error


def _connected(machines: Machines, timeout_s: float, kinds: Any) -> Line:
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            connection = socket.create_connection((machines.host, machines.port), timeout=AGAIN_S * 4)
            connection.settimeout(None)
            return Line(connection, kinds)
        except OSError as error:
            if time.monotonic() > end_s:
                where = f"node 0 at {machines.host}:{machines.port}"
                raise RunFailed(f"{where} was not there within {timeout_s:g} s: {error}") from error
            time.sleep(AGAIN_S)


def machines_of(nodes: int, node: int, local: int, rendezvous: str, switch: str) -> Machines:
    """Raises ScenarioError for what isn't consistent."""
    host, _, port = rendezvous.partition(":")
    if not host or (port and not port.isdigit()):
        raise ScenarioError(f"--rendezvous {rendezvous or '(none)'}: HOST:PORT of node 0, like 10.0.0.1:{PORT}")
    if not 0 <= node < nodes:
        raise ScenarioError(f"--node-rank {node}: 0 to {nodes - 1}")
    try:
        resolve_host(host)
    except JobError as error:
        raise ScenarioError(f"--rendezvous {rendezvous}: {error}") from error
    return Machines(nodes, node, local, host, int(port or PORT), switch)
