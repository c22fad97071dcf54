"""PsCall: a call of a worker at parameter servers; which kinds there are, and what each asks of the servers."""

from typing import NamedTuple

from switchagg import description
from switchagg.errors import AggregationFailed
from switchagg.option_syntax import choices
from transport.contracts.group_contract import Array
from transport.meshes.mesh import Buffer
from transport.ps.ps_messages import AUTOMATIC, COMBINING, DTYPES, SUMMED, Head, PsOp
from transport.ps.server_loss import CallName
from transport.ps.sharding import ServerSlice

KINDS = (*description.KINDS, "init", "push_pull", "pull")

OPS = {"sum": PsOp.SUM, "avg": PsOp.AVG, "max": PsOp.MAX}

_OP_OF_KIND = {
    "all_gather": PsOp.COPY,
    "broadcast": PsOp.COPY,
    "barrier": PsOp.BARRIER,
    "init": PsOp.KEEP,
    "push_pull": PsOp.GRADIENT,
    "pull": PsOp.PULL,
}

Round = tuple[int, bool, int]
"""Key, whether it is of a gradient, and number."""


def round_of(head: Head) -> Round:
    return head.key, head.op == PsOp.GRADIENT, head.clock


class PsCall:
    """A call in progress. count: after it, the fewest workers that are in any slice of the sum."""

    __slots__ = ("array", "count", "head", "key", "kind", "results", "slices", "target", "tickets", "waiting")

    def __init__(self, kind: str, head: Head, slices: list[ServerSlice], array: Array, target: Array) -> None:
        self.kind = kind
        self.key = head.key
        self.head = head
        self.slices = slices
        self.array = array
        self.target = target
        self.results: dict[int, Buffer] = {}  # by slice: as they came, where slices of a lost server move
        self.count = 0
        self.waiting: set[int] = set()
        self.tickets: set[int] = set()


class PsCallFinished(NamedTuple):
    """A call has ended: its target holds the result, or, with a failure, nothing that means anything."""

    call: PsCall
    failure: AggregationFailed | None


def slice_head(head: Head, part: ServerSlice) -> Head:
    """The head of a call as one of its slices has it."""
    return head._replace(number=part.number, slice_elements=part.high - part.low, source=part.source, sink=part.sink)


def name_of(head: Head) -> CallName:
    return (AUTOMATIC, head.key - AUTOMATIC) if head.key >= AUTOMATIC else (head.key, head.clock)


def op_of(kind: str, array: Array, op: str, root: int, target: Array | None, workers: int) -> PsOp:
    """The operation of the servers. Raises ValueError for one that they lack."""
    if kind not in KINDS:
        raise ValueError(f"call '{kind}' is unknown{choices(kind, KINDS)}")
    code = _OP_OF_KIND.get(kind)
    if code is None:
        if op not in OPS:
            raise ValueError(f"op '{op}' is unknown{choices(op, OPS)}")
        code = OPS[op]
    into = array if target is None else target
    for values in (array, into):
        if values.ndim != 1 or not values.flags.c_contiguous or values.dtype not in DTYPES:
            raise ValueError(f"{kind}: a 1-D C-contiguous array of {', '.join(d.name for d in DTYPES)}")
        if values.dtype != array.dtype or len(values) != len(array):
            raise ValueError(f"{kind}: target has {len(values)} {values.dtype}, not {len(array)} {array.dtype}")
    if target is not None and kind not in ("allreduce", "push_pull"):
        raise ValueError(f"{kind}: works in place")
    _check_values(kind, code, op, array, into)
    if kind != "allreduce" and not 0 <= root < workers:
        raise ValueError(f"root {root}: 0 to {workers - 1}")
    return code


def _check_values(kind: str, code: PsOp, op: str, array: Array, into: Array) -> None:
    if not into.flags.writeable:
        raise ValueError(f"{kind}: the result needs a writable array")
    if code in (PsOp.AVG, PsOp.KEEP, PsOp.GRADIENT, PsOp.PULL) and array.dtype.kind != "f":
        raise ValueError(f"{kind} {op if code == PsOp.AVG else ''}: of float32 and float64, not {array.dtype}")
    if code in COMBINING and array.dtype not in SUMMED:
        raise ValueError(f"{kind}: {array.dtype} can't be combined")
    if code in (PsOp.KEEP, PsOp.GRADIENT, PsOp.PULL) and not len(array):
        raise ValueError(f"{kind}: an array without elements")
