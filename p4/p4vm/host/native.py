"""A host whose turns run in C (runtime/host.c): for programs on the native back end."""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from p4vm.cache import Cache, default_folder, digest
from p4vm.control.switch import Switch
from p4vm.host.host import Host, HostOptions, PortCounts
from p4vm.host.ports import FRAME_MAX
from p4vm.native.build import FLAGS, RUNTIME, compiler, file_digest, needed_compiler, run
from p4vm.native.engine import NativeEngine
from p4vm.source import P4Error

ABI = 1
"""As in host.c."""
OPTIMIZE = 2
NO_FILE = -1


class Calls(ctypes.Structure):
    """`struct calls`: the engine, and the functions of the program's library."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("engine", "run", "outputs", "data", "set_replicas")]


class PortCounters(ctypes.Structure):
    """`struct counters`."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("received", "sent", "bundles", "queue_full", "not_sent")]


def missing() -> str | None:
    """Why there can be no host in C; None: there can."""
    return None if compiler() is not None else "there is no C compiler"


@lru_cache(maxsize=1)
def library() -> Any:
    """host.c, compiled now or before. Raises P4Error."""
    by, cache = needed_compiler(), Cache(default_folder())
    source = RUNTIME / "host.c"
    name = f"host-{digest(source.read_bytes(), by.identity, ' '.join(FLAGS), str(OPTIMIZE))[:32]}.so"
    if cache.read(f"{name}.sum") != (file_digest(cache.trusted(name)) or b""):
        with cache.replacing(name) as path:
            run([*by.command, *FLAGS, f"-O{OPTIMIZE}", "-shared", str(source), "-o", str(path)], Path(path).parent)
            path.chmod(0o700)
        cache.write(f"{name}.sum", file_digest(cache.trusted(name)) or b"")
    try:
        loaded = ctypes.CDLL(str(cache.path(name)))
    except OSError as error:
        raise P4Error(f"{cache.path(name)} can't be loaded: {error}; remove it, and it is made anew") from None
    pointer, number, long = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    declared: dict[str, tuple[Any, list[Any]]] = {
        "p4_host_new": (pointer, [pointer, number, pointer, ctypes.c_int32, number, long]),
        "p4_host_free": (None, [pointer]),
        "p4_host_run": (None, [pointer, long]),
        "p4_host_set_queue": (None, [pointer, number, number, number]),
        "p4_host_counters": (ctypes.POINTER(PortCounters), [pointer, number]),
        "p4_host_no_port": (long, [pointer]),
        "p4_host_capture_error": (ctypes.c_int32, [pointer]),
        "p4_host_abi": (number, []),
    }
    for function, (result, parameters) in declared.items():
        getattr(loaded, function).restype = result
        getattr(loaded, function).argtypes = parameters
    assert loaded.p4_host_abi() == ABI
    return loaded


class NativeHost(Host):
    """As `Host`; many packets a system call, and no Python between."""

    def __init__(self, switch: Switch, ports: dict[int, str], options: HostOptions | None = None) -> None:
        self._library = library()
        self._handle: int | None = None
        super().__init__(switch, ports, options)
        engine = switch.engine
        assert isinstance(engine, NativeEngine)
        self._engine = engine
        self._calls = Calls(
            engine.alive, *(_address(engine.library, name) for name in ("run", "outputs", "data", "set_replicas"))
        )
        about = (ctypes.c_int32 * (5 * len(self.seats)))(*self._about())
        control = NO_FILE if self.control is None else self.control.fileno()
        started_ns = int(self._started * 1e9)
        self._handle = self._library.p4_host_new(
            ctypes.byref(self._calls), len(self.seats), about, control, FRAME_MAX, started_ns
        )
        if self._handle is None:
            self.close()
            raise P4Error(f"no memory for {len(self.seats)} ports")

    def _about(self) -> list[int]:
        """Of each port: socket, number, bytes of its longest packet, captures or -1."""
        made: list[int] = []
        for number, seat in self.seats.items():
            files = [NO_FILE] * 2 if seat.capture is None else [seat.capture.fileno(out) for out in (False, True)]
            made += [seat.port.socket.fileno(), number, seat.port.longest, *files]
        return made

    def turn(self, seconds: float) -> None:
        """Turns until a command comes, a signal, or this time is over."""
        if self.switch.queues.changes != self._changes:
            self._changes = self.switch.queues.changes
            for index, number in enumerate(self.seats):
                depth, rate = self.switch.queues.depth(number), self.switch.queues.rate(number)
                self._library.p4_host_set_queue(self._handle, index, depth, rate)
        if self._engine.waiting:
            self._engine.fill_tables()
        busy = self.control is not None and self.control.busy
        self._library.p4_host_run(self._handle, 0 if busy else int(seconds * 1e6))

    def counts(self) -> dict[int, PortCounts]:
        if self._handle is None:
            return super().counts()
        self.no_port = self._library.p4_host_no_port(self._handle)
        failed = self._library.p4_host_capture_error(self._handle)
        for index, seat in enumerate(self.seats.values()):
            found = self._library.p4_host_counters(self._handle, index).contents
            seat.counts = PortCounts(found.received, found.sent, found.bundles, found.queue_full, found.not_sent)
            if failed and seat.capture is not None:
                seat.capture.failure = f"captures ended early: {os.strerror(failed)}"
        return {number: seat.counts for number, seat in self.seats.items()}

    def close(self) -> None:
        self.counts()
        if self._handle is not None:
            self._library.p4_host_free(self._handle)
            self._handle = None
        super().close()


def _address(loaded: Any, name: str) -> int:
    return ctypes.cast(getattr(loaded, f"p4_engine_{name}"), ctypes.c_void_p).value or 0


def make_host(switch: Switch, ports: dict[int, str], options: HostOptions | None = None) -> Host:
    """The fastest host for the switch's engine: the turn in C for a native one."""
    native = switch.engine.backend == "native" and missing() is None
    return (NativeHost if native else Host)(switch, ports, options)
