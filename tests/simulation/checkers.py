"""What must hold in every simulated run; each checker is given facts and raises Violation. None depends on the
simulator."""

import hashlib
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.wire import HEADER_BYTES, Op, Packet, Values, givers, kind_of


class Violation(AssertionError):
    """A rule was broken; the message names the place."""


class ExactSum:
    """Every completed call holds the exact sum (or maximum), bit for bit the same on all ranks."""

    def completed(self, where: str, got: NDArray[Any], want: NDArray[Any]) -> None:
        if got.tobytes() != want.tobytes():
            bad = np.flatnonzero(got != want)
            raise Violation(f"ExactSum: {where}: {len(bad)} of {len(got)} values, first at {bad[:1]}")


class ExactlyOnce:
    """A call that is submitted completes once, unless its generation ended."""

    def __init__(self) -> None:
        self._open: set[tuple[Any, ...]] = set()

    def submitted(self, call: tuple[Any, ...]) -> None:
        self._open.add(call)

    def completed(self, call: tuple[Any, ...]) -> None:
        if call not in self._open:
            raise Violation(f"ExactlyOnce: {call} completed, but was not running")
        self._open.remove(call)

    def abandoned(self, call: tuple[Any, ...]) -> None:
        self._open.discard(call)

    def ended(self) -> None:
        if self._open:
            raise Violation(f"ExactlyOnce: never completed: {sorted(self._open)[:3]}")


class SlotIsolation:
    """What a switch sends combines exactly one contribution of each rank below it to exactly this chunk: no two chunks
    are ever mixed."""

    def __init__(self) -> None:
        self._sent: dict[tuple[int, int, int, int], dict[int, tuple[int, Values]]] = {}

    @staticmethod
    def _key(packet: Packet) -> tuple[int, int, int, int]:
        return packet.job, packet.generation, packet.stream, packet.chunk

    def sent(self, packet: Packet, rank: int) -> None:
        """rank: the worker's in its job; its packet's is the one at its switch."""
        ranks = self._sent.setdefault(self._key(packet), {})
        kind = kind_of(packet.op, 0, packet.route, packet.owner)
        earlier = ranks.setdefault(rank, (kind, packet.values))
        if earlier[0] != kind or not np.array_equal(earlier[1], packet.values):
            raise Violation(f"SlotIsolation: rank {rank} sent two versions of {self._key(packet)}")

    def combined(self, packet: Packet, below: Collection[int]) -> None:
        """A result, or what goes up: of the ranks below, all of them for a result."""
        sent = self._sent.get(self._key(packet), {})
        ranks = {rank: given for rank, given in sent.items() if rank in below}
        if len(ranks) != len(below):
            raise Violation(
                f"SlotIsolation: {self._key(packet)} complete with ranks {sorted(ranks)} of {sorted(below)}"
            )
        giving = givers(kind_of(packet.op, 0, packet.route, packet.owner), -1)
        if any(bool(len(values)) != bool(giving >> rank & 1) for rank, (_, values) in ranks.items()):
            raise Violation(f"SlotIsolation: {self._key(packet)}: who gives values is not who sent them")
        if not len(packet.values):
            return
        stacked = np.stack([values for _, values in ranks.values() if len(values)]).astype(np.int64)
        want = stacked.max(axis=0) if packet.op is Op.MAX else stacked.sum(axis=0)
        if not np.array_equal(want.astype(np.uint32).view(np.int32), packet.values):
            raise Violation(f"SlotIsolation: {self._key(packet)}: values are not the combination of its contributions")


class NonceOnce:
    """No two payloads have one nonce on a hop: the header, and who sends or gets it under a key of its own (A3). Chunks
    don't wrap here."""

    def __init__(self) -> None:
        self._payloads: dict[tuple[int, bytes], bytes] = {}

    def sent(self, child: int, frame: bytes) -> None:
        """child: the place of the hop's lower end."""
        header, payload = frame[:HEADER_BYTES], frame[HEADER_BYTES:]
        if self._payloads.setdefault((child, header), payload) != payload:
            raise Violation(f"NonceOnce: two payloads between {child} and its switch under {header.hex()}")

    def __len__(self) -> int:
        return len(self._payloads)


class Convergence:
    """Once faults have ended, all calls complete within a bounded virtual time, and no stream gives up."""

    def __init__(self, limit_ns: int) -> None:
        self._limit_ns = limit_ns

    def at(self, now_ns: int, healed_ns: int) -> None:
        if now_ns - healed_ns > self._limit_ns:
            raise Violation(f"Convergence: still running {(now_ns - healed_ns) / 1e9:.1f} s after the last fault")

    def gave_up(self, where: str) -> None:
        raise Violation(f"Convergence: {where} gave up")


class Determinism:
    """The same seed gives the same trace: a hash over everything that happened."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def happened(self, *facts: object) -> None:
        self._hash.update(repr(facts).encode())

    @property
    def trace(self) -> str:
        return self._hash.hexdigest()
