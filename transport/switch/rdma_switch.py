"""RdmaSwitchLoop: the switch that ends UC queue pairs (R1 to R8), with its event loop in C.

The thread comes back to Python only for commands. See transport/native/rdma/uc_plane.h for what happens to each packet.
"""

import atexit
import ctypes
import os
import time
from collections.abc import Callable, Sequence

from switchagg.dataplane.native import NativePlane
from switchagg.dataplane.self_test import Choice
from switchagg.errors import JobError
from switchagg.job import JobConfig
from switchagg.join import QueuePairEnd
from switchagg.native import headers, library
from transport.contracts.switch_host import Uplink
from transport.links.framing import ROCE_PORT
from transport.links.link import Address
from transport.links.native_udp import NativeUdp, native_address
from transport.links.udp_link import UdpLink
from transport.rdma.places import PACKETS_DEFAULT, PACKETS_MAX, mtu_for, switch_ends
from transport.rdma.rdma_sockets import prepare
from transport.switch.daemon_options import WILDCARDS, DaemonOptions
from transport.switch.switch_endpoints import Log, OnFailure, SwitchEndpoint, bound
from transport.switch.switch_loop import IDLE_S, CommandLoop, HopEnds, SwitchPort

DATAGRAM_BYTES_MAX = 32 + 4096 + 4
"""Headers, MTU, ICRC."""

UC_COUNTERS = headers.names("sa_uc_counter", "SA_UC_")
UcPeer = headers.struct("sa_uc_peer")


class RdmaSwitchLoop(CommandLoop[SwitchPort]):
    """Runs a native data plane for RDMA workers behind a UdpLink; jobs come by `admit_ends`. See CommandLoop.

    link: bound to one address, which the ICRC covers. packets: most of a message that results are joined to.
    Raises JobError for another link, an address that is none's own, or without the compiled core.
    """

    def __init__(
        self,
        link: UdpLink,
        dataplane: NativePlane,
        *,
        packets: int = PACKETS_DEFAULT,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        if not 1 <= packets <= PACKETS_MAX:
            raise JobError(f"packets {packets}: a message has 1 to {PACKETS_MAX}")
        host = link.address[0]
        if host in WILDCARDS:
            raise JobError(
                f"over RDMA the switch needs an address of its own, not {host}: every packet's ICRC covers it"
            )
        super().__init__(link, dataplane, on_failure)
        self._native = dataplane
        self._pid = os.getpid()
        try:
            self._library = library.load()
        except library.CoreMissing as missing:
            raise JobError(f"no RDMA switch: {missing}") from None
        self._wake = link.wake_descriptor
        prepare(link)
        self._udp = NativeUdp(link, DATAGRAM_BYTES_MAX)
        address = ctypes.byref(native_address(link.address))
        self._rdma = self._library.sa_uc_plane_new(dataplane.handle, address, packets)
        self._switch = None
        if self._rdma:
            self._switch = self._library.sa_uc_switch_new(
                self._rdma, self._udp.handle, self._wake, min(link.segments_max, 64)
            )
        if not self._switch:
            self._udp.close()
            self._library.sa_uc_plane_free(self._rdma)
            raise MemoryError("no memory for the RDMA switch")
        self._counts = self._library.sa_uc_plane_counters(self._rdma)
        atexit.register(self._stop_at_exit)

    def admit(
        self, job: JobConfig, addresses: Sequence[Address], uplink: Uplink | None = None, secret: bytes = b""
    ) -> None:
        """Refuses: jobs over RDMA come by `admit_ends`."""
        raise JobError(f"job {job.job_id}: an RDMA switch must be told the workers' queue pairs")

    def admit_ends(self, job: JobConfig, addresses: Sequence[Address], ends: Sequence[QueuePairEnd]) -> None:
        """Take a job, or a new generation of one; rank i's NIC is at addresses[i], its end of the queue pair ends[i].

        Addresses may be the same where ranks share a NIC. Raises JobError if the data plane refuses it, its frames fill
        no MTU, or an end can't be.
        """
        mtu_for(job.elements)
        resolved = [self._link.resolve(address) for address in addresses]
        for rank, end in enumerate(ends):
            if fault := end.fault():
                raise JobError(f"job {job.job_id}, rank {rank}: {fault}")
        if not len(resolved) == len(ends) == job.workers:
            raise JobError(f"job {job.job_id}: {job.workers} workers need as many addresses and queue pairs")
        self._ask(lambda: self._admit_ends(job, resolved, ends))

    def _admit_ends(self, job: JobConfig, addresses: Sequence[Address], ends: Sequence[QueuePairEnd]) -> None:
        peers = (UcPeer * job.workers)(
            *(
                UcPeer(native_address(address), end.base, end.queue_pair, end.rkey, end.psn, end.any_identification)
                for address, end in zip(addresses, ends, strict=True)
            )
        )
        self._native.admit(job, [end.queue_pair for end in switch_ends(job)])
        if self._library.sa_uc_plane_admit(self._rdma, ctypes.byref(library.job_struct(job)), peers):
            self._native.evict(job.job_id)
            raise JobError(f"job {job.job_id}: no memory for its queue pairs")

    def _evict(self, job_id: int) -> None:
        self._library.sa_uc_plane_evict(self._rdma, job_id)
        super()._evict(job_id)

    def _run_once(self) -> None:
        end = self._library.sa_uc_switch_run(self._switch, time.monotonic_ns() + round(IDLE_S * 1e9))
        if end < 0:
            raise OSError(-end, f"the switch's socket: {os.strerror(-end)}")

    def _open_port(self, number: int, address: Address) -> SwitchPort:
        raise AssertionError("queue pairs take the place of ports")

    def _free_port(self, port: SwitchPort) -> None:
        raise AssertionError("queue pairs take the place of ports")

    def _authenticate(self, job_id: int, children: HopEnds | None, parent: HopEnds | None) -> None:
        pass  # frames fill the MTU: there is no room for tags (R1)

    def _loop_counters(self) -> dict[str, int]:
        self._udp.update_link()
        return {name: self._counts[index] for index, name in enumerate(UC_COUNTERS)}

    def _close(self) -> None:
        switch, self._switch = self._switch, None
        if switch:
            atexit.unregister(self._stop_at_exit)
            self._udp.close()
            self._library.sa_uc_switch_free(switch)
            self._library.sa_uc_plane_free(self._rdma)
        super()._close()

    def _stop_at_exit(self) -> None:
        """The thread must be out of C before the interpreter frees the data plane under it."""
        if self._pid == os.getpid():
            self.stop()


def open_switch(options: DaemonOptions, log: Log, on_failure: OnFailure) -> SwitchEndpoint:
    """The switch's end, of a native plane."""
    plane = NativePlane(options.slots, options.slot_elements)
    link = bound(
        lambda: UdpLink(options.bind_data),
        f"; RoCEv2 has port {ROCE_PORT} alone, which one process per address can hold: choose another address with "
        f"--data HOST:{ROCE_PORT}",
    )
    try:
        host = RdmaSwitchLoop(link, plane, packets=options.packets, on_failure=on_failure)
    except BaseException:
        link.close()
        raise
    return SwitchEndpoint(host, link.address, Choice(NativePlane.name, {}), link.slowness, host)
