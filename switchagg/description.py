"""Descriptions of calls: what ranks compare before a sum counts (W12), and how errors name it.

Four words of 32 bits: kind, operation, type, root and what was asked for; the number of values, low and high; the
call's running number. The first is never zero.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

Kind = Literal["allreduce", "reduce_scatter", "all_gather", "broadcast", "barrier", "reduce"]
KINDS: tuple[Kind, ...] = ("allreduce", "reduce_scatter", "all_gather", "broadcast", "barrier", "reduce")

COMBINING: tuple[Kind, ...] = ("allreduce", "reduce_scatter", "reduce")
"""Kinds with an operation."""

ROOTED: tuple[Kind, ...] = ("broadcast", "reduce")
"""Kinds with a root."""

OPS = ("sum", "max")

_NARROW = ("float16", "bfloat16")
_OTHERS = ("float32", "float64", "int32", "int64", "uint8", "int8", "int16")
ASKED: tuple[tuple[str, str], ...] = (
    ("", ""),
    *((op, dtype) for dtype in _NARROW for op in ("sum", "max", "avg")),
    *(("avg", dtype) for dtype in _OTHERS),
)
"""(operation, type) that a caller was asked for where its array has another: by this number ranks compare them, too."""

assert len(ASKED) <= 32  # parameter servers have five bits

WORDS = 4
Words = tuple[int, ...]


class Shown(NamedTuple):
    """A call as ranks show it to each other. dtype, elements: of the array. asked: an index of ASKED."""

    kind: Kind
    op: str
    dtype: "np.dtype[Any]"
    elements: int
    root: int = 0
    asked: int = 0

    def words(self, number: int) -> Words:
        """number: how many such calls came before."""
        first = KINDS.index(self.kind) | OPS.index(self.op) << 4 | ord(self.dtype.char) << 8
        first |= self.root << 16 | self.asked << 24
        return first, self.elements & 0xFFFFFFFF, self.elements >> 32, number & 0xFFFFFFFF


def difference(rank: int, words: Words, own_rank: int, own: Words) -> str:
    """Names both sides."""
    return f"rank {rank} calls {_text(words)}, rank {own_rank} calls {_text(own)}"


def asked_text(asked: int, op: str, dtype: str) -> tuple[str, str]:
    """The operation and type that errors name, of a call that carries these."""
    return ASKED[asked] if 0 < asked < len(ASKED) else (op, dtype)


def _text(words: Words) -> str:
    first, low, high, number = words
    kind = KINDS[min(first & 15, len(KINDS) - 1)]
    try:
        dtype = np.dtype(chr(first >> 8 & 255)).name
    except TypeError:
        dtype = "values of an unknown type"
    op, dtype = asked_text(first >> 24, OPS[first >> 4 & 1], dtype)
    details = [op] if kind in COMBINING else []
    details += [f"root {first >> 16 & 255}"] if kind in ROOTED else []
    words_of_details = f" ({', '.join(details)})" if details else ""
    return f"{kind} {number} of {high << 32 | low} {dtype}{words_of_details}"
