"""Aggregate: one slice of one call at a server, from the first worker's part to the last one's.

Values are added in the order of ranks as far as all lower ranks are in; what arrives early is kept. So a
sum has the same bits in any order of arrival, when the last rank comes at most n-1 additions of a slice are left, and a
server never holds more than what its workers have in flight. With order "arrival" nothing is kept: each is added when
it comes.
"""

from typing import NamedTuple

from transport.ps.ps_arithmetic import Arithmetic, maximum
from transport.ps.ps_messages import COMBINING, DTYPES, EVERYBODY, Head, PsMessageKind, PsOp
from transport.ps.shared_buffer import Pool, SharedBuffer


class WaitingWorker(NamedTuple):
    """A worker that waits for the result."""

    rank: int
    head: Head


class Aggregate:
    """first_rank, head: the rank that opened it, and with what; the others must agree. now_ns: when it was."""

    def __init__(self, rank: int, head: Head, in_rank_order: bool, now_ns: int) -> None:
        self.head = head
        self.first_rank = rank
        self.moved_ns = now_ns
        self.complete = False
        self.contributions = 0
        self.result: SharedBuffer | None = None
        self.waiting: list[WaitingWorker] = []
        self.arrived: set[int] = set()
        self._early: dict[int, SharedBuffer] = {}
        self._held: SharedBuffer | None = None
        """The result, from a worker that had it of a server that is lost."""
        self._next_rank = 0
        self._in_rank_order = in_rank_order

    @property
    def retained_bytes(self) -> int:
        """Bytes of results that the server retains for late workers."""
        return len(self.result.view) if self.complete and self.result is not None else 0

    def join(self, rank: int, head: Head, values: SharedBuffer | None, now_ns: int, pool: Pool) -> None:
        """A worker's part, before completion; its memory belongs to the aggregate from now on."""
        assert rank not in self.arrived
        assert not self.complete
        self.arrived.add(rank)
        if head.kind != PsMessageKind.HELD:
            self.waiting.append(WaitingWorker(rank, head))
        elif head.op in COMBINING and values is not None:
            if self._held is not None:
                pool.release(self._held)
            self._held, values = values, None
        self.moved_ns = now_ns
        if head.source not in (EVERYBODY, rank):
            assert values is None
            return
        self.contributions += 1
        if values is not None:
            self._early[rank] = values

    def add_what_may_be(self, coming: set[int], arithmetic: Arithmetic, pool: Pool) -> None:
        """Add, in order, what no lower rank can precede any more. coming: ranks that may still push."""
        if not self._in_rank_order or self.head.source != EVERYBODY:
            self._add_all(arithmetic, pool)
            return
        last = max(self._early, default=-1)
        while self._next_rank <= last and (self._next_rank in self.arrived or self._next_rank not in coming):
            if (values := self._early.pop(self._next_rank, None)) is not None:
                self._add(values, arithmetic, pool)
            self._next_rank += 1

    def finish(self, arithmetic: Arithmetic, pool: Pool) -> None:
        """Add the rest, without the ranks that are missing."""
        if (held := self._held) is None:
            self._add_all(arithmetic, pool)
        else:
            self._held = None
            self.drop(pool)
            self.result = held
        self.complete = True

    def drop(self, pool: Pool) -> None:
        """Let go of all memory."""
        for values in self._early.values():
            pool.release(values)
        self._early.clear()
        if self._held is not None:
            pool.release(self._held)
            self._held = None
        if self.result is not None:
            pool.release(self.result)
            self.result = None

    def _add_all(self, arithmetic: Arithmetic, pool: Pool) -> None:
        for rank in sorted(self._early):
            self._add(self._early.pop(rank), arithmetic, pool)

    def _add(self, values: SharedBuffer, arithmetic: Arithmetic, pool: Pool) -> None:
        if self.result is None:
            self.result = values
            return
        assert self.head.op in COMBINING
        dtype = DTYPES[self.head.dtype]
        if self.head.op == PsOp.MAX:
            maximum(self.result.view, values.view, dtype)
        else:
            arithmetic.add(self.result.view, values.view, dtype)
        pool.release(values)
