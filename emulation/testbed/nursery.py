"""A nursery: a process that has loaded Python modules once, and forks itself for each process that is wanted.

Loading PyTorch takes seconds of processor time, which a test of many kills would mostly spend. From the fork on a
process is as any other: arguments, environment, files, a network namespace, an end of its own. No module of ours reads
the environment when it is imported. Whatever the nursery has started ends with it, and it ends with the thread that
made it.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, NoReturn

import msgspec

from emulation.scenario.errors import RunFailed
from emulation.testbed import netns
from emulation.testbed.resource import Resource

MESSAGE_BYTES = 1 << 16
LOOK_S = 0.02
END_S = 60.0
"""How long a process that was killed may take to end."""


class ForkOrder(msgspec.Struct):
    """A process to start. entry: "module:function", called with `argument`. inside: whose network it joins; 0: ours."""

    entry: str
    argument: str
    environment: dict[str, str]
    inside: int


class Load(msgspec.Struct, tag=True):
    """Modules to load before anything else is done. Nothing answers."""

    modules: list[str]


class Reap(msgspec.Struct, tag=True):
    """Asks for the exit status of a process, if it has ended."""

    pid: int


class NurseryProcess:
    """A process that the nursery has forked, with those of Popen's members that its users need.

    Its id stays its own until `poll` has given its status: signals can't reach another.
    """

    def __init__(self, nursery: Nursery, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None
        self._nursery = nursery

    def poll(self) -> int | None:
        """Exit status, -N if signal N ended it, None while it lives."""
        if self.returncode is None:
            self.returncode = self._nursery.status(self.pid)
            if self.returncode is not None:
                self._nursery.processes.remove(self)
        return self.returncode

    def wait(self, timeout_s: float = END_S) -> int:
        """Raises TimeoutExpired."""
        end_s = time.monotonic() + timeout_s
        while (status := self.poll()) is None:
            if time.monotonic() > end_s:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s)
            time.sleep(LOOK_S)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens to a process that has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kills it, and waits for its end."""
        self.kill()
        self.wait()
        self.close_pipes()

    def close_pipes(self) -> None:
        for pipe in (self.stdin, self.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Nursery(Resource):
    """Loads `modules` in a process of its own; a context manager, whose end kills all that it has started.

    modules: "module", or "module:function" to call that, too, before anything is forked. One that isn't installed is
    left to those that need it. Not for use from several threads.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._channel, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # one thread of computing: threads don't survive a fork, and processes on few cores would only compete
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        words = [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(far_end.fileno()), *modules]
        with far_end:
            self._process = subprocess.Popen(
                words, pass_fds=[far_end.fileno()], env=environment, stdin=subprocess.DEVNULL, process_group=0
            )
        self.pid = self._process.pid
        self.processes: list[NurseryProcess] = []
        """All that it has started whose end nobody has seen yet."""

    def load(self, modules: Sequence[str]) -> None:
        """Loads more modules, before anything is forked from now on; doesn't wait for that."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send(msgspec.json.encode(Load(list(modules))))

    def close(self) -> None:
        """Kills all that it has started, whose ends it then waits for, and ends it. Idempotent."""
        if not self.processes:
            self._process.kill()  # it may be loading modules for a while
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # its id is its own: the nursery alone may ask for its status
            process.close_pipes()
        self.processes = []
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._process.kill()
        self._process.wait()
        self._channel.close()

    def start(
        self, entry: str, argument: str, environment: Mapping[str, str], log: IO[bytes], inside: int = 0
    ) -> NurseryProcess:
        """A new process that calls `entry`, "module:function", and ends with what that returns as its exit status.

        environment: added to ours. log: its stderr. inside: a process whose network namespace it joins; 0: none.
        """
        order = ForkOrder(entry, argument, dict(environment), inside)
        (child_in, stdin), (stdout, child_out) = os.pipe(), os.pipe()
        try:
            pid = self._ask(order, [child_in, child_out, log.fileno()], int)
        finally:
            os.close(child_in)
            os.close(child_out)
        process = NurseryProcess(self, pid, os.fdopen(stdin, "wb", 0), os.fdopen(stdout, "rb", 0))
        self.processes.append(process)
        return process

    def status(self, pid: int) -> int | None:
        """Exit status of a process that it has started, None while that lives."""
        status: int | None = self._ask(Reap(pid), [], int | None)
        return status

    def _ask(self, request: msgspec.Struct, descriptors: list[int], kind: Any) -> Any:
        """The answer to a request. Raises RunFailed if the nursery has ended."""
        answer = b""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._channel, [msgspec.json.encode(request)], descriptors)
            answer = self._channel.recv(MESSAGE_BYTES)
        if not answer:
            raise RunFailed(f"the process that starts others has ended: status {self._process.wait(END_S)}")
        return msgspec.json.decode(answer, type=kind)


# ---- the nursery's side


def _serve(channel: socket.socket) -> NoReturn:
    """Forks for each order that comes. A new process doesn't return either."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 3)
        if not message:
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.wait()
            os._exit(0)
        if not descriptors:
            request = msgspec.json.decode(message, type=Load | Reap)
            if isinstance(request, Load):
                _load(request.modules)
            else:
                channel.send(msgspec.json.encode(_status(request.pid)))
            continue
        nursery = os.getpid()
        if not (pid := os.fork()):
            channel.close()
            netns.die_with_parent(nursery)
            _begin(msgspec.json.decode(message, type=ForkOrder), list(array.array("i", descriptors)))
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(msgspec.json.encode(pid))


def _load(modules: Sequence[str]) -> None:
    for words in modules:
        name, _, preparation = words.partition(":")
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        if preparation:
            getattr(module, preparation)()
    assert len(os.listdir("/proc/self/task")) == 1, "threads don't survive a fork"
    gc.freeze()  # collecting garbage would copy all the pages that are shared


def _status(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _begin(order: ForkOrder, descriptors: list[int]) -> NoReturn:
    """The whole life of a process that was ordered."""
    os.setpgid(0, 0)  # Ctrl-C reaches who started us alone, who ends us
    if order.inside:
        netns.enter_network(order.inside)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, max(descriptors) + 1)
    os.environ.update(order.environment)
    gc.enable()
    module, _, function = order.entry.partition(":")
    sys.exit(getattr(sys.modules[module], function)(order.argument))


if __name__ == "__main__":
    netns.die_with_parent(int(sys.argv[1]))
    gc.disable()  # modules are no garbage, and looking for it would take a fifth of the time
    _load(sys.argv[3:])
    _serve(socket.socket(fileno=int(sys.argv[2])))
