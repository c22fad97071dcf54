"""An attacker on the path: a UDP relay that carries all packets, and adds changed, cut, repeated and reflected ones."""

import itertools
import select
import threading
from collections import Counter, deque

import numpy as np

from switchagg.job import Address
from switchagg.wire import HEADER_BYTES, Bundle
from transport.links.hop_tags import TAG_BYTES
from transport.links.udp_link import UdpLink

RECORDED = 256
KINDS = ("bit", "bytes", "cut", "bare", "mixed", "repeated", "old", "reflected")


class HostileRelay:
    """Stands between `workers` and `switch`, as a UdpRelay does, until `close`.

    With probability `share` a hostile bundle of as many packets comes right before or after one that it carries.
    `hostile`: how many it has sent, by kind. recorded: bundles of an earlier generation by (rank, whether to the
    switch); `record` has this one's.
    """

    def __init__(
        self,
        workers: list[Address],
        switch: Address,
        seed: int,
        share: float = 1.0,
        recorded: "dict[tuple[int, bool], deque[Bundle]] | None" = None,
    ) -> None:
        self.hostile: Counter[str] = Counter()
        self.share = share
        self.record: dict[tuple[int, bool], deque[Bundle]] = {}
        self._recorded = recorded or {}
        self._random = np.random.default_rng(seed)
        self._kinds = itertools.cycle(self._random.permutation(KINDS).tolist())
        self._near = [UdpLink(("127.0.0.1", 0)) for _ in workers]
        self._far = [UdpLink(("127.0.0.1", 0)) for _ in workers]
        self.towards_switch = [link.address for link in self._near]
        self.seen_as = [link.address for link in self._far]
        self._ends = {
            (rank, up): (near, far, worker, switch) if up else (far, near, switch, worker)
            for rank, (near, far, worker) in enumerate(zip(self._near, self._far, workers, strict=True))
            for up in (True, False)
        }
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hostile-relay")
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        for link in (*self._near, *self._far):
            link.close()

    def _run(self) -> None:
        by_file = {ends[0].fileno(): way for way, ends in self._ends.items()}
        while not self._end.is_set():
            for file in select.select(list(by_file), [], [], 0.01)[0]:
                self._carry(by_file[file])

    def _carry(self, way: tuple[int, bool]) -> None:
        here, out, source, to = self._ends[way]
        for bundle, sender, _ in here.receive():
            if sender != source:
                continue
            kept = self.record.setdefault(way, deque(maxlen=RECORDED))
            kept.append(bundle.copy())
            bundles = [(out, bundle, to)]
            if self._random.random() < self.share:
                kind, made = self._made(way, bundle, kept)
                self.hostile[kind] += len(made)
                hostile = (here, made, source) if kind == "reflected" else (out, made, to)
                bundles.insert(int(self._random.integers(2)), hostile)
            for link, packets, end in bundles:
                link.send(np.ascontiguousarray(packets), end)

    def _made(self, way: tuple[int, bool], bundle: Bundle, kept: "deque[Bundle]") -> tuple[str, Bundle]:
        """A kind of hostile packets, and some."""
        random, rows = self._random, len(bundle)
        kind = next(self._kinds)
        made = bundle.copy()
        if kind == "bit":
            places = random.integers(0, 8 * bundle.shape[1], rows)
            made[np.arange(rows), places // 8] ^= (1 << (places % 8)).astype(np.uint8)
        elif kind == "bytes":
            made[:, HEADER_BYTES:] = random.integers(0, 256, (rows, bundle.shape[1] - HEADER_BYTES))
        elif kind == "cut":
            made = made[:, : -4 * int(random.integers(1, max(2, bundle.shape[1] // 4)))]
        elif kind == "bare":
            made = made[:, :-TAG_BYTES]
        elif kind == "mixed":  # the header of one, the values and the tag of another
            other = kept[int(random.integers(len(kept)))]
            rows = min(rows, len(other))
            width = min(bundle.shape[1], other.shape[1])
            made = np.concatenate((made[:rows, :HEADER_BYTES], other[:rows, HEADER_BYTES:width]), axis=1)
        elif kind == "repeated":
            made = kept[int(random.integers(len(kept)))]
        elif kind == "old" and self._recorded.get(way):
            old = self._recorded[way]
            made = old[int(random.integers(len(old)))]
        elif kind == "old":
            kind = "repeated"
        return kind, made if made.shape[1] else bundle
