"""The same P4 program on bmv2's `simple_switch`, where it and `p4c` are on PATH: for conformance, not for speed.

Each program runs in a network namespace of its own, removed with the plane: bmv2's Thrift server listens on all
addresses, and nothing but our frames should arrive. Every packet is counted once, so the counters say when the switch
has done its work and how many frames it sends; nothing is guessed from silence.
"""

import contextlib
import hashlib
import os
import re
import select
import shutil
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from itertools import count, groupby
from pathlib import Path
from typing import NoReturn

import numpy as np

from switchagg.dataplane.contract import Output
from switchagg.dataplane.p4.plane_program import (
    HEADERS_BYTES,
    LANES,
    PROGRAMS,
    PlaneControl,
    ProgramPlane,
    Variant,
    defines,
    headers_of,
    program_path,
    receiver_of,
)
from switchagg.errors import JobError, SwitchaggError
from switchagg.wire import Bundle

PORTS = 4
"""Interfaces of a switch; workers share them."""

BUNDLE_MOST = 32
START_S = 20.0
ANSWER_S = 20.0
COMPILE_S = 600.0
PROMPT = b"RuntimeCmd: "
THRIFT_PORT = 9090
COMMANDS_AT_ONCE = 200
COMMANDS_MOST = 100_000
"""Commands that one connection carries; a command takes about 100 bytes."""

QUEUE_DEPTH = 10_000
RECEIVE_BYTES = 1 << 26

_FAILED = re.compile(r"^(Error|Invalid|\*\*\* Unknown|Could not|.*[Ee]xception)", re.MULTILINE)
_numbers = count()


def missing() -> str:
    """The programs that this machine lacks to run bmv2, in one line; "" if it lacks none."""
    lacking = [name for name in ("simple_switch", "simple_switch_CLI", "ip") if shutil.which(name) is None]
    if not _compiler():
        lacking.insert(0, "p4c (or p4c-bm2-ss)")
    if lacking:
        return f"not on PATH: {', '.join(lacking)}"
    if os.geteuid() != 0:
        return "needs root: network namespaces and veth"
    return ""


def _compiler() -> str:
    return next((name for name in ("p4c-bm2-ss", "p4c") if shutil.which(name)), "")


class Bmv2Plane(ProgramPlane["_SimpleSwitch"]):
    """A switch of `slots` slots; a simple_switch for each program of its jobs. Raises JobError without bmv2."""

    name = "bmv2"

    def __init__(self, slots: int, elements: int) -> None:
        if reason := missing():
            raise JobError(f"data plane bmv2: {reason}")
        super().__init__(slots, elements)
        self._closed = weakref.finalize(self, _close, self._programs)

    def _start(self, variant: Variant) -> "_SimpleSwitch":
        return _SimpleSwitch(variant, self._slots)

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        outputs: list[Output] = []
        for job_id, rows in groupby((row.tobytes() for row in bundle), lambda row: int.from_bytes(row[4:6], "big")):
            idle = next(iter(self._programs), (min(self._elements, LANES), False))
            program = self._program(self._jobs[job_id][1] if job_id in self._jobs else idle)
            waiting = list(rows)
            while waiting:
                now, waiting = waiting[:BUNDLE_MOST], waiting[BUNDLE_MOST:]
                for to, frame in program.process(now, port, program.control.copies(job_id)):
                    outputs.append(Output(np.frombuffer(frame, np.uint8)[np.newaxis, :], (to,)))
        return outputs

    def close(self) -> None:
        """End the switches and remove their namespaces; it is also done with the last reference."""
        self._closed()


def _close(switches: dict[Variant, "_SimpleSwitch"]) -> None:
    for switch in switches.values():
        switch.close()
    switches.clear()


class _SimpleSwitch:
    """A simple_switch in a network namespace, our ends of its links, and its command line."""

    def __init__(self, variant: Variant, slots: int) -> None:
        program = compiled(variant, slots)
        self._name = f"sa-bmv2-{os.getpid()}-{next(_numbers)}"
        self._folder = Path(tempfile.mkdtemp(prefix="switchagg-bmv2-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        self._counted: dict[str, int] = {}
        self._commands = 0  # that the present command line was given
        self.control: PlaneControl
        try:
            self._make_links()
            self._start(program)
            self._run([f"set_queue_depth {QUEUE_DEPTH}"])
            self.control = PlaneControl(self._run, variant[0], slots, PORTS)
        except BaseException:
            self.close()
            raise

    def process(self, rows: list[bytes], port: int, workers: int) -> Iterator[tuple[int, bytes]]:
        """(port, frame) of all that goes out for datagrams of one job of so many workers, in order for each port."""
        before = self._counted
        physical = self.control.physical(port)
        for row in rows:
            self._sockets[physical].send(headers_of(port, len(row)) + row)
        deadline = time.monotonic() + ANSWER_S
        after = self.control.counters()
        while sum(after.values()) - sum(before.values()) < len(rows):
            self._check(deadline, "has not counted all packets")
            after = self.control.counters()
        self._counted = after
        new = {name: packets - before.get(name, 0) for name, packets in after.items()}
        due = workers * new.get("broadcast", 0) + sum(new.get(name, 0) for name in ("reply", "up", "up_again"))
        while due:
            self._check(deadline, f"has not sent {due} of its results")
            ready, _, _ = select.select(self._sockets, [], [], 0.2)
            for receiver in ready:
                frame = receiver.recv(65536)
                size = int.from_bytes(frame[16:18], "big") + 14  # what Ethernet padded is no packet
                due -= 1
                yield receiver_of(frame), frame[HEADERS_BYTES:size]

    def close(self) -> None:
        """End what was started, remove what was made."""
        for receiver in self._sockets:
            receiver.close()
        for process in reversed(self._processes):
            _end(process)
        if Path(f"/run/netns/{self._name}").exists():
            _ip("netns", "delete", self._name)  # and the links in it, and so their other ends
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make_links(self) -> None:
        _ip("netns", "add", self._name)
        _ip("-n", self._name, "link", "set", "lo", "up")
        for port in range(PORTS):
            link = f"sab{os.getpid()}{self._name.rsplit('-', 1)[1]}{'abcd'[port]}"[-15:]
            _ip("link", "add", link, "type", "veth", "peer", "name", f"p{port}", "netns", self._name)
            Path(f"/proc/sys/net/ipv6/conf/{link}/disable_ipv6").write_text("1")  # no packets but ours
            self._in_namespace(["sysctl", "-qw", f"net.ipv6.conf.p{port}.disable_ipv6=1"])
            _ip("-n", self._name, "link", "set", f"p{port}", "up")
            _ip("link", "set", link, "up")
            end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
            self._sockets.append(end)
            end.setsockopt(socket.SOL_SOCKET, 33, RECEIVE_BYTES)  # SO_RCVBUFFORCE
            end.bind((link, 0x0800))

    def _in_namespace(self, command: list[str]) -> None:
        subprocess.run(["ip", "netns", "exec", self._name, *command], check=True, capture_output=True, timeout=START_S)

    def _start(self, program: Path) -> None:
        log = self._folder / "log"
        interfaces = [word for port in range(PORTS) for word in ("-i", f"{port}@p{port}")]
        command = ["simple_switch", *interfaces, "--thrift-port", str(THRIFT_PORT), str(program)]
        with log.open("wb") as sink:
            self._processes.append(self._popen(command, sink.fileno()))
        deadline = time.monotonic() + START_S
        while not self._listens():
            self._check(deadline, "does not answer")
            time.sleep(0.02)
        self._open_command_line()

    def _open_command_line(self) -> None:
        cli = ["simple_switch_CLI", "--thrift-port", str(THRIFT_PORT)]
        self._processes.append(self._popen(cli, subprocess.PIPE))
        self._commands = 0
        self._answers(1)

    def _renew_command_line(self) -> None:
        """Thrift ends a connection that has carried 100 MB, in the midst of a command."""
        _end(self._processes.pop())
        self._open_command_line()

    def _popen(self, command: list[str], output: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            ["ip", "netns", "exec", self._name, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
        )

    def _listens(self) -> bool:
        """Whether the Thrift port is open: read from the process's own tables, no connection is made."""
        wanted = re.compile(rf"^ *\d+: \w+:{THRIFT_PORT:04X} \w+:0000 0A ", re.MULTILINE)
        tables = [Path(f"/proc/{self._processes[0].pid}/net/{name}") for name in ("tcp", "tcp6")]
        return any(path.exists() and wanted.search(path.read_text()) for path in tables)

    def _check(self, deadline: float, what: str) -> None:
        """Raise SwitchaggError, with the switch's last words, if it has ended or the time is over."""
        ended = self._processes[0].poll()
        if ended is None and time.monotonic() < deadline:
            return
        last_lines = (self._folder / "log").read_text(errors="replace").strip().splitlines()[-3:]
        why = what if ended is None else f"ended with status {ended}"
        raise SwitchaggError(f"data plane bmv2: simple_switch {why}; its log ends: {' | '.join(last_lines) or 'empty'}")

    def _run(self, commands: Sequence[str]) -> list[str]:
        printed: list[str] = []
        for start in range(0, len(commands), COMMANDS_AT_ONCE):
            some = commands[start : start + COMMANDS_AT_ONCE]
            if self._commands > COMMANDS_MOST:
                self._renew_command_line()
            self._commands += len(some)
            pipe = self._processes[1].stdin
            assert pipe is not None
            pipe.write("".join(f"{command}\n" for command in some).encode())
            pipe.flush()
            answers = self._answers(len(some))
            for command, answer in zip(some, answers, strict=True):
                if _FAILED.search(answer):
                    raise SwitchaggError(f"bmv2 refused `{command}`: {answer.strip()}")
            printed += answers
        return printed

    def _answers(self, wanted: int) -> list[str]:
        """The texts that the command line printed before each of its next prompts."""
        pipe = self._processes[1].stdout
        assert pipe is not None
        deadline = time.monotonic() + ANSWER_S
        text = b""
        while text.count(PROMPT) < wanted:
            self._check(deadline, "does not answer commands")
            if select.select([pipe], [], [], 0.2)[0]:
                more = os.read(pipe.fileno(), 65536)
                if not more:
                    self._explain_end(text)
                text += more
        return [part.decode().strip() for part in text.split(PROMPT)[:wanted]]

    def _explain_end(self, text: bytes) -> NoReturn:
        """Raise SwitchaggError: the command line has ended, mostly since the switch has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes[0].wait(1.0)
        self._check(time.monotonic() + 1.0, "")
        last_lines = text.decode(errors="replace").strip().splitlines()[-1:]
        raise SwitchaggError(f"data plane bmv2: simple_switch_CLI ended: {' '.join(last_lines)}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=START_S, check=False)
    if done.returncode:
        raise SwitchaggError(f"data plane bmv2: `ip {' '.join(words)}`: {done.stderr.strip()}")


def compiled(variant: Variant, slots: int) -> Path:
    """A program in bmv2's JSON, compiled at most once for each version of it. Raises JobError: p4c refused it."""
    elements, leaf = variant
    macros = defines(elements, slots)
    includes = PROGRAMS / "v1model"  # what another program hasn't of its own
    source = program_path(leaf=leaf)
    sources = [path for place in (PROGRAMS, includes, source.parent) for path in sorted(place.glob("*.p4"))]
    compiler = _compiler()
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=60, check=False).stdout
    digest = hashlib.sha256(
        repr((macros, version, source.name, [path.read_bytes() for path in sources])).encode()
    ).hexdigest()
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = home / "switchagg" / "bmv2" / f"{digest[:32]}.json"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        words = [f"-I{includes}", *(f"-D{name}={value}" for name, value in macros.items())]
        output = Path(place) / f"{source.stem}.json"
        if compiler == "p4c":
            command = ["p4c", "--target", "bmv2", "--arch", "v1model", *words, "-o", place, str(source)]
        else:
            command = ["p4c-bm2-ss", *words, "-o", str(output), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)
        if done.returncode or not output.exists():
            words = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise JobError(f"data plane bmv2: {compiler} refused the program: {words[0]}")
        output.replace(target)
    return target
