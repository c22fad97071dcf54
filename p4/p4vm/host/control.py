"""Commands to a running switch over a UNIX socket or loopback TCP: one line asks, one line of JSON answers.

A line is a command (`table_dump ipv4_lpm`) or {"command": …} or {"complete": "table_add ip"}. The answer:
{"ok": true, "text": …}, {"ok": true, "words": […]} or {"ok": false, "error": …}. A client may send any bytes: what
isn't text is answered by an error, what is too long ends the connection, and a client that doesn't read is dropped. A
thread for each client reads and writes; its commands are carried out between packets, by the switch's (`Turns`).
"""

import contextlib
import json
import os
import socket
import socketserver
import stat
import struct
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

from p4vm.cache import folder_of_ones_own
from p4vm.commands.line import LINE_MAX, complete, error_line, run_command
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.host.turns import Turns
from p4vm.source import P4Error

CLIENTS_MAX = 32
ANSWER_MAX = 8 << 20
LOOK_S = 3600.0
"""How often the server looks whether it is to end: never in practice, as `close` wakes it."""
SEND_S = 10
"""How long an answer may wait for a client that doesn't read."""
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
    """A line where other users could give commands at an address, or take its place; else nothing."""
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
    """The user who runs the other end of a UNIX socket."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


class PromptClient:
    """The other end: asks a running switch. Raises P4Error where it is gone or says no."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket = connect(address)
        self._file = self._socket.makefile("rb")

    def command(self, line: str) -> str:
        """Have a command carried out; its output."""
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


class _Client(socketserver.StreamRequestHandler):
    """A connection, whose lines are answered one after the other."""

    server: "PromptServer"

    def handle(self) -> None:
        seconds = struct.pack("ll", SEND_S, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        with contextlib.suppress(OSError):  # the client is gone or doesn't read, or the switch has ended
            while line := self.rfile.readline(LINE_MAX + 1):
                if not line.endswith(b"\n"):
                    if len(line) > LINE_MAX:
                        self._say({"ok": False, "error": f"a line of more than {LINE_MAX} bytes"})
                    return
                self._say(self.server.turns.carry_out(partial(answer, self.server.switch, line)))

    def _say(self, content: dict[str, object]) -> None:
        encoded = json.dumps(content).encode() + b"\n"
        if len(encoded) > ANSWER_MAX:
            encoded = b'{"ok": false, "error": "the answer is too long; ask for a part of it"}\n'
        self.wfile.write(encoded)


class PromptServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Takes commands for a switch from its start until `close`. Raises P4Error: the address can't be had."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = CLIENTS_MAX

    def __init__(self, switch: ControlledSwitch, address: str, turns: Turns) -> None:
        self.switch, self.address, self.turns = switch, address, turns
        self.clients: set[socket.socket] = set()
        self._inode: int | None = None
        place = parse_address(address)
        try:
            if isinstance(place, str):
                self.address_family = socket.AF_UNIX
                _clear_stale(place)
            elif ":" in place[0]:
                self.address_family = socket.AF_INET6
            super().__init__(place, _Client)  # type: ignore[arg-type]  # a path is one, too
        except OSError as error:
            raise P4Error(f"can't take commands at {address}: {error.strerror}; give another --control") from None
        self.warnings = exposure(address)
        self._accepting = threading.Thread(target=self.serve_forever, args=(LOOK_S,), name="commands", daemon=True)
        self._accepting.start()

    def server_bind(self) -> None:
        """The file of a UNIX socket is its user's alone."""
        before = os.umask(0o177)
        try:
            super().server_bind()
        finally:
            os.umask(before)
        if self.address_family == socket.AF_UNIX:
            self._inode = os.stat(self.address).st_ino

    def verify_request(self, request: Any, client_address: Any) -> bool:
        if len(self.clients) >= CLIENTS_MAX:
            return False
        self.clients.add(request)
        return True

    def shutdown_request(self, request: Any) -> None:
        self.clients.discard(request)
        super().shutdown_request(request)

    def close(self) -> None:
        """Ends all connections and takes the socket's file away."""
        for open_socket in (self.socket, *self.clients):
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
        self.shutdown()
        self.server_close()
        self._accepting.join()
        if self._inode is not None:
            with contextlib.suppress(OSError):
                if os.stat(self.address).st_ino == self._inode:
                    os.unlink(self.address)


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
