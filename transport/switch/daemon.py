"""The switch daemon: a data plane on a link (`SwitchEndpoint`) and its control plane (`ControlServer`), a thread each.

`run_switch` is the body of the command `switchagg switch`; `SwitchDaemon` is the same for programs and tests.
"""

import contextlib
import errno
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from switchagg.controller.tree_controller import TreeController
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import JobError, SwitchaggError, as_line
from switchagg.membership import Event
from transport.contracts.timeouts import CLAIMS_PER_LEASE, long_lease
from transport.control.control_server import ControlServer, Leaf
from transport.control.hop_secrets import HopSecrets
from transport.control.leaf import LeafAgent, LeafPlace
from transport.links.addresses import check_own, parse_endpoint
from transport.metrics.metrics_server import MetricsServer
from transport.switch.daemon_options import DaemonOptions
from transport.switch.draining import Draining
from transport.switch.event_log import EventLog, LogEntry, entries_of, hold_standard_streams, print_line, printable
from transport.switch.switch_endpoints import SwitchEndpoint

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

POLL_S = 0.1
"""Longest wait of the control thread: how late a lease may end, and how soon a stop is seen."""

SLOWNESS_S = 1.0
"""How often the link is asked whether it has given up sending many packets at once."""

STOP_S = 20.0
"""How long `stop` waits for the control plane's thread, which waits for the data plane's."""

OVERVIEW_S = 5.0
"""How long Prometheus waits for numbers at most."""


class SwitchDaemon:
    """A switch on this host, from `start` to `stop`.

    dataplane: what was chosen, and why nothing faster. control_endpoint, data_address: what was bound. log: called with
    a line per event, without control characters; record: in its place, with the event's entry.

    The constructor binds both addresses: raises SwitchaggError that names the one that failed, and what to do.
    """

    def __init__(
        self,
        options: DaemonOptions | None = None,
        *,
        log: Callable[[str], None] = lambda line: None,
        record: Callable[[LogEntry], None] | None = None,
    ) -> None:
        self.options = options = options or DaemonOptions()
        self._record = record or (lambda entry: log(printable(entry.text)))
        self._log = self._lines("note")
        self._reason = ""
        self._failure: Exception | None = None
        self._stopping = threading.Event()
        self._ended = threading.Event()
        control = f"control address {options.bind_control}"
        remedy = "`ip address` lists those it has; choose one with --control tcp://HOST:PORT"
        check_own(parse_endpoint(options.bind_control)[0], control, remedy)
        end = self._open(options)
        self._loop, self.data_address, self.dataplane = end.host, end.address, end.choice
        self.options = replace(options, bind_data=(options.bind_data[0], self.data_address[1]))
        self._slowness: Callable[[], str] = end.slowness
        lease_ns = round(options.lease_s * 1e9)
        controller = TreeController(
            options.slots,
            options.slot_elements,
            partial(secrets.randbits, 32),
            lease_ns=lease_ns,
            claim_ns=lease_ns // CLAIMS_PER_LEASE,
            quota=options.peer_quota,
            packets_held=end.packets_held,
        )
        host = "" if self.data_address[0] == "0.0.0.0" else self.data_address[0]
        advertised = options.advertise or (host, self.data_address[1])
        serve = partial(
            ControlServer,
            controller=controller,
            host=self._loop,
            data_address=advertised,
            log=self._on_event,
            queue_pairs=end.queue_pairs,
            link=options.link,
            keys=options.keys,
        )
        try:
            self._server = _at_free_port(serve, options) if options.any_control_port else serve(options.bind_control)
        except JobError:
            self._loop.stop()
            raise
        except OSError as error:
            self._loop.stop()
            raise SwitchaggError(
                f"{control}: {error.strerror}; choose another with --control "
                "tcp://HOST:PORT, or end the switch that holds it"
            ) from error
        self.control_endpoint: str = self._server.endpoint
        if options.any_data_port and options.bind_data[1] not in (0, self.data_address[1]):
            self._log(f"data port {options.bind_data[1]} is taken: this switch's is {self.data_address[1]}")
        self._leaf = self._below(options, advertised, end.packets_held(options.slot_elements))
        self._server.hops = HopSecrets(options.tags_fault, encrypted=options.encrypted)
        self._server.data_plane = self.dataplane.name
        self._server.routes = options.kind.header_only and DATAPLANES[self.dataplane.name].routes
        self._draining = Draining(self._server, self._leaf, options.drain_s, self._lines("drain"))
        self._thread = threading.Thread(target=self._run, name="switch-control", daemon=True)
        self._metrics = self._open_metrics(options)

    def _open(self, options: DaemonOptions) -> SwitchEndpoint:
        """The data plane, bound: at a free port where that is allowed and the port asked for is taken."""
        opener: Callable[..., SwitchEndpoint] = options.kind.opener("switch")
        try:
            return opener(options, self._log, self._on_failure)
        except SwitchaggError as error:
            if not options.any_data_port or not _is_taken(error):
                raise
        return opener(replace(options, bind_data=(options.bind_data[0], 0)), self._log, self._on_failure)

    def _open_metrics(self, options: DaemonOptions) -> MetricsServer | None:
        if options.metrics is None:
            return None
        start_s = time.time()

        def collect() -> "Iterable[Metric]":
            from transport.switch.switch_metrics import switch_families  # the client library is an extra

            return list(switch_families(self._server.overview(OVERVIEW_S), start_s, options.metrics_names))

        try:
            return MetricsServer(options.metrics, collect, "--metrics")
        except SwitchaggError:
            self._server.close("")
            self._loop.stop()
            raise

    @property
    def metrics_url(self) -> str:
        """Where Prometheus finds metrics; "" if nowhere."""
        return "" if self._metrics is None else self._metrics.url

    def start(self) -> None:
        """Start both threads; once."""
        self._loop.start()
        self._thread.start()
        if self._leaf is not None:
            self._leaf.start()

    def drain(self, reason: str = "the switch was stopped") -> None:
        """Have the switch stop once its jobs have left, as they are asked to, or after `drain_s` (C27)."""
        self._draining.begin(reason)

    def stop(self, reason: str = "the switch was stopped") -> None:
        """Tell all members the reason, end both threads; again is allowed. Raises SwitchaggError if one hangs."""
        self._reason = self._reason or reason
        self._stopping.set()
        if self._thread.ident is None:
            self._server.close(self._reason)
            self._loop.stop()
            self._close_metrics()
        elif threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)
            if self._thread.is_alive():
                raise SwitchaggError(f"the switch's control thread did not end within {STOP_S:.0f} s")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the daemon has ended; False after the timeout."""
        return self._ended.wait(timeout_s)

    @property
    def failure(self) -> BaseException | None:
        """The unexpected exception that ended the data plane's loop or the control plane, or None."""
        return self._loop.failure or self._failure

    def __enter__(self) -> "SwitchDaemon":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        with contextlib.ExitStack() as ending:  # callbacks run in reverse, each whatever the others raise
            ending.callback(self._ended.set)
            ending.callback(self._close_metrics)
            ending.callback(self._loop.stop)
            if self._leaf is not None:
                ending.callback(lambda leaf: leaf.stop(self._reason), self._leaf)
            look_s = 0.0
            try:
                while not self._stopping.is_set():
                    self._server.run_once(POLL_S)
                    if reason := self._draining.look():
                        self._reason = self._reason or reason
                        self._stopping.set()
                    if time.monotonic() >= look_s:
                        self._log_slowness()
                        look_s = time.monotonic() + SLOWNESS_S
            except Exception as error:
                self._failure = error
                self._reason = f"the switch's control plane failed: {as_line(error)}"
            self._server.close(self._reason)

    def _close_metrics(self) -> None:
        if self._metrics is not None:
            self._metrics.close()

    def _below(self, options: DaemonOptions, data: tuple[str, int], packets_held: int) -> LeafAgent | None:
        """The agent that makes this switch a leaf, if it shall be one (C18)."""
        if not options.parent:
            return None
        place = LeafPlace(
            options.parent,
            options.name or f"{data[0]}:{data[1]}",
            data,
            parse_endpoint(self.control_endpoint)[1],
            options.slots,
            options.slot_elements,
            packets_held,
            options.link,
            not options.tags_fault,
        )
        agent = LeafAgent(place, self._loop, options.keys, self._lines("leaf"), self._on_refused)
        self._server.leaf = Leaf(place.parent, place.name, lambda: agent.incarnation, lambda: agent.running)
        return agent

    def _lines(self, event: str) -> Callable[[str], None]:
        """What logs lines under this name."""
        return lambda line: self._record(LogEntry(event, line))

    def _on_refused(self, reason: str) -> None:
        self._failure = SwitchaggError(reason)
        self._reason = reason
        self._stopping.set()

    def _log_slowness(self) -> None:
        """Log once if the link has given up sending many packets per system call."""
        with contextlib.suppress(SwitchaggError):  # a loop that has just ended; `failure` has the reason
            self._loop.counters()  # a native loop updates its link only then
        if slowness := self._slowness():
            self._slowness = str
            self._record(LogEntry("slow_link", slowness, "warning"))

    def _on_failure(self, error: BaseException) -> None:
        self._reason = f"the switch's data plane failed: {as_line(error)}"
        self._stopping.set()

    def _on_event(self, event: Event) -> None:
        for entry in entries_of(event):
            self._record(entry)


def _is_taken(error: BaseException | None) -> bool:
    """Whether an error comes of an address that another socket has."""
    return error is not None and (getattr(error, "errno", 0) == errno.EADDRINUSE or _is_taken(error.__cause__))


def _at_free_port(serve: Callable[[str], ControlServer], options: DaemonOptions) -> ControlServer:
    """At the control address, or at a free port of its host if that is taken."""
    try:
        return serve(options.bind_control)
    except OSError as error:
        if not _is_taken(error):
            raise
    return serve(f"tcp://{parse_endpoint(options.bind_control)[0]}:0")


def run_switch(
    options: DaemonOptions | None = None,
    *,
    ready_file: Path | None = None,
    quiet: bool = False,
    log: EventLog | None = None,
) -> int:
    """Run a switch until SIGINT, SIGTERM or SIGHUP. SIGTERM lets its jobs leave first (C27), which a further signal
    ends; those that come later are ignored: the process is to end. It returns the exit status: 0, or 1 after one line
    on stderr.

    Prints "switchagg switch ready: control … data …" to stdout once both addresses are bound, tells systemd (READY=1),
    and writes the same line to ready_file, if given; events go to stderr, as `log` writes them, unless quiet, and first
    why no faster data plane is used, if one was passed over.
    """
    hold_standard_streams()
    log = log or EventLog("switchagg switch")
    record: Callable[[LogEntry], None] = (lambda entry: None) if quiet else log.write
    try:
        daemon = SwitchDaemon(options, record=record)
    except SwitchaggError as error:
        log.failure(str(error))
        return 1
    with _signals() as stopped:
        daemon.start()
        data = f"{daemon.data_address[0]}:{daemon.data_address[1]}"
        line = (
            f"switchagg switch ready: control {daemon.control_endpoint} data {data} "
            f"({daemon.dataplane.name}, {daemon.options.slots} slots of {daemon.options.slot_elements} elements)"
        )
        for entry in _opening_entries(daemon):
            record(entry)
        print_line(line)
        record(LogEntry("ready", line, machine_only=True))
        _notify(f"READY=1\nSTATUS={line}")
        try:
            if ready_file is not None:
                _write_whole(ready_file, line + "\n")
            while not daemon.wait(0.2) and (not stopped or stopped == ["SIGTERM"]):
                if stopped:
                    daemon.drain(f"the switch was stopped by {stopped[0]}")
                    _notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={STOP_S * 1e6:.0f}")
        except OSError as error:
            log.failure(f"ready file {ready_file}: {error.strerror}")
            daemon.stop(f"the switch could not write {ready_file}")
            return 1
        daemon.stop(reason := f"the switch was stopped by {stopped[-1]}" if stopped else "")
    if daemon.failure is not None:
        what = daemon.failure if isinstance(daemon.failure, SwitchaggError) else repr(daemon.failure)
        log.failure(f"the switch failed: {what}")
        return 1
    record(LogEntry("stopped", reason or "the switch has stopped", reason=reason, machine_only=True))
    return 0


def _opening_entries(daemon: SwitchDaemon) -> Iterator[LogEntry]:
    """What the log of a daemon begins with."""
    options = daemon.options
    if daemon.dataplane.passed_over:
        yield LogEntry("data_plane", f"data plane {daemon.dataplane}")
    if words := long_lease(options.lease_s):
        yield LogEntry("long_lease", words, "warning")
    if options.exposure:
        yield LogEntry("exposed", options.exposure, "warning")
    if options.impairments is not None:
        yield LogEntry("impairments", f"impairments: {options.impairments}; seed {options.impairments.seed}")
    if daemon.metrics_url:
        yield LogEntry("metrics", f"metrics at {daemon.metrics_url}")


@contextlib.contextmanager
def _signals() -> Iterator[list[str]]:
    """A list that gets the names of signals that end us; empty for ever outside the main thread."""
    caught: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    earlier = {
        number: signal.signal(number, lambda received, _: caught.append(signal.Signals(received).name))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN  # `nohup` ignores SIGHUP
    }
    try:
        yield caught
    finally:
        if caught:
            signal.pthread_sigmask(signal.SIG_BLOCK, earlier)  # or one that comes meanwhile is reported as lost
        for number, handler in earlier.items():
            signal.signal(number, signal.SIG_IGN if caught else handler)


def _notify(state: str) -> None:
    """Tell the service manager, if one waits for it (sd_notify(3))."""
    if place := os.environ.get("NOTIFY_SOCKET"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto(state.encode(), "\0" + place[1:] if place[0] == "@" else place)


def _write_whole(path: Path, text: str) -> None:
    """Write a file that no reader ever sees half written."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
