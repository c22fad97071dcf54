"""Commands to a running switch over a UNIX socket or loopback TCP: one line asks, one line of JSON answers.

A line is a command (`table_dump ipv4_lpm`) or {"command": …} or {"complete": "table_add ip"}. The answer:
{"ok": true, "text": …}, {"ok": true, "words": […]} or {"ok": false, "error": …}. A client may send any bytes: what
isn't text is answered by an error, what is too long ends the connection, and a client that doesn't read is dropped. A
few commands are carried out per turn, so that packets never wait for a client.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import stat
import struct
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from p4vm.cache import folder_of_ones_own
from p4vm.commands.line import LINE_MAX, complete, error_line, run_command
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.source import P4Error

CLIENTS_MAX = 32
COMMANDS_PER_TURN = 8
ANSWER_MAX = 8 << 20
READ_BYTES = 1 << 16
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def default_address() -> str:
    """Where a switch of this user answers unless told otherwise, in a folder that is its user's alone. Raises P4Error:
    there is another user's."""
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return str(Path(runtime, f"p4vm-{os.getuid()}.sock"))
    folder = Path(tempfile.gettempdir(), f"p4vm-{os.getuid()}")
    try:
        is_private = not folder.is_symlink() and folder_of_ones_own(folder).st_uid == os.geteuid()
    except OSError:
        is_private = False
    if not is_private:
        raise P4Error(f"{folder} is no folder of yours alone; set XDG_RUNTIME_DIR, or give --control PATH")
    return str(folder / "p4.sock")


def exposure(text: str) -> list[str]:
    """Who else could give commands at an address, or take its place: at most one line."""
    address = parse_address(text)
    if not isinstance(address, str):
        return [f"{text}: every user of this machine can give commands; a --control PATH is yours alone"]
    folder = Path(address).absolute().parent
    if folder.stat().st_mode & stat.S_IWOTH:
        return [f"{text}: others can write to {folder}, and take this name first; choose a folder of mode 0700"]
    return []


def parse_address(text: str) -> str | tuple[str, int]:
    """A path, or (host, port) of HOST:PORT on loopback. Raises P4Error."""
    host, colon, port = text.rpartition(":")
    if not colon or "/" in text or not port.isdecimal():
        if len(text.encode()) > 100:
            raise P4Error(f"{text}: too long for a UNIX socket; choose a path of at most 100 bytes")
        return text
    if host.strip("[]") not in LOOPBACK or int(port) > 65_535:
        raise P4Error(f"{text}: commands are taken from this machine alone; use 127.0.0.1:PORT or a path")
    return host.strip("[]"), int(port)


def connect(text: str, timeout_s: float = 10.0) -> socket.socket:
    """A connection to a running switch. Raises P4Error: there is none, or it is another user's."""
    address = parse_address(text)
    try:
        if isinstance(address, str):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(timeout_s)
            connection.connect(address)
            if os.getuid() not in (0, owner := _user_of(connection)) and owner != 0:
                connection.close()
                raise P4Error(f"{text}: what answers there belongs to user {owner}, not to you; give another --control")
            return connection
        return socket.create_connection(address, timeout_s)
    except OSError as error:
        raise P4Error(
            f"no switch answers at {text} ({error.strerror or error}); start one: p4vm run prog.p4 -i 0@veth0 …"
        ) from None


def _user_of(connected: socket.socket) -> int:
    """Who runs the other end of a UNIX socket."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


class PromptClient:
    """The other end: asks a running switch. Raises P4Error where it is gone or says no."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket = connect(address)
        self._file = self._socket.makefile("rb")

    def command(self, line: str) -> str:
        """What the command prints."""
        return str(self._ask({"command": line}).get("text", ""))

    def complete(self, line: str) -> list[str]:
        """Completions of a line's last word."""
        words = self._ask({"complete": line}).get("words", [])
        return words if isinstance(words, list) else []

    def _ask(self, request: dict[str, str]) -> dict[str, list[str] | str | bool]:
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            line = self._file.readline(ANSWER_MAX + 2)
        except OSError as error:
            raise P4Error(f"the switch at {self._address} doesn't answer: {error}") from None
        if not line.endswith(b"\n"):
            raise P4Error(f"the switch at {self._address} has ended")
        answer: dict[str, list[str] | str | bool] = json.loads(line)
        if not answer.get("ok"):
            raise P4Error(str(answer.get("error")).removeprefix("Error: "))
        return answer

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class Served(Protocol):
    """`fileno` is readable when `serve` has something to do."""

    def fileno(self) -> int: ...

    def serve(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Connection:
    """A client as the switch sees it."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    lines: deque[bytes] = field(default_factory=deque)
    answers: bytearray = field(default_factory=bytearray)
    ending: bool = False


class PromptServer:
    """Takes commands for a switch. `fileno` is readable when `serve` has something to do; nothing blocks."""

    def __init__(self, switch: ControlledSwitch, address: str) -> None:
        self._switch = switch
        self.address = address
        self._selector = selectors.EpollSelector()
        self._connections: dict[int, _Connection] = {}
        self._listener, self._inode = _listen(address)
        self.warnings = exposure(address)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        return self._selector.fileno()

    def serve_too(self, other: Served) -> None:
        """Let `serve` serve this, too."""
        self._selector.register(other, selectors.EVENT_READ, other.serve)

    @property
    def busy(self) -> bool:
        """Whether commands still wait: call `serve` again after the next packets."""
        return any(connection.lines for connection in self._connections.values())

    def serve(self) -> None:
        """Accept, read, carry out, answer: what is possible without blocking."""
        for key, events in self._selector.select(0):
            if key.fileobj is self._listener:
                self._accept()
                continue
            if key.data is not None:
                key.data()
                continue
            connection = self._connections.get(key.fd)
            if connection is not None and events & selectors.EVENT_READ:
                self._read(connection)
            if connection is not None and events & selectors.EVENT_WRITE and key.fd in self._connections:
                self._write(connection)
        left = COMMANDS_PER_TURN
        for connection in list(self._connections.values()):
            while connection.lines and left:
                left -= 1
                self._answer(connection, connection.lines.popleft())
            self._write(connection)

    def close(self) -> None:
        """Ends all connections and takes the socket's file away."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        self._listener.close()
        if self._inode is not None:
            with contextlib.suppress(OSError):
                if os.stat(self.address).st_ino == self._inode:
                    os.unlink(self.address)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return
        accepted.setblocking(False)
        if len(self._connections) >= CLIENTS_MAX:
            accepted.close()
            return
        self._connections[accepted.fileno()] = _Connection(accepted)
        self._selector.register(accepted, selectors.EVENT_READ)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)
            return
        if not data:
            if connection.lines or connection.answers:
                connection.ending = True  # it closed its side, and still reads
                self._watch(connection)
            else:
                self._drop(connection)
            return
        connection.received += data
        *lines, rest = bytes(connection.received).split(b"\n")
        connection.received = bytearray(rest)
        connection.lines.extend(lines)
        if len(rest) > LINE_MAX:
            connection.received.clear()
            self._say(connection, {"ok": False, "error": f"a line of more than {LINE_MAX} bytes"})
            connection.ending = True
        self._watch(connection)

    def _watch(self, connection: _Connection) -> None:
        """Ask for what is of use: no more lines while many wait, room to write while answers wait."""
        if connection.socket.fileno() not in self._connections:
            return
        events = selectors.EVENT_WRITE if connection.answers else 0
        if not connection.ending and len(connection.lines) <= COMMANDS_PER_TURN:
            events |= selectors.EVENT_READ
        # without any event it would not be registered; one that ends is written to or dropped
        self._selector.modify(connection.socket, events or selectors.EVENT_WRITE)

    def _answer(self, connection: _Connection, line: bytes) -> None:
        self._say(connection, answer(self._switch, line))

    def _say(self, connection: _Connection, content: dict[str, object]) -> None:
        encoded = json.dumps(content).encode() + b"\n"
        if len(encoded) > ANSWER_MAX:
            encoded = b'{"ok": false, "error": "the answer is too long; ask for a part of it"}\n'
        connection.answers += encoded
        if len(connection.answers) > 2 * ANSWER_MAX:
            self._drop(connection)  # it asks and does not read

    def _write(self, connection: _Connection) -> None:
        if connection.socket.fileno() not in self._connections:
            return
        if connection.answers:
            try:
                sent_bytes = connection.socket.send(connection.answers)
            except BlockingIOError:
                sent_bytes = 0
            except OSError:
                self._drop(connection)
                return
            del connection.answers[:sent_bytes]
        if connection.ending and not connection.answers and not connection.lines:
            self._drop(connection)
        else:
            self._watch(connection)

    def _drop(self, connection: _Connection) -> None:
        number = connection.socket.fileno()
        if self._connections.pop(number, None) is not None:
            self._selector.unregister(connection.socket)
            connection.socket.close()
        connection.lines.clear()


def answer(switch: ControlledSwitch, line: bytes) -> dict[str, object]:
    """The answer to one line of a client; never raises."""
    try:
        text = line.decode("utf-8").strip()
        request = json.loads(text) if text.startswith("{") else {"command": text}
        if isinstance(request.get("complete"), str):
            return {"ok": True, "words": complete(switch, request["complete"])}
        if not isinstance(request.get("command"), str):
            return {"ok": False, "error": 'Error: expected {"command": "…"} or {"complete": "…"}'}
        return {"ok": True, "text": run_command(switch, request["command"])}
    except P4Error as error:
        return {"ok": False, "error": error_line(error)}
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        return {"ok": False, "error": "Error: no command: expected one line of UTF-8 text, or of JSON"}


def _listen(text: str) -> tuple[socket.socket, int | None]:
    """The listening socket, and the inode of a UNIX socket's file. Raises P4Error."""
    address = parse_address(text)
    try:
        if not isinstance(address, str):
            listener = socket.create_server(address, backlog=CLIENTS_MAX)
            listener.setblocking(False)
            return listener, None
        _clear_stale(address)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            before = os.umask(0o177)
            try:
                listener.bind(address)
            finally:
                os.umask(before)
            listener.listen(CLIENTS_MAX)
            listener.setblocking(False)
            return listener, os.stat(address).st_ino
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise P4Error(f"can't take commands at {text}: {error.strerror}; give another --control") from None


def _clear_stale(path: str) -> None:
    """Take away the socket's file of a switch that is gone. Raises P4Error if one still answers, or it is no socket."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise P4Error(f"{path} is there and no socket; give another --control")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
        tried.settimeout(1)
        try:
            tried.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError:
            pass
    raise P4Error(f"a switch answers at {path} already; give this one another: --control /tmp/second.sock")
