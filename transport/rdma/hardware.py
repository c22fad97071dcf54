"""The provider of verbs on RDMA hardware, through pyverbs of rdma-core. See `transport.rdma.verbs`.

pyverbs (44, which Debian 12 has, or newer) is imported only here, and only when a device is opened. The numbers of
libibverbs are its ABI, and those of `verbs`; so pyverbs' own enums, which have moved between its versions, aren't
needed.
"""

import contextlib
import errno
import importlib
import ipaddress
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

from switchagg.errors import JobError
from transport.links.framing import ROCE_MTUS
from transport.links.link import Address, LinkClosed
from transport.rdma.verbs import (
    DEFAULTS,
    AccessFlags,
    QPAttributes,
    QPEnd,
    QPState,
    QPType,
    ReceiveRequest,
    SendFlags,
    SendRequest,
    WCOpcode,
    WCStatus,
    WorkCompletion,
)

PORT = 4791
MODULES = ("addr", "cq", "device", "mr", "pd", "pyverbs_error", "qp", "wr")
GIDS_MAX = 1024
HOP_LIMIT = 64
CHANNEL_TRIES = 20

INSTALL = "install rdma-core's Python bindings (Debian, Ubuntu: apt install python3-pyverbs), or use the provider soft"
NO_DEVICE = (
    "an RDMA NIC, or as root: rdma link add rxe0 type rxe netdev eth0, where the kernel has rdma_rxe, or use "
    "the provider soft"
)

_GID_TYPE_ROCE_V2 = 2
_CHANNEL_FILE = "anon_inode:[infinibandevent]"
_CHANNELS = threading.Lock()
_WC_WITH_IMM = 2
_QP_STATE = 1  # attribute mask


def _pyverbs() -> Any:
    """pyverbs' modules. Raises JobError without them."""
    try:
        return SimpleNamespace(**{name: importlib.import_module(f"pyverbs.{name}") for name in MODULES})
    except ImportError as error:
        raise JobError(f"no RDMA hardware: pyverbs can't be imported ({error}); {INSTALL}") from None


def devices() -> list[str]:
    """Names of the RDMA devices here. Raises JobError without pyverbs."""
    pyverbs = _pyverbs()
    try:
        return [device.name.decode() for device in pyverbs.device.get_device_list()]
    except pyverbs.pyverbs_error.PyverbsError as error:
        raise JobError(f"no RDMA hardware: {error}; {NO_DEVICE}") from error


def open(host: str) -> "HardwareContext":
    """The RDMA device, RoCEv2, that has this address of ours.

    Raises JobError without pyverbs, without a device, or if none has the address; each with the remedy.
    """
    names = devices()
    if not names:
        raise JobError(f"no RDMA device here: it takes {NO_DEVICE}")
    pyverbs = _pyverbs()
    wanted = gid_of(host)
    rejects: list[str] = []
    for name in names:
        try:
            context = pyverbs.device.Context(name=name)
            table = context.query_gid_table(GIDS_MAX)
        except pyverbs.pyverbs_error.PyverbsError as error:
            rejects.append(f"{name} ({error})")
            continue
        for entry in table:
            if entry.gid_type == _GID_TYPE_ROCE_V2 and entry.gid_str() == wanted:
                return HardwareContext(pyverbs, context, host, entry.port_num, entry.gid_index)
        rejects.append(name)
        context.close()
    raise JobError(f"no RDMA device has the address {host}: looked at {', '.join(rejects)}; bind to an address of one")


def gid_of(host: str) -> str:
    """The GID of an address of RoCEv2, as pyverbs writes it. Raises JobError for what is no address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise JobError(f"{host}: no IP address") from None
    packed = address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed
    return ":".join(packed[i : i + 2].hex() for i in range(0, 16, 2))


class _Owned:
    """Something of a context. Users: what can't be without it."""

    def __init__(self, context: "HardwareContext", needs: "Sequence[_Owned]" = ()) -> None:
        self._context = context
        self._needs = needs
        self._users = 0
        self._closed = False
        for needed in needs:
            needed._users += 1
        context.owned.append(self)

    def close(self) -> None:
        if self._closed:
            return
        if self._users and not self._context.closing:
            raise JobError(f"{type(self).__name__}: still in use")
        self._context.call(self._free)
        self._closed = True
        for needed in self._needs:
            needed._users -= 1
        self._context.owned.remove(self)

    def _free(self) -> None:
        raise NotImplementedError


class HardwareDomain(_Owned):
    """A ProtectionDomain."""

    def __init__(self, context: "HardwareContext") -> None:
        self.pd = context.call(lambda: context.pyverbs.pd.PD(context.device))
        super().__init__(context)

    def _free(self) -> None:
        self.pd.close()


class HardwareRegion(_Owned):
    """A MemoryRegion."""

    def __init__(self, context: "HardwareContext", domain: HardwareDomain, array: Any, access: AccessFlags) -> None:
        self._array = array
        self.address: int = array.__array_interface__["data"][0]
        self.length: int = array.nbytes
        try:
            self._mr = context.call(lambda: context.pyverbs.mr.MR(domain.pd, self.length, int(access), self.address))
        except JobError as error:
            raise JobError(f"{error}; is there enough locked memory? (ulimit -l)") from error
        super().__init__(context, (domain,))
        self.lkey: int = self._mr.lkey
        self.rkey: int = self._mr.rkey if access & AccessFlags.REMOTE_WRITE else 0

    def _free(self) -> None:
        self._mr.close()


class HardwareCompletionQueue(_Owned):
    """A CompletionQueue. Completions that `progress` finds wait here until they are polled."""

    def __init__(self, context: "HardwareContext", capacity: int) -> None:
        pyverbs, device = context.pyverbs, context.device
        self.channel, self.fd = context.call(lambda: _channel(pyverbs, device))
        self.cq = context.call(lambda: pyverbs.cq.CQ(device, capacity, None, self.channel, 0))
        self.room = capacity  # work requests that may still be posted
        self.completions: list[WorkCompletion] = []
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        super().__init__(context)

    def poll(self, most: int = 16, timeout_s: float = 0.0) -> list[WorkCompletion]:
        until = time.monotonic() + timeout_s
        called = False
        while True:
            if self._context.closed and not self.completions:
                raise LinkClosed("the RDMA context is closed")
            self.look(most)
            if self.completions or called or time.monotonic() >= until:
                break
            self.arm()
            self.look(most)
            if not self.completions:
                ready = select.select([self.fd, self._wake], [], [], max(0.0, until - time.monotonic()))[0]
                if called := self._wake in ready:
                    os.eventfd_read(self._wake)
                self.disarm()
        batch, self.completions = self.completions[:most], self.completions[most:]
        return batch

    def look(self, most: int) -> None:
        """Take completions from the NIC, so that `most` are found if there are so many."""
        if len(self.completions) < most and not self._context.closed:
            _, completions = self._context.call(lambda: self.cq.poll(most - len(self.completions)))
            self.room += len(completions)
            self.completions += map(_completion, completions)

    def arm(self) -> None:
        """Have the channel polled readable at the next completion."""
        self._context.call(self.cq.req_notify)

    def disarm(self) -> None:
        """Take the event, if there is one."""
        if select.select([self.fd], [], [], 0)[0]:
            self._context.call(lambda: self.channel.get_cq_event(self.cq))
            self.cq.ack_events(1)

    def wake(self) -> None:
        with self._context.lock:
            if not self._closed:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        with self._context.lock:  # after it the descriptor's number may belong to someone else
            super().close()

    def _free(self) -> None:
        self.cq.close()
        self.channel.close()
        os.close(self._wake)


def _channel(pyverbs: Any, device: Any) -> tuple[Any, int]:
    """A CompChannel and its descriptor, which pyverbs before 57 doesn't tell: there it is the file that has come."""
    channels = pyverbs.cq.CompChannel
    if hasattr(channels, "fd"):
        channel = channels(device)
        return channel, channel.fd
    with _CHANNELS:
        for _ in range(CHANNEL_TRIES):
            before = _channel_files()
            channel = channels(device)
            if len(descriptors := _channel_files() - before) == 1:
                return channel, descriptors.pop()
            channel.close()  # another library opened one at the same time
    raise JobError("no completion channel's descriptor can be found; pyverbs 57 and newer tell it")


def _channel_files() -> set[int]:
    """Descriptors of completion channels in this process."""
    descriptors = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{name}") == _CHANNEL_FILE:
                descriptors.add(int(name))
    return descriptors


def _completion(wc: Any) -> WorkCompletion:
    """As `verbs` has it; immediates are big-endian in libibverbs."""
    known = wc.status in WCStatus.__members__.values()
    status = WCStatus(wc.status) if known else WCStatus.GENERAL_ERR
    opcode = WCOpcode(wc.opcode) if wc.opcode in WCOpcode.__members__.values() else WCOpcode.SEND
    immediate = socket.ntohl(wc.imm_data) if wc.wc_flags & _WC_WITH_IMM and status is WCStatus.SUCCESS else None
    return WorkCompletion(wc.wr_id, status, opcode, wc.qp_num, wc.byte_len, immediate)


class HardwareQueuePair(_Owned):
    """A QueuePair. An unsignalled send claims no place in the completion queue: a NIC writes none for its success."""

    def __init__(
        self,
        context: "HardwareContext",
        domain: HardwareDomain,
        kind: QPType,
        queues: tuple[HardwareCompletionQueue, HardwareCompletionQueue],
        depths: tuple[int, int],
        signal_all: bool,
    ) -> None:
        qp = context.pyverbs.qp
        cap = qp.QPCap(max_send_wr=depths[0], max_recv_wr=depths[1], max_send_sge=1, max_recv_sge=1)
        wanted = qp.QPInitAttr(
            qp_type=int(kind), scq=queues[0].cq, rcq=queues[1].cq, cap=cap, sq_sig_all=int(signal_all)
        )
        self._qp = context.call(lambda: qp.QP(domain.pd, wanted))
        super().__init__(context, (domain, *queues))
        self._queues, self._signal_all = queues, signal_all
        self._reliable = kind is QPType.RC
        self.number: int = self._qp.qp_num
        self.end = QPEnd(*context.address, self.number, secrets.randbits(24))

    @property
    def state(self) -> QPState:
        attributes, _ = self._context.call(lambda: self._qp.query(_QP_STATE))
        return QPState(attributes.qp_state)

    def connect(self, peer: QPEnd, attributes: QPAttributes = DEFAULTS) -> None:
        self.modify(QPState.INIT, attributes)
        self.modify(QPState.RTR, attributes, peer)
        self.modify(QPState.RTS, attributes)

    def modify(self, state: QPState, attributes: QPAttributes = DEFAULTS, peer: QPEnd | None = None) -> None:
        if state is QPState.RTR and peer is None:
            raise JobError("RTR needs the peer's end of the queue pair")
        if attributes.path_mtu not in ROCE_MTUS:
            raise JobError(f"path MTU {attributes.path_mtu}: one of {', '.join(map(str, ROCE_MTUS))}")
        wanted = self._wanted(attributes, peer or self.end)
        steps = {QPState.INIT: self._qp.to_init, QPState.RTR: self._qp.to_rtr, QPState.RTS: self._qp.to_rts}
        if state in steps:
            self._context.call(lambda: steps[state](wanted))
        else:
            wanted.qp_state = int(state)
            self._context.call(lambda: self._qp.modify(wanted, _QP_STATE))

    def _wanted(self, attributes: QPAttributes, peer: QPEnd) -> Any:
        """All that any step sets; pyverbs says which of it a step takes."""
        context = self._context
        addr = context.pyverbs.addr
        route = addr.GlobalRoute(
            dgid=addr.GID(gid_of(peer.host)),
            sgid_index=context.gid_index,
            hop_limit=HOP_LIMIT,
            traffic_class=attributes.dscp << 2,
        )
        wanted = context.pyverbs.qp.QPAttr(port_num=context.port_num)
        wanted.qp_access_flags = int(attributes.access)
        wanted.path_mtu = ROCE_MTUS.index(attributes.path_mtu) + 1
        wanted.dest_qp_num = peer.number
        wanted.rq_psn = peer.psn
        wanted.sq_psn = self.end.psn
        wanted.ah_attr = addr.AHAttr(is_global=1, port_num=context.port_num, gr=route)
        if self._reliable:
            wanted.max_rd_atomic = wanted.max_dest_rd_atomic = 1
            wanted.min_rnr_timer = attributes.min_rnr_timer
            wanted.timeout = attributes.timeout
            wanted.retry_cnt = attributes.retry_count
            wanted.rnr_retry = attributes.rnr_retry
        return wanted

    def post_send(self, requests: Sequence[SendRequest]) -> int:
        wr, queue = self._context.pyverbs.wr, self._queues[0]
        for count, request in enumerate(requests):
            claimed = bool(self._signal_all or request.flags & SendFlags.SIGNALED)
            if claimed > queue.room:
                return count
            place = wr.SGE(request.address, request.length, request.lkey)
            posted = wr.SendWR(
                wr_id=request.id,
                opcode=int(request.opcode),
                num_sge=1,
                imm_data=socket.htonl(request.immediate),
                sg=[place],
                send_flags=int(request.flags),
            )
            posted.set_wr_rdma(request.rkey, request.remote_address)
            if not self._post(self._qp.post_send, posted, place, count):
                return count
            queue.room -= claimed
        return len(requests)

    def post_recv(self, requests: Sequence[ReceiveRequest]) -> int:
        wr, queue = self._context.pyverbs.wr, self._queues[1]
        for count, request in enumerate(requests):
            if not queue.room:
                return count
            place = wr.SGE(request.address, request.length, request.lkey)
            posted = wr.RecvWR(wr_id=request.id, num_sge=1, sg=[place])
            posted.num_sge = int(request.length > 0)  # before 57 none is made without a place
            if not self._post(self._qp.post_recv, posted, place, count):
                return count
            queue.room -= 1
        return len(requests)

    def _post(self, post: Any, request: Any, place: Any, before: int) -> bool:
        """Whether it was taken. Raises JobError only if none before it was."""
        try:
            if self._context.closed:
                raise LinkClosed("the RDMA context is closed")
            post(request)
        except self._context.pyverbs.pyverbs_error.PyverbsRDMAError as error:
            if before or error.error_code == errno.ENOMEM:
                return False
            raise JobError(f"queue pair {self.number}: {error}") from error
        finally:
            request.close()  # what was allocated for it: none of pyverbs' releases so far does it by itself
            place.close()
        return True

    def _free(self) -> None:
        self._qp.close()


class HardwareContext:
    """A Context, moved on by the NIC; `progress` only waits. See `open`."""

    provider = "verbs"

    def __init__(self, pyverbs: Any, device: Any, host: str, port_num: int, gid_index: int) -> None:
        self.pyverbs, self.device = pyverbs, device
        self.port_num, self.gid_index = port_num, gid_index
        self.address: Address = (host, PORT)
        self.closed = self.closing = False
        self.lock = threading.Lock()  # guards what `wake` uses, which any thread may
        self.owned: list[_Owned] = []
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def call(self, action: Any) -> Any:
        """The answer of pyverbs to a call. Raises JobError for what it refuses, LinkClosed after `close`."""
        if self.closed:
            raise LinkClosed("the RDMA context is closed")
        try:
            return action()
        except self.pyverbs.pyverbs_error.PyverbsError as error:
            raise JobError(f"RDMA device {self.device.name}: {error}") from error

    @property
    def counters(self) -> Mapping[str, int]:
        """There are none here; the NIC has counters (`rdma statistic`)."""
        return {}

    def alloc_pd(self) -> HardwareDomain:
        return HardwareDomain(self)

    def reg_mr(self, domain: HardwareDomain, buffer: Any, access: AccessFlags) -> HardwareRegion:
        array = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
        if not array.flags.c_contiguous or (access & AccessFlags.LOCAL_WRITE and not array.flags.writeable):
            raise JobError("a memory region is contiguous, and writable if its access says so")
        return HardwareRegion(self, domain, array, access)

    def create_cq(self, capacity: int) -> HardwareCompletionQueue:
        return HardwareCompletionQueue(self, capacity)

    def create_qp(
        self,
        domain: HardwareDomain,
        kind: QPType,
        send_cq: HardwareCompletionQueue,
        receive_cq: HardwareCompletionQueue,
        *,
        send_depth: int = 128,
        receive_depth: int = 128,
        signal_all: bool = False,
    ) -> HardwareQueuePair:
        return HardwareQueuePair(self, domain, kind, (send_cq, receive_cq), (send_depth, receive_depth), signal_all)

    def progress(self, timeout_s: float, gather_s: float = 0.0) -> None:
        """Until there is a completion not polled yet, `wake`, or the timeout."""
        queues = [thing for thing in self.owned if isinstance(thing, HardwareCompletionQueue)]
        for queue in queues:
            if timeout_s > 0:
                queue.arm()
            queue.look(1)
        if any(queue.completions for queue in queues):
            timeout_s = 0.0
        ready, _, _ = select.select([self._wake, *(queue.fd for queue in queues)], [], [], max(0.0, timeout_s))
        for queue in queues:
            if queue.fd in ready:
                queue.disarm()
        if self._wake in ready:
            os.eventfd_read(self._wake)

    def wake(self) -> None:
        """End the present or else the next `progress`. Any thread may call it."""
        with self.lock:
            if not self.closed:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        if self.closed:
            return
        self.closing = True
        for thing in reversed(list(self.owned)):  # what needs others was made after them
            thing.close()
        self.call(self.device.close)
        with self.lock:
            self.closed = True
            os.close(self._wake)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
