"""A host with its event loop in C (runtime/host.c): for programs on the native back end."""

import ctypes
import os
from functools import lru_cache
from typing import Any

from p4vm.cache import Cache, default_folder, digest
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.host.ports import FRAME_MAX
from p4vm.host.software_switch import Host, PortCounts, SoftwareSwitchOptions
from p4vm.native.build import FLAGS, RUNTIME, compiled_once, compiler, needed_compiler
from p4vm.native.native_engine import NativeEngine
from p4vm.native.runtime_library import INT, LONG, POINTER, UINT, VOID, load
from p4vm.source import P4Error

ABI = 1
"""Version of host.c's functions, which both sides must have."""
OPTIMIZE = 2
NO_FILE = -1


class Calls(ctypes.Structure):
    """`struct calls`: the engine, and the functions of the program's library."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("engine", "run", "outputs", "data", "set_replicas")]


FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "p4_host_new": (POINTER, [POINTER, UINT, POINTER, INT, UINT, LONG]),
    "p4_host_free": (VOID, [POINTER]),
    "p4_host_run": (VOID, [POINTER, LONG]),
    "p4_host_set_queue": (VOID, [POINTER, UINT, UINT, UINT]),
    "p4_host_counters": (ctypes.POINTER(PortCounts), [POINTER, UINT]),
    "p4_host_no_port": (LONG, [POINTER]),
    "p4_host_capture_error": (INT, [POINTER]),
    "p4_host_abi": (UINT, []),
}
"""Name -> (result, parameters)."""


@lru_cache(maxsize=1)
def library() -> Any:
    """host.c, compiled now or before. Raises P4Error."""
    by, text = needed_compiler(), (RUNTIME / "host.c").read_text()
    name = f"host-{digest(text, by.identity, ' '.join(FLAGS), str(OPTIMIZE))[:32]}.so"
    loaded = load(compiled_once(by, Cache(default_folder()), name, text, [f"-O{OPTIMIZE}", "-shared"]), FUNCTIONS)
    assert loaded.p4_host_abi() == ABI
    return loaded


class NativeHost(Host):
    """As `Host`; many packets a system call, and no Python between."""

    def __init__(
        self, switch: ControlledSwitch, ports: dict[int, str], options: SoftwareSwitchOptions | None = None
    ) -> None:
        self._library = library()
        self._handle: int | None = None
        super().__init__(switch, ports, options)
        engine = switch.engine
        assert isinstance(engine, NativeEngine)
        self._engine = engine
        self._calls = Calls(
            engine.alive, *(_address(engine.library, name) for name in ("run", "outputs", "data", "set_replicas"))
        )
        about = (ctypes.c_int32 * (5 * len(self.port_states)))(*self._about())
        started_ns = int(self._started * 1e9)
        self._handle = self._library.p4_host_new(
            ctypes.byref(self._calls), len(self.port_states), about, self.turns.fileno(), FRAME_MAX, started_ns
        )
        if self._handle is None:
            self.close()
            raise P4Error(f"no memory for {len(self.port_states)} ports")

    def _about(self) -> list[int]:
        """For each port its socket, number, bytes of its longest packet, captures or -1."""
        fields: list[int] = []
        for number, state in self.port_states.items():
            files = [NO_FILE] * 2 if state.capture is None else [state.capture.fileno(out) for out in (False, True)]
            fields += [state.port.socket.fileno(), number, state.port.longest, *files]
        return fields

    def turn(self, seconds: float) -> None:
        """The event loop in C, until a command comes, a signal, or this time is over."""
        if self.switch.queues.changes != self._changes:
            self._changes = self.switch.queues.changes
            for index, number in enumerate(self.port_states):
                depth, rate = self.switch.queues.depth(number), self.switch.queues.rate(number)
                self._library.p4_host_set_queue(self._handle, index, depth, rate)
        if self._engine.waiting:
            self._engine.fill_tables()
        self._library.p4_host_run(self._handle, int(seconds * 1e6))

    def counts(self) -> dict[int, PortCounts]:
        if self._handle is None:
            return super().counts()
        self.no_port = self._library.p4_host_no_port(self._handle)
        failed = self._library.p4_host_capture_error(self._handle)
        for index, state in enumerate(self.port_states.values()):
            counters = self._library.p4_host_counters(self._handle, index).contents
            state.counts = PortCounts.from_buffer_copy(counters)
            if failed and state.capture is not None:
                state.capture.failure = f"captures ended early: {os.strerror(failed)}"
        return {number: state.counts for number, state in self.port_states.items()}

    def close(self) -> None:
        self.counts()
        if self._handle is not None:
            self._library.p4_host_free(self._handle)
            self._handle = None
        super().close()


def _address(loaded: Any, name: str) -> int:
    return ctypes.cast(getattr(loaded, f"p4_engine_{name}"), ctypes.c_void_p).value or 0


def make_host(switch: ControlledSwitch, ports: dict[int, str], options: SoftwareSwitchOptions | None = None) -> Host:
    """The fastest host for the switch's engine: the event loop in C for a native one."""
    native = switch.engine.backend == "native" and compiler() is not None
    return (NativeHost if native else Host)(switch, ports, options)
