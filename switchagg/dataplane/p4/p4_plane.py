"""The P4 program of programs/v1model behind the data-plane contract, run in-process by the engine p4vm.

$SWITCHAGG_P4_PROGRAM names another program to run: one with the same tables, registers and counters.

Datagrams go in as Ethernet frames from an address that represents their port; results come out as frames, and the
address they were rewritten to determines the port. Jobs are admitted by filling tables and registers, with the commands
that bmv2 understands too. A program is compiled for one E: the switch runs one for each E of its jobs, and others for
jobs of which it isn't the root.
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from switchagg.dataplane.contract import Output
from switchagg.dataplane.p4.plane_program import (
    ADDRESSES,
    HEADERS_BYTES,
    HELD,
    JOBS,
    MEMBERS,
    OUTCOME_COUNTER,
    PARENTS,
    PROGRAMS,
    SEEN_HIGH,
    SEEN_LOW,
    STREAMS,
    WORKERS,
    PlaneControl,
    ProgramPlane,
    Variant,
    defines,
    headers_of,
    program_path,
)
from switchagg.errors import JobError
from switchagg.wire import HEADER_BYTES, Bundle, headers

if TYPE_CHECKING:
    from p4vm.control.control_names import ControlNames
    from p4vm.control.controlled_switch import ControlledSwitch

PORTS = 64
"""Physical ports of the program's switch; workers share them."""

IDLE_ELEMENTS = 32
"""E of the program that counts unknown senders' packets before any job is there."""


def missing(program: Path | None = None) -> str:
    """The packages that the engine lacks, in one line; "" if it lacks none."""
    lacking = [name for name in ("p4vm", "lark", "pcpp") if find_spec(name) is None]
    if lacking:
        return f"the P4 engine is missing ({', '.join(lacking)}): pip install 'switchagg[p4]'"
    try:
        program_path(program)
    except JobError as error:
        return str(error)
    return ""


class P4Plane(ProgramPlane["_Program"]):
    """A switch of `slots` slots; a program for each E of its jobs, up to 256.

    backend: of the engine: auto, native or python. program: as of `program_path`. Raises JobError where the engine
    can't run: its parsing libraries are missing, the programs are not installed.
    """

    name = "p4"

    def __init__(self, slots: int, elements: int, *, backend: str = "auto", program: Path | None = None) -> None:
        if reason := missing(program):
            raise JobError(f"data plane p4: {reason}")
        super().__init__(slots, elements)
        self._backend, self._path = backend, program

    def _start(self, variant: Variant) -> "_Program":
        return _Program(program_path(self._path, leaf=variant[1]), variant, self._slots, self._backend)

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        outputs: list[Output] = []
        for start, end, program in self._runs(bundle):
            outputs += program.process(bundle[start:end], port)
        return outputs

    def _runs(self, bundle: Bundle) -> Iterator[tuple[int, int, "_Program"]]:
        """Rows start … end - 1 are for one program."""
        if bundle.shape[1] < HEADER_BYTES:
            yield 0, len(bundle), self._program_of(-1)
            return
        jobs = headers(bundle)["job"].astype(np.int64)
        edges = [0, *(np.flatnonzero(np.diff(jobs)) + 1).tolist(), len(bundle)]
        start, program = 0, self._program_of(int(jobs[0]) if len(bundle) else -1)
        for edge in edges[1:-1]:
            other = self._program_of(int(jobs[edge]))
            if other is not program:
                yield start, edge, program
                start, program = edge, other
        yield start, len(bundle), program

    def _program_of(self, job_id: int) -> "_Program":
        """Where a job is, if there is such a job; else any: all count unknown senders alike."""
        if job_id in self._jobs:
            return self._program(self._jobs[job_id][1])
        return next(iter(self._programs.values()), None) or self._program((IDLE_ELEMENTS, False))


class _Program:
    """A program on an engine, and its control plane."""

    def __init__(self, path: Path, variant: Variant, slots: int, backend: str) -> None:
        self._switch = _compiled(path, variant[0], slots, backend)
        _check_objects(self._switch, path, leaf=variant[1])
        self.control = PlaneControl(self._run, variant[0], slots, PORTS)
        self._headers: dict[tuple[int, int], Bundle] = {}

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        """Datagrams of equal size from a port; results, those in a row that go the same way together."""
        rows, size = bundle.shape
        prefix = self._headers.get((port, size))
        if prefix is None:
            prefix = self._headers[port, size] = np.frombuffer(headers_of(port, size), np.uint8)
        requests = np.empty((rows, HEADERS_BYTES + size), np.uint8)
        requests[:, :HEADERS_BYTES] = prefix
        requests[:, HEADERS_BYTES:] = bundle
        counts, sizes, frames = self._through(requests, self.control.physical(port))
        receivers = _receivers(frames)
        outputs: list[Output] = []
        place = 0
        for copies, run in groupby(counts):
            packets = sum(1 for _ in run)
            if copies:
                end = place + copies * packets
                outputs += _together(frames[place:end], sizes[place:end], receivers[place:end], copies)
                place = end
        return outputs

    def _through(self, requests: Bundle, port: int) -> tuple[list[int], NDArray[np.uint32], Bundle]:
        """How many frames each packet causes; their sizes, and all of them, a row for each."""
        engine: Any = self._switch.engine  # the native one takes arrays
        rows, size = requests.shape
        if engine.backend == "native":
            offsets = np.arange(0, rows * size + 1, size, dtype=np.uint32)
            batch = engine.run_batch(np.full(rows, port, np.uint16), offsets, requests.reshape(-1))
            counts, sizes, data = np.diff(batch.firsts.astype(np.int64)).tolist(), batch.outputs["size"], batch.data
        else:
            answers = engine.process_many([port] * rows, [row.tobytes() for row in requests])
            frames = [frame for copies in answers for _, frame in copies]
            counts, sizes = [len(copies) for copies in answers], np.array([len(frame) for frame in frames], np.uint32)
            data = np.frombuffer(b"".join(frames), np.uint8)
        if (sizes == size).all():
            return counts, sizes, data.reshape(-1, size)
        padded = np.zeros((len(sizes), int(sizes.max())), np.uint8)
        padded[np.arange(padded.shape[1]) < sizes[:, np.newaxis]] = data
        return counts, sizes, padded

    def _run(self, commands: Sequence[str]) -> list[str]:
        from p4vm.commands.line import run_command
        from p4vm.source import P4Error

        try:
            with self._switch.batch():
                return [run_command(self._switch, command) for command in commands]
        except P4Error as error:
            raise JobError(str(error)) from error


def _receivers(frames: Bundle) -> NDArray[np.int64]:
    """The port that each frame from the switch is addressed to; see `port_of`."""
    address = np.ascontiguousarray(frames[:, 31:34]).astype(np.int64) @ (1 << 16, 1 << 8, 1)
    udp_port = frames[:, 36].astype(np.int64) << 8 | frames[:, 37]
    receivers: NDArray[np.int64] = udp_port - 10_000 << 24 | address
    return receivers


def _together(frames: Bundle, sizes: NDArray[np.uint32], receivers: NDArray[np.int64], copies: int) -> Iterator[Output]:
    """Results of packets that cause so many copies each: an output for those in a row that go to the same ports, and
    with a route one for each size, with values first."""
    ways = (receivers << 16 | sizes).reshape(-1, copies)
    edges = np.flatnonzero((ways[1:] != ways[:-1]).any(axis=1)) + 1
    for start, end in pairwise([0, *edges.tolist(), len(ways)]):
        way = [(int(code) & 0xFFFF, int(code) >> 16) for code in ways[start]]
        for size in sorted({size for size, _ in way}, reverse=True):
            first = next(place for place, (its, _) in enumerate(way) if its == size)
            results = frames[start * copies + first : end * copies : copies, HEADERS_BYTES:size].copy()  # the engine's
            yield Output(results, tuple(port for its, port in way if its == size))


def _check_objects(switch: "ControlledSwitch", path: Path, *, leaf: bool) -> None:
    """Raise JobError for a program without what the control plane of a switch fills and reads."""
    needed: list[tuple[ControlNames[Any], tuple[str, ...]]] = [
        (switch.tables, (ADDRESSES, JOBS, STREAMS, MEMBERS, WORKERS, *[PARENTS] * leaf)),
        (switch.registers, (HELD, SEEN_LOW, SEEN_HIGH)),
        (switch.counters, (OUTCOME_COUNTER,)),
    ]
    if lacking := [f"{names.kind} {name}" for names, wanted in needed for name in wanted if not names.matches(name)]:
        more = f" (and {len(lacking) - 3} more)" if len(lacking) > 3 else ""
        raise JobError(
            f"data plane p4: {path} is no switch of this protocol: it has no "
            f"{', no '.join(lacking[:3])}{more}; start from switchagg/programs/v1model/switchagg.p4, "
            "or try a program of any kind with `switchagg p4 test` and `p4 run`"
        )


def _compiled(path: Path, elements: int, slots: int, backend: str) -> "ControlledSwitch":
    from p4vm.compile import compile_program
    from p4vm.control.controlled_switch import ControlledSwitch
    from p4vm.source import P4vmError

    try:
        includes = [PROGRAMS / "v1model"]  # what another program hasn't of its own
        engine = compile_program(path, backend=backend, includes=includes, defines=defines(elements, slots))
    except P4vmError as error:
        raise JobError(f"data plane p4: {error}") from error
    return ControlledSwitch(engine)
