"""A network in user space: a UDP relay between workers and a switch that loses, duplicates and reorders, from a seed.

Unlike FaultyLink it needs nothing of the loops: they send to real sockets. One socket faces the switch for each worker,
as the switch tells workers apart by address, and one faces each worker, as a worker takes packets from its switch only.
"""

import select
import socket
import threading

import numpy as np


class UdpRelay:
    """Stands between `workers` (their addresses) and `switch`, both on loopback, until `close`.

    `towards_switch[rank]`: where that worker has to send. `seen_as[rank]`: where the switch sees that worker. loss,
    duplicate, reorder: probability per datagram in either direction. A datagram held back is let go after up to `depth`
    others, or once nothing has come for 1 ms.
    """

    def __init__(
        self,
        workers: list[tuple[str, int]],
        switch: tuple[str, int],
        seed: int,
        *,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        depth: int = 64,
    ) -> None:
        self.lost = self.duplicated = self.reordered = 0
        self._random = np.random.default_rng(seed)
        self._loss, self._duplicate, self._reorder, self._depth = loss, duplicate, reorder, depth
        self._held: list[tuple[socket.socket, bytes, tuple[str, int]]] = []
        near = [_bound() for _ in workers]
        far = [_bound() for _ in workers]
        self.towards_switch = [one.getsockname() for one in near]
        self.seen_as = [one.getsockname() for one in far]
        self._way = {one: (other, switch) for one, other in zip(near, far, strict=True)}
        self._way |= {other: (one, worker) for one, other, worker in zip(near, far, workers, strict=True)}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="udp-relay")
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        for one in self._way:
            one.close()

    def _run(self) -> None:
        while not self._end.is_set():
            ready = select.select(list(self._way), [], [], 0.001)[0]
            for one in ready:
                self._carry(one)
            if not ready:
                self._let_go(0)

    def _carry(self, one: socket.socket) -> None:
        out, to = self._way[one]
        try:
            datagram = one.recv(65_536)
        except OSError:
            return
        chance = self._random.random(3)
        if chance[0] < self._loss:
            self.lost += 1
            return
        if chance[1] < self._duplicate:
            self.duplicated += 1
            self._held.append((out, datagram, to))
        if chance[2] < self._reorder:
            self.reordered += 1
            self._held.append((out, datagram, to))
        else:
            out.sendto(datagram, to)
        self._let_go(self._depth)

    def _let_go(self, keep: int) -> None:
        """Send what is held beyond `keep`, in any order."""
        while len(self._held) > keep:
            out, datagram, to = self._held.pop(int(self._random.integers(len(self._held))))
            out.sendto(datagram, to)


def _bound() -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    opened.bind(("127.0.0.1", 0))
    opened.setblocking(False)
    return opened
