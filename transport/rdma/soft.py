"""The user-space provider of verbs: RoCEv2 over a UDP socket (transport/native/rdma/). See `transport.rdma.verbs`.

The packets are true RoCEv2, and a NIC may be the peer; but the source port is the socket's own.
"""

import atexit
import ctypes
import errno
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np

from switchagg.errors import JobError
from switchagg.native import headers, library
from transport.links.framing import ROCE_MTUS
from transport.links.link import Address, LinkClosed
from transport.links.native_udp import native_address
from transport.links.udp_link import UdpLink
from transport.rdma.rdma_sockets import default_segments, prepare
from transport.rdma.verbs import (
    DEFAULTS,
    AccessFlags,
    QPAttributes,
    QPEnd,
    QPState,
    QPType,
    ReceiveRequest,
    SendRequest,
    WCOpcode,
    WCStatus,
    WorkCompletion,
)

PORT = 4791
"""UDP port of RoCEv2."""

QUEUE_PAIRS_MAX = 1024

SEND_BUFFER_BYTES = 1 << 17
"""Of the socket: what waits there delays acknowledgements and the packets of other queue pairs by as long."""

COUNTERS = headers.names("sa_rdma_counter", "SA_RDMA_")
QP_COUNTERS = headers.names("sa_qp_counter", "SA_QP_")
_Options = headers.struct("sa_rdma_options")
_Completion = headers.struct("sa_completion")
_Send = headers.struct("sa_send_request")
_Receive = headers.struct("sa_receive_request")
_QueuePairOptions = headers.struct("sa_rdma_queue_pair")
_Attributes = headers.struct("sa_qp_attributes")

TRANSPORTS = {QPType.RC: 0x00, QPType.UC: 0x20}
_NEVER_NS = (1 << 63) - 1


class _Handle:
    """The C side; freed when the last object and the last call that uses it have ended."""

    def __init__(self, options: Any) -> None:
        self.library = library.load()
        self.pointer = self.library.sa_rdma_new(ctypes.byref(options))
        if not self.pointer:
            raise MemoryError("no memory for the RDMA endpoint, or its socket can't be used")

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self.library.sa_rdma_free(self.pointer)


class _Owned:
    """Something of a context, with a number of its own. `close` is idempotent."""

    def __init__(self, context: "SoftContext", number: int) -> None:
        self._context, self._number = context, number
        self._closed = False

    def close(self) -> None:
        if self._closed:
            return
        if not self._context.closed:
            self._free()
        self._closed = True
        self._context.forget(self)

    def _free(self) -> None:
        raise NotImplementedError


Thing = TypeVar("Thing", bound=_Owned)


class SoftDomain(_Owned):
    """A ProtectionDomain."""

    def _free(self) -> None:
        self._context.call("sa_rdma_free_domain", self._number, what="the protection domain")


class SoftRegion(_Owned):
    """A MemoryRegion."""

    def __init__(self, context: "SoftContext", key: int, buffer: Any, place: tuple[int, int], remote: bool) -> None:
        super().__init__(context, key)
        self._buffer = buffer
        self.address, self.length = place
        self.lkey, self.rkey = key, key if remote else 0

    def _free(self) -> None:
        self._context.call("sa_rdma_deregister", self.lkey, what="the memory region")


class SoftCompletionQueue(_Owned):
    """A CompletionQueue."""

    def poll(self, most: int = 16, timeout_s: float = 0.0) -> list[WorkCompletion]:
        handle = self._context.handle
        room = (_Completion * most)()
        until_ns = time.monotonic_ns() + round(timeout_s * 1e9) if timeout_s > 0 else 0
        count = handle.library.sa_rdma_poll(handle.pointer, self._number, room, most, until_ns)
        if count == -errno.ESHUTDOWN:
            raise LinkClosed("the RDMA context is closed")
        if count < 0:
            raise JobError("the completion queue is closed")
        return [
            WorkCompletion(
                wc.id,
                WCStatus(wc.status),
                WCOpcode(wc.opcode),
                wc.queue_pair,
                wc.bytes,
                wc.immediate if wc.flags & 2 else None,
            )
            for wc in room[:count]
        ]

    def wake(self) -> None:
        if not self._closed and not self._context.closed:
            self._context.handle.library.sa_rdma_interrupt(self._context.handle.pointer, self._number)

    def _free(self) -> None:
        self._context.call("sa_rdma_destroy_cq", self._number, what="the completion queue")


class SoftQueuePair(_Owned):
    """A QueuePair."""

    def __init__(self, context: "SoftContext", number: int, psn: int) -> None:
        super().__init__(context, number)
        host, port = context.address
        self.number = number
        self.end = QPEnd(host, port, number, psn)

    @property
    def state(self) -> QPState:
        return QPState(self._context.call("sa_rdma_query_qp", self.number, None, None, what="the queue pair"))

    @property
    def counters(self) -> dict[str, int]:
        """Counters of this queue pair, by QP_COUNTERS; and rate_bps, 0 without rate control."""
        counts, rate = (ctypes.c_uint64 * len(QP_COUNTERS))(), ctypes.c_uint64()
        self._context.call("sa_rdma_query_qp", self.number, counts, ctypes.byref(rate), what="the queue pair")
        return {**dict(zip(QP_COUNTERS, counts, strict=True)), "rate_bps": rate.value}

    def connect(self, peer: QPEnd, attributes: QPAttributes = DEFAULTS) -> None:
        self.modify(QPState.INIT, attributes)
        self.modify(QPState.RTR, attributes, peer)
        self.modify(QPState.RTS, attributes)

    def modify(
        self,
        state: QPState,
        attributes: QPAttributes = DEFAULTS,
        peer: QPEnd | None = None,
    ) -> None:
        if state == QPState.RTR and peer is None:
            raise JobError("RTR needs the peer's end of the queue pair")
        end = peer or self.end
        native = _Attributes(
            attributes.access,
            attributes.path_mtu,
            end.number,
            end.psn,
            self.end.psn,
            attributes.min_rnr_timer,
            attributes.timeout,
            attributes.retry_count,
            attributes.rnr_retry,
            attributes.window_packets,
            attributes.line_bps,
        )
        address = native_address(self._context.resolve(end.host, end.port))
        what = f"{self.state.name} to {state.name} ({attributes}) of queue pair {self.number}"
        arguments = (ctypes.byref(native), ctypes.byref(address), attributes.dscp)
        self._context.call("sa_rdma_modify_qp", self.number, state, *arguments, what=what)

    def post_send(self, requests: Sequence[SendRequest]) -> int:
        native = (_Send * len(requests))(
            *(
                _Send(r.id, r.address, r.remote_address, r.length, r.lkey, r.rkey, r.immediate, r.opcode, r.flags)
                for r in requests
            )
        )
        return self._context.post("sa_rdma_post_send", self.number, native, len(requests))

    def post_recv(self, requests: Sequence[ReceiveRequest]) -> int:
        native = (_Receive * len(requests))(*(_Receive(*request) for request in requests))
        return self._context.post("sa_rdma_post_receive", self.number, native, len(requests))

    def _free(self) -> None:
        self._context.call("sa_rdma_destroy_qp", self.number, what="the queue pair")


class SoftContext:
    """A Context; see `open`."""

    provider = "soft"

    def __init__(self, bind: Address, *, thread: bool, gso: bool | None, psn: int | None, buffer_bytes: int) -> None:
        self.closed = False
        self._psn = psn
        self._pid = os.getpid()
        try:
            library.load()
        except library.CoreMissing as missing:
            raise JobError(f"no RDMA in user space: {missing}") from None
        self._link = UdpLink(
            bind,
            gso=gso,
            segments_max=default_segments(),
            receive_buffer_bytes=buffer_bytes,
            send_buffer_bytes=min(buffer_bytes, SEND_BUFFER_BYTES),
        )
        try:
            self.address: Address = self._link.address
            if self.address[0] in ("0.0.0.0", "::"):
                raise JobError(f"RDMA needs an address of its own, not {self.address[0]}: each packet's ICRC covers it")
            prepare(self._link)
            address = native_address(self.address)
            link = self._link
            self.handle = _Handle(
                _Options(
                    link.fileno(), link.wake_descriptor, link.gso, link.gro, link.segments_max, QUEUE_PAIRS_MAX, address
                )
            )
        except BaseException:
            self._link.close()
            raise
        self.gso, self.gro, self.segments_max = link.gso, link.gro, link.segments_max
        self._owned: set[_Owned] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="rdma", daemon=True) if thread else None
        if self._thread is not None:
            self._thread.start()
        atexit.register(self._close_at_exit)

    def _run(self) -> None:
        handle = self.handle
        handle.library.sa_rdma_progress(handle.pointer, _NEVER_NS, 0, True)

    def progress(self, timeout_s: float, gather_s: float = 0.0) -> None:
        """Send and receive until gather_s after a completion, `wake`, or the timeout. The context must have no own
        thread."""
        until_ns = time.monotonic_ns() + round(timeout_s * 1e9)
        gather_ns = round(gather_s * 1e9)
        result = self.handle.library.sa_rdma_progress(self.handle.pointer, until_ns, gather_ns, False)
        if result == -errno.ESHUTDOWN:
            raise LinkClosed("the RDMA context is closed")
        if result == -errno.EBUSY:
            raise JobError("another thread moves this RDMA context on")
        if result < 0:
            raise OSError(-result, f"the RDMA context's socket: {os.strerror(-result)}")

    def wake(self) -> None:
        """End the present or else the next `progress`. Any thread may call it."""
        if not self.closed:
            self._link.wake()

    @property
    def counters(self) -> Mapping[str, int]:
        """By COUNTERS; receive_overflow counts bundles that came while the kernel's receive buffer was full."""
        counts, _ = self._counts()
        return dict(zip(COUNTERS, counts, strict=True))

    @property
    def last_error(self) -> str:
        """Why the newest send was refused; "" if none was."""
        _, code = self._counts()
        return os.strerror(code) if code else ""

    def _counts(self) -> tuple[Any, int]:
        counts, code = (ctypes.c_uint64 * len(COUNTERS))(), ctypes.c_int32()
        self.handle.library.sa_rdma_counters(self.handle.pointer, counts, ctypes.byref(code))
        return counts, code.value

    def resolve(self, host: str, port: int) -> Address:
        """A peer's numeric address. Raises JobError."""
        return self._link.resolve((host, port)) if not self.closed else (host, port)

    # ---- what a context makes

    def alloc_pd(self) -> SoftDomain:
        return self._keep(SoftDomain(self, self.call("sa_rdma_alloc_domain", what="a protection domain")))

    def reg_mr(self, domain: SoftDomain, buffer: Any, access: AccessFlags) -> SoftRegion:
        array = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
        if not array.flags.c_contiguous or (access & AccessFlags.LOCAL_WRITE and not array.flags.writeable):
            raise JobError("a memory region is contiguous, and writable if its access says so")
        address = array.__array_interface__["data"][0]
        remote = bool(access & AccessFlags.REMOTE_WRITE)
        arguments = (domain._number, address, array.nbytes, access)
        key = self.call("sa_rdma_register", *arguments, what=f"registering {array.nbytes} bytes as {access!r}")
        return self._keep(SoftRegion(self, key, array, (address, array.nbytes), remote))

    def create_cq(self, capacity: int) -> SoftCompletionQueue:
        number = self.call("sa_rdma_create_cq", capacity, what=f"a completion queue for {capacity}")
        return self._keep(SoftCompletionQueue(self, number))

    def create_qp(
        self,
        domain: SoftDomain,
        kind: QPType,
        send_cq: SoftCompletionQueue,
        receive_cq: SoftCompletionQueue,
        *,
        send_depth: int = 128,
        receive_depth: int = 128,
        signal_all: bool = False,
    ) -> SoftQueuePair:
        wanted = _QueuePairOptions(
            TRANSPORTS[kind],
            domain._number,
            send_cq._number,
            receive_cq._number,
            send_depth,
            receive_depth,
            signal_all,
        )
        number = self.call("sa_rdma_create_qp", ctypes.byref(wanted), what="a queue pair")
        psn = random.SystemRandom().getrandbits(24) if self._psn is None else self._psn
        return self._keep(SoftQueuePair(self, number, psn))

    # ---- the C side

    def call(self, function: str, *arguments: Any, what: str) -> int:
        """Raises JobError for what C refuses."""
        if self.closed:
            raise LinkClosed("the RDMA context is closed")
        result: int = getattr(self.handle.library, function)(self.handle.pointer, *arguments)
        if result == -errno.ENOMEM:
            raise JobError(f"{what}: no memory, or too many of them")
        if result < 0:
            raise JobError(f"{what}: {'still in use' if result == -errno.EBUSY else 'impossible'}")
        return result

    def post(self, function: str, number: int, requests: Any, count: int) -> int:
        """How many were taken."""
        accepted: int = getattr(self.handle.library, function)(self.handle.pointer, number, requests, count)
        if accepted == -errno.ENOMEM:
            return 0
        if accepted == -errno.ESHUTDOWN:
            raise LinkClosed("the RDMA context is closed")
        if accepted < 0:
            raise JobError(f"queue pair {number}: closed, not in a state to post this, or a malformed request")
        return accepted

    def _keep(self, thing: Thing) -> Thing:
        with self._lock:
            self._owned.add(thing)
        return thing

    def forget(self, thing: _Owned) -> None:
        with self._lock:
            self._owned.discard(thing)

    def close(self) -> None:
        with self._lock:
            if self.closed:
                return
            self.closed = True
        if self._pid == os.getpid():  # else no thread is in C, but one that isn't here may have left it locked
            self.handle.library.sa_rdma_stop(self.handle.pointer)
            if self._thread is not None:
                self._thread.join()
        self._link.close()
        with self._lock:
            self._owned.clear()  # buffers are free again: C touches none from now on
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        """The thread must not write into arrays while the interpreter frees them."""
        if os.getpid() == self._pid:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open(
    bind_address: str,
    *,
    port: int = PORT,
    thread: bool = True,
    gso: bool | None = None,
    psn: int | None = None,
    buffer_bytes: int = 16 << 20,
) -> SoftContext:
    """An RDMA endpoint at one address of this host, IPv4 or IPv6.

    port: real RoCEv2 peers know 4791 only; among ourselves any will do (0: a free one), and `QueuePair.end` holds it.
    thread: packets move in the background; else in `SoftContext.progress` and while posting. gso: as UdpLink's. psn: of
    every queue pair's first packet, else random. buffer_bytes: what the socket may
    receive; a window of RC must fit into the peer's.
    Raises JobError without the compiled core, for a wildcard address or one that isn't this host's, or a port in use.
    """
    return SoftContext((bind_address, port), thread=thread, gso=gso, psn=psn, buffer_bytes=buffer_bytes)


def mtu_for(interface_mtu: int, *, ipv6: bool = False) -> int:
    """The largest path MTU whose packets fit an interface's. Raises JobError if none does."""
    room = interface_mtu - (40 if ipv6 else 20) - 8 - 32 - 4
    fitting = [mtu for mtu in ROCE_MTUS if mtu <= room]
    if not fitting:
        raise JobError(f"an interface MTU of {interface_mtu} has no room for RoCE packets")
    return fitting[-1]
