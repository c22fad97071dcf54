"""A program as a switch on interfaces: packets in, the program, output queues, packets out, and commands meanwhile.

    host = Host(ControlledSwitch(engine), {0: "veth0", 1: "veth1"}, SoftwareSwitchOptions(pcap=Path("pcaps")))
    with host:
        host.run(seconds=10)
    print("\n".join(host.summary()))

A single thread has the switch. Egress runs when a packet arrives, before it waits in its output queue: enq_qdepth and
deq_qdepth are the packets that waited in the port's queue then. native_host.py does the same with its event loop in C.
"""

import contextlib
import ctypes
import errno
import selectors
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, ClassVar

from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.host import pcap
from p4vm.host.control import PromptServer
from p4vm.host.ports import InterfacePort, open_port, receive, room_for
from p4vm.host.queues import OutputQueue
from p4vm.host.turns import Turns

BATCH = 64
"""Packets taken from one port before the others have their turn."""
IDLE_S = 0.2
"""Longest sleep: also the longest that a request to stop could wait."""
AGAIN_S = 0.0005
"""Sleep while an interface has no room for what waits."""


@dataclass(slots=True)
class SoftwareSwitchOptions:
    """pcap: folder for captures of every interface, in and out. control: address for commands, None: none.
    log: gets lines of log_msg and digests. cpu: a port that is no interface. turns: through which others have work
    done between packets, closed with the host; None: only commands are."""

    pcap: Path | None = None
    control: str | None = None
    log: Callable[[str], None] | None = None
    cpu: InterfacePort | None = None
    turns: Turns | None = None


class PortCounts(ctypes.Structure):
    """Fates of one port's packets, `struct counters` of the host in C. bundles: received packets longer than its
    interface could send."""

    received: int
    transmitted: int
    bundles: int
    queue_full: int
    not_sent: int
    _fields_: ClassVar = [
        (name, ctypes.c_uint64) for name in ("received", "transmitted", "bundles", "queue_full", "not_sent")
    ]


class Capture:
    """The two captures of one interface. A disk that is full ends them; `failure` says so."""

    def __init__(self, folder: Path, interface: str) -> None:
        self._files: list[BinaryIO] = [pcap.open_capture(folder / f"{interface}_{way}.pcap") for way in ("in", "out")]
        self.failure = ""

    def fileno(self, out: bool) -> int:
        return self._files[out].fileno()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = self.failure or f"captures ended early: {error.strerror}"

    def write(self, out: bool, time_us: int, data: bytes) -> None:
        if not self.failure:
            with self._failing():
                self._files[out].write(pcap.record(time_us, data))

    def flush(self) -> None:
        for file in self._files:
            with self._failing():
                file.flush()

    def close(self) -> None:
        self.flush()
        for file in self._files:
            with self._failing():
                file.close()


@dataclass(slots=True, eq=False)
class _PortState:
    """A port with its output queue, counts and captures."""

    port: InterfacePort
    queue: OutputQueue
    counts: PortCounts = field(default_factory=PortCounts)
    capture: Capture | None = None


class Host:
    """A switch on interfaces. Raises P4Error if an interface, a capture or the control address can't be had; nothing is
    left open then. Also a context: it closes what it opened."""

    def __init__(
        self, switch: ControlledSwitch, ports: dict[int, str], options: SoftwareSwitchOptions | None = None
    ) -> None:
        self.switch = switch
        self.options = options or SoftwareSwitchOptions()
        self.port_states: dict[int, _PortState] = {}
        self.turns = self.options.turns or Turns()
        self.control: PromptServer | None = None
        self.no_port = 0
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._changes = -1
        self._started = time.monotonic()
        try:
            self._open(ports)
        except BaseException:
            self.close()
            raise

    def _open(self, ports: dict[int, str]) -> None:
        if self.options.pcap is not None:
            room_for(self.options.pcap)
        for number, interface in sorted(ports.items()):
            port = open_port(number, interface)
            state = self.port_states[number] = _PortState(port, OutputQueue(1, 0))
            self._selector.register(port.socket, selectors.EVENT_READ, state)
            if self.options.pcap is not None:
                state.capture = Capture(self.options.pcap, interface)
        if self.options.cpu is not None:
            state = self.port_states[self.options.cpu.number] = _PortState(self.options.cpu, OutputQueue(1, 0))
            self._selector.register(state.port.socket, selectors.EVENT_READ, state)
        self._selector.register(self.turns, selectors.EVENT_READ)
        self.switch.ports = dict(ports)
        if self.options.control is not None:
            self.control = PromptServer(self.switch, self.options.control, self.turns)

    @property
    def warnings(self) -> list[str]:
        """Lines about interfaces that would mislead a program, and about others who can give commands."""
        warnings = [warning for state in self.port_states.values() for warning in state.port.warnings]
        return warnings + (self.control.warnings if self.control is not None else [])

    @property
    def now_us(self) -> int:
        """µs since the switch started."""
        return int((time.monotonic() - self._started) * 1e6)

    def run(self, seconds: float | None = None) -> None:
        """Process packets and commands until `stop`, or for so many seconds."""
        end = None if seconds is None else time.monotonic() + seconds
        while not self._stopping and (end is None or time.monotonic() < end):
            left = IDLE_S if end is None else min(IDLE_S, max(0.0, end - time.monotonic()))
            self.turn(left)
            self.turns.serve()
            self._show_log()
        self._stopping = False
        self._show_log()

    def stop(self) -> None:
        """Let `run`, this one or the next, return after a pass; any thread or signal handler may call it."""
        self._stopping = True

    def _show_log(self) -> None:
        lines = self.switch.engine.take_log()
        digests = self.switch.engine.take_digests()
        if self.options.log is not None:
            for line in lines:
                self.options.log(line)
            for digest in digests:
                self.options.log(f"digest to {digest.receiver}: {', '.join(map(str, digest.values))}")

    # ---- one turn

    def turn(self, seconds: float) -> None:
        """Run one pass of the event loop: wait at most so long for packets, process them, send what is due."""
        self._follow_settings()
        now = self.now_us
        waits = [wait for state in self.port_states.values() if (wait := state.queue.wait_us(now)) is not None]
        if waits:
            seconds = min(seconds, max(min(waits) / 1e6, AGAIN_S))
        for key, _ in self._selector.select(seconds):
            if isinstance(key.data, _PortState):
                self._take(key.data)
        for state in self.port_states.values():
            self._send(state)

    def _follow_settings(self) -> None:
        settings = self.switch.queues
        if settings.changes != self._changes:
            self._changes = settings.changes
            for number, state in self.port_states.items():
                state.queue.depth, state.queue.rate = settings.depth(number), settings.rate(number)

    def _take(self, state: _PortState) -> None:
        packets: list[bytes] = []
        while len(packets) < BATCH and (data := receive(state.port)) is not None:
            packets.append(data)
        if not packets:
            return
        state.counts.received += len(packets)
        state.counts.bundles += sum(len(data) > state.port.longest for data in packets)
        if state.capture is not None:
            stamp = time.time_ns() // 1000
            for data in packets:
                state.capture.write(False, stamp, data)
            state.capture.flush()
        depths = {number: len(other.queue.packets) for number, other in self.port_states.items()}
        self.switch.engine.set_queue_depths(depths)
        for outputs in self.switch.process_many([state.port.number] * len(packets), packets, self.now_us):
            for number, data in outputs:
                self._put(number, data)

    def _put(self, number: int, data: bytes) -> None:
        state = self.port_states.get(number)
        if state is None:
            self.no_port += 1
        elif len(data) > state.port.longest or len(data) < 14:
            state.counts.not_sent += 1
        else:
            if state.queue.full:
                self._send(state)  # packets of one batch come faster than any link
            state.queue.put(data)

    def _send(self, state: _PortState) -> None:
        count = 0
        for _ in range(state.queue.due(self.now_us)):
            data = state.queue.packets[0]
            try:
                state.port.socket.send(data)
                state.counts.transmitted += 1
                if state.capture is not None:
                    state.capture.write(True, time.time_ns() // 1000, data)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    break
                state.counts.not_sent += 1  # the interface is down, or gone
            state.queue.packets.popleft()
            count += 1
        state.queue.on_transmit(count)
        if state.capture is not None and count:
            state.capture.flush()

    # ---- the end

    def counts(self) -> dict[int, PortCounts]:
        """Port -> what became of its packets."""
        for state in self.port_states.values():
            state.counts.queue_full += state.queue.overflowed
            state.queue.overflowed = 0
        return {number: state.counts for number, state in self.port_states.items()}

    def summary(self) -> list[str]:
        """The fates of packets: a line for each port and one for the program."""
        lines = []
        for number, counts in self.counts().items():
            state = self.port_states[number]
            line = f"port {number} {state.port.interface}: received {counts.received}, sent {counts.transmitted}"
            for name, value in (("queue full", counts.queue_full), ("could not be sent", counts.not_sent)):
                line += f", {name} {value}" if value else ""
            lines.append(line)
            if counts.bundles:
                lines.append(
                    f"  {counts.bundles} packets were bundles, longer than the MTU {state.port.mtu}: turn offloads off "
                    f"where they come from: ethtool -K … tx off tso off gso off"
                )
            if state.capture is not None and state.capture.failure:
                lines.append(f"  {state.capture.failure}")
        counted = self.switch.engine.counters
        parts = {"dropped": counted.dropped, "parser rejected": counted.parser_rejected, "to no port": self.no_port}
        parts |= {"too many passes": counted.too_many_passes, "too many turns": counted.too_many_turns, **counted.names}
        fates = ", ".join(f"{name} {value}" for name, value in parts.items() if value)
        lines.append(f"program: received {counted.received}, sent {counted.transmitted}{', ' if fates else ''}{fates}")
        return lines

    def close(self) -> None:
        """Close interfaces, captures and control socket. May be called again."""
        self._selector.close()
        self.turns.close()
        if self.control is not None:
            self.control.close()
            self.control = None
        for state in self.port_states.values():
            state.port.close()
            if state.capture is not None:
                state.capture.close()

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
