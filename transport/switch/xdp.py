"""XdpSwitch: hosts the data plane in the kernel. It has the commands of SwitchLoop, but no packet ever comes here.

The programs are attached to ports: XDP where a port's packets come in, and tc ingress of the same ports, where results
are copied to all targets. They are attached by file descriptors of this process, and removed when it ends, however it
ends. A thread watches the ports, and the socket that occupies the data address.
"""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from switchagg.aggregator import SlotView
from switchagg.dataplane.xdp import Address, KernelSwitch, ParentEnd
from switchagg.errors import JobError, SwitchaggError
from switchagg.job import JobConfig
from switchagg.native import bpf
from switchagg.native.headers import SA_XDP_ELEMENTS_MTU_1500
from switchagg.wire import HEADER_BYTES, frame_bytes
from transport.contracts.switch_host import Uplink
from transport.links.addresses import resolve_host
from transport.links.framing import IP_UDP_BYTES
from transport.switch.impairments import PERFECT, Impairments, LinkImpairments
from transport.switch.interfaces import Interface, LinkEvents, interfaces, neighbour

ANY = "0.0.0.0"

MTU_ONE_BUFFER = 3000
"""Up to it, every driver with native XDP hands a packet over in one buffer; from about 3500 on it takes frags."""

STRAYS_PER_LOOK = 1000

ANSWER_S = 10.0

NEIGHBOUR_S = 2.0
DISCARD_PORT = 9
"""RFC 863; closed almost everywhere, which does as well."""


@dataclass(slots=True, eq=False)
class _Port:
    """place: its number in our list. index 0: it doesn't exist at present."""

    place: int
    name: str
    index: int = 0
    up: bool = True
    native: bool = True
    links: tuple[bpf.BpfAttachment, ...] = ()


@dataclass(frozen=True)
class XdpOptions:
    """ports: names of interfaces; a bridge means its ports. (): those the host's address is on. impairments: loss
    alone, of data packets, in either direction. mark: probability that a result with ECT gets CE. native: True insists
    on XDP in the driver, False takes the generic one, None prefers the first. tcx: False uses a clsact filter, as
    kernels before 6.6 must.
    """

    ports: tuple[str, ...] = ()
    impairments: Impairments | None = None
    mark: float = 0.0
    native: bool | None = None
    tcx: bool = True


class XdpSwitch:
    """The switch in the kernel of this host, attached from construction to `stop`.

    data: (host, port) to serve; port 0 takes any. slots, elements: as for a data plane. log: called with lines on
    ports. on_failure: as for SwitchLoop.

    Raises SwitchaggError: one line that names the missing interface, address, right or feature. Workers' addresses
    that aren't IPv4 are refused with JobError.
    """

    def __init__(
        self,
        data: Address,
        slots: int,
        elements: int,
        options: XdpOptions | None = None,
        *,
        log: Callable[[str], None] = lambda line: None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        bpf.require()
        options = options or XdpOptions()
        self._impairments = options.impairments or Impairments()
        self._mark = options.mark
        _refuse_impossible(self._impairments)
        self._native, self._tcx, self._log, self._on_failure = options.native, options.tcx, log, on_failure
        self._failure: BaseException | None = None
        self._lock = threading.Lock()  # It guards the kernel's jobs and the ports against the watching thread.
        self._running = False
        self._unknown_senders = 0
        present = interfaces()
        chosen = choose(present, data[0], options.ports)
        _check_mtu(chosen, elements)
        with contextlib.ExitStack() as undo:
            self._socket = undo.enter_context(_bound(data))
            self.address: Address = self._socket.getsockname()[:2]
            addresses = [data[0]] if data[0] != ANY else _addresses(present, chosen)
            self._kernel = KernelSwitch(
                slots,
                elements,
                addresses,
                self.address[1],
                jumbo=elements > SA_XDP_ELEMENTS_MTU_1500 or max(port.mtu for port in chosen) > MTU_ONE_BUFFER,
                impaired=options.impairments is not None or options.mark > 0,
                partial_accepted=any(port.bus in ("", "virtio") for port in chosen),
            )
            undo.callback(self._kernel.close)
            self._ports = [_Port(place, port.name) for place, port in enumerate(chosen)]
            undo.callback(self._detach)
            for port, interface in zip(self._ports, chosen, strict=True):
                self._attach(port, interface)
            self._events = LinkEvents()
            undo.callback(self._events.close)
            self._wake_out, self._wake_in = os.pipe()
            undo.pop_all()
        self._thread = threading.Thread(target=self._run, name=f"xdp-watch-{self.address[1]}", daemon=True)

    # Methods that any thread may call

    def start(self) -> None:
        """Start the watching thread; once."""
        self._running = True
        self._thread.start()

    def stop(self) -> None:
        """Detach from all ports and end the thread; again is allowed. Raises SwitchaggError if it hangs."""
        with self._lock:
            self._detach()
            self._running = False
        if self._thread.ident is None:
            self._close()
        elif threading.current_thread() is not self._thread:
            with self._lock:  # closed already, its number may be another file's
                if self._wake_in >= 0:
                    os.write(self._wake_in, b"x")
            self._thread.join(ANSWER_S)
            if self._thread.is_alive():
                raise SwitchaggError(f"the thread that watches the ports did not end within {ANSWER_S:.0f} s")

    @property
    def failure(self) -> BaseException | None:
        """The unexpected exception that ended the watching thread, or None."""
        return self._failure

    @property
    def mode(self) -> str:
        """Where the programs are attached, and how, as a text."""
        modes = {True: "native XDP", False: "generic XDP"}
        parts = [
            f"{mode} on {', '.join(names)}"
            for native, mode in modes.items()
            if (names := [port.name for port in self._ports if port.native is native])
        ]
        return "; ".join(parts)

    def admit(
        self, job: JobConfig, addresses: Sequence[Address], uplink: Uplink | None = None, secret: bytes = b""
    ) -> None:
        """Take a job, or a new generation of one; addresses[rank] is where that rank sends from. Raises JobError."""
        if secret or (uplink and uplink.keys):
            raise JobError(f"job {job.job_id}: the data plane xdp makes no tags of packets (A1)")
        resolved = [(resolve_host(host), port) for host, port in addresses]
        parent = self._parent_end(uplink) if uplink else None
        with self._commanding():
            self._kernel.admit(job, resolved, parent)

    def evict(self, job_id: int) -> None:
        """Forget a job: its packets are dropped from now on. Unknown jobs are ignored."""
        with self._commanding():
            self._kernel.evict(job_id)

    def seen(self, slot: int, version: int) -> SlotView:
        """The contents of a slot version now. Raises KeyError for a slot no job owns."""
        with self._commanding():
            return self._kernel.seen(slot, version)

    def slots_of(self, job: JobConfig) -> dict[tuple[int, int], SlotView]:
        """(slot, version) -> what it holds, for the versions of the job that have seen any rank."""
        with self._commanding():
            return self._kernel.slots_of(job)

    def counters(self) -> dict[str, int]:
        """The programs' counters; drop_unknown_sender: what passed them by and reached the socket."""
        with self._commanding():
            return {**self._kernel.counters(), "drop_unknown_sender": self._unknown_senders}

    def _parent_end(self, uplink: Uplink) -> ParentEnd:
        """Where frames to a parent go: to a neighbour, on an interface where its results are seen. Raises JobError."""
        host, port = resolve_host(uplink.address[0]), uplink.address[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
            asking.sendto(b"", (host, DISCARD_PORT))  # the kernel looks for the neighbour
        deadline = time.monotonic() + NEIGHBOUR_S
        while (hop := neighbour(host)) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if hop is None:
            raise JobError(
                f"no neighbour has the parent's address {host}: the switch in the kernel needs it on its link"
            )
        present = interfaces()
        interface = next(candidate for candidate in present if candidate.index == hop[0])
        ports = {candidate.name for candidate in present if interface.index in (candidate.index, candidate.master)}
        if not ports & {attached.name for attached in self._ports}:
            raise JobError(
                f"the parent {host} is behind {interface.name}, where the switch in the kernel isn't attached"
            )
        local_host = self.address[0] if self.address[0] != ANY else interface.addresses[0]
        return ParentEnd((host, port), uplink.rank, hop[1] + interface.mac, local_host, interface.index)

    @contextlib.contextmanager
    def _commanding(self) -> Iterator[None]:
        with self._lock:
            if not self._running:
                raise SwitchaggError("the switch in the kernel isn't running") from self._failure
            yield

    # Attaching

    def _attach(self, port: _Port, interface: Interface) -> None:
        """XDP first, and taken off last: what it passes up without its other half is lost, and nothing else."""
        program = self._kernel.object.program("sa_switch")
        native = self._native is not False
        if native:
            try:
                link = bpf.attach_xdp(program, port.name, interface.index, native=True)
            except OSError as error:
                if self._native:
                    raise SwitchaggError(f"{error.strerror}") from error
                native = False
        if not native:
            link = bpf.attach_xdp(program, port.name, interface.index, native=False)
            self._log(
                f"{port.name} runs XDP generically, which sees bundles whole: whoever sends to it from this machine "
                f"needs 'ethtool -K NAME tx-udp-segmentation off'"
            )
        try:
            deliver = self._kernel.object.program("sa_deliver")
            port.links = (bpf.attach_ingress(deliver, port.name, interface.index, tcx=self._tcx), link)
        except BaseException:
            link.close()
            raise
        port.index, port.up, port.native = interface.index, interface.up, native
        up, down = self._impairments.up.loss, self._impairments.down.loss
        if up or down or self._mark:
            self._kernel.impair(port.index, port.place, self._impairments.seed, up, down, self._mark)

    def _detach(self) -> None:
        for port in self._ports:
            links, port.links = port.links, ()
            for link in links:
                link.close()

    # Methods that run in the thread

    def _run(self) -> None:
        try:
            poll = select.poll()
            for source in (self._events, self._socket, self._wake_out):
                poll.register(source, select.POLLIN)
            while self._running:
                for descriptor, _ in poll.poll():
                    if descriptor == self._events.fileno():
                        self._check_ports()
                    elif descriptor == self._socket.fileno():
                        self._count_unknown_senders()
        except BaseException as error:
            self._failure = error
        finally:
            with self._lock:
                self._running = False
                self._detach()
            self._close()
        if self._failure is not None and self._on_failure is not None:
            self._on_failure(self._failure)

    def _close(self) -> None:
        self._kernel.close()
        self._events.close()
        self._socket.close()
        with self._lock:
            for descriptor in (self._wake_out, self._wake_in):
                if descriptor >= 0:
                    os.close(descriptor)
            self._wake_out = self._wake_in = -1

    def _count_unknown_senders(self) -> None:
        for _ in range(STRAYS_PER_LOOK):
            try:
                _, sender = self._socket.recvfrom(1)
            except BlockingIOError:
                return
            except OSError:
                continue
            if not self._unknown_senders:
                self._log(
                    f"datagrams reach port {self.address[1]} past the program, the first from {sender[0]}: in "
                    f"fragments, or by an interface other than {', '.join(port.name for port in self._ports)}"
                )
            self._unknown_senders += 1

    def _check_ports(self) -> None:
        """Log which interfaces vanished, went down or came back, and which workers are behind them; attach again to
        those that came back."""
        self._events.clear()
        present = {interface.name: interface for interface in interfaces()}
        with self._lock:
            if not self._running:
                return
            for port in self._ports:
                self._look_at(port, present.get(port.name))

    def _look_at(self, port: _Port, now: Interface | None) -> None:
        if port.index and (now is None or now.index != port.index):
            self._log(f"port {port.name} has vanished{self._behind(port.index)}")
            for link in port.links:
                link.close()
            self._kernel.lose(port.index)
            port.links, port.index = (), 0
        if now is None:
            return
        if not port.index:
            try:
                self._attach(port, now)
            except SwitchaggError as error:
                self._log(f"port {port.name} is back, but not in use: {error}")
                return
            self._log(f"port {port.name} is back and in use again")
        elif port.up != now.up:
            port.up = now.up
            self._log(
                f"port {port.name} is up again" if now.up else f"port {port.name} is down{self._behind(now.index)}"
            )
            if not now.up:
                self._kernel.lose(now.index)

    def _behind(self, index: int) -> str:
        """The workers whose packets came in by an interface, as a text."""
        workers = []
        for job_id in self._kernel.jobs:
            ranks = [str(rank) for rank, at in enumerate(self._kernel.ports_of(job_id)) if at == index]
            if ranks:
                workers.append(f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranks)} of job number {job_id}")
        return f"; behind it: {'; '.join(workers)}" if workers else "; no worker has been heard by it"


def choose(present: Sequence[Interface], host: str, names: Sequence[str] = ()) -> list[Interface]:
    """The interfaces to attach to: those named, or those that have the host's address; a bridge means its ports.

    Raises SwitchaggError.
    """
    if names:
        by_name = {interface.name: interface for interface in present}
        for name in names:
            if name not in by_name:
                raise SwitchaggError(f"there is no interface {name!r} here; there are: {', '.join(sorted(by_name))}")
        matches = [by_name[name] for name in dict.fromkeys(names)]
    elif host == ANY:
        raise SwitchaggError("the data plane xdp must know where: name the address (--data HOST:PORT) or --interface")
    else:
        matches = [interface for interface in present if host in interface.addresses and interface.up]
        if not matches:
            raise SwitchaggError(f"no interface that is up has the address {host}; name it with --interface")
    chosen: dict[str, Interface] = {}
    for match in matches:
        ports = [port for port in present if port.master == match.index] if match.kind == "bridge" else [match]
        if not ports:
            raise SwitchaggError(f"the bridge {match.name} has no ports; name the interfaces with --interface")
        chosen.update({port.name: port for port in ports})
    return list(chosen.values())


def _check_mtu(chosen: Sequence[Interface], elements: int) -> None:
    needed = IP_UDP_BYTES + frame_bytes(elements)
    for port in chosen:
        if port.mtu < needed:
            room = max(0, (port.mtu - IP_UDP_BYTES - HEADER_BYTES) // 4)
            raise SwitchaggError(
                f"{port.name} has an MTU of {port.mtu} bytes, packets of {elements} elements need {needed}: raise the "
                f"MTU on the whole way, or give at most {room} elements (--elements)"
            )


def _addresses(present: Sequence[Interface], chosen: Sequence[Interface]) -> list[str]:
    """IPv4 addresses that reach the chosen ports: their own and their bridges'. Raises SwitchaggError."""
    masters = {port.master for port in chosen}
    reachable = [interface for interface in present if interface in chosen or interface.index in masters]
    addresses = [address for interface in reachable for address in interface.addresses]
    if not addresses:
        raise SwitchaggError(f"no IPv4 address on {', '.join(port.name for port in chosen)}; give --data HOST:PORT")
    return list(dict.fromkeys(addresses))


def _bound(data: Address) -> socket.socket:
    """The socket that holds the data address. Raises SwitchaggError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.bind((resolve_host(data[0]), data[1]))
    except (OSError, JobError) as error:
        sock.close()
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise SwitchaggError(
            f"data address {data[0]}:{data[1]}: {why}; choose another with --data HOST:PORT"
        ) from error
    return sock


def _refuse_impossible(impairments: Impairments) -> None:
    """Raise SwitchaggError for any impairment but loss."""
    if any(link not in (PERFECT, LinkImpairments(loss=link.loss)) for link in (impairments.up, impairments.down)):
        raise SwitchaggError(
            f"the data plane xdp can lose packets, and do nothing else to them ({impairments}); take --dataplane native"
        )
