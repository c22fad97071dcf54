"""The switch daemon: a data plane on UDP (`SwitchLoop`) and its control plane (`ControlServer`), a thread each.

`run_switch` is the body of the command `switchagg switch`; `SwitchDaemon` is the same for programs and tests.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from p4vm.planes.bmv2 import Bmv2Plane
from p4vm.planes.p4 import P4Plane
from switchagg.controller import Controller
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.native import NativePlane
from switchagg.dataplane.self_test import Choice, fastest
from switchagg.dataplane.table import DATAPLANES
from switchagg.errors import JobError, SwitchaggError
from switchagg.job import ELEMENTS_MTU_1500, MAX_ELEMENTS, MAX_SLOTS, MODULUS
from switchagg.membership import (
    Address,
    Event,
    JobAdmitted,
    JobEvicted,
    JobFailed,
    JoinRefused,
    MemberLeft,
)
from transport.control.service import ControlServer
from transport.links.addresses import parse_endpoint
from transport.links.udp import UdpLink
from transport.rdma.places import PACKETS_DEFAULT, ROCE_PORT
from transport.rdma.switch import RdmaSwitchLoop
from transport.switch.impairments import Impairments
from transport.switch.loop import SwitchLoop
from transport.switch.native_loop import NativeSwitchLoop
from transport.switch.xdp import XdpSwitch
from transport.zeromq.keys import Keys
from transport.zeromq.link import ZeroMqLink

CONTROL = "tcp://0.0.0.0:5555"
DATA: Address = ("0.0.0.0", 5556)

AUTO = "auto"
"""In place of a data plane's name: the fastest that passes its self-test at start."""

NATIVE = NativePlane.name

XDP = "xdp"
"""In place of a data plane's name: the switch in the kernel, on interfaces of this host."""

RDMA = "rdma"
"""The link over which workers join with queue pairs of RoCEv2; the default is "udp"."""

ZEROMQ = "zeromq"
"""The link that carries bundles over TCP, encrypted if there are keys."""

SLOTS = 4096
"""Room for eight jobs of two streams of 256; 360 elements make it 12 MB."""

TURN_S = 0.1
"""Longest wait of the control thread: how late a lease may end, and how soon a stop is seen."""

SLOWNESS_S = 1.0
"""How often the link is asked whether it has given up sending many packets at once."""

STOP_S = 10.0
GENERATIONS_PER_S = 10


class SwitchDaemon:
    """A switch on this host, from `start` to `stop`.

    bind_control: "tcp://host:port"; bind_data: (host, port) for UDP; port 0 takes any. dataplane: a name of DATAPLANES,
    AUTO or XDP; the attribute of that name says what was chosen, and why nothing faster. interfaces: for XDP, by name;
    None: those that have the data address. impairments: what the links of an emulated switch do; only NATIVE has them
    (XDP loss alone), so AUTO then means NATIVE. link: "udp", or RDMA: workers write into queue pairs at bind_data, an
    address of this host's own with port 4791; packets: most of a message of results there. Or "zeromq": bundles over
    TCP, for which the data address is a TCP one. keys: of the control plane, and of the data plane over ZeroMQ: encrypt
    and let in only whom they allow.
    slots, elements: the switch's memory. advertise: data address told to
    workers, if it isn't the one they see: by default the bound one, or, when bound to 0.0.0.0, the host they reach the
    control plane at. lease_s: silence after which a worker is dead. log: told a line per event, without control
    characters.

    The constructor binds both addresses: raises SwitchaggError that says which can't be had, and the remedy.
    """

    def __init__(
        self,
        bind_control: str = CONTROL,
        bind_data: Address = DATA,
        *,
        dataplane: str = AUTO,
        slots: int = SLOTS,
        elements: int = ELEMENTS_MTU_1500,
        advertise: Address | None = None,
        lease_s: float = 4.0,
        interfaces: Sequence[str] | None = None,
        impairments: Impairments | None = None,
        link: str = "udp",
        packets: int = PACKETS_DEFAULT,
        keys: Keys | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        _check(bind_control, dataplane, slots, elements, lease_s, interfaces)
        _check_link(link, bind_data, dataplane, impairments)
        if impairments is not None:
            if dataplane not in (AUTO, NATIVE, XDP):
                raise SwitchaggError(f"impairments need the data plane {NATIVE} or {XDP}; {dataplane} has none")
            dataplane = NATIVE if dataplane == AUTO else dataplane
        elements = elements if dataplane == AUTO else DATAPLANES[dataplane].fitting(elements)
        # Tenths of a second since 1970: no earlier life of this switch can have admitted so many jobs (C5).
        boot = time.time_ns() // (1_000_000_000 // GENERATIONS_PER_S) % MODULUS
        lease_ns = round(lease_s * 1e9)
        controller = Controller(slots, elements, boot, lease_ns=lease_ns, claim_ns=lease_ns // 4)
        self._log: Callable[[str], None] = lambda line: log(_printable(line))
        self._reason = ""
        self._failure: Exception | None = None
        self._link: UdpLink | None = None  # until it was said what slows it down
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._loop: RdmaSwitchLoop | NativeSwitchLoop | SwitchLoop | XdpSwitch
        if link == RDMA:
            self._loop = self._rdma_host(bind_data, slots, elements, packets)
        elif link == ZEROMQ:
            self._loop = self._zeromq_host(bind_data, dataplane, slots, elements, keys)
        else:
            self._loop = self._host(bind_data, dataplane, slots, elements, interfaces, impairments)
        queue_pairs = self._loop if isinstance(self._loop, RdmaSwitchLoop) else None
        host = "" if self.data_address[0] == "0.0.0.0" else self.data_address[0]
        told = advertise or (host, self.data_address[1])
        try:
            self._server = ControlServer(
                bind_control, controller, self._loop, told, self._on_event, queue_pairs, link, keys
            )
        except JobError:
            self._loop.stop()
            raise
        except OSError as error:
            self._loop.stop()
            raise SwitchaggError(
                f"control address {bind_control}: {error.strerror}; choose another with --control tcp://HOST:PORT, or "
                f"end the switch that holds it"
            ) from error
        self.control_endpoint: str = self._server.endpoint
        self._thread = threading.Thread(target=self._run, name="switch-control", daemon=True)

    def _rdma_host(self, bind_data: Address, slots: int, elements: int, packets: int) -> RdmaSwitchLoop:
        """The data plane for queue pairs, bound; sets `dataplane` and `data_address`."""
        self.dataplane = Choice(NATIVE, {})
        plane = NativePlane(slots, elements)
        try:
            bound = UdpLink(bind_data)
        except JobError as error:
            raise SwitchaggError(
                f"data address: {error}; RoCEv2 has port {ROCE_PORT} alone, which one process per address can hold: "
                f"choose another address with --data HOST:{ROCE_PORT}"
            ) from error
        try:
            self.data_address, self._link = bound.address, bound
            return RdmaSwitchLoop(bound, plane, packets=packets, on_failure=self._on_failure)
        except BaseException:
            bound.close()
            raise

    def _zeromq_host(
        self, bind_data: Address, dataplane: str, slots: int, elements: int, keys: Keys | None
    ) -> SwitchLoop:
        """The data plane for bundles over ZeroMQ, bound; sets `dataplane` and `data_address`."""
        self.dataplane = fastest(slots, elements) if dataplane == AUTO else Choice(dataplane, {})
        plane = _made(self.dataplane.name, slots, elements)
        try:
            link = ZeroMqLink(bind_data, keys=keys)
        except JobError as error:
            raise SwitchaggError(f"data address: {error}") from error
        self.data_address = link.address
        return SwitchLoop(link, plane, on_failure=self._on_failure)

    def _host(
        self,
        bind_data: Address,
        dataplane: str,
        slots: int,
        elements: int,
        interfaces: Sequence[str] | None,
        impairments: Impairments | None,
    ) -> "NativeSwitchLoop | SwitchLoop | XdpSwitch":
        """The data plane's host, bound; sets `dataplane` and `data_address`."""
        if dataplane == XDP:
            kernel = XdpSwitch(
                bind_data,
                slots,
                elements,
                interfaces,
                impairments=impairments,
                log=self._log,
                on_failure=self._on_failure,
            )
            self.dataplane, self.data_address = Choice(XDP, {}), kernel.address
            self._log(f"data plane {XDP}: {kernel.mode}")
            return kernel
        self.dataplane = fastest(slots, elements) if dataplane == AUTO else Choice(dataplane, {})
        plane = _made(self.dataplane.name, slots, elements)
        try:
            link = UdpLink(bind_data)
        except JobError as error:
            raise SwitchaggError(f"data address: {error}; choose another with --data HOST:PORT") from error
        self.data_address, self._link = link.address, link
        if isinstance(plane, NativePlane):
            return NativeSwitchLoop(link, plane, impairments=impairments, on_failure=self._on_failure)
        return SwitchLoop(link, plane, on_failure=self._on_failure)

    def start(self) -> None:
        """Start both threads; once."""
        self._loop.start()
        self._thread.start()

    def stop(self, reason: str = "the switch was stopped") -> None:
        """Tell all members the reason, end both threads; again is allowed. Raises SwitchaggError if one hangs."""
        self._reason = self._reason or reason
        self._stopping.set()
        if self._thread.ident is None:
            self._server.close(self._reason)
            self._loop.stop()
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
        with contextlib.ExitStack() as ending:  # in reverse; each whatever becomes of those before
            ending.callback(self._ended.set)
            ending.callback(self._loop.stop)
            look_s = 0.0
            try:
                while not self._stopping.is_set():
                    self._server.turn(TURN_S)
                    if time.monotonic() >= look_s:
                        self._say_slowness()
                        look_s = time.monotonic() + SLOWNESS_S
            except Exception as error:
                self._failure = error
                self._reason = f"the switch's control plane failed: {error!r}"
            self._server.close(self._reason)

    def _say_slowness(self) -> None:
        """Say it once, if the link has given up sending many packets at once."""
        link = self._link
        if link is None:
            return
        with contextlib.suppress(SwitchaggError):  # a loop that has just ended; `failure` tells
            self._loop.counters()  # a native loop tells its link only then
        if slowness := link.slowness():
            self._link = None
            self._log(slowness)

    def _on_failure(self, error: BaseException) -> None:
        self._reason = f"the switch's data plane failed: {error!r}"
        self._stopping.set()

    def _on_event(self, event: Event) -> None:
        match event:
            case JobAdmitted():
                first, end = event.job.slots
                who = ", ".join(map(str, event.members))
                self._log(
                    f"job {event.name!r} generation {event.job.generation} runs in slots {first}-{end - 1}: {who}"
                )
            case JobEvicted():
                self._log(f"job {event.name!r} generation {event.job.generation} has ended; its slots are free")
            case JoinRefused():
                self._log(f"refused {', '.join(map(str, event.members))}: {event.reason}")
            case JobFailed():
                self._log(f"job {event.name!r} generation {event.generation} failed: {event.reason}")
            case MemberLeft():
                departure = event.departure
                why = f": {departure.reason}" if departure.reason else ""
                self._log(f"job {event.name!r}: {departure.member} left after {sum(departure.calls)} calls{why}")


def run_switch(
    bind_control: str = CONTROL,
    bind_data: Address = DATA,
    *,
    dataplane: str = AUTO,
    slots: int = SLOTS,
    elements: int = ELEMENTS_MTU_1500,
    advertise: Address | None = None,
    lease_s: float = 4.0,
    interfaces: Sequence[str] | None = None,
    impairments: Impairments | None = None,
    link: str = "udp",
    packets: int = PACKETS_DEFAULT,
    keys: Keys | None = None,
    ready_file: Path | None = None,
    quiet: bool = False,
) -> int:
    """Run a switch until SIGINT or SIGTERM; returns the exit status: 0, or 1 after one line on stderr.

    Prints "switchagg switch ready: control … data …" to stdout once both addresses are bound, and writes the same line
    to ready_file, if given; events go to stderr unless quiet, and first why no faster data plane is used, if one was
    passed over. See SwitchDaemon for the rest.
    """
    log = _discard if quiet else _print_event
    try:
        daemon = SwitchDaemon(
            bind_control,
            bind_data,
            dataplane=dataplane,
            slots=slots,
            elements=elements,
            advertise=advertise,
            lease_s=lease_s,
            interfaces=interfaces,
            impairments=impairments,
            link=link,
            packets=packets,
            keys=keys,
            log=log,
        )
    except SwitchaggError as error:
        print(f"switchagg: {error}", file=sys.stderr)
        return 1
    with _signals() as stopped:
        daemon.start()
        data = f"{daemon.data_address[0]}:{daemon.data_address[1]}"
        line = (
            f"switchagg switch ready: control {daemon.control_endpoint} data {data} "
            f"({daemon.dataplane.name}, {slots} slots of {elements} elements)"
        )
        if daemon.dataplane.passed_over:
            log(f"data plane {daemon.dataplane}")
        if impairments is not None:
            log(f"impairments: {impairments}; seed {impairments.seed}")
        print(line, flush=True)
        try:
            if ready_file is not None:
                _write_whole(ready_file, line + "\n")
            while not stopped and not daemon.wait(0.2):
                pass
        except OSError as error:
            print(f"switchagg: ready file {ready_file}: {error.strerror}", file=sys.stderr)
            daemon.stop(f"the switch could not write {ready_file}")
            return 1
        daemon.stop(f"the switch was stopped by {stopped[0]}" if stopped else "")
    if daemon.failure is not None:
        print(f"switchagg: the switch failed: {daemon.failure!r}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _signals() -> Iterator[list[str]]:
    """A list that gets the name of the first SIGINT or SIGTERM; empty for ever outside the main thread."""
    caught: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    earlier = {
        number: signal.signal(number, lambda received, _: caught.append(signal.Signals(received).name))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield caught
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _made(name: str, slots: int, elements: int) -> DataPlane:
    """A data plane, ready for jobs of that many elements. Raises JobError."""
    plane = DATAPLANES[name](slots, elements)
    if isinstance(plane, P4Plane | Bmv2Plane):
        plane.prepare()
    return plane


def _check(
    bind_control: str, dataplane: str, slots: int, elements: int, lease_s: float, interfaces: Sequence[str] | None
) -> None:
    """Raise SwitchaggError for what no switch can be made of."""
    parse_endpoint(bind_control, "control address")
    if dataplane not in (AUTO, *DATAPLANES):
        raise SwitchaggError(f"data plane {dataplane!r}: one of {', '.join((AUTO, *DATAPLANES))}")
    if interfaces and dataplane != XDP:
        raise SwitchaggError(
            f"interfaces are for the data plane {XDP}; {dataplane} serves its address on all of them: add --dataplane "
            f"{XDP}, or leave --interface out"
        )
    if not 1 <= slots <= MAX_SLOTS:
        raise SwitchaggError(f"slots {slots}: 1 to {MAX_SLOTS}")
    if not 1 <= elements <= MAX_ELEMENTS:
        raise SwitchaggError(f"elements {elements}: 1 to {MAX_ELEMENTS}")
    if not 1 <= lease_s <= 3600:
        raise SwitchaggError(f"lease {lease_s:g} s: 1 to 3600, since workers beat every half second")


def _check_link(link: str, bind_data: Address, dataplane: str, impairments: Impairments | None) -> None:
    """Raise SwitchaggError for what this link can't do."""
    if link not in ("udp", ZEROMQ, RDMA):
        raise SwitchaggError(f"link {link!r}: udp, {ZEROMQ} or {RDMA}")
    if link == ZEROMQ and (dataplane == XDP or impairments is not None):
        raise SwitchaggError(f"the link {ZEROMQ} has no data plane {XDP} and no impairments; use the link udp")
    if link != RDMA:
        return
    if dataplane not in (AUTO, NATIVE):
        raise SwitchaggError(f"the link {RDMA} needs the data plane {NATIVE}, not {dataplane}")
    if impairments is not None:
        raise SwitchaggError(
            f"the link {RDMA} has no impairments of its own; shape the interfaces, or use the link udp"
        )
    if bind_data[0] in ("0.0.0.0", "::"):
        raise SwitchaggError(
            f"over {RDMA} the switch needs an address of its own, which every packet's ICRC covers: give --data "
            f"HOST:{ROCE_PORT}"
        )


def _write_whole(path: Path, text: str) -> None:
    """Write a file that no reader ever sees half written."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def _printable(line: str) -> str:
    """Names, hosts and reasons are strangers' words: no line break or escape sequence of theirs gets through."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line)


def _print_event(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads, or it was closed: the switch serves on
        print(f"switchagg switch: {line}", file=sys.stderr, flush=True)


def _discard(line: str) -> None:
    pass
