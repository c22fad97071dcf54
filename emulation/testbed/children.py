"""Our child processes: commands go in on stdin, reports come out on stdout, a line of JSON each, typed at both ends.

A parent has a `Child` for each and waits with `gather`; a child's main is one call of `serve`. Messages are structs
derived from `ChildCommand` and `ChildReport`; what libraries print to stdout is no report and is ignored.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, Generic, NoReturn, TypeVar

import msgspec

from emulation.scenario.errors import RunFailed
from emulation.testbed.patience import Patience, Pids

POLL_S = 0.25  # how late a dead child is noticed while others report
KNOWN_S = 1.0  # how late the end of a child may be known after its peers have noticed; of one on another machine, too
MESSAGE_LENGTH_MAX = 400


class ChildCommand(msgspec.Struct, tag_field="order", tag=str.lower):
    """A command to a child."""


class ChildReport(msgspec.Struct, tag_field="event", tag=str.lower):
    """A report of a child."""


class Ready(ChildReport):
    """It takes commands from now on."""


class Done(ChildReport):
    """A command that has no other answer was executed."""


class CommandFailed(ChildReport):
    """A command can't be executed; the child ends."""

    message: str


REPORT_START = b'{"event":'  # as msgspec writes a report: its tag comes first

ReportT = TypeVar("ReportT")
Config = TypeVar("Config")


class ChildFailed(RunFailed):
    """A child reported a failure, ended early, or reported nothing for too long."""


# ---- the parent's side


def killed_by(status: int) -> str | None:
    """The signal that ended a process of this status, or None."""
    if status >= 0:
        return None
    return signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"


class Child(Generic[ReportT]):
    """A child process. name: for messages. reports: the union of all its reports. log: where its stderr goes."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], reports: Any, log: IO[bytes]) -> None:
        self.name, self.process, self.log = name, process, log
        self.ended = False  # its end of the pipe is closed, and all its reports have been read
        self._decoder = msgspec.json.Decoder(reports)
        self._rest = b""

    def send(self, order: ChildCommand) -> None:
        """Sends it a command. If it has ended, the wait for its report raises, with its last output."""
        assert self.process.stdin is not None, "a child that takes orders has a pipe as stdin"
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(msgspec.json.encode(order) + b"\n")
            self.process.stdin.flush()

    @property
    def descriptor(self) -> int:
        """To wait at for reports."""
        assert self.process.stdout is not None, "a child's stdout must be a pipe"
        return self.process.stdout.fileno()

    def read(self) -> list[ReportT]:
        """Reports that are complete by now; sets `ended`. Waits for something to come, unless the pipe is non-blocking.

        Raises ChildFailed for a report that is none of `reports`.
        """
        try:
            data = os.read(self.descriptor, 1 << 20)
        except BlockingIOError:
            return []
        self.ended = not data
        return self.take(data)

    def take(self, data: bytes) -> list[ReportT]:
        """Reports in what was read."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            return [self._decoder.decode(line) for line in lines if line.startswith(REPORT_START)]
        except msgspec.MsgspecError as error:
            raise ChildFailed(f"{self.name}: its report can't be understood: {error}") from error

    @property
    def killed_by(self) -> str | None:
        """The signal that ended it, or None."""
        return killed_by(self.process.poll() or 0)

    def last_line(self) -> str:
        """The last lines of the child's stderr."""
        text = os.pread(self.log.fileno(), os.fstat(self.log.fileno()).st_size, 0).decode(errors="replace")
        lines = text.strip().splitlines()
        return lines[-1].strip() if lines else "it wrote nothing"

    def why_it_ended(self) -> str:
        """The reason in one line, once the child's pipe has ended."""
        try:
            status = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return f"{self.name} closed its pipe"
        if killed_by := self.killed_by:
            return f"{self.name} was killed by {killed_by}"
        return f"{self.name} ended with status {status}: {self.last_line()}"


def start(
    spawn: Callable[..., subprocess.Popen[Any]],
    name: str,
    module: str,
    place: msgspec.Struct,
    reports: Any,
    environment: dict[str, str] | None = None,
) -> Child[Any]:
    """Starts a module that calls `serve`. spawn: as Popen; place: its configuration."""
    log = tempfile.TemporaryFile()  # noqa: SIM115
    command = [sys.executable, "-P", "-m", module, msgspec.json.encode(place).decode()]
    process = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment)
    return Child(name, process, reports | Ready | Done | CommandFailed, log)


class ChildListener(Generic[ReportT]):
    """Hears several children at once, whose pipes no longer block. A context manager."""

    def __init__(self, children: Sequence[Child[ReportT]]) -> None:
        self._selector = selectors.DefaultSelector()
        for place, child in enumerate(children):
            os.set_blocking(child.descriptor, False)
            self._selector.register(child.descriptor, selectors.EVENT_READ, (place, child))

    def __enter__(self) -> ChildListener[ReportT]:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()

    def hear(self, timeout_s: float) -> list[tuple[int, ReportT]]:
        """Reports, each with its child's place in the list; waits at most so long for something to come.

        Raises ChildFailed for a report that can't be understood.
        """
        reports: list[tuple[int, ReportT]] = []
        for key, _ in self._selector.select(timeout_s):
            place, child = key.data
            reports += [(place, report) for report in child.read()]
            if child.ended:
                self._selector.unregister(key.fileobj)
        return reports


def gather(
    children: Sequence[Child[Any]],
    timeout_s: float,
    check: Callable[[], None] = lambda: None,
    beside: Pids = tuple,
) -> list[Any]:
    """The next report of every child. Raises ChildFailed in one line; whatever `check`, called at every turn, raises.

    timeout_s counts as `Patience` says. beside: other processes that the children wait for. The error names the first
    of several causes: a child that was killed, before children that only noticed.
    """
    reports: dict[int, Any] = {}

    names = ", ".join(child.name for child in children)
    pids = [child.process.pid for child in children]
    patience = Patience(timeout_s, lambda: [*pids, *beside()], f"no answer from {names}")
    with ChildListener(children) as listener:
        while len(reports) < len(children):
            for place, report in listener.hear(POLL_S):
                if isinstance(report, CommandFailed):
                    killed = _killed(children)
                    raise ChildFailed(killed.why_it_ended() if killed else f"{children[place].name}: {report.message}")
                reports[place] = report
            silent = [child for place, child in enumerate(children) if place not in reports]
            if ended := next((child for child in silent if child.ended), None):
                raise ChildFailed((_killed(children) or ended).why_it_ended())
            check()
            if silent and patience.over():
                names = ", ".join(child.name for child in silent)
                raise ChildFailed(f"no answer from {names} within {patience.words}")
    return [reports[place] for place in range(len(children))]


def _killed(children: Sequence[Child[Any]]) -> Child[Any] | None:
    """The child that was killed, if there is one: its peers may report the lost connection before its end is known."""
    end_s = time.monotonic() + KNOWN_S
    while True:
        killed = next((child for child in children if child.killed_by), None)
        if killed or time.monotonic() > end_s:
            return killed
        time.sleep(POLL_S / 5)


def close(children: Sequence[Child[Any]]) -> None:
    """Ends them at once, by their ids: nothing of theirs is worth waiting for. Idempotent."""
    for child in children:
        child.process.kill()
    for child in children:
        child.process.wait()
        for pipe in (child.process.stdin, child.process.stdout, child.log):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


# ---- the child's side


def send_report(report: ChildReport) -> None:
    """Writes a line for the parent."""
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def give_up(error: Exception) -> NoReturn:
    """Reports what can't be done, in one line, and ends the process."""
    send_report(CommandFailed(" ".join(str(error).split())[:MESSAGE_LENGTH_MAX] or type(error).__name__))
    os._exit(1)


def serve(config: type[Config], orders: Any, begin: Callable[[Config], Callable[[Any], ChildReport]]) -> NoReturn:
    """A child's main function: `begin` with the configuration in argv[1], then an answer to every command until stdin
    ends.

    orders: the union of all its commands. A command that fails is reported as `CommandFailed`, and the status is 1.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        execute = begin(msgspec.json.decode(sys.argv[1], type=config))
        gc.freeze()
        send_report(Ready())
        decoder = msgspec.json.Decoder(orders)
        for line in sys.stdin.buffer:
            send_report(execute(decoder.decode(line)))
    except Exception as error:
        give_up(error)
    os._exit(0)  # connections close with the process; taking torch down takes half a second
