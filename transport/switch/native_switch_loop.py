"""NativeSwitchLoop: the switch's event loop in C (transport/native/network/switch.h), with the GIL released.

The thread comes back to Python only for commands. Beyond what SwitchLoop does it takes bundles apart and gives every
port a link of its own in each direction, with queue, rate, delay and faults per packet (`Impairments`); and results
carry the DSCP and ECN bits of the packet that completed them.
"""

import atexit
import ctypes
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from switchagg.dataplane.native import NativePlane
from switchagg.errors import JobError, SwitchaggError
from switchagg.job import JobConfig
from switchagg.native import headers, library
from switchagg.native.multicast import Multicast
from switchagg.wire import frame_bytes
from transport.contracts.switch_host import Uplink
from transport.links.hop_tags import TAG_BYTES
from transport.links.link import Address
from transport.links.native_udp import NativeUdp, native_address, native_hop
from transport.links.udp_link import UdpLink
from transport.switch.impairments import FULL_FRAME_BYTES, RATE_MAX_BPS, Impairments, LinkImpairments
from transport.switch.switch_loop import IDLE_S, QUEUE_BYTES_MAX, CommandLoop, HopEnds, SwitchPort

SWITCH_COUNTERS = headers.names("sa_switch_counter", "SA_SWITCH_")

ALWAYS_SHOWN = 5
"""How many of the counters, from the first, mean something without impairments, too."""

POOL_BYTES = 256 << 20
"""Bound on packets that wait or are in flight, at all ports together: 1 Gbit/s for 2 s. Unused memory isn't touched."""

POOL_PACKETS_MAX = 1 << 18

GRAIN_MIN_NS = 50_000
GRAIN_MAX_NS = 200_000
GRAIN_FRAMES = 4
"""With a rate or delay, packets may be sent late by up to as long as so many full frames take, within these bounds, so
that several leave in one system call. When each leaves its queue and which are dropped is exact all the same."""

FRAMING_BYTES = {socket.AF_INET: 14 + 20 + 8, socket.AF_INET6: 14 + 40 + 8}
"""Ethernet, IP and UDP headers: what Linux's shapers count beyond the datagram."""

CERTAIN = 1 << 63
QueueConfig = headers.struct("sa_queue_config")
_ImpairmentConfig = headers.struct("sa_impairment")
_SwitchConfig = headers.struct("sa_switch_config")


class NativeSwitchLoop(CommandLoop[SwitchPort]):
    """Runs a NativePlane on a UdpLink; see CommandLoop. It raises JobError for another link or data plane.

    multicast: copies what goes to several workers of a job, where they can be reached so; the decision is logged.
    impairments: what the links do. Without them, queues hold up to 4 MB per port of packets for which the kernel has no
    room. Packets beyond a queue's limit are dropped and counted (drop_queue_full on the way down), and so are those
    beyond the memory for all packets that wait or are in flight (drop_pool). The socket is one for all ports: a sender
    that floods it can overrun the kernel's receive buffer for all (link_receive_overflow), which workers repair as
    loss.
    """

    _link: UdpLink
    _dataplane: NativePlane

    def __init__(
        self,
        link: UdpLink,
        dataplane: NativePlane,
        *,
        impairments: Impairments | None = None,
        multicast: Multicast | None = None,
        log: Callable[[str], None] = lambda line: None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        if not isinstance(link, UdpLink) or not isinstance(dataplane, NativePlane):
            names = f"{type(dataplane).__name__} on {type(link).__name__}"
            raise JobError(f"the native switch loop needs a NativePlane on a UdpLink, not a {names}")
        super().__init__(link, dataplane, on_failure)
        self._impaired = impairments is not None
        self._multicast, self._log = multicast, log
        self._library = library.load()
        self._pid = os.getpid()
        size = frame_bytes(dataplane.elements) + TAG_BYTES
        self._udp = NativeUdp(link, size)
        config = _config(impairments or Impairments(), ":" in link.address[0])
        config.udp, config.plane = self._udp.handle, dataplane.handle
        config.wake, config.segments_max = link.wake_descriptor, link.segments_max
        config.pool_packets = max(1024, min(POOL_PACKETS_MAX, POOL_BYTES // size))
        config.datagram_bytes = size
        self._switch: int | None = self._library.sa_switch_new(ctypes.byref(config))
        if not self._switch:
            self._udp.close()
            raise MemoryError("no memory for the switch loop")
        self._counts = self._library.sa_switch_counters(self._switch)
        atexit.register(self._stop_at_exit)

    def _run_once(self) -> None:
        end = self._library.sa_switch_run(self._switch, time.monotonic_ns() + round(IDLE_S * 1e9))
        if end < 0:
            raise OSError(-end, f"the switch's socket: {os.strerror(-end)}")

    def _admit(self, job: JobConfig, addresses: Sequence[Address], uplink: Uplink | None, secret: bytes) -> None:
        super()._admit(job, addresses, uplink, secret)
        if self._multicast is None:
            return
        if secret:
            self._log(f"job {job.job_id}: results go to each worker by itself: each has a tag of its own (A1)")
            return
        try:
            self._multicast.admit(job.job_id, addresses)
            self._log(f"job {job.job_id}: each result leaves once, and {self._multicast.interface} copies it for all")
        except SwitchaggError as error:
            self._log(f"job {job.job_id}: results go to each worker by itself: {error}")
            self._library.sa_switch_multicast(self._switch, job.job_id, False)
        else:
            self._library.sa_switch_multicast(self._switch, job.job_id, True)

    def _authenticate(self, job_id: int, children: HopEnds | None, parent: HopEnds | None) -> None:
        hops = [ends and native_hop(*ends) for ends in (children, parent)]
        self._library.sa_switch_authenticate(self._switch, job_id, *hops)

    def _evict(self, job_id: int) -> None:
        self._library.sa_switch_multicast(self._switch, job_id, False)
        super()._evict(job_id)
        if self._multicast is not None:
            self._multicast.evict(job_id)

    def _open_port(self, number: int, address: Address) -> SwitchPort:
        if self._library.sa_switch_set_port(self._switch, number, ctypes.byref(native_address(address))):
            raise MemoryError(f"no memory for port {number}")
        return SwitchPort(number, address)

    def _free_port(self, port: SwitchPort) -> None:
        self._library.sa_switch_clear_port(self._switch, port.number)

    def _loop_counters(self) -> dict[str, int]:
        self._udp.update_link()
        names = SWITCH_COUNTERS if self._impaired else SWITCH_COUNTERS[:ALWAYS_SHOWN]
        return {name: self._counts[index] for index, name in enumerate(names)}

    def _close(self) -> None:
        switch, self._switch = self._switch, None
        if switch:
            atexit.unregister(self._stop_at_exit)
            self._udp.close()
            self._library.sa_switch_free(switch)
            if self._multicast is not None:
                self._multicast.close()
        super()._close()

    def _stop_at_exit(self) -> None:
        """The thread must be out of C before the interpreter frees the data plane under it."""
        if self._pid == os.getpid():
            self.stop()


def _config(impairments: Impairments, ipv6: bool) -> Any:
    framing = FRAMING_BYTES[socket.AF_INET6 if ipv6 else socket.AF_INET]
    directions = (impairments.up, impairments.down)
    return _SwitchConfig(
        seed=impairments.seed,
        queues=(QueueConfig * 2)(*(queue_config(link, framing) for link in directions)),
        impairments=(_ImpairmentConfig * 2)(*map(impairment_config, directions)),
        outbox_bytes=QUEUE_BYTES_MAX,
        grain_ns=grain_ns(impairments),
    )


def grain_ns(impairments: Impairments) -> int:
    """How long a packet may wait to be sent together with others; the faster direction decides."""
    rate_bps = max(impairments.up.rate_bps, impairments.down.rate_bps) or RATE_MAX_BPS
    return max(GRAIN_MIN_NS, min(GRAIN_MAX_NS, GRAIN_FRAMES * FULL_FRAME_BYTES * 8_000_000_000 // rate_bps))


def queue_config(link: LinkImpairments, framing_bytes: int) -> Any:
    """The queue of a direction as C sees it."""
    mark = headers.SA_NEVER_MARK if link.ecn_threshold_bytes is None else link.ecn_threshold_bytes
    return QueueConfig(link.rate_bps, link.queue_bytes, mark, framing_bytes)


def impairment_config(link: LinkImpairments) -> Any:
    """The faults of a direction as C sees them: probabilities are numbers of 2**63, exactly the float's value."""
    shares = (round(share * CERTAIN) for share in (link.loss, link.corrupt, link.duplicate, link.reorder))
    return _ImpairmentConfig(*shares, link.delay_ns, link.jitter_ns, link.held_back_ns)
