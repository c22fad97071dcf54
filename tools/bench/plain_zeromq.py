"""Plain pyzmq between two processes, in each of the ways that people send with it: the baseline of the ZeroMQ mesh.

Blocking sends and receives of two frames, head and data, and nothing else: no credit, no other peers, no failures.
"""

from __future__ import annotations

import time
from typing import Any

import zmq

MODES = ("dealer copy", "dealer no-copy", "push copy", "push no-copy")
"""Sockets and copying. With " bounded" behind: the queue and send buffer that the mesh asks for, else the defaults."""

RECEIVE_MS = 20_000


class PlainEnd:
    """An end of plain pyzmq. mode: one of MODES. Member 1 receives, at `address`."""

    def __init__(self, mode: str, member: int, address: tuple[str, int]) -> None:
        kind, self._copy = mode.split()[0], "no-copy" not in mode
        self._context = zmq.Context()
        kinds = {"dealer": (zmq.DEALER, zmq.ROUTER), "push": (zmq.PUSH, zmq.PULL)}[kind]
        self._socket: Any = self._context.socket(kinds[member])
        self._socket.copy_threshold = 0
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.RCVTIMEO, RECEIVE_MS)
        self._socket.set(zmq.SNDTIMEO, RECEIVE_MS)
        if mode.endswith("bounded"):
            from transport.zeromq.zmq_sockets import ZeroMqOptions

            options = ZeroMqOptions()
            self._socket.set(zmq.SNDHWM, options.queue_messages)
            self._socket.set(zmq.RCVHWM, options.queue_messages)
            self._socket.set(zmq.SNDBUF, options.send_buffer_bytes)
        place = f"tcp://{address[0]}:{address[1]}"
        if member:
            self._socket.bind(place)
        else:
            self._socket.connect(place)

    def send(self, data: memoryview, count: int) -> None:
        """Hand all messages over."""
        send, copy = self._socket.send, self._copy
        for _ in range(count):
            send(b"0123456789abcdef", zmq.SNDMORE)
            send(data, copy=copy)

    def receive(self, size_bytes: int, count: int) -> int:
        """Take all messages; ns from the first to the last."""
        receive = self._socket.recv_multipart
        begun_ns = 0
        for number in range(count):
            frames = receive(copy=False)
            if not number:
                begun_ns = time.monotonic_ns()
            if len(frames[-1]) != size_bytes:
                raise RuntimeError(f"a message of {len(frames[-1])} bytes, not {size_bytes}")
        return time.monotonic_ns() - begun_ns

    def close(self) -> None:
        self._context.destroy(0)
