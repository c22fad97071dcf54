"""The shape of verbs: what an RDMA provider offers, with the names and numbers of libibverbs.

Two providers implement this contract: `transport.rdma.soft` (user space, over UDP; works everywhere) and
`transport.rdma.hardware` (pyverbs, where there is a NIC for it). Register memory, post work requests, poll completions:
nothing copies, nothing blocks but `poll` with a timeout, and what goes wrong comes as the status of a completion.

    with open(...) as context:
        domain, cq = context.alloc_pd(), context.create_cq(64)
        region = context.reg_mr(domain, array, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE)
        pair = context.create_qp(domain, QPType.RC, cq, cq)
        ...                              # exchange pair.end, region.address and region.rkey with the peer
        pair.connect(peer_end)
        pair.post_send([SendRequest(1, Opcode.WRITE, region.address, 4096, region.lkey, remote_address, rkey)])
        (completion,) = cq.poll(1, timeout_s=5)
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple, Protocol, Self

MESSAGE_BYTES_MAX = 1 << 31


class QPType(IntEnum):
    """Reliable or unreliable connection."""

    RC = 2
    UC = 3


class QPState(IntEnum):
    """States of a queue pair. SQD: begun requests are finished, no new request is begun."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    ERR = 6


class Opcode(IntEnum):
    """Opcodes of a send request."""

    WRITE = 0
    WRITE_WITH_IMM = 1
    SEND = 2
    SEND_WITH_IMM = 3


class SendFlags(IntFlag):
    """SIGNALED: success completes, too; failures always do."""

    NONE = 0
    SIGNALED = 2
    SOLICITED = 4


class AccessFlags(IntFlag):
    """Access flags of a memory region, and (REMOTE_WRITE) of a queue pair. Remote write takes local write."""

    NONE = 0
    LOCAL_WRITE = 1
    REMOTE_WRITE = 2


class WCStatus(IntEnum):
    """Status of a completion, as IBV_WC_…."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_EEC_OP_ERR = 3
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13
    GENERAL_ERR = 21


class WCOpcode(IntEnum):
    """The opcode of a completion; it has no meaning if the status is an error."""

    SEND = 0
    RDMA_WRITE = 1
    RECV = 128
    RECV_RDMA_WITH_IMM = 129


class SendRequest(NamedTuple):
    """A message: `length` bytes at `address` (0 to 2**31), which must stay as they are until it completes."""

    id: int
    opcode: Opcode
    address: int
    length: int
    lkey: int
    remote_address: int = 0
    """Address of a write at the peer."""
    rkey: int = 0
    """Key of that memory."""
    immediate: int = 0
    """Immediate of …_WITH_IMM, 32 bits."""
    flags: SendFlags = SendFlags.SIGNALED


class ReceiveRequest(NamedTuple):
    """Where a SEND's data shall lie; a WRITE_WITH_IMM uses one up and leaves its memory alone."""

    id: int
    address: int = 0
    length: int = 0
    lkey: int = 0


class WorkCompletion(NamedTuple):
    """A work request is done. `byte_len` of receives: what came."""

    id: int
    status: WCStatus
    opcode: WCOpcode
    qp_num: int
    byte_len: int
    immediate: int | None


class QPEnd(NamedTuple):
    """The identity of a queue pair for its peer. `host` is an address (hardware: the one its GID stands for)."""

    host: str
    port: int
    number: int
    psn: int
    """Number of the first packet that it will send."""


class QPAttributes(NamedTuple):
    """Attributes that `QueuePair.connect` sets, with defaults for a network of hosts."""

    access: AccessFlags = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
    path_mtu: int = 1024
    """An element of ROCE_MTUS, equal at both ends."""
    dscp: int = 0
    """Traffic class of all packets, 0 to 63."""
    min_rnr_timer: int = 5
    """How long a sender shall wait when no receive is posted, in the specification's code: 5 is 60 us."""
    timeout: int = 14
    """No answer for 4.096 us * 2**timeout counts as loss: 67 ms. 0: never."""
    retry_count: int = 7
    """How often in a row without progress, before RETRY_EXC_ERR."""
    rnr_retry: int = 7
    """How often a sender waits for a receive; 7: for ever."""
    window_packets: int = 512
    """Unacknowledged packets at most, by default half a megabyte, as over UDP; soft only (a NIC has its own)."""
    line_bps: int = 100_000_000_000
    """Where rate control (DCQCN) starts; 0: none. Only the soft provider has it."""


DEFAULTS = QPAttributes()


class ProtectionDomain(Protocol):
    """Regions and queue pairs of one domain fit together; others are refused."""

    def close(self) -> None:
        """Raises JobError while regions or queue pairs are in it. Again does nothing."""


class MemoryRegion(Protocol):
    """Registered memory. Keeps the buffer alive until `close`."""

    @property
    def address(self) -> int:
        """Address of its first byte, in this process; remote writes name it, too."""

    @property
    def length(self) -> int:
        """Bytes."""

    @property
    def lkey(self) -> int:
        """Names it in own work requests."""

    @property
    def rkey(self) -> int:
        """Names it in a peer's writes; 0 without REMOTE_WRITE."""

    def close(self) -> None:
        """Deregister. Raises JobError while work requests name it. Again does nothing."""


class CompletionQueue(Protocol):
    """Where work requests end."""

    def poll(self, most: int = 16, timeout_s: float = 0.0) -> list[WorkCompletion]:
        """Up to `most` completions, oldest first; waits for one until the timeout. Any thread may call it.

        Raises LinkClosed after the context was closed and nothing is left.
        """

    def wake(self) -> None:
        """End the present `poll` that waits, or else the next one. Any thread; after `close` it does nothing."""

    def close(self) -> None:
        """Raises JobError while queue pairs use it. Again does nothing."""


class QueuePair(Protocol):
    """A queue pair, RESET at first."""

    @property
    def number(self) -> int:
        """24 bits."""

    @property
    def end(self) -> QPEnd:
        """For the peer."""

    @property
    def state(self) -> QPState:
        """At present."""

    def connect(self, peer: QPEnd, attributes: QPAttributes = DEFAULTS) -> None:
        """From RESET through INIT and RTR to RTS. Raises JobError for what can't be."""

    def modify(self, state: QPState, attributes: QPAttributes = DEFAULTS, peer: QPEnd | None = None) -> None:
        """A step: RESET, INIT (access), RTR (peer, path_mtu, dscp, min_rnr_timer), RTS (the rest), SQD; ERR, RESET.

        ERR completes all work requests as WR_FLUSH_ERR. Raises JobError for a step that can't be taken, or values.
        """

    def post_send(self, requests: Sequence[SendRequest]) -> int:
        """How many were taken, from the first on; fewer if the queue or its completion queue has no room.

        Raises JobError in a state that sends nothing (RESET, INIT, RTR) and for a malformed first request.
        """

    def post_recv(self, requests: Sequence[ReceiveRequest]) -> int:
        """As `post_send`; not in RESET."""

    def close(self) -> None:
        """Drops what is in flight, without completions. Again does nothing."""


class Context(Protocol):
    """An open device. A context manager that closes it."""

    @property
    def provider(self) -> str:
        """ "soft" or "verbs"."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Counters of traffic and faults so far."""

    def alloc_pd(self) -> ProtectionDomain:
        """A new protection domain."""

    def reg_mr(self, domain: Any, buffer: Any, access: AccessFlags) -> MemoryRegion:
        """Register a contiguous buffer (array, bytearray, memoryview), writable if access says so.

        Raises JobError for another kind of buffer, or where the system refuses (memlock).
        """

    def create_cq(self, capacity: int) -> CompletionQueue:
        """For `capacity` completions; a work request claims a place of it when it is posted."""

    def create_qp(
        self,
        domain: Any,
        kind: QPType,
        send_cq: Any,
        receive_cq: Any,
        *,
        send_depth: int = 128,
        receive_depth: int = 128,
        signal_all: bool = False,
    ) -> QueuePair:
        """A queue pair in RESET. Depths: work requests not completed."""

    def close(self) -> None:
        """Ends all queue pairs and gives everything back. Again does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
