"""ZeroMQ at both ends of the control plane: bounds of sockets, identities of peers, a switch on the same host.

Beside its TCP address a switch without keys listens on a Unix socket in the abstract name space, which has no file and
belongs to the network namespace: the kernel says there which user asks.
"""

import contextlib
import os
import socket
from dataclasses import dataclass

import zmq

from switchagg.errors import DecodeError
from switchagg.priority import MOST_URGENT, tos_of
from transport.control import control_messages

MESSAGE_BYTES_MAX = 1 << 20
"""ZeroMQ closes a connection that announces a larger frame, so an unknown peer can't make us allocate it."""

QUEUE_MESSAGES = 1000
"""High-water marks, in messages per peer; a member sends five a second."""

_LOCAL = "switchagg/"


def bound(zmq_socket: "zmq.Socket[bytes]") -> None:
    """Bound what a socket may hold, and how long it may live; its few bytes go first, or leases would end."""
    zmq_socket.set(zmq.TOS, tos_of(MOST_URGENT))
    zmq_socket.set(zmq.LINGER, 0)
    zmq_socket.set(zmq.SNDHWM, QUEUE_MESSAGES)
    zmq_socket.set(zmq.RCVHWM, QUEUE_MESSAGES)
    zmq_socket.set(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
    zmq_socket.set(zmq.TCP_KEEPALIVE, 1)  # a peer that went in an outage can't say so: its connection ends in a minute
    zmq_socket.set(zmq.TCP_KEEPALIVE_IDLE, 30)
    zmq_socket.set(zmq.TCP_KEEPALIVE_INTVL, 10)
    zmq_socket.set(zmq.TCP_KEEPALIVE_CNT, 3)


def next_answer(dealer: "zmq.Socket[bytes]", switch: str) -> control_messages.Answer | None:
    """The next answer of this switch, if there is one; an answer of another version counts as a refusal."""
    while True:
        try:
            frames = dealer.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        try:
            return control_messages.decode_answer(frames)
        except DecodeError as error:
            if error.reason == "control_version":
                return control_messages.Refused(f"control protocol of switch {switch}: {error}")


@dataclass(frozen=True)
class ControlPeer:
    """Where a message came from. identity: of the ROUTER. host: its IPv4 address; "": this host, by the Unix socket.
    user: number of the user that sent it, known only there."""

    identity: bytes
    host: str = ""
    user: int | None = None

    @property
    def is_own_user(self) -> bool:
        """Whether it is the user that runs this process, or root."""
        return self.user in (0, os.geteuid())


def peer_of(identity: "zmq.Frame") -> ControlPeer:
    """The peer whose message begins with this frame."""
    try:
        words = str(identity.get("Peer-Address")).split(":")  # A Unix socket has localhost:user:group:process.
    except zmq.ZMQError:  # it has gone already
        words = [""]
    if len(words) == 1:
        return ControlPeer(identity.bytes, words[0])
    return ControlPeer(identity.bytes, user=int(words[-3]) if words[-3:-2] and words[-3].isdecimal() else None)


def listen_locally(router: "zmq.Socket[bytes]", endpoint: str) -> None:
    """Let users of this host ask without TCP. If another process has the name, they ask over TCP."""
    with contextlib.suppress(zmq.ZMQError):
        router.bind(f"ipc://@{_LOCAL}{endpoint.removeprefix('tcp://')}")


def local_endpoint(host: str, port: int) -> str:
    """Endpoint of the Unix socket of a switch on this host at host:port or all addresses; "": there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return ""  # The address is another host's.
    for name in (f"{_LOCAL}{host}:{port}", f"{_LOCAL}0.0.0.0:{port}"):
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.setblocking(False)
            probe.connect(f"\0{name}")
            return f"ipc://@{name}"
    return ""
