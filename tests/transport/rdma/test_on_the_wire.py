"""What is on a wire: packets captured on a veth whose segmentation is the kernel's, as a real link's would be."""

import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from emulation.testbed import netns
from switchagg.native import library
from tests.transport.rdma import oracle
from transport.rdma import soft
from transport.rdma.verbs import AccessFlags, Opcode, QPAttributes, QPType, ReceiveRequest, SendRequest, WCStatus

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}"),
]

BOTH = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
SIZE = 300_001


class Wire:
    """Two namespaces and a veth between them; the right end's frames are captured."""

    def __init__(self) -> None:
        self.holders = [subprocess.Popen(["unshare", "-n", "sleep", "60"]) for _ in range(2)]
        try:
            for holder in self.holders:
                while Path(f"/proc/{holder.pid}/comm").read_text().strip() != "sleep":
                    pass
            left, right = self.pids = [holder.pid for holder in self.holders]
            self.run(left, f"ip link add sa-left type veth peer name sa-right netns {right}")
            for pid, name, address in ((left, "sa-left", "10.78.0.1"), (right, "sa-right", "10.78.0.2")):
                self.run(pid, f"ip addr add {address}/24 dev {name}; ip link set {name} mtu 9000 up")
                self.run(pid, f"ethtool -K {name} tx-udp-segmentation off")
            self.tap = netns.within(right, self.capture)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def run(pid: int, script: str) -> None:
        words = ["nsenter", f"--net=/proc/{pid}/ns/net", "sh", "-ec", script]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{script}: {done.stderr}"

    @staticmethod
    def capture() -> socket.socket:
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        tap.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
        tap.bind(("sa-right", 0))
        tap.settimeout(0.3)
        return tap

    def packets(self) -> list[bytes]:
        """IP packets to the port of RoCE, so far, both ways."""
        found = []
        while True:
            try:
                frame = self.tap.recv(1 << 17)
            except TimeoutError:
                return found
            if frame[12:14] == b"\x08\x00" and frame[36:38] == struct.pack(">H", 4791):
                length = struct.unpack(">H", frame[16:18])[0]
                found.append(frame[14 : 14 + length])

    def close(self) -> None:
        for holder in self.holders:
            netns.end(holder)
        if hasattr(self, "tap"):
            self.tap.close()


@pytest.fixture
def wire(requires_root_namespaces: None) -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


@pytest.mark.parametrize("mtu", [1024, 4096])
@pytest.mark.parametrize("kind", [QPType.RC, QPType.UC])
def test_every_packet_has_the_right_icrc_wherever_it_is_segmented(wire: Wire, kind: QPType, mtu: int) -> None:
    left, right = (
        netns.within(pid, lambda address=address: soft.open(address))
        for pid, address in zip(wire.pids, ("10.78.0.1", "10.78.0.2"), strict=True)
    )
    with left, right:
        ends = []
        for context in (left, right):
            domain, cq = context.alloc_pd(), context.create_cq(64)
            memory = np.zeros(SIZE, np.uint8)
            region = context.reg_mr(domain, memory, BOTH)
            ends.append((cq, memory, region, context.create_qp(domain, kind, cq, cq)))
        (cq, memory, region, pair), (far_cq, far_memory, far_region, far_pair) = ends
        memory[:] = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
        attributes = QPAttributes(path_mtu=mtu, dscp=10)
        pair.connect(far_pair.end, attributes)
        far_pair.connect(pair.end, attributes)
        far_pair.post_recv([ReceiveRequest(i, far_region.address, SIZE, far_region.lkey) for i in range(3)])
        target = (far_region.address, far_region.rkey)
        for opcode, size in ((Opcode.WRITE_WITH_IMM, SIZE), (Opcode.SEND, 777), (Opcode.SEND_WITH_IMM, 0)):
            remote = target if opcode is Opcode.WRITE_WITH_IMM else (0, 0)
            pair.post_send([SendRequest(1, opcode, region.address, size, region.lkey, *remote, 0x12345678)])
            assert cq.poll(1, 5)[0].status == WCStatus.SUCCESS
            assert far_cq.poll(1, 5)[0].byte_len == size
        assert np.array_equal(memory, far_memory)
        packets = wire.packets()
        sent = left.counters["sent_packets"] + right.counters["sent_packets"]
        assert left.gso
        assert left.counters["gso_fallbacks"] == 0

    assert len(packets) == sent > SIZE // mtu
    assert max(map(len, packets)) <= 20 + 8 + 12 + 16 + 4 + mtu + 4
    for packet in packets:
        assert oracle.intact(packet)
        assert packet[1] == 10 << 2 | 2
        assert packet[6:8] == b"\x40\x00"  # don't fragment
    assert {struct.unpack(">H", packet[4:6])[0] for packet in packets} == set(range(15 if mtu == 4096 else 62))


def test_packets_too_long_for_the_link_end_in_a_clear_error(wire: Wire) -> None:
    for pid, name in zip(wire.pids, ("sa-left", "sa-right"), strict=True):
        wire.run(pid, f"ip link set {name} mtu 1500")
    left, right = (
        netns.within(pid, lambda address=address: soft.open(address))
        for pid, address in zip(wire.pids, ("10.78.0.1", "10.78.0.2"), strict=True)
    )
    with left, right:
        pairs = []
        for context in (left, right):
            domain, cq = context.alloc_pd(), context.create_cq(64)
            region = context.reg_mr(domain, np.zeros(SIZE, np.uint8), BOTH)
            pairs.append((cq, region, context.create_qp(domain, QPType.RC, cq, cq)))
        (cq, region, pair), (_, far_region, far_pair) = pairs
        attributes = QPAttributes(path_mtu=4096, timeout=16)
        pair.connect(far_pair.end, attributes)
        far_pair.connect(pair.end, attributes)
        target = (far_region.address, far_region.rkey)
        for size in (100, SIZE):
            pair.post_send([SendRequest(size, Opcode.WRITE, region.address, size, region.lkey, *target)])
        assert [cq.poll(1, 10)[0].status for _ in range(2)] == [WCStatus.SUCCESS, WCStatus.RETRY_EXC_ERR]
        assert left.last_error == "Message too long"
        assert left.counters["send_errors"] > 0
        assert left.counters["gso_fallbacks"] == 0
        assert not far_region._buffer[100:].any()
