"""A worker's end of a switch's queue pair (R1 to R8), over any provider of verbs, and its event loop.

Frames are in a registered ring until they have left; consecutive chunks are sent as one UC WRITE with immediate.
Results are in a registered buffer with a place for each slot version, from which the endpoint reads them as soon as a
completion names them. A packet lost at this level costs a whole message; the endpoint repairs it chunk by chunk (R7).
"""

import errno
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from switchagg.errors import JobError
from switchagg.job import JobConfig
from switchagg.join import QueuePairEnd
from switchagg.native.native_endpoint import NativeEndpoint
from switchagg.wire import Bundle, frame_bytes
from transport.links.framing import ROCE_PORT
from transport.links.link import Address
from transport.rdma.frame_runs import Grouping
from transport.rdma.places import PACKETS_DEFAULT, PACKETS_MAX
from transport.rdma.provider import RdmaOptions, open_context
from transport.rdma.verbs import (
    AccessFlags,
    Opcode,
    QPAttributes,
    QPEnd,
    QPType,
    ReceiveRequest,
    SendRequest,
    WCStatus,
)
from transport.worker.join_options import JoinOptions
from transport.worker.worker_endpoints import Admission
from transport.worker.worker_loop import ROWS_PER_ASK, ROWS_PER_TURN, EndpointLoop

RING_FRAMES = 1024
"""Frames that may wait to leave: four windows of the default size. The endpoint holds more, in order of priority."""

RECEIVES_MAX = 4096
"""Most messages of results that may come between two looks."""

GATHER_S, MANY_RESULTS = 0.0002, 32
"""Waking Python costs as much as a few messages: while many results are to come, the next few are taken together."""

RECEIVE = 0
"""The id of receives; that of a send is how many frames of the ring it frees."""


def open_worker(options: JoinOptions, host: str) -> "RdmaWorkerEnd":
    """A worker's end by its options. Raises JobError for what can't be had."""
    rdma, mtu = options.rdma or RdmaOptions(), frame_bytes(options.packet_elements)
    if not 1 <= rdma.packets <= PACKETS_MAX:
        raise JobError(f"packets {rdma.packets}: a message has 1 to {PACKETS_MAX}")
    open_end = partial(
        RdmaWorkerEnd,
        host,
        places=2 * options.requested_slots,
        mtu=mtu,
        dscp=options.tos >> 2,
        provider=rdma.provider,
        packets=rdma.packets,
    )
    if rdma.port is not None:
        return open_end(port=rdma.port)
    try:
        return open_end(port=ROCE_PORT)
    except JobError:
        return open_end(port=0)  # and if the port wasn't the reason, this raises the right one


class RdmaWorkerEnd:
    """Made before the join, which tells the switch its `queue_pair`; connected after it, by the loop that uses it and
    closes it. A `transport.worker.worker_endpoints.WorkerEndpoint`.

    provider: of `provider.PROVIDERS`. bind: own address; port: the soft provider's. places: slot versions of the job
    to be, mtu: bytes of its frames. dscp: of its packets. packets: most of a message. A single thread uses it; any
    thread may call `wake`. Raises JobError for what can't be had.
    """

    packets_held = 0

    def __init__(
        self,
        bind: str,
        *,
        places: int,
        mtu: int,
        provider: str = "soft",
        port: int = ROCE_PORT,
        dscp: int = 0,
        packets: int = PACKETS_DEFAULT,
    ) -> None:
        self.context = open_context(provider, bind, port)
        try:
            self.address: Address = self.context.address
            domain = self.context.alloc_pd()
            receives = min(places, RECEIVES_MAX)
            self.queue = self.context.create_cq(RING_FRAMES + receives)
            self.results = np.zeros((places, mtu), np.uint8)
            self._results = self.context.reg_mr(
                domain, self.results, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
            )
            self.ring = np.zeros((RING_FRAMES, mtu), np.uint8)
            self._ring = self.context.reg_mr(domain, self.ring, AccessFlags.LOCAL_WRITE)
            self.pair = self.context.create_qp(
                domain, QPType.UC, self.queue, self.queue, send_depth=RING_FRAMES, receive_depth=receives
            )
            self._receives = receives
            self.queue_pair = QueuePairEnd(
                self.pair.number,
                self.pair.end.psn,
                self._results.rkey,
                self._results.address,
                any_identification=self.context.provider != "soft",
            )
        except BaseException:
            self.context.close()
            raise
        self._mtu, self._dscp, self._packets = mtu, dscp, packets
        self._switch = QueuePairEnd(0, 0, 0, 0)

    def connect(self, switch: Address, end: QueuePairEnd) -> None:
        """To the switch's end of the queue pair; from now on results may come. Raises JobError."""
        self._switch = end
        peer = QPEnd(*switch, end.queue_pair, end.psn)
        self.pair.connect(peer, QPAttributes(path_mtu=self._mtu, dscp=self._dscp))
        self.await_results(self._receives)

    def slowness(self) -> str:
        """See `WorkerEndpoint.slowness`."""
        return ""

    def loop(self, admission: Admission) -> "RdmaWorkerLoop":
        """See `WorkerEndpoint.loop`."""
        assert admission.queue_pair is not None
        self.connect(admission.switch, admission.queue_pair)
        return RdmaWorkerLoop(
            self,
            admission.job,
            admission.rank,
            packets=self._packets,
            native=admission.native,
            watch=admission.watch,
            key=admission.key,
        )

    def await_results(self, messages: int) -> None:
        """Be ready for so many messages of results, besides those awaited already."""
        if self.pair.post_recv([ReceiveRequest(RECEIVE)] * messages) != messages:
            raise OSError(errno.ENOBUFS, "the queue pair takes no more receives")

    def write(self, runs: list[tuple[int, int, int]]) -> None:
        """Post writes of (row of the ring, frames, place)."""
        ring, mtu, switch = self._ring, self._mtu, self._switch
        requests = [
            SendRequest(
                frames,
                Opcode.WRITE_WITH_IMM,
                ring.address + row * mtu,
                frames * mtu,
                ring.lkey,
                switch.base + place * mtu,
                switch.rkey,
                place,
            )
            for row, frames, place in runs
        ]
        if self.pair.post_send(requests) != len(requests):
            raise OSError(errno.ENOBUFS, "the queue pair takes no more sends")

    @property
    def counters(self) -> Mapping[str, int]:
        """Counters of the device."""
        return self.context.counters

    def resolve(self, address: Address) -> Address:
        """As it is: a queue pair has one peer."""
        return address

    def wake(self) -> None:
        """End the present or else the next `progress` of the context. Any thread may call it."""
        self.context.wake()

    def close(self) -> None:
        """Give the device back. Again does nothing."""
        self.context.close()


class RdmaWorkerLoop(EndpointLoop):
    """The loop over a connected RdmaWorkerEnd."""

    _link: RdmaWorkerEnd

    def __init__(
        self,
        end: RdmaWorkerEnd,
        job: JobConfig,
        rank: int,
        *,
        packets: int = PACKETS_DEFAULT,
        **rest: Any,
    ) -> None:
        self._grouping = Grouping(job, packets)
        super().__init__(end, job, rank, end.address, **rest)

    def _prepare(self) -> None:
        super()._prepare()
        self._row = self._used = 0  # of the ring: the next free row, and how many are not
        self._completions = 0  # of this iteration
        self._loop_counters = {"messages_sent": 0, "messages_received": 0, "drop_place": 0}

    def _receive(self) -> None:
        """Free the rows of frames that have left; give the endpoint what arrived, in place (R7)."""
        completed, now_ns = self._link.queue.poll(ROWS_PER_TURN), time.monotonic_ns()
        self._completions, arrivals = len(completed), 0
        for completion in completed:
            if completion.status is not WCStatus.SUCCESS:
                raise OSError(errno.EIO, f"the queue pair to the switch failed: {completion.status.name}")
            if completion.id != RECEIVE:
                self._used -= completion.id
                continue
            arrivals += 1
            place = -1 if completion.immediate is None else completion.immediate
            frames = self._grouping.frames_at(place, completion.byte_len)
            if frames:
                self.endpoint.receive(self._link.results[place : place + frames], now_ns)
            else:
                self._loop_counters["drop_place"] += 1
        if arrivals:
            self._loop_counters["messages_received"] += arrivals
            self._link.await_results(arrivals)

    def _send(self, now_ns: int) -> bool:
        rows = 0
        while rows < ROWS_PER_TURN:
            room = min(ROWS_PER_ASK, RING_FRAMES - self._used, RING_FRAMES - self._row)
            if not room:
                break
            frames = self._frames(now_ns, self._link.ring[self._row : self._row + room])
            if not len(frames):
                break
            runs = self._grouping.runs(frames)
            self._link.write([(self._row + run.row, run.frames, run.place) for run in runs])
            self._loop_counters["messages_sent"] += len(runs)
            self._row = (self._row + len(frames)) % RING_FRAMES
            self._used += len(frames)
            rows += len(frames)
        return rows >= ROWS_PER_TURN or self._completions >= ROWS_PER_TURN or (rows > 0 and self._used == RING_FRAMES)

    def _frames(self, now_ns: int, ring: Bundle) -> Bundle:
        """The next frames, in these rows."""
        endpoint = self.endpoint
        if isinstance(endpoint, NativeEndpoint):
            return ring[: endpoint.write_frames(now_ns, ring)]
        frames = endpoint.frames_to_send(now_ns, len(ring))
        ring[: len(frames)] = frames
        return ring[: len(frames)]

    def _wait(self, left_s: float) -> None:
        """Also let packets move."""
        endpoint = self.endpoint
        many = isinstance(endpoint, NativeEndpoint) and endpoint.lacks >= MANY_RESULTS
        self._link.context.progress(left_s, GATHER_S if many else 0.0)
