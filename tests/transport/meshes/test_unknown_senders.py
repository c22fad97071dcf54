"""Unknown senders at the port of a member that waits for its job: the job begins all the same, with right sums; they
are counted and learn nothing, and nothing that they are sent is longer than what they sent."""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zmq

from switchagg.errors import JobError
from tests.transport.contracts.meshes import LIVENESS_S, free_addresses
from transport.group.group_opening import GroupOptions, open_group
from transport.group.ps_group import PsOptions, open_ps_server
from transport.links.link import Address
from transport.meshes import mesh_handshake
from transport.meshes.mesh_opening import connect_mesh
from transport.zeromq.zmq_gathering import CONTROL, HELLO

WAYS = {
    "tcp": ("ring", "tcp"),
    "udp": ("ring", "udp"),
    "zeromq": ("ring", "zeromq"),
    "rdma": ("ring", "rdma"),
    "bounded loss": ("mlt", "udp"),
    "servers over tcp": ("ps", "tcp"),
    "servers over zeromq": ("ps", "zeromq"),
}
TOKEN, OTHER = "0123456789abcdef" * 4, "fedcba9876543210" * 4
OPENING = mesh_handshake.pack_opening(bytes(range(16)))
GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    bytes(2000),
    OPENING,
    OPENING[:30],
    OPENING + np.random.default_rng(1).bytes(900),
    OPENING + OPENING,
    b"sahelo\x02\x03" + bytes(48) + b"\x00\x01" + b"x",
    b"sahelo\x02\x03" + bytes(48) + b"\xff\xff",
    b"sahelo\x00\x02" + bytes(60),
]


class Peer:
    """An unknown sender's socket, which counts what comes back."""

    def __init__(self, link: str, address: Address) -> None:
        self.socket = socket.socket(type=socket.SOCK_DGRAM if link == "udp" else socket.SOCK_STREAM)
        self.socket.connect(address)
        self.sent = self.received = 0

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it has been sent away already
            self.sent += self.socket.send(data)

    def close(self) -> None:
        """Assert that it got no more than it had sent."""
        with self.socket, contextlib.suppress(OSError):
            while select.select([self.socket], [], [], 0.0)[0] and (data := self.socket.recv(1 << 16)):
                self.received += len(data)
        assert self.received <= self.sent


class Dealer:
    """An unknown sender that speaks ZeroMQ."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: Address) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(f"tcp://{address[0]}:{address[1]}")
        self.sent = self.received = 0

    def send(self, data: bytes) -> None:
        self.socket.send_multipart([CONTROL, HELLO, data])
        self.sent += len(data)

    def close(self) -> None:
        with contextlib.suppress(zmq.Again):
            while frames := self.socket.recv_multipart(zmq.NOBLOCK):
                self.received += len(frames[2])
        self.socket.close()
        assert self.received <= self.sent


@contextlib.contextmanager
def member_of(job: str, token: str, link: str, address: Address, place: int) -> Iterator[None]:
    """A member of some job that looks for its member `place` there. What it learns isn't what that one is."""
    addresses = free_addresses(place + 3)
    addresses[place] = address
    errors: list[str] = []

    def run() -> None:
        how: dict[str, Any] = {"job": job, "method": "tree", "timeout_s": 1.0, "token": token}
        try:
            connect_mesh(link, place + 2, addresses, **how).close(0.0)
        except JobError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join(LIVENESS_S)
    assert len(errors) == 1
    assert f"no connection with member 0 at {addresses[0][0]}" in errors[0]  # no word of another kind came
    assert not any(word in errors[0] for word in ("'train'", "'ring", "'mlt", "'ps", "came for job"))


@contextlib.contextmanager
def garbage(link: str, address: Address) -> Iterator[None]:
    with zmq.Context() as context:
        peers: list[Any] = [Peer(link, address) for _ in GARBAGE]
        for peer, data in zip(peers, GARBAGE, strict=True):
            peer.send(data)
        dealers = [Dealer(context, address) for _ in GARBAGE if link == "zeromq"]
        for dealer, data in zip(dealers, GARBAGE, strict=False):
            dealer.send(data)
            dealer.send(data)
        yield
        if link == "zeromq":  # whose library greets whoever connects over TCP
            for peer in peers:
                peer.socket.close()
            peers = list(dealers)
        for peer in peers:
            peer.close()


@contextlib.contextmanager
def silence(link: str, address: Address) -> Iterator[None]:
    peers = [Peer(link, address) for _ in range(300)]  # more than may wait
    yield
    for peer in peers:
        peer.socket.close()


def _carry_datagrams(between: Address, listener: Address, dialer: Address, sent: list[bytes], ending: Any) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as middle:
        middle.bind(between)
        while not ending.is_set():
            if select.select([middle], [], [], 0.05)[0]:
                data, source = middle.recvfrom(1 << 16)
                sent.extend([data] if source == dialer else [])
                middle.sendto(data, listener if source == dialer else dialer)


def _carry_stream(between: Address, listener: Address, dialer: Address, sent: list[bytes], ending: Any) -> None:
    with socket.create_server(between) as server, server.accept()[0] as near, _connected(listener) as far:
        while not ending.is_set():
            for ready in select.select([near, far], [], [], 0.05)[0]:
                data = ready.recv(1 << 16)
                sent.extend([data] if ready is near else [])
                (far if ready is near else near).sendall(data)


def recorded(link: str) -> list[bytes]:
    """What the dialer of a job with the right token has sent to its listener."""
    listener, dialer, between = free_addresses(3)
    sent: list[bytes] = []
    ending = threading.Event()
    datagrams = link == "udp"
    carry = _carry_datagrams if datagrams else _carry_stream
    meshes: list[Any] = []

    def meet(member: int, addresses: list[Address]) -> None:
        how: dict[str, Any] = {"job": "train", "method": "tree", "timeout_s": LIVENESS_S, "token": TOKEN}
        meshes.append(connect_mesh(link, member, addresses, **how))

    middle = threading.Thread(target=carry, args=(between, listener, dialer, sent, ending))
    both = [
        threading.Thread(target=meet, args=(0, [listener, between if datagrams else dialer])),
        threading.Thread(target=meet, args=(1, [between, dialer])),
    ]
    for thread in (middle, *both):
        thread.start()
    for thread in both:
        thread.join(LIVENESS_S)
    ending.set()
    middle.join(LIVENESS_S)
    assert len(meshes) == 2
    for mesh in meshes:
        mesh.close(0.0)
    assert sum(map(len, sent)) > 100
    return sent


def _connected(address: Address) -> socket.socket:
    end = time.monotonic() + LIVENESS_S
    while True:
        try:
            return socket.create_connection(address)
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.01)


@contextlib.contextmanager
def replay(link: str, address: Address) -> Iterator[None]:
    peer = Peer(link, address)
    records = (recorded(link) for _ in range(50))  # over UDP the other's handshake may have ended first
    for data in next(each for each in records if b"sahelo\x02" in b"".join(each)):
        peer.send(data)
        time.sleep(0.05)  # libzmq takes no message while it greets
    yield
    if link == "zeromq":
        peer.socket.close()
    else:
        peer.close()


UNKNOWN_SENDERS: dict[str, Callable[[str, Address, int], Any]] = {
    "another job": lambda link, address, place: member_of("other", OTHER, link, address, place),
    "another token": lambda link, address, place: member_of("train", OTHER, link, address, place),
    "garbage": lambda link, address, place: garbage(link, address),
    "silence": lambda link, address, place: silence(link, address),
    "replay": lambda link, address, place: replay(link, address),
}


class Job:
    """Three ranks, and a server where the method has one, each opened in a thread of its own."""

    def __init__(self, method: str, link: str) -> None:
        self.method, self.link = method, link
        addresses = free_addresses(4)
        self.ranks, self.servers = addresses[:3], addresses[3:] if method == "ps" else []
        self.members: dict[int, Any] = {}
        self.threads: list[threading.Thread] = []

    def start(self, member: int) -> None:
        self.threads.append(threading.Thread(target=self._open, args=(member,)))
        self.threads[-1].start()

    def _open(self, member: int) -> None:
        try:
            if member == 3:
                options = PsOptions(LIVENESS_S, token=TOKEN)
                self.members[3] = open_ps_server(self.link, 0, self.ranks, self.servers, job="train", options=options)
            else:
                how = GroupOptions(LIVENESS_S, LIVENESS_S, token=TOKEN)
                self.members[member] = open_group(
                    self.method, self.link, member, self.ranks, job="train", servers=self.servers, options=how
                )
        except JobError as error:
            self.members[member] = error

    def close(self) -> None:
        for thread in self.threads:
            thread.join(2 * LIVENESS_S)
        for group in self.members.values():
            if not isinstance(group, JobError):
                group.close()


@pytest.mark.parametrize("unknown_sender", UNKNOWN_SENDERS)
@pytest.mark.parametrize("way", WAYS)
def test_unknown_senders_end_no_job(way: str, unknown_sender: str) -> None:
    method, link = WAYS[way]
    job = Job(method, link)
    waiting = {0: job.ranks[0], **({3: job.servers[0]} if job.servers else {})}
    with contextlib.ExitStack() as unknown_senders:
        unknown_senders.callback(job.close)
        for member, address in waiting.items():
            job.start(member)
            if link != "udp":
                _connected(address).close()
        if link == "udp":
            time.sleep(0.3)
        for member, address in waiting.items():
            unknown_senders.enter_context(UNKNOWN_SENDERS[unknown_sender](link, address, member))
        time.sleep(0.3)
        for member in (1, 2):
            job.start(member)
        for thread in job.threads:
            thread.join(2 * LIVENESS_S)
        groups = [job.members[rank] for rank in range(3)]
        assert not any(isinstance(member, JobError) for member in job.members.values()), job.members
        values = [np.arange(5000, dtype=np.int64) * (rank + 1) for rank in range(3)]
        for future in [group.allreduce(array) for group, array in zip(groups, values, strict=True)]:
            future.result(LIVENESS_S)
        for array in values:
            assert (array == np.arange(5000) * 6).all()
        counted = [job.members[member].counters["drop_unknown_sender"] for member in waiting]
    if unknown_sender != "silence" or link not in ("udp", "zeromq"):  # whose listeners see nothing of who says nothing
        assert all(count >= 1 for count in counted), counted


def test_a_job_without_a_token_says_so_where_others_reach_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only there, in one line; a token that can be guessed is refused, and neither stands in what is said."""
    how: dict[str, Any] = {"job": "train", "method": "ring", "timeout_s": 0.05}
    (here,) = free_addresses(1)
    for addresses, token, lines in (
        ([here, ("10.255.255.1", 7000)], "", 1),
        ([here, ("10.255.255.1", 7000)], TOKEN, 0),
        ([here, ("localhost", 7000)], "", 0),
    ):
        caplog.clear()
        monkeypatch.setenv("SWITCHAGG_TOKEN", token)
        with pytest.raises(JobError) as raised:
            connect_mesh("tcp", 0, addresses, **how)
        assert len(caplog.messages) == lines
        assert all(
            "whoever reaches 10.255.255.1:7000" in line and "SWITCHAGG_TOKEN" in line for line in caplog.messages
        )
        assert TOKEN not in str(raised.value) + caplog.text
    monkeypatch.setenv("SWITCHAGG_TOKEN", "hunter2")
    with pytest.raises(
        JobError, match="SWITCHAGG_TOKEN: a token of 7 characters can be guessed; make one with"
    ) as short:
        connect_mesh("tcp", 0, [here], **how)
    assert "hunter2" not in str(short.value)
    assert TOKEN not in repr(GroupOptions(token=TOKEN)) + repr(PsOptions(token=TOKEN))
