"""UdpLink beyond the contract of links: segmentation, fallbacks, what it counts, what it leaves behind."""

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import transport.links.udp_link
from switchagg.errors import JobError
from transport.links.link import Address
from transport.links.udp_link import UdpLink

SO_NO_CHECK = 11
LOOPBACK = ("127.0.0.1", 0)


@pytest.fixture
def links() -> Iterator[tuple[UdpLink, UdpLink]]:
    here, there = UdpLink(LOOPBACK), UdpLink(LOOPBACK)
    if not (here.gso and there.gro):
        pytest.skip("this kernel has no UDP_SEGMENT or no UDP_GRO")
    yield here, there
    here.close()
    there.close()


def drain(link: UdpLink, datagrams: int) -> list[np.ndarray]:
    """The bundles that hold this many datagrams."""
    bundles: list[np.ndarray] = []
    while sum(map(len, bundles)) < datagrams:
        assert link.wait(10), f"{sum(map(len, bundles))} of {datagrams} datagrams arrived"
        bundles += [frames for frames, *_ in link.receive()]
    return bundles


class OddSocket:
    """A socket whose sends fail as configured; everything else is the real one's."""

    def __init__(self, real: socket.socket, failures: dict[str, int]) -> None:
        self.real, self.failures = real, failures

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def sendmsg(self, *args: object) -> int:
        return self.call("sendmsg", *args)

    def sendto(self, *args: object) -> int:
        return self.call("sendto", *args)

    def call(self, name: str, *args: object) -> int:
        if name in self.failures:
            raise OSError(self.failures[name], os.strerror(self.failures[name]))
        return getattr(self.real, name)(*args)


def test_bundles_travel_in_few_system_calls(links: tuple[UdpLink, UdpLink]) -> None:
    here, there = links
    assert here.send(np.ones((40, 1460), np.uint8), there.address) == 40
    assert [frames.shape for frames in drain(there, 40)] == [(40, 1460)]
    assert (here.counters["sent_bundles"], here.counters["sent_datagrams"]) == (3, 40)
    assert here.counters["sent_bytes"] == there.counters["received_bytes"] == 40 * 1460
    assert (there.counters["received_bundles"], there.counters["received_datagrams"]) == (3, 40)


def test_a_send_stays_below_one_datagram_of_bytes(links: tuple[UdpLink, UdpLink]) -> None:
    here, there = links
    assert here.send(np.ones((9, 9000), np.uint8), there.address) == 9
    assert [frames.shape for frames in drain(there, 9)] == [(9, 9000)]
    assert here.counters["sent_bundles"] == 2


@pytest.mark.parametrize("segments_max", [1, 2, 64])
def test_segments_max_is_respected(segments_max: int) -> None:
    here, there = UdpLink(LOOPBACK, segments_max=segments_max), UdpLink(LOOPBACK)
    assert here.send(np.ones((128, 100), np.uint8), there.address) == 128
    assert here.counters["sent_bundles"] == 128 // segments_max
    assert sum(map(len, drain(there, 128))) == 128
    here.close()
    there.close()


@pytest.mark.parametrize("segments_max", [0, 65])
def test_segments_max_beyond_what_kernels_take_is_refused(segments_max: int) -> None:
    with pytest.raises(ValueError, match="1 to 64"):
        UdpLink(LOOPBACK, segments_max=segments_max)


def test_a_shorter_last_segment_comes_as_a_bundle_of_its_own(links: tuple[UdpLink, UdpLink]) -> None:
    here, there = links
    data = np.arange(1050, dtype=np.uint16).astype(np.uint8)
    segment = [(transport.links.udp_link.SOL_UDP, transport.links.udp_link.UDP_SEGMENT, b"\xc8\x00")]
    here._socket.sendmsg([data.data], segment, 0, there.address)
    bundles = drain(there, 6)
    assert [frames.shape for frames in bundles] == [(5, 200), (1, 50)]
    assert b"".join(frames.tobytes() for frames in bundles) == data.tobytes()


def test_consecutive_datagrams_are_one_bundle(links: tuple[UdpLink, UdpLink]) -> None:
    here, there = links
    other = UdpLink(LOOPBACK)
    for sender, rows, size, tos in (
        (here, 2, 8, None),
        (here, 3, 8, None),
        (other, 1, 8, None),
        (here, 1, 8, None),
        (here, 1, 0, None),
        (here, 2, 5, None),
        (here, 2, 5, 0xE3),
        (here, 1, 5, 0xE3),
    ):
        sender.send(np.full((rows, size), rows, np.uint8), there.address, tos)
    arrived = there.receive()
    assert [(frames.shape, *came) for frames, *came in arrived] == [
        ((5, 8), here.address, 0),
        ((1, 8), other.address, 0),
        ((1, 8), here.address, 0),
        ((1, 0), here.address, 0),
        ((2, 5), here.address, 0),
        ((3, 5), here.address, 0xE3),
    ]
    assert arrived[0][0][:, 0].tolist() == [2, 2, 3, 3, 3]
    other.close()


def test_one_receive_is_bounded_in_bytes(links: tuple[UdpLink, UdpLink]) -> None:
    here, there = links
    here.send(np.ones((100, 9000), np.uint8), there.address)
    (frames, *_) = there.receive()[0]
    assert 128 << 10 <= frames.nbytes < 192 << 10
    drain(there, 100 - len(frames))


def test_bundles_stay_as_they_are_over_many_arenas(links: tuple[UdpLink, UdpLink]) -> None:
    here, there = links
    kept: list[np.ndarray] = []
    for turn in range(120):  # 2.8 MB in all
        assert here.send(np.full((16, 1460), turn, np.uint8), there.address) == 16
        if turn % 8 == 7:
            kept += drain(there, 128)
    values = np.concatenate([frames[:, 0] for frames in kept])
    assert values.tolist() == [turn for turn in range(120) for _ in range(16)]
    assert all((frames == frames[:, :1]).all() for frames in kept)


def test_a_gso_sender_reaches_a_plain_receiver_and_back() -> None:
    fast, plain = UdpLink(LOOPBACK), UdpLink(LOOPBACK, gso=False)
    assert not plain.gso
    assert not plain.gro
    fast.send(np.full((20, 700), 7, np.uint8), plain.address)
    assert [frames.shape for frames in drain(plain, 20)] == [(20, 700)]
    assert plain.counters["received_bundles"] == 20
    plain.send(np.full((20, 700), 8, np.uint8), fast.address)
    assert all((frames == 8).all() for frames in drain(fast, 20))
    fast.close()
    plain.close()


def test_gso_refused_by_the_kernel_is_given_up_and_reported(links: tuple[UdpLink, UdpLink]) -> None:
    here, there = links
    here._socket.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)  # the kernel refuses UDP_SEGMENT without checksums
    frames = np.random.default_rng(1).integers(0, 256, (40, 500), np.uint8)
    assert here.send(frames, there.address) == 40
    assert b"".join(part.tobytes() for part in drain(there, 40)) == frames.tobytes()
    assert not here.gso
    assert "16 segments of 500 bytes" in here.gso_fallback
    assert here.counters["gso_fallbacks"] == 1
    assert here.counters["send_errors"] == 0
    here.send(frames, there.address)
    assert here.counters["gso_fallbacks"] == 1
    assert here.counters["sent_datagrams"] == 80


def test_gso_is_tried_again(links: tuple[UdpLink, UdpLink], monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal may have been of one route only."""
    monkeypatch.setattr(transport.links.udp_link, "GSO_RETRY_NS", 0)
    here, there = links
    here._socket.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
    here.send(np.ones((40, 500), np.uint8), there.address)
    here._socket.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 0)
    sent = here.counters["sent_bundles"]
    assert here.send(np.ones((32, 500), np.uint8), there.address) == 32
    assert here.gso
    assert here.counters["sent_bundles"] == sent + 2


FORGED_TOO_BIG = """
import socket, struct
import numpy as np
from transport.links.udp_link import UdpLink

def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    return ~((total >> 16) + (total & 0xFFFF)) & 0xFFFF

here, there = UdpLink(("127.0.0.1", 0)), UdpLink(("127.0.0.1", 0))
host = socket.inet_aton("127.0.0.1")
quoted = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 1488, 1, 0x4000, 64, 17, 0, host, host)
quoted += struct.pack("!HHHH", here.address[1], there.address[1], 1468, 0)
message = struct.pack("!BBHHH", 3, 4, 0, 0, 600) + quoted  # type 3, code 4: fragmentation needed; the next hop's MTU
with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
    raw.sendto(message[:2] + struct.pack("!H", checksum(message)) + message[4:], ("127.0.0.1", 0))
here.send(np.ones((40, 1460), np.uint8), there.address)
print(here.gso, here.counters["sent_bundles"], here.gso_fallback)
"""


@pytest.mark.system
def test_a_forged_message_of_a_narrow_path_does_not_end_segmentation(requires_root_namespaces: None) -> None:
    command = ["unshare", "-n", "sh", "-c", 'ip link set lo mtu 1500 up && exec "$0" -c "$1"']
    done = subprocess.run(
        [*command, sys.executable, FORGED_TOO_BIG], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "True 3"


@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.EOPNOTSUPP])
def test_any_refusal_of_gso_falls_back(links: tuple[UdpLink, UdpLink], code: int) -> None:
    here, there = links
    here._socket = OddSocket(here._socket, {"sendmsg": code})
    assert here.send(np.ones((20, 500), np.uint8), there.address) == 20
    assert sum(map(len, drain(there, 20))) == 20
    assert not here.gso
    assert os.strerror(code) in here.gso_fallback


@pytest.mark.parametrize("bad", [("127.0.0.1", 0), ("240.0.0.1", 9)])
def test_a_bad_destination_is_loss_and_does_not_cost_gso(links: tuple[UdpLink, UdpLink], bad: Address) -> None:
    here, there = links
    assert here.send(np.ones((20, 500), np.uint8), bad) == 20
    assert here.counters["send_errors"] == 20
    assert here.counters["sent_datagrams"] == 0
    assert bad[0] in here.last_error
    assert here.gso
    assert here.send(np.ones((16, 500), np.uint8), there.address) == 16
    assert [frames.shape for frames in drain(there, 16)] == [(16, 500)]


@pytest.mark.parametrize("code", [errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EPERM])
def test_errors_of_the_network_are_loss(links: tuple[UdpLink, UdpLink], code: int) -> None:
    here, there = links
    here._socket = OddSocket(here._socket, {"sendmsg": code, "sendto": code})
    assert here.send(np.ones((33, 500), np.uint8), there.address) == 33
    assert here.counters["send_errors"] == 33
    assert os.strerror(code) in here.last_error
    assert here.gso


def test_a_full_device_is_waited_for_without_spinning(links: tuple[UdpLink, UdpLink]) -> None:
    here, there = links
    real = here._socket
    here._socket = OddSocket(real, {"sendmsg": errno.ENOBUFS, "sendto": errno.ENOBUFS})
    assert here.send(np.ones((33, 500), np.uint8), there.address) == 0
    assert here.counters["send_would_block"] == 1
    begin = time.monotonic()
    assert here.wait(10, writable=True)
    assert time.monotonic() - begin > 0.0005
    here._socket = real
    assert here.send(np.ones((33, 500), np.uint8), there.address) == 33
    assert here.gso


def test_a_full_socket_takes_a_part_and_returns_how_much() -> None:
    here = UdpLink(LOOPBACK, send_buffer_bytes=1)
    there = UdpLink(LOOPBACK, receive_buffer_bytes=1)
    here._socket = OddSocket(here._socket, {})
    sends = 0

    def limited(name: str, *args: object) -> int:
        nonlocal sends
        sends += 1
        if sends > 2:
            raise BlockingIOError(errno.EAGAIN, "full")
        return getattr(here._socket.real, name)(*args)

    here._socket.call = limited
    rows = 2 * 16 if here.gso else 2
    assert here.send(np.ones((100, 50), np.uint8), there.address) == rows
    assert here.counters["send_would_block"] == 1
    here.close()
    there.close()


def test_datagrams_dropped_by_the_kernel_are_counted() -> None:
    here, there = UdpLink(LOOPBACK, gso=False), UdpLink(LOOPBACK, gso=False, receive_buffer_bytes=4096)
    here.send(np.ones((100, 1000), np.uint8), there.address)
    arrived = 0
    while there.wait(0.05):
        arrived += sum(len(frames) for frames, *_ in there.receive())
    assert 0 < arrived < 100
    here.send(np.ones((1, 1000), np.uint8), there.address)  # the next datagram carries the count
    drain(there, 1)
    assert there.counters["receive_overflow"] == 100 - arrived
    here.close()
    there.close()


def test_buffers_are_read_back() -> None:
    link = UdpLink(LOOPBACK, receive_buffer_bytes=1 << 20, send_buffer_bytes=1 << 19)
    limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
    assert link.receive_buffer_bytes >= min(1 << 20, limit)
    assert link.send_buffer_bytes >= min(1 << 19, limit)
    link.close()


def test_an_address_in_use_is_named() -> None:
    taken = UdpLink(LOOPBACK)
    with pytest.raises(JobError, match=rf"127\.0\.0\.1:{taken.address[1]}.*in use"):
        UdpLink(taken.address)
    taken.close()


@pytest.mark.parametrize("bind", [("no.such.host.invalid", 0), ("127.0.0.1", 70_000), ("192.0.2.1", 0)])
def test_an_address_that_can_not_be_bound_is_named(bind: Address) -> None:
    with pytest.raises(JobError, match=bind[0]):
        UdpLink(bind)


def test_resolve_refuses_the_other_family_and_finds_names() -> None:
    link = UdpLink(LOOPBACK)
    assert link.resolve(("localhost", 80)) == ("127.0.0.1", 80)
    with pytest.raises(JobError, match="IPv4"):
        link.resolve(("::1", 80))
    link.close()


@pytest.mark.parametrize("option", ["UDP_SEGMENT", "UDP_GRO"])
def test_requiring_gso_is_refused_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setattr(transport.links.udp_link, option, 9999)
    with pytest.raises(JobError, match="gso=None"):
        UdpLink(LOOPBACK, gso=True)
    link = UdpLink(LOOPBACK)
    assert (link.gso, link.gro) == (option != "UDP_SEGMENT", option != "UDP_GRO")
    link.close()


def test_close_leaves_no_descriptor_open() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    links = [UdpLink(LOOPBACK) for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == len(before) + 10
    for link in links:
        link.close()
    with pytest.raises(JobError):
        UdpLink(("192.0.2.1", 0))
    assert sorted(os.listdir("/proc/self/fd")) == before
