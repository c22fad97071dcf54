"""pyverbs as far as `transport.rdma.hardware` uses it, with a NIC of memory and completions in this process.

Names, argument orders, defaults and what is refused are those of rdma-core's sources (pyverbs/*.pyx, 44, which Debian
12 has, or 60): a call that this takes, pyverbs takes. Numbers are libibverbs'. What is posted is done at once.
"""

import ctypes
import errno
import os
import socket
import sys
from itertools import count
from types import ModuleType
from typing import Any

import pytest

VERSIONS = (44, 60)
CHANNEL_FILE = "anon_inode:[eventfd]"
"""Of a CompChannel; the kernel's are anon_inode:[infinibandevent]."""
INIT, RTR, RTS = 1, 2, 3
RC, UC = 2, 3


class PyverbsError(Exception):
    def __init__(self, msg: str, error_code: int = -1) -> None:
        super().__init__(msg if error_code == -1 else f"{msg}. Errno: {error_code}, {os.strerror(error_code)}")


class PyverbsRDMAError(PyverbsError):
    def __init__(self, msg: str, error_code: int = -1) -> None:
        super().__init__(msg, error_code)
        self.error_code = error_code


class PyverbsUserError(PyverbsError):
    pass


class Nic:
    """All devices of the test: name -> GIDs; queue pairs by number."""

    def __init__(self, version: int = VERSIONS[-1]) -> None:
        self.version = version
        self.devices: dict[str, list[tuple[int, str]]] = {}  # (gid_type, gid) by index
        self.pairs: dict[int, Any] = {}
        self.regions: dict[int, Any] = {}
        self.numbers = count(0x11)
        self.open = 0
        self.refuse: dict[str, int] = {}  # call -> errno
        self.rnr: list[Any] = []

    def check(self, call: str) -> None:
        if call in self.refuse:
            raise PyverbsRDMAError(f"Failed to {call}", self.refuse[call])


NIC = Nic()


class Device:
    def __init__(self, name: bytes) -> None:
        self.name = name


def get_device_list() -> list[Device]:
    NIC.check("get devices list")
    return [Device(name.encode()) for name in NIC.devices]


class GIDEntry:
    def __init__(self, gid: str, gid_index: int, port_num: int, gid_type: int) -> None:
        self._gid, self.gid_index, self.port_num, self.gid_type = gid, gid_index, port_num, gid_type

    def gid_str(self) -> str:
        return self._gid


class _Closed:
    def __init__(self) -> None:
        NIC.open += 1
        self._open = True

    def close(self) -> None:
        NIC.open -= self._open
        self._open = False


class Context(_Closed):
    def __init__(self, **kwargs: Any) -> None:
        self.name = kwargs.get("name")
        if self.name not in NIC.devices:
            raise PyverbsRDMAError(f"Failed to find device {self.name}")
        NIC.check("open device")
        super().__init__()

    def query_gid_table(self, max_entries: int, flags: int = 0) -> list[GIDEntry]:
        assert max_entries > 0
        assert flags == 0
        table = NIC.devices[str(self.name)]
        return [GIDEntry(gid, index, 1, kind) for index, (kind, gid) in enumerate(table)][:max_entries]


class PD(_Closed):
    def __init__(self, creator: Context, **kwargs: Any) -> None:
        assert isinstance(creator, Context)
        super().__init__()


class MR(_Closed):
    def __init__(
        self, creator: PD, length: int = 0, access: int = 0, address: int | None = None, implicit: bool = False
    ) -> None:
        assert isinstance(creator, PD)
        assert type(access) is int
        NIC.check("register a MR")
        super().__init__()
        self.pd, self.buf, self.length, self.access = creator, address, length, access
        self.lkey = self.rkey = next(NIC.numbers) << 8
        NIC.regions[self.lkey] = self

    def holds(self, address: int, length: int) -> bool:
        return bool(self._open and self.buf is not None and self.buf <= address <= self.buf + self.length - length)


class CompChannel(_Closed):
    def __init__(self, context: Context) -> None:
        assert isinstance(context, Context)
        super().__init__()
        self._fd = os.eventfd(0, os.EFD_SEMAPHORE)

    def get_cq_event(self, expected_cq: "CQ") -> None:
        assert os.eventfd_read(self._fd) == 1
        expected_cq.num_events += 1

    def close(self) -> None:
        if self._open:
            os.close(self._fd)
        super().close()


class CompChannel57(CompChannel):
    """As of 57."""

    @property
    def fd(self) -> int:
        return self._fd


class CQ(_Closed):
    def __init__(
        self,
        context: Context,
        cqe: int,
        cq_context: Any = None,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
    ) -> None:
        assert isinstance(context, Context)
        assert cq_context is None
        super().__init__()
        self.cqe, self.channel, self.num_events = cqe, channel, 0
        self.entries: list[WC] = []
        self.armed = False

    def add(self, wc: "WC") -> None:
        self.entries.append(wc)
        assert len(self.entries) <= self.cqe, "the completion queue overflows"
        if self.armed and self.channel is not None:
            self.armed = False
            os.eventfd_write(self.channel._fd, 1)

    def poll(self, num_entries: int = 1) -> tuple[int, list["WC"]]:
        taken, self.entries = self.entries[:num_entries], self.entries[num_entries:]
        return len(taken), taken

    def req_notify(self, solicited_only: bool = False) -> None:
        self.armed = True

    def ack_events(self, num_events: int) -> None:
        self.num_events -= num_events
        assert self.num_events >= 0


class WC:
    def __init__(self, **fields: int) -> None:
        for name in ("wr_id", "status", "opcode", "byte_len", "qp_num", "imm_data", "wc_flags"):
            setattr(self, name, fields.get(name, 0))


class _Allocated(_Closed):
    """What nothing but `close` frees: its __dealloc__ is misspelt. A second one would free again."""

    def close(self) -> None:
        assert self._open
        super().close()


class SGE(_Allocated):
    def __init__(self, addr: int, length: int, lkey: int) -> None:
        super().__init__()
        self.addr, self.length, self.lkey = addr, length, lkey


class RecvWR(_Allocated):
    def __init__(self, wr_id: int = 0, num_sge: int = 0, sg: Any = None, next_wr: Any = None) -> None:
        if NIC.version < 57 and (num_sge < 1 or sg is None):
            raise PyverbsUserError("A WR needs at least one SGE")
        super().__init__()
        self.wr_id, self.num_sge, self._sg = wr_id, num_sge, [sg[i] for i in range(num_sge)]

    @property
    def sg(self) -> list[SGE]:
        return self._sg[: self.num_sge]


class SendWR(_Allocated):
    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = 2,
        num_sge: int = 0,
        imm_data: int = 0,
        sg: Any = None,
        send_flags: int = 2,
        next_wr: Any = None,
    ) -> None:
        if num_sge < 1 or sg is None:
            raise PyverbsUserError("A WR needs at least one SGE")
        super().__init__()
        self.wr_id, self.opcode, self.imm_data, self.send_flags = wr_id, opcode, imm_data, send_flags
        self.sg = [sg[i] for i in range(num_sge)]
        self.rkey = self.addr = 0

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        self.rkey, self.addr = rkey, addr


class GID:
    def __init__(self, val: str | None = None) -> None:
        words = (val or "").split(":")
        if len(words) != 8 or any(len(word) != 4 for word in words):
            raise PyverbsUserError(f"Invalid GID value ({val})")
        self.gid = val


class GlobalRoute:
    def __init__(
        self,
        dgid: GID | None = None,
        flow_label: int = 0,
        sgid_index: int = 0,
        hop_limit: int = 1,
        traffic_class: int = 0,
    ) -> None:
        assert isinstance(dgid, GID)
        self.dgid, self.sgid_index, self.hop_limit, self.traffic_class = dgid, sgid_index, hop_limit, traffic_class


class AHAttr:
    def __init__(
        self,
        dlid: int = 0,
        sl: int = 0,
        src_path_bits: int = 0,
        static_rate: int = 0,
        is_global: int = 0,
        port_num: int = 1,
        gr: GlobalRoute | None = None,
    ) -> None:
        if is_global and gr is None:
            raise PyverbsUserError("Global AH Attr is created but gr parameter is None")
        self.gr, self.port_num = gr, port_num


class QPCap:
    def __init__(
        self,
        max_send_wr: int = 1,
        max_recv_wr: int = 10,
        max_send_sge: int = 1,
        max_recv_sge: int = 1,
        max_inline_data: int = 0,
    ) -> None:
        self.max_send_wr, self.max_recv_wr = max_send_wr, max_recv_wr


class QPInitAttr:
    def __init__(
        self,
        qp_type: int = 4,
        qp_context: Any = None,
        scq: CQ | None = None,
        rcq: CQ | None = None,
        srq: Any = None,
        cap: QPCap | None = None,
        sq_sig_all: int = 1,
    ) -> None:
        assert type(scq) is CQ
        assert type(rcq) is CQ
        assert cap is not None
        self.qp_type, self.scq, self.rcq, self.cap, self.sq_sig_all = qp_type, scq, rcq, cap, sq_sig_all


class QPAttr:
    _FIELDS = (
        *("qp_state", "cur_qp_state", "port_num", "path_mtu", "qp_access_flags", "dest_qp_num", "rq_psn", "sq_psn"),
        *("ah_attr", "max_rd_atomic", "max_dest_rd_atomic", "min_rnr_timer", "timeout", "retry_cnt", "rnr_retry"),
    )

    def __init__(self, qp_state: int = INIT, cur_qp_state: int = 0, port_num: int = 1, path_mtu: int = 3) -> None:
        self.qp_state, self.cur_qp_state, self.port_num, self.path_mtu = qp_state, cur_qp_state, port_num, path_mtu

    def __setattr__(self, name: str, value: Any) -> None:
        assert name in self._FIELDS, f"pyverbs' QPAttr has no {name}"
        super().__setattr__(name, value)


_TO_INIT = ("port_num", "qp_access_flags")
_TO_RTR = ("ah_attr", "path_mtu", "dest_qp_num", "rq_psn")
MASKS: dict[int, dict[int, tuple[str, ...]]] = {
    RC: {
        INIT: _TO_INIT,
        RTR: (*_TO_RTR, "max_dest_rd_atomic", "min_rnr_timer"),
        RTS: ("timeout", "retry_cnt", "rnr_retry", "sq_psn", "max_rd_atomic"),
    },
    UC: {INIT: _TO_INIT, RTR: _TO_RTR, RTS: ("sq_psn",)},
}
"""What each step takes of the attributes: pyverbs' _get_comp_mask."""


class QP(_Closed):
    def __init__(self, creator: PD, init_attr: QPInitAttr, qp_attr: QPAttr | None = None) -> None:
        assert isinstance(creator, PD)
        super().__init__()
        self.pd, self.init, self.qp_state, self.attributes = creator, init_attr, 0, QPAttr()
        self.qp_num = next(NIC.numbers)
        self.receives: list[RecvWR] = []
        NIC.pairs[self.qp_num] = self

    def to_init(self, qp_attr: QPAttr) -> None:
        self._step(0, INIT, qp_attr)

    def to_rtr(self, qp_attr: QPAttr) -> None:
        if self.qp_state != INIT:
            self.to_init(qp_attr)
        self._step(INIT, RTR, qp_attr)

    def to_rts(self, qp_attr: QPAttr) -> None:
        if self.qp_state != RTR:
            self.to_rtr(qp_attr)
        self._step(RTR, RTS, qp_attr)

    def _step(self, before: int, after: int, attributes: QPAttr) -> None:
        if self.qp_state != before:
            raise PyverbsRDMAError("Failed to modify QP state", errno.EINVAL)
        self.qp_state = after
        for name in MASKS[self.init.qp_type][after]:
            setattr(self.attributes, name, getattr(attributes, name))

    def modify(self, qp_attr: QPAttr, comp_mask: int) -> None:
        assert comp_mask == 1
        self.qp_state = qp_attr.qp_state

    def query(self, attr_mask: int) -> tuple[QPAttr, None]:
        return QPAttr(qp_state=self.qp_state), None

    def post_recv(self, wr: RecvWR, bad_wr: Any = None) -> None:
        if len(self.receives) == self.init.cap.max_recv_wr:
            raise PyverbsRDMAError("Failed to post recv", errno.ENOMEM)
        self.receives.append(wr)

    def post_send(self, wr: SendWR, bad_wr: Any = None) -> None:
        NIC.check("post send")
        if self.qp_state != RTS:
            raise PyverbsRDMAError("Failed to post send", errno.EINVAL)
        status = self._carry(wr)
        if status or wr.send_flags & 2 or self.init.sq_sig_all:
            opcode = 1 if wr.opcode < 2 else 0
            self.init.scq.add(WC(wr_id=wr.wr_id, status=status, opcode=opcode, qp_num=self.qp_num))

    def _carry(self, wr: SendWR) -> int:
        """Do it; the sender's status."""
        (source,) = wr.sg
        region = NIC.regions.get(source.lkey)
        if source.length and (region is None or not region.holds(source.addr, source.length)):
            return 4
        peer = NIC.pairs[self.attributes.dest_qp_num]
        assert peer.attributes.dest_qp_num == self.qp_num
        into, key = wr.addr, NIC.regions.get(wr.rkey)
        received = WC(qp_num=peer.qp_num, byte_len=source.length, opcode=128)
        if wr.opcode in (1, 3):
            received.imm_data, received.wc_flags = wr.imm_data, 2
        if wr.opcode < 2:
            if key is None or not key.access & 2 or not key.holds(wr.addr, source.length):
                return 10
            received.opcode = 129
        if wr.opcode:
            receive = peer.receives.pop(0)
            received.wr_id = receive.wr_id
            if wr.opcode > 1:
                into = receive.sg[0].addr if receive.sg else 0
                assert source.length <= (receive.sg[0].length if receive.sg else 0)
        ctypes.memmove(into, source.addr, source.length)
        if wr.opcode:
            peer.init.rcq.add(received)
        return 0


def install(monkeypatch: pytest.MonkeyPatch, version: int = VERSIONS[-1]) -> Nic:
    """Have `import pyverbs.…` find this, as of a version; a new NIC."""
    global NIC
    NIC = Nic(version)
    here = sys.modules[__name__]
    homes = {
        "device": ("Context", "get_device_list"),
        "pd": ("PD",),
        "mr": ("MR",),
        "cq": ("CQ", "CompChannel"),
        "wr": ("SGE", "SendWR", "RecvWR"),
        "addr": ("GID", "GlobalRoute", "AHAttr"),
        "qp": ("QP", "QPAttr", "QPCap", "QPInitAttr"),
        "pyverbs_error": ("PyverbsError", "PyverbsRDMAError", "PyverbsUserError"),
    }
    package = ModuleType("pyverbs")
    monkeypatch.setitem(sys.modules, "pyverbs", package)
    for name, classes in homes.items():
        module = ModuleType(f"pyverbs.{name}")
        for one in classes:
            setattr(module, one, getattr(here, one))
        if name == "cq" and version >= 57:
            module.__dict__["CompChannel"] = CompChannel57
        setattr(package, name, module)
        monkeypatch.setitem(sys.modules, f"pyverbs.{name}", module)
    return NIC


def big_endian(value: int) -> int:
    """As libibverbs keeps immediates."""
    return socket.htonl(value)
