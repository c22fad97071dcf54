"""Events of a PyTorch profiler trace (Chrome JSON as Kineto writes it, or gzipped), of one process: one rank.

Times are in microseconds of the trace's clock. Everything else in a trace is passed over without being kept.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from math import inf
from pathlib import Path

import msgspec

from emulation.scenario.profiles.profile_errors import ProfileError, read_bytes
from switchagg.description import Kind

BYTES_MOST = 1 << 31
"""The largest unpacked trace that is read, for it needs several times as much memory."""
UNPACKED_TIMES_MOST = 100
"""Traces are packed to a 15th or a 20th: a file that grows by more is none, and is refused early."""
EVENT_BYTES_LEAST = 16
"""The least average text of an object: an event in memory takes 100 bytes however short it is; real traces have 190."""
HEAD_BYTES = 1 << 20
GZIP = b"\x1f\x8b"
SCHEMA = 1
BACKWARD = "autograd::engine::evaluate_function"
ITEM_BYTES = {
    **dict.fromkeys(("float", "float32", "int", "int32", "c10::complexhalf"), 4),
    **dict.fromkeys(("double", "float64", "long", "long int", "int64", "complexfloat"), 8),
    **dict.fromkeys(("half", "float16", "c10::half", "bfloat16", "c10::bfloat16", "short", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8", "unsigned char", "signed char"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "c10::float8_e4m3fn", "c10::float8_e5m2"), 1),
}
"""Types as traces name them, in lower case."""
SHORT = {"bfloat16": ("bfloat16",), "float16": ("half", "float16")}
COLLECTIVE_KINDS: dict[str, Kind] = {
    "allreduce": "allreduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
}
"""First letters of collectives' names, without underscores, and their kinds."""
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver", "xpu_runtime", "privateuse1_runtime")
MARK_PREFIX = "switchagg:"
MARK = re.compile(f"(nccl|rccl|hccl|xccl|mpi):|{MARK_PREFIX}")
LATE_END = 0.02
"""Of a collective's length: how much later than it was done its thread may note its end."""
_RANK = re.compile(rb'"Rank"\s*:\s*(\d+)')


class TraceEvent(msgspec.Struct, frozen=True, gc=False):
    """The fields of an event that are kept. dur: 0 for an event without length."""

    ph: str = ""
    cat: str | None = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = msgspec.Raw(b"")

    @property
    def end(self) -> float:
        return self.ts + self.dur


class _Group(msgspec.Struct):
    name: str = msgspec.field(name="pg_name", default="")
    ranks: list[int] = msgspec.field(default_factory=list)


class _Distributed(msgspec.Struct):
    backend: str = ""
    rank: int = -1
    world_size: int = 0
    groups: list[_Group] = msgspec.field(name="pg_config", default_factory=list)


class _Document(msgspec.Struct):
    events: list[TraceEvent] = msgspec.field(name="traceEvents")
    schema: int = msgspec.field(name="schemaVersion", default=SCHEMA)
    distributed: _Distributed = msgspec.field(name="distributedInfo", default_factory=_Distributed)


class CollectiveMetadata(msgspec.Struct, rename={"inputs": "In msg nelems", "outputs": "Out msg nelems"}):
    """The arguments of a collective's event, named as NCCL's and torchcomms' are."""

    inputs: int = 0
    outputs: int = 0
    dtype: str = ""
    collective: str = msgspec.field(name="Collective name", default="")
    ranks: int = msgspec.field(name="Group size", default=0)
    group: str = msgspec.field(name="Process Group Name", default="")
    dims: list[object] = msgspec.field(name="Input Dims", default_factory=list)
    types: list[str] = msgspec.field(name="Input type", default_factory=list)


class EventIds(msgspec.Struct):
    """Numbers that link a kernel to its launch, and an operator to its backward node."""

    correlation: int = -1
    sequence: int = msgspec.field(name="Sequence number", default=-1)
    forward_thread: int = msgspec.field(name="Fwd thread id", default=0)
    dims: list[object] = msgspec.field(name="Input Dims", default_factory=list)


@dataclass(frozen=True)
class TraceCollective:
    """A collective that a rank began. at: when its call began on the host. size_bytes: of the full array."""

    at: float
    kind: Kind
    size_bytes: int
    dtype: str
    ranks: int
    group: str

    @property
    def elements(self) -> int:
        """As values of 32 bits, or as many of 16."""
        return self.size_bytes // (2 if self.sent_as else 4)

    @property
    def sent_as(self) -> str:
        """The array's type if that is a float of 16 bits, else ""."""
        return next((name for name, ends in SHORT.items() if self.dtype.lower().endswith(ends)), "")

    @property
    def signature(self) -> tuple[str, int, int, str]:
        """Alike in all iterations, and on all ranks; an all-to-all may have as much as there is for each."""
        return (self.kind, self.size_bytes * (self.kind != "all_to_all"), self.ranks, self.group)


@dataclass(frozen=True)
class RankTrace:
    """The events of one rank, in order of their times. skipped: counts of collectives passed over, by kind.

    transports: spans of collectives in flight. device: whether a GPU computed. groups: ranks of the rank's groups, by
    name, as far as the trace says.
    """

    path: Path
    rank: int
    workers: int
    events: tuple[TraceEvent, ...]
    collectives: tuple[TraceCollective, ...]
    transports: tuple[TraceEvent, ...]
    skipped: Counter[str]
    device: bool
    groups: dict[str, tuple[int, ...]]


def is_trace(path: Path) -> bool:
    """Whether a file looks like one, whatever else may be wrong with it."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return False
    return head[:2] == GZIP or b'"traceEvents"' in head


def read_trace(path: Path) -> RankTrace:
    """The events of a rank's trace. Raises ProfileError, with file and place, for what is no such trace."""
    document = _document(path)
    events = sorted((event for event in document.events if event.ph == "X"), key=lambda event: (event.ts, -event.dur))
    for event in events:
        if event.dur < 0 or event.ts < 0:
            place = document.events.index(event)
            raise ProfileError(f"{path}: traceEvents[{place}] ({event.name[:60]}): ts {event.ts}, dur {event.dur} µs")
    pids = {event.pid for event in events if event.cat == "cpu_op"}
    if len(pids) != 1:
        what = "no operators of PyTorch" if not pids else f"{len(pids)} processes; give a file for each rank"
        if any(event.cat == "Operator" for event in events):
            what = "its events are named as by a PyTorch of before 1.11"
        raise ProfileError(f"{path}: {what}: it must be what torch.profiler's export_chrome_trace wrote")
    skipped: Counter[str] = Counter()
    collectives = _collectives(path, document, events, skipped)
    device = any(event.cat == "kernel" for event in events)
    if document.distributed.backend.endswith("nccl") and not device:
        raise ProfileError(
            f"{path}: no kernels of a GPU, but collectives by NCCL; record ProfilerActivity.CUDA as well"
        )
    rank = document.distributed.rank
    if rank < 0:
        match = next((match for event in events if (match := _RANK.search(bytes(event.args)))), None)
        rank = int(match[1]) if match else 0
    workers = max([document.distributed.world_size, *(collective.ranks for collective in collectives)], default=0)
    if workers < 2:
        raise ProfileError(f"{path}: no collectives among ranks: record a job of two ranks or more")
    transports = tuple(event for event in events if _transports(event))
    groups = {group.name: tuple(group.ranks) for group in document.distributed.groups}
    return RankTrace(path, rank, workers, tuple(events), tuple(collectives), transports, skipped, device, groups)


def _document(path: Path) -> _Document:
    data = read_bytes(path)
    if data[:2] == GZIP:
        most = min(BYTES_MOST, HEAD_BYTES + UNPACKED_TIMES_MOST * len(data))
        try:
            with gzip.open(io.BytesIO(data)) as file:
                data = file.read(most + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ProfileError(f"{path}: gzip: {error}; the file was cut or damaged on its way") from error
        if most < len(data) <= BYTES_MOST:
            times = f"more than {UNPACKED_TIMES_MOST} times its size unpacked"
            raise ProfileError(f"{path}: {times}: no trace of torch.profiler")
    if len(data) > BYTES_MOST:
        raise ProfileError(
            f"{path}: more than {BYTES_MOST >> 30} GiB unpacked; record fewer iterations, without stacks"
        )
    if (objects := data.count(b"{")) * EVENT_BYTES_LEAST > HEAD_BYTES + len(data):
        raise ProfileError(f"{path}: {objects} objects in {len(data)} bytes: no trace of torch.profiler")
    try:
        document = msgspec.json.decode(data, type=_Document, strict=True)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise ProfileError(f"{path}: {where.strip('.`') or 'top level'}: {what}: no trace of torch.profiler") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        match = re.search(r"byte (\d+)", str(error))
        at = int(match[1]) if match else len(data)
        line = data.count(b"\n", 0, at) + 1
        raise ProfileError(f"{path}: line {line}: {error}: the trace is broken or was cut") from error
    if document.schema != SCHEMA:
        raise ProfileError(f"{path}: schemaVersion {document.schema} is unknown; known: {SCHEMA}")
    return document


def _collectives(
    path: Path, document: _Document, events: list[TraceEvent], skipped: Counter[str]
) -> list[TraceCollective]:
    """The collectives that the host began. Messages that back ends note name them; for Gloo, and PyTorch before 2.1,
    operators of c10d and the marks of back ends, as nccl:all_reduce, do, in them or without them; ours have marks."""
    noted = [event for event in events if event.cat == "cpu_op" and b'"Collective name"' in bytes(event.args)]
    marks = [event for event in events if event.cat in ("cpu_op", "user_annotation") and MARK.match(event.name)]
    operators = [] if noted else [event for event in events if event.name.startswith("c10d::")]
    mark_of = {id(event): mark for event in operators if (mark := _mark(marks, event)) is not None}
    within = set(map(id, mark_of.values()))
    alone = [mark for mark in marks if id(mark) not in within and (not noted or mark.name.startswith(MARK_PREFIX))]
    mark_of |= {id(mark): mark for mark in alone}
    began = sorted(noted + operators + alone, key=lambda event: event.ts)
    of_gloo = {
        message.elements: message.dtype
        for event in events
        if event.name.startswith("gloo:") and (message := _message(path, event)).elements
    }
    collectives = []
    for event in began:
        message = _message(path, event)
        name = MARK.sub("", message.collective or event.name.removeprefix("c10d::")).replace("_", "").lower()
        kind = next((kind for start, kind in COLLECTIVE_KINDS.items() if name.startswith(start)), None)
        if kind is None:
            if name not in ("wait", "init", "monitoredbarrier"):
                skipped[name] += 1
            continue
        ranks = message.ranks or document.distributed.world_size
        elements = message.elements
        if (mark := mark_of.get(id(event))) is not None and (event is mark or not elements):
            message = _message(path, mark)
            elements = message.input_elements * (ranks if kind == "all_gather" else 1)
        dtype = message.dtype or of_gloo.get(elements, "")
        if not elements or dtype.lower() not in ITEM_BYTES:
            if not noted and not message.types:
                raise ProfileError(f"{path}: collectives without sizes; record with record_shapes=True")
            skipped[f"{name} of {elements} {dtype or 'unknown'} values"] += 1
            continue
        collectives.append(
            TraceCollective(event.ts, kind, elements * ITEM_BYTES[dtype.lower()], dtype, ranks, message.group)
        )
    return collectives


def _mark(marks: list[TraceEvent], operator: TraceEvent) -> TraceEvent | None:
    """The mark within an operator, on its thread."""
    for place in range(bisect_left(marks, operator.ts, key=lambda event: event.ts), len(marks)):
        if marks[place].ts > operator.end:
            break
        if marks[place].tid == operator.tid:
            return marks[place]
    return None


class _Sized(CollectiveMetadata):
    """A message with what follows from it."""

    @property
    def elements(self) -> int:
        """Elements of the full array, the larger of inputs and outputs. A scalar has one element, if it has a type."""
        return max(self.inputs, self.outputs, *self._shapes(), 0)

    @property
    def input_elements(self) -> int:
        """Elements that a rank gives, of a mark, which has several tensors for a coalesced call."""
        return sum(self._shapes())

    def _shapes(self) -> list[int]:
        typed = zip_longest(self.dims, self.types, fillvalue="")
        return [elements_in(dims) or int(dims == [] and str(dtype).lower() in ITEM_BYTES) for dims, dtype in typed]


def _message(path: Path, event: TraceEvent) -> _Sized:
    try:
        message = msgspec.json.decode(event.args, type=_Sized)
    except msgspec.DecodeError as error:
        raise ProfileError(f"{path}: {event.name[:60]} at {event.ts} µs: args: {error}") from error
    if min(message.inputs, message.outputs, message.ranks) < 0:
        raise ProfileError(f"{path}: {event.name[:60]} at {event.ts} µs: a negative number of values or ranks")
    if not message.dtype:
        message.dtype = next((dtype for dtype in message.types if dtype.lower() in ITEM_BYTES), "")
    return message


def elements_in(dims: object) -> int:
    """The elements of a tensor's shape, or of a list of shapes."""
    if not isinstance(dims, list) or not dims:
        return 0
    if any(isinstance(dim, list) for dim in dims):
        return sum(elements_in(dim) or int(dim == []) for dim in dims)
    product = 1
    for dim in dims:
        product *= dim if isinstance(dim, int) else 0
    return product


def _transports(event: TraceEvent) -> bool:
    """Whether it spans a collective in flight."""
    return event.name.startswith(("gloo:", MARK_PREFIX, "ncclDevKernel", "ncclKernel", "ncclSymk", "rccl")) or (
        event.cat == "kernel" and b'"Collective name"' in bytes(event.args)
    )


class ComputeProgress:
    """A rank's time without its waits for collectives, from any moment of the trace: `of(host time)`.

    Where nothing computes until a collective ends, and then something does, the rank has waited for it: also where its
    thread notes the end a little later (LATE_END), because the rank that it woke has taken its processor. A GPU reaches
    a call of the host once the kernels before it are done.
    """

    def __init__(self, trace: RankTrace) -> None:
        self._launched: list[float] = []  # host times of launches; _done has the latest end of the kernels up to each
        self._done: list[float] = []
        busy = self._kernels(trace) if trace.device else _leaves(trace)
        moving = sorted((event.ts, event.end) for event in trace.transports)
        ending = sorted((end - LATE_END * (end - begin), end) for begin, end in moving)
        latest_end = list(accumulate((end for _, end in ending), max))
        waits: list[tuple[float, float]] = []
        until = busy[0][0] if busy else 0.0
        for begin, end in busy:
            place = bisect_right(ending, (begin, inf))
            if begin > until and place and (last := min(begin, latest_end[place - 1])) > until:
                waits += [(max(low, until), min(high, last)) for low, high in moving if low < last and high > until]
            until = max(until, end)
        self._waits = _union(waits)
        self._waited = [0.0, *accumulate(high - low for low, high in self._waits)]

    def _kernels(self, trace: RankTrace) -> list[tuple[float, float]]:
        starts = {}
        for event in trace.events:
            if event.cat in LAUNCHES:
                starts[_numbers(event).correlation] = event.ts
        busy, launched = [], []
        for event in trace.events:
            if event.cat in DEVICE and not _transports(event):
                busy.append((event.ts, event.end))
                launched.append((starts.get(_numbers(event).correlation, event.ts), event.end))
        latest = 0.0
        for at, end in sorted(launched):
            latest = max(latest, end)
            self._launched.append(at)
            self._done.append(latest)
        return sorted(busy)

    def of(self, host: float) -> float:
        """Microseconds of computing, from an arbitrary origin."""
        place = bisect_left(self._launched, host)
        reached = max(host, self._done[place - 1]) if place else host
        place = bisect_left(self._waits, (reached, reached))
        remaining = max(0.0, self._waits[place - 1][1] - reached) if place else 0.0
        return reached - self._waited[place] + remaining


def _numbers(event: TraceEvent) -> EventIds:
    try:
        return msgspec.json.decode(event.args, type=EventIds) if bytes(event.args) else EventIds()
    except msgspec.DecodeError:  # other programs write events, too
        return EventIds()


def numbers(event: TraceEvent) -> EventIds:
    """The numbers of an operator; -1 where the event has none."""
    return _numbers(event)


def _leaves(trace: RankTrace) -> list[tuple[float, float]]:
    """Spans in which threads computed: operators that call no other, without those that begin or await collectives."""
    operators: dict[int | str, list[TraceEvent]] = {}
    for event in trace.events:
        if event.cat == "cpu_op":
            operators.setdefault(event.tid, []).append(event)
    most = max(map(len, operators.values()), default=0)
    busy = []
    for calls in operators.values():
        if len(calls) < most and not any(event.name.startswith(BACKWARD) for event in calls):
            continue  # it is a thread of the transport
        for event, following in zip(calls, [*calls[1:], None], strict=True):
            inner = following is not None and following.ts < event.end
            if not inner and "c10d" not in event.name and event.name != "record_param_comms":
                busy.append((event.ts, event.end))
    return sorted(busy)


def _union(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same without overlaps, in order."""
    merged: list[tuple[float, float]] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged
