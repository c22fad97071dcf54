"""The provider on pyverbs, against a fake as strict as pyverbs' sources; and the error where there is none."""

import builtins
import errno
import importlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from emulation.cli import doctor
from switchagg.errors import JobError
from tests.transport.rdma import fake_pyverbs
from transport.links.link import LinkClosed
from transport.rdma import hardware
from transport.rdma.provider import RdmaOptions, open_context
from transport.rdma.rdma_mesh import RdmaMeshOptions
from transport.rdma.verbs import (
    AccessFlags,
    Opcode,
    QPAttributes,
    QPState,
    QPType,
    ReceiveRequest,
    SendFlags,
    SendRequest,
    WCOpcode,
    WCStatus,
)

BOTH = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
GID = "0000:0000:0000:0000:0000:ffff:0a00:00{:02x}"


@pytest.fixture(params=fake_pyverbs.VERSIONS)
def nic(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[fake_pyverbs.Nic]:
    made = fake_pyverbs.install(monkeypatch, request.param)
    monkeypatch.setattr(hardware, "_CHANNEL_FILE", fake_pyverbs.CHANNEL_FILE, raising=False)
    made.devices["mlx5_0"] = [(0, GID.format(1)), (1, GID.format(1)), (2, GID.format(1))]
    made.devices["mlx5_1"] = [(2, "fe80:0000:0000:0000:0000:0000:0000:0001"), (2, GID.format(2))]
    yield made
    assert made.open == 0, "something was left open"


class Two:
    """Connected queue pairs of two devices, a region of 4 kB each."""

    def __init__(self, kind: QPType = QPType.RC, **depths: int) -> None:
        self.contexts = [open_context("verbs", f"10.0.0.{n}", 0) for n in (1, 2)]
        self.domains = [context.alloc_pd() for context in self.contexts]
        self.queues = [context.create_cq(8) for context in self.contexts]
        self.memory = [np.zeros(4096, np.uint8) for _ in range(2)]
        self.regions = [c.reg_mr(d, m, BOTH) for c, d, m in zip(self.contexts, self.domains, self.memory, strict=True)]
        self.pairs = [
            context.create_qp(domain, kind, queue, queue, **depths)
            for context, domain, queue in zip(self.contexts, self.domains, self.queues, strict=True)
        ]
        for pair, other in zip(self.pairs, reversed(self.pairs), strict=True):
            pair.connect(other.end, QPAttributes(path_mtu=4096, dscp=26))

    def send(self, opcode: Opcode, length: int, **fields: Any) -> SendRequest:
        mine, theirs = self.regions
        remote = {} if opcode >= Opcode.SEND else {"remote_address": theirs.address + 100, "rkey": theirs.rkey}
        return SendRequest(7, opcode, mine.address, length, mine.lkey, **remote)._replace(**fields)

    def close(self) -> None:
        for context in self.contexts:
            context.close()
            context.close()


def test_sends_and_writes_complete_on_both_sides(nic: fake_pyverbs.Nic) -> None:
    two = Two()
    here, there = two.pairs
    two.memory[0][:] = np.arange(4096) % 251
    assert there.post_recv([ReceiveRequest(1, two.regions[1].address, 64, two.regions[1].lkey), ReceiveRequest(2)]) == 2
    requests = [
        two.send(Opcode.SEND_WITH_IMM, 64, immediate=0x01020304),
        two.send(Opcode.WRITE, 300, flags=SendFlags.NONE),
        two.send(Opcode.WRITE_WITH_IMM, 500, immediate=0xFFFFFFFE),
    ]
    assert here.post_send(requests) == 3
    sent = two.queues[0].poll()
    assert [(c.id, c.status, c.opcode, c.immediate) for c in sent] == [
        (7, WCStatus.SUCCESS, WCOpcode.SEND, None),
        (7, WCStatus.SUCCESS, WCOpcode.RDMA_WRITE, None),
    ]
    came = two.queues[1].poll(timeout_s=1)
    assert [(c.id, c.opcode, c.byte_len, c.immediate, c.qp_num) for c in came] == [
        (1, WCOpcode.RECV, 64, 0x01020304, there.number),
        (2, WCOpcode.RECV_RDMA_WITH_IMM, 500, 0xFFFFFFFE, there.number),
    ]
    assert np.array_equal(two.memory[1][:64], two.memory[0][:64])
    assert np.array_equal(two.memory[1][100:600], two.memory[0][:500])
    two.close()


def test_a_queue_pair_is_set_up_as_its_attributes_say(nic: fake_pyverbs.Nic) -> None:
    two = Two()
    attributes = nic.pairs[two.pairs[0].number].attributes
    assert two.pairs[0].end[:2] == ("10.0.0.1", 4791)
    assert (attributes.path_mtu, attributes.dest_qp_num) == (5, two.pairs[1].number)
    assert (attributes.sq_psn, attributes.rq_psn) == (two.pairs[0].end.psn, two.pairs[1].end.psn)
    route = attributes.ah_attr.gr
    assert (route.dgid.gid, route.sgid_index) == (GID.format(2), 2)
    assert (route.traffic_class, route.hop_limit) == (26 << 2, 64)
    assert (attributes.timeout, attributes.retry_cnt, attributes.rnr_retry, attributes.min_rnr_timer) == (14, 7, 7, 5)
    assert two.pairs[0].state is QPState.RTS
    two.pairs[0].modify(QPState.ERR)
    assert two.pairs[0].state is QPState.ERR
    with pytest.raises(JobError, match="RTR needs the peer's end"):
        two.pairs[0].modify(QPState.RTR)
    with pytest.raises(JobError, match="path MTU 1500: one of 256"):
        two.pairs[0].modify(QPState.INIT, QPAttributes(path_mtu=1500))
    with pytest.raises(JobError, match="RDMA device mlx5_0: Failed to modify QP state"):
        two.pairs[0].modify(QPState.RTS)
    two.close()


def test_uc_has_no_timers(nic: fake_pyverbs.Nic) -> None:
    two = Two(QPType.UC)
    assert not hasattr(nic.pairs[two.pairs[0].number].attributes, "timeout")
    two.close()


def test_errors_are_statuses_and_refusals_are_job_errors(nic: fake_pyverbs.Nic) -> None:
    two = Two()
    here = two.pairs[0]
    here.post_send([two.send(Opcode.WRITE, 10, rkey=1), two.send(Opcode.WRITE, 10, lkey=1, flags=SendFlags.NONE)])
    assert [c.status for c in two.queues[0].poll()] == [WCStatus.REM_ACCESS_ERR, WCStatus.LOC_PROT_ERR]
    nic.refuse["post send"] = errno.EINVAL
    with pytest.raises(JobError, match=f"queue pair {here.number}: Failed to post send"):
        here.post_send([two.send(Opcode.WRITE, 10)])
    nic.refuse["post send"] = errno.ENOMEM
    assert here.post_send([two.send(Opcode.WRITE, 10)]) == 0
    nic.refuse = {"register a MR": errno.ENOMEM}
    with pytest.raises(JobError, match=r"mlx5_0: Failed to register a MR.*locked memory\? \(ulimit -l\)"):
        two.contexts[0].reg_mr(two.domains[0], bytearray(10), BOTH)
    with pytest.raises(JobError, match="writable if its access says so"):
        two.contexts[0].reg_mr(two.domains[0], bytes(10), BOTH)
    two.close()


def test_a_completion_queue_never_overflows(nic: fake_pyverbs.Nic) -> None:
    two = Two(send_depth=100, receive_depth=5)
    assert two.pairs[1].post_recv([ReceiveRequest(n) for n in range(9)]) == 5
    assert two.pairs[0].post_send([two.send(Opcode.WRITE, 1)] * 20) == 8
    assert two.pairs[0].post_send([two.send(Opcode.WRITE, 1, flags=SendFlags.NONE)] * 20) == 20
    assert len(two.queues[0].poll(3)) == 3
    assert two.pairs[0].post_send([two.send(Opcode.WRITE, 1)] * 20) == 3
    two.close()


def test_waits_end_with_a_completion_a_wake_or_the_time(nic: fake_pyverbs.Nic) -> None:
    two = Two()
    context, queue = two.contexts[0], two.queues[0]
    begun = time.monotonic()
    assert queue.poll(timeout_s=0.02) == []
    context.progress(0.02)
    assert time.monotonic() - begun >= 0.04
    context.wake()
    context.progress(30)
    threading.Timer(0.02, context.wake).start()
    context.progress(30)
    two.pairs[0].post_send([two.send(Opcode.WRITE, 1)] * 2)
    context.progress(30)
    context.progress(30)  # both are still there
    assert len(queue.poll(1)) == 1
    context.progress(30)
    assert len(queue.poll(5)) == 1
    threading.Timer(0.02, two.pairs[0].post_send, [[two.send(Opcode.WRITE, 1)]]).start()
    assert len(queue.poll(5, timeout_s=30)) == 1
    threading.Timer(0.02, two.pairs[0].post_send, [[two.send(Opcode.WRITE, 1)]]).start()
    context.progress(30)
    assert len(queue.poll(5)) == 1
    assert time.monotonic() - begun < 20
    queue.wake()
    assert queue.poll() == []
    assert queue.poll(timeout_s=30) == []
    threading.Timer(0.02, queue.wake).start()
    assert queue.poll(timeout_s=30) == []
    assert time.monotonic() - begun < 20
    two.close()
    context.wake()
    queue.wake()
    for use in (queue.poll, context.alloc_pd, lambda: two.pairs[0].post_send([two.send(Opcode.WRITE, 1)])):
        with pytest.raises(LinkClosed):
            use()


def test_objects_are_closed_after_those_that_need_them(nic: fake_pyverbs.Nic) -> None:
    two = Two()
    for thing in (two.domains[0], two.queues[0]):
        with pytest.raises(JobError, match="still in use"):
            thing.close()
    two.pairs[0].close()
    two.queues[0].close()
    two.queues[0].close()
    two.regions[0].close()
    two.domains[0].close()
    two.close()


def test_an_address_of_no_device_is_named_with_the_devices_searched(nic: fake_pyverbs.Nic) -> None:
    with pytest.raises(JobError, match=r"no RDMA device has the address 10.0.0.9: looked at mlx5_0, mlx5_1"):
        hardware.open("10.0.0.9")
    with pytest.raises(JobError, match="nowhere: no IP address"):
        hardware.open("nowhere")
    nic.refuse["open device"] = errno.EPERM
    with pytest.raises(JobError, match=r"looked at mlx5_0 \(Failed to open device.*not permitted\)"):
        hardware.open("10.0.0.1")
    assert hardware.gid_of("fe80::1") == "fe80:0000:0000:0000:0000:0000:0000:0001"


def test_without_a_device_or_pyverbs_one_line_says_how_to_get_it(
    nic: fake_pyverbs.Nic, monkeypatch: pytest.MonkeyPatch
) -> None:
    nic.devices.clear()
    with pytest.raises(JobError, match="no RDMA device here: it takes an RDMA NIC, or as root: rdma link add"):
        open_context("verbs", "10.0.0.1", 0)
    nic.refuse["get devices list"] = errno.ENOSYS
    with pytest.raises(JobError, match="no RDMA hardware: Failed to get devices list"):
        hardware.devices()

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(
        JobError, match=r"pyverbs can't be imported .*: \(|apt install python3-pyverbs\), or use the prov"
    ):
        hardware.open("10.0.0.1")
    with pytest.raises(JobError, match="RDMA provider 'magic' is unknown; allowed: soft, verbs"):
        open_context("magic", "10.0.0.1", 0)
    assert builtins.open is not hardware.open


def test_the_environment_chooses_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (RdmaOptions().provider, RdmaMeshOptions().provider) == ("soft", "soft")
    monkeypatch.setenv("SWITCHAGG_RDMA_PROVIDER", "verbs")
    assert (RdmaOptions().provider, RdmaMeshOptions(path_mtu=1024).provider) == ("verbs", "verbs")


def test_the_doctor_names_the_devices_or_what_is_missing(
    nic: fake_pyverbs.Nic, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, probe = doctor.PROBES["RDMA hardware"]
    assert (probe().ok, probe().detail) == (True, "mlx5_0, mlx5_1")
    nic.devices.clear()
    assert (probe().ok, probe().remedy) == (False, hardware.NO_DEVICE)
    monkeypatch.setitem(sys.modules, "pyverbs.device", None)
    assert (probe().ok, probe().remedy) == (False, hardware.INSTALL)
