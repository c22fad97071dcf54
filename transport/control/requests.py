"""Requests: a DEALER to one switch, which a fresh one replaces when it stalls; workers and leaves use it.

After an outage a TCP connection is silent for as long again as it was already. So requests that are due while an
earlier one is unanswered leave by fresh connections; the first that an answer comes by stays.
"""

import socket
from collections.abc import Iterator

import zmq

from switchagg.job import Address
from transport.control import control_messages
from transport.control.control_sockets import bound, next_answer
from transport.links.neighbour import Neighbour
from transport.zeromq.keys import Keys

CONNECTIONS_MAX = 8
"""The present connection and the newest fresh ones: at ten a second each has 0.7 s for its handshakes."""

RECONNECT_MS = 100


class Requests:
    """The requests of one thread. local_host: the address that they come from (C15). peer: the switch's. switch: its
    name for errors. wake: ends a `wait` when it can be read. linger_ms: how long `close` lets the last request leave.
    It raises JobError for keys."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        local_host: str,
        peer: Address,
        switch: str,
        keys: Keys | None,
        wake: socket.socket,
        linger_ms: int = 0,
    ) -> None:
        self._context, self._switch = context, switch
        self._target = f"tcp://{local_host}:0;{peer[0]}:{peer[1]}"
        self._neighbour = Neighbour(peer[0], local_host)
        self._keys, self._linger_ms = keys, linger_ms
        self._poller = zmq.Poller()
        self._poller.register(wake, zmq.POLLIN)
        self._dealers: list[zmq.Socket[bytes]] = []
        self._connect()
        self.replaced = 0
        """How often a fresh connection became the present one: requests by the earlier one may be lost."""

    def _connect(self) -> "zmq.Socket[bytes]":
        dealer = self._context.socket(zmq.DEALER)
        try:
            bound(dealer)
            dealer.set(zmq.RECONNECT_IVL, RECONNECT_MS)
            if self._keys is not None:
                self._keys.secure_client(dealer)
            dealer.connect(self._target)
        except BaseException:
            dealer.close(0)
            raise
        self._poller.register(dealer, zmq.POLLIN)
        self._dealers.append(dealer)
        return dealer

    def send(self, request: control_messages.Request, *, fresh: bool = False) -> None:
        """Send at once, by the present connection or a fresh one; where a queue is full the request is lost."""
        if fresh and len(self._dealers) == CONNECTIONS_MAX:
            self._close(self._dealers[1])
        if fresh:
            self._neighbour.ask()
        dealer = self._connect() if fresh else self._dealers[0]
        try:
            dealer.send_multipart(control_messages.encode(request), zmq.NOBLOCK)
        except zmq.Again:
            return

    def wait(self, timeout_ns: int) -> None:
        """Wait until an answer, a wake, or the timeout."""
        self._poller.poll(max(0, timeout_ns // 1_000_000 + 1))

    def answers(self) -> Iterator[control_messages.Answer]:
        """Answers so far. The connection that an answer came by is the present one, and the others end."""
        for dealer in list(self._dealers):
            while dealer in self._dealers and (answer := next_answer(dealer, self._switch)) is not None:
                self.replaced += dealer is not self._dealers[0]
                for other in [other for other in self._dealers if other is not dealer]:
                    self._close(other)
                yield answer

    def close(self) -> None:
        """End all connections; `linger_ms` for what the present one has yet to send."""
        for dealer in self._dealers[1:]:
            self._close(dealer)
        self._close(self._dealers[0], self._linger_ms)
        self._neighbour.close()

    def _close(self, dealer: "zmq.Socket[bytes]", linger_ms: int = 0) -> None:
        self._poller.unregister(dealer)
        self._dealers.remove(dealer)
        dealer.close(linger_ms)
