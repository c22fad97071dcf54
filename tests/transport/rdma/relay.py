"""A relay between a worker's RDMA NIC and a switch: each takes it for the other. It loses, doubles, reorders.

Addresses are part of a packet's ICRC, so the relay checks it and writes a new one: what it passes on is true RoCEv2.
"""

import random
import select
import socket
import struct
import threading
import zlib
from collections.abc import Callable
from typing import NamedTuple

Address = tuple[str, int]


class Faults(NamedTuple):
    """lose, double, reorder: probabilities per packet; a reordered one comes after the next `depth` ones at most."""

    lose: float = 0.0
    double: float = 0.0
    reorder: float = 0.0
    depth: int = 40


class Relay:
    """`worker_side` is what the worker takes for the switch, `switch_side` what the switch takes for the worker.

    drop: asked for each packet whether it is lost: drop(whether it goes to the worker, body). tos: of what leaves.
    """

    def __init__(
        self,
        worker: Address,
        switch: Address,
        sides: tuple[str, str],
        seed: int,
        *,
        faults: Faults | None = None,
        drop: Callable[[bool, bytes], bool] = lambda down, body: False,
        tos: int = 0,
    ) -> None:
        self._peers = {}
        self._sockets = []
        self.damaged = self.lost = self.passed = 0
        self.opcodes: dict[int, int] = {}
        self._drop = drop
        self._faults = faults or Faults()
        self._rng = random.Random(seed)
        for host, here in zip(sides, (worker, switch), strict=True):
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
            made.setsockopt(socket.IPPROTO_IP, 10, 2)  # don't fragment: identification 0
            made.bind((host, 0))
            self._sockets.append(made)
            self._peers[made] = here
        self.worker_side: Address = self._sockets[0].getsockname()
        self.switch_side: Address = self._sockets[1].getsockname()
        self._held: dict[socket.socket, list[tuple[int, bytes]]] = {made: [] for made in self._sockets}
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.send(b"!")
        self._thread.join(10)
        assert not self._thread.is_alive()
        for made in (*self._sockets, self._stop, self._stopped):
            made.close()

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([*self._sockets, self._stopped], [], [], 0.01)
            if self._stopped in ready:
                return
            for here in self._sockets:
                if here in ready:
                    body, sender = here.recvfrom(65536)
                    self._take(here, body, sender)
                else:
                    self._release(here, all_of_them=True)

    def _take(self, here: socket.socket, body: bytes, sender: Address) -> None:
        """Pass a packet on to the other side."""
        away = self._sockets[1 - self._sockets.index(here)]
        own: Address = here.getsockname()
        if not any(icrc(sender, own, body, ident) == body[-4:] for ident in range(64)):
            self.damaged += 1
            return
        self.opcodes[body[0]] = self.opcodes.get(body[0], 0) + 1
        lose, double, reorder, depth = self._faults
        if self._rng.random() < lose or self._drop(away is self._sockets[0], body):
            self.lost += 1
            return
        for _ in range(2 if self._rng.random() < double else 1):
            late = self._rng.randint(1, depth) if self._rng.random() < reorder else 0
            if late:
                self._held[away].append((late, body))
            else:
                self._pass(away, body)
        self._release(away)

    def _release(self, away: socket.socket, *, all_of_them: bool = False) -> None:
        kept = []
        for late, body in self._held[away]:
            if late <= 1 or all_of_them:
                self._pass(away, body)
            else:
                kept.append((late - 1, body))
        self._held[away] = kept

    def _pass(self, away: socket.socket, body: bytes) -> None:
        to = self._peers[away]
        away.sendto(body[:-4] + icrc(away.getsockname(), to, body, 0), to)
        self.passed += 1


def icrc(source: Address, to: Address, body: bytes, identification: int) -> bytes:
    """Of a packet over IPv4, BTH to ICRC; as `oracle.icrc`, faster."""
    length = len(body) + 8
    head = b"\xff" * 8 + struct.pack(">BBHHHBBH", 0x45, 0xFF, 20 + length, identification, 0x4000, 0xFF, 17, 0xFFFF)
    head += socket.inet_aton(source[0]) + socket.inet_aton(to[0])
    head += struct.pack(">HHHH", source[1], to[1], length, 0xFFFF) + body[:4] + b"\xff" + body[5:12]
    return struct.pack("<I", zlib.crc32(body[12:-4], zlib.crc32(head)))
