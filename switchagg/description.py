"""Descriptions of calls: what ranks compare before a sum counts (W12), and how errors name it.

Four words of 32 bits: the call's facts, from bit 0 on kind (4 bits), operation (1), requested operation (5), type (8),
root (6) and sizes (8); the number of values, low and high; the call's running number. The first is never zero.
"""

from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Kind = Literal[
    "allreduce", "reduce_scatter", "all_gather", "broadcast", "barrier", "reduce", "all_to_all", "gather", "scatter"
]
KINDS: tuple[Kind, ...] = ("allreduce", "reduce_scatter", "all_gather", "broadcast", "barrier", "reduce")

COMBINING: tuple[Kind, ...] = ("allreduce", "reduce_scatter", "reduce")
"""Kinds with an operation."""

ROOTED: tuple[Kind, ...] = ("broadcast", "reduce", "gather", "scatter")
"""Kinds with a root."""

ELSEWHERE: tuple[Kind, ...] = ("all_to_all", "gather", "scatter")
"""Kinds that another library carries out: ranks only compare them."""

COMPARED_KINDS: tuple[Kind, ...] = (*KINDS, *ELSEWHERE)

OPS = ("sum", "max")

_COMPUTED = ("avg", "min", "product", "premul_sum")
REQUESTED_OPS: tuple[tuple[str, str], ...] = (
    ("", ""),
    *((op, dtype) for dtype in ("float16", "bfloat16") for op in ("", "sum", "max", *_COMPUTED)),
    *((op, "") for op in (*_COMPUTED, "band", "bor", "bxor")),
)
"""(operation, type) that a caller was asked for where its array has another: by this number ranks compare them, too.
"": the array's."""

assert len(REQUESTED_OPS) <= 32  # parameter servers have five bits

_NUMBERS = {operation: number for number, operation in enumerate(REQUESTED_OPS)}


def shard_range(elements: int, rank: int, workers: int) -> tuple[int, int]:
    """The elements low … high-1 that belong to a rank in reduce-scatter and all-gather: sizes differ by one at most."""
    return rank * elements // workers, (rank + 1) * elements // workers


def requested_op_index(op: str, dtype: str, by: str) -> int:
    """The index of REQUESTED_OPS for this call where it travels by operation `by`; 0 where that is all there is to
    tell."""
    index = _NUMBERS.get((op, dtype), _NUMBERS.get(("", dtype)))
    return index or (_NUMBERS.get((op, ""), 0) if op != by else 0)


NOTHING = -(1 << 31)
"""What a description has for other ranks: MAX leaves any word beside it."""

DESCRIBED_WORKERS_MOST = 64
"""In a larger job no call is described (W12)."""

WORDS = 4
Words = tuple[int, ...]


class CallSignature(NamedTuple):
    """A call as ranks show it to each other. dtype, elements: of the array. root: of ROOTED, else 0. requested_op: an
    index of REQUESTED_OPS. sizes: of several arrays in one call, a checksum of their sizes (8 bits), else 0."""

    kind: Kind
    op: str
    dtype: "np.dtype[Any]"
    elements: int
    root: int = 0
    requested_op: int = 0
    sizes: int = 0

    def words(self, number: int) -> Words:
        """number: how many such calls came before."""
        first = _first(self.kind, self.op, self.dtype.char, self.root, self.requested_op, self.sizes)
        return first, self.elements & 0xFFFFFFFF, self.elements >> 32, number & 0xFFFFFFFF


@lru_cache(maxsize=256)
def _first(kind: Kind, op: str, char: str, root: int, requested_op: int, sizes: int) -> int:
    what = COMPARED_KINDS.index(kind) | OPS.index(op) << 4 | requested_op << 5
    return what | ord(char) << 10 | root << 18 | sizes << 24


def difference(rank: int, words: Words, local_rank: int, local_words: Words) -> str:
    """Names both sides."""
    return f"rank {rank} calls {_text(words)}, rank {local_rank} calls {_text(local_words)}"


def other_call(words: NDArray[np.int32], rank: int) -> tuple[int, str] | None:
    """The first rank that makes another call than this one, and the `difference`; None: all make the same. words: of
    all ranks, WORDS each."""
    of_ranks = words.view(np.uint32).reshape(-1, WORDS).tolist()
    other = next((other for other, its_words in enumerate(of_ranks) if its_words != of_ranks[rank]), None)
    return None if other is None else (other, difference(other, tuple(of_ranks[other]), rank, tuple(of_ranks[rank])))


def requested_op_text(requested_op: int, op: str, dtype: str) -> tuple[str, str]:
    """The operation and type that errors name, of a call that carries these."""
    caller_op, caller_dtype = REQUESTED_OPS[requested_op if requested_op < len(REQUESTED_OPS) else 0]
    return caller_op or op, caller_dtype or dtype


def details_of(kind: Kind, op: str, root: int, sizes: int) -> list[str]:
    """What errors say of a call beside its kind, number, size and type."""
    details = [op] if kind in COMBINING else []
    details += [f"root {root}"] if kind in ROOTED else []
    return details + ([f"sizes {sizes:02x}"] if sizes else [])


def _text(words: Words) -> str:
    first, low, high, number = words
    kind = COMPARED_KINDS[min(first & 15, len(COMPARED_KINDS) - 1)]
    try:
        dtype = np.dtype(chr(first >> 10 & 255)).name
    except TypeError:
        dtype = "values of an unknown type"
    op, dtype = requested_op_text(first >> 5 & 31, OPS[first >> 4 & 1], dtype)
    details = details_of(kind, op, first >> 18 & 63, first >> 24)
    words_of_details = f" ({', '.join(details)})" if details else ""
    return f"{kind} {number} of {high << 32 | low} {dtype}{words_of_details}"
