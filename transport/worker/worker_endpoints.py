"""A worker's end of a link: opened before the join, which tells the switch where it is; then a loop uses it.

`transport.links.link_kinds` names the functions that open the ends.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

from switchagg.job import JobConfig
from switchagg.join import QueuePairEnd
from switchagg.wire import frame_bytes
from transport.links.hop_tags import HopKeys
from transport.links.link import Address, Link
from transport.links.udp_link import UdpLink
from transport.worker.join_options import JoinOptions
from transport.worker.native_worker_loop import NativeWorkerLoop
from transport.worker.worker_loop import CallLoop, LoopWatch, WorkerLoop
from transport.zeromq.keys import as_keys
from transport.zeromq.zmq_link import OPTIONS, ZeroMqLink


@dataclass(frozen=True)
class Admission:
    """A rank's place in a running job. switch: data address of its own switch, where it has the rank wire_rank (H1).
    native: whether the endpoint shall be the one in C. queue_pair: the switch's end, where the worker's has one.
    watch, hop_keys: as of a CallLoop. secret: the join's, for links that carry it."""

    job: JobConfig
    rank: int
    switch: Address
    native: bool
    watch: LoopWatch
    queue_pair: QueuePairEnd | None = None
    secret: int = 0
    wire_rank: int | None = None
    key: bytes = bytes(16)
    """Of verified sums (C26)."""
    hop_keys: HopKeys | None = field(default=None, repr=False)


class WorkerEndpoint(Protocol):
    """It is bound from its making on. The loop of `loop` closes it; until then, its opener does."""

    @property
    def address(self) -> Address:
        """Our address, as the switch shall know it."""

    @property
    def queue_pair(self) -> QueuePairEnd | None:
        """The queue pair that the switch must know beside the address; None: the address is enough."""

    @property
    def packets_held(self) -> int:
        """See `UdpLink.packets_held`, of packets as the job's; 0: as many as come."""

    def slowness(self) -> str:
        """See `Link.slowness`."""

    def loop(self, admission: Admission) -> CallLoop:
        """The loop that carries the rank's calls, running. Raises JobError if the switch can't be reached."""

    def close(self) -> None:
        """Free everything; a second call does nothing."""


class LinkEndpoint:
    """The end of any `Link`."""

    queue_pair = None

    def __init__(self, link: Link, packets_held: int = 0) -> None:
        self._link = link
        self.packets_held = packets_held
        self.address, self.slowness, self.close = link.address, link.slowness, link.close

    def loop(self, admission: Admission) -> CallLoop:
        """See `WorkerEndpoint.loop`."""
        place = self._link, admission.job, admission.rank, admission.switch
        how = {name: getattr(admission, name) for name in ("watch", "wire_rank", "key", "hop_keys")}
        if admission.native and isinstance(self._link, UdpLink):
            return NativeWorkerLoop(*place, **how)
        return WorkerLoop(*place, native=admission.native, **how)


class _ZeroMqEndpoint(LinkEndpoint):
    """The end of a link whose messages prove which member they are of."""

    _link: ZeroMqLink

    def loop(self, admission: Admission) -> CallLoop:
        """See `WorkerEndpoint.loop`."""
        self._link.secret = admission.secret
        return super().loop(admission)


def open_link(options: JoinOptions, host: str) -> WorkerEndpoint:
    """The end of a link that needs only an address. host: our own."""
    return LinkEndpoint(options.kind.opener("link")((host, 0)))


def open_udp(options: JoinOptions, host: str) -> WorkerEndpoint:
    """The end of a UdpLink."""
    link: UdpLink = options.kind.opener("link")(
        (host, 0), tos=options.tos, segments_max=options.segments_max, credit_bytes=options.credit
    )
    return LinkEndpoint(link, link.packets_held(frame_bytes(options.packet_elements)))


def open_zeromq(options: JoinOptions, host: str) -> WorkerEndpoint:
    """The end of a ZeroMqLink, which doesn't listen."""
    keys = as_keys(options.keys)
    return _ZeroMqEndpoint(ZeroMqLink((host, 0), options=replace(OPTIONS, tos=options.tos), keys=keys, listening=False))
