"""Switches that a test sends packets to: one of our own on a UDP socket of this host, or whatever it can reach.

A test is the switch's controller: it admits jobs itself, with ids, generations, slots and addresses of its choice.
"""

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsBytes

from switchagg.aggregator import SlotView
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.p4.p4_plane import P4Plane
from switchagg.dataplane.self_test import Choice
from switchagg.dataplane.xdp import XdpPlane
from switchagg.errors import SwitchaggError
from switchagg.job import Address, JobConfig, StreamConfig
from switchagg.wire import Packet
from transport.contracts.switch_host import RunningHost, Uplink
from transport.links.udp_link import UdpLink
from transport.switch.daemon_options import AUTO, LOOPBACK, XDP, DaemonOptions
from transport.switch.switch_endpoints import ChosenPlane, endpoint_of
from transport.testing.jobs import Job
from transport.testing.packets import bytes_of, describe
from transport.testing.verdict_table import PacketTally

COUNTED_S = 5.0
"""How long a switch may take to count a packet: longer than a busy machine pauses."""

RESULT_S = 1.0
"""How long a packet may take that the switch has sent, or should have."""

QUIET_S = 0.05
"""How long is waited for what should not come, from a switch that doesn't say what it has counted."""

LOG_MOST = 8
"""Lines of the log that a report shows: the last."""

_OF_RESULTS = ("drop_queue_full", "drop_pool", "ecn_marked")
"""Counters of a switch's loop that count no packet that came."""

_DATAGRAM_MOST = 1 << 16


class Port:
    """A UDP socket of the test, towards one switch: a worker's, a parent switch's or an unknown sender's. `address`:
    (host, port), bound. `tos`: IP's type of service, DSCP and ECN, of the datagram received last. Raises SwitchaggError
    for an address that can't be had."""

    def __init__(self, switch: "SwitchUnderTest", address: Address = (LOOPBACK, 0)) -> None:
        self.switch = switch
        self.tos = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._connected = False
        try:
            self._socket.bind(address)
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        except OSError as error:
            self._socket.close()
            raise SwitchaggError(f"a worker's address {address[0]}:{address[1]}: {error.strerror}") from error
        self.address: Address = self._socket.getsockname()

    def send(self, packet: Packet | SupportsBytes, tos: int = 0) -> None:
        """Send one datagram to the switch. tos: DSCP and ECN bits of its IP header."""
        if not self._connected:
            self._socket.connect(self.switch.address)
            self._connected = True
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        self._socket.send(bytes_of(packet))

    def receive(self, timeout_s: float = RESULT_S) -> bytes | None:
        """The next datagram from the switch; None if none comes in time. 0: what is there already."""
        self._socket.settimeout(timeout_s)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_DATAGRAM_MOST, socket.CMSG_SPACE(4))
        except (TimeoutError, BlockingIOError):
            return None
        except ConnectionRefusedError as error:
            host, port = self.switch.address
            raise SwitchaggError(f"nobody receives packets at {host}:{port}: has the switch ended?") from error
        self.tos = next((raw[0] for _, _, raw in ancillary), 0)
        self.switch.tally.packets_out += 1
        return data

    def close(self) -> None:
        """Free the socket; again is allowed."""
        self._socket.close()


class SwitchUnderTest(ABC):
    """Any switch that speaks the protocol; a subclass says where it is and how it is told of jobs.

    address: (host, port) for packets. As a context manager it ends with its block, and with it all ports and jobs.
    """

    address: Address

    @property
    def title(self) -> str:
        """Its name in the table of verdicts."""
        return type(self).__name__

    def __init__(self) -> None:
        self.log: list[str] = []
        self.tally = PacketTally()
        self._jobs: dict[int, JobConfig] = {}
        self._ending = ExitStack()

    @abstractmethod
    def admit(
        self, job: JobConfig, addresses: Sequence[Address], parent: tuple[Address, int] | None = None
    ) -> JobConfig:
        """Take a job whose rank i is at addresses[i], or a new generation of one. parent: address of the switch above
        and the rank there (H1). Returns the job as it was admitted. Raises JobError."""

    @abstractmethod
    def evict(self, job_id: int) -> None:
        """Forget a job."""

    def counters(self) -> dict[str, int]:
        """Packets by what became of them, each counted once all it caused was sent; none: the switch doesn't say."""
        return {}

    def seen(self, slot: int, version: int) -> SlotView | None:
        """What a slot version of an admitted job holds now; None: the switch tells only of those with a rank seen, and
        none was. Raises KeyError for a slot no job owns, SwitchaggError if the switch tells of none."""
        raise SwitchaggError("this switch does not say what its slots hold")

    def open_port(self, address: Address = (LOOPBACK, 0)) -> Port:
        """A socket of the test, closed with the switch."""
        port = Port(self, address)
        self._ending.callback(port.close)
        return port

    def job(
        self,
        workers: int = 2,
        *,
        elements: int = 4,
        window: int = 4,
        job_id: int | None = None,
        generation: int = 7,
        addresses: Sequence[Address] = (),
        parent_rank: int | None = None,
        **options: Any,
    ) -> Job:
        """A job of one stream of `window` slots, admitted for sockets at `addresses`, by default on loopback.

        job_id: by default the smallest free one from 1. parent_rank: the switch's own rank at a switch above it, whose
        part the test plays. options: as of JobConfig; `streams` replace the window.
        """
        number = next(n for n in count(1) if n not in self._jobs) if job_id is None else job_id
        if "streams" not in options:
            neighbours = [job for other, job in self._jobs.items() if other != number]
            first = max((job.slots[1] for job in neighbours), default=0)
            options["streams"] = (StreamConfig(first, window),)
        config = JobConfig(number, generation, workers, elements, **options)
        return self.job_of(config, addresses, parent_rank)

    def job_of(self, config: JobConfig, addresses: Sequence[Address] = (), parent_rank: int | None = None) -> Job:
        """As `job`, of a JobConfig. Raises JobError if the switch refuses it."""
        if addresses and len(addresses) != config.workers:
            raise SwitchaggError(f"{len(addresses)} addresses for {config.workers} workers: one for each rank")
        ports = [self.open_port(address) for address in addresses or [(LOOPBACK, 0)] * config.workers]
        above = None if parent_rank is None else (self.open_port(), parent_rank)
        return Job(self, config, ports, above)

    def deliver(self, port: Port, packet: Packet | SupportsBytes, tos: int = 0) -> str:
        """Send a packet and wait until the switch has dealt with it, results sent. Returns the name of the counter that
        counted it, "" if the switch doesn't say. Raises SwitchaggError if it doesn't take it."""
        before = _of_packets(self.counters())
        port.send(packet, tos)
        counted = self._counted(before, packet)
        self.tally.note(bytes_of(packet), counted)
        return counted

    def _counted(self, before: dict[str, int], packet: Packet | SupportsBytes) -> str:
        """The counter that has grown since `before`, as soon as one has."""
        if not before:
            time.sleep(QUIET_S)
            return ""
        end_s = time.monotonic() + COUNTED_S
        while time.monotonic() < end_s:
            now = _of_packets(self.counters())
            if grown := [name for name, packets in now.items() if packets > before.get(name, 0)]:
                return grown[0]
        raise SwitchaggError(f"the switch has not counted {describe(bytes_of(packet))} within {COUNTED_S:g} s")

    def report(self) -> str:
        """What it logged, and counters that aren't 0: for a test's report."""
        try:
            counted = [f"{name} {number}" for name, number in sorted(_of_packets(self.counters()).items()) if number]
        except SwitchaggError as error:
            counted = [str(error)]
        lines = (
            [f"{len(self.log) - LOG_MOST} earlier lines", *self.log[-LOG_MOST:]] if self.log[LOG_MOST:] else self.log
        )
        return "\n".join([*lines, f"counters: {', '.join(counted) or 'none'}"])

    def close(self) -> None:
        """Evict all jobs, close all ports; again is allowed."""
        with self._ending:
            for job_id in list(self._jobs):
                with suppress(SwitchaggError):  # the switch has ended
                    self.evict(job_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Switch(SwitchUnderTest):
    """A switch of ours in this process, without a controller: a data plane and its event loop on a UDP socket.

    dataplane: a name of `switchagg.dataplane.plane_kinds`, or "auto", the fastest that passes its self-test;
    `dataplane` is what it became. "xdp" is the kernel's program, run for each packet by BPF_PROG_TEST_RUN, not attached
    to an interface. program: a P4 program, which the data plane p4 runs. slots, elements: its memory, in slots and
    int32 values of each. address: port 0 takes any. log: what the loop said. Raises SwitchaggError for what can't be.
    """

    def __init__(
        self,
        dataplane: str = AUTO,
        *,
        program: Path | str = "",
        slots: int = 64,
        elements: int = 32,
        address: Address = (LOOPBACK, 0),
    ) -> None:
        super().__init__()
        dataplane = "p4" if program else dataplane
        options = DaemonOptions(bind_data=address, dataplane=dataplane, slots=slots, elements=elements)
        if program or dataplane == XDP:
            plane = self._plane_in_process(Path(program) if program else None, slots, elements)
            end = endpoint_of(UdpLink(address), ChosenPlane(Choice(dataplane, {}), plane), self._note_failure)
        else:
            end = options.kind.opener("switch")(options, self.log.append, self._note_failure)
        self._host: RunningHost = end.host
        self.address, self.dataplane = end.address, end.choice.name
        self.program = program and Path(*Path(program).parts[-2:]).as_posix()
        self._host.start()
        self._ending.callback(self._host.stop)

    def _plane_in_process(self, program: Path | None, slots: int, elements: int) -> DataPlane:
        if program is None:
            plane = XdpPlane(slots, elements)
            self._ending.callback(plane.close)
            return plane
        running = P4Plane(slots, elements, program=program)
        running.prepare()
        return running

    @property
    def title(self) -> str:
        return self.program or self.dataplane

    def admit(
        self, job: JobConfig, addresses: Sequence[Address], parent: tuple[Address, int] | None = None
    ) -> JobConfig:
        self._host.admit(job, addresses, Uplink(*parent) if parent else None)
        self._jobs[job.job_id] = job
        where = ", ".join(f"{host}:{port}" for host, port in addresses)
        self.log.append(f"job {job.job_id} generation {job.generation} admitted: {where}")
        return job

    def evict(self, job_id: int) -> None:
        self._host.evict(job_id)
        self._jobs.pop(job_id, None)
        self.log.append(f"job {job_id} evicted")

    def counters(self) -> dict[str, int]:
        return self._host.counters()

    def seen(self, slot: int, version: int) -> SlotView | None:
        return self._host.seen(slot, version)

    def _note_failure(self, error: BaseException) -> None:
        self.log.append(f"the data plane failed: {error!r}")


def _of_packets(counters: dict[str, int]) -> dict[str, int]:
    return {
        name: packets for name, packets in counters.items() if not name.startswith("link_") and name not in _OF_RESULTS
    }
