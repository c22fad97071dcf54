"""The P4 program of p4/v1model behind the data-plane contract, run in-process by the engine of switchagg/p4vm.

Datagrams go in as Ethernet frames from an address that stands for their port; results come out as frames, and the
address they were rewritten to says where they go. Jobs are admitted by filling tables and registers, with the commands
that bmv2 understands too. A program is compiled for one E: the switch runs one for each E of its jobs.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from switchagg.aggregator import SlotView, check_admission
from switchagg.dataplane import Output
from switchagg.dataplane.p4_program import (
    HEADERS_BYTES,
    Control,
    check_elements,
    defines,
    folder,
    headers_of,
    receiver_of,
)
from switchagg.errors import JobError
from switchagg.job import JobConfig
from switchagg.wire import Bundle

if TYPE_CHECKING:
    from switchagg.p4vm.control import Switch

PORTS = 64
"""Physical ports of the program's switch; workers share them."""

IDLE_ELEMENTS = 32
"""E of the program that counts strangers' packets before any job is there."""

Pieces = list[tuple[tuple[int, ...], list[bytes]]]
"""Runs of results of equal size that go to the same ports, in order."""


def missing() -> str:
    """What the engine lacks to run the program, in one line; "" if nothing."""
    lacking = [name for name in ("lark", "pcpp") if find_spec(name) is None]
    if lacking:
        return f"the engine's libraries are missing: {', '.join(lacking)}; install switchagg[p4]"
    try:
        folder()
    except JobError as error:
        return str(error)
    return ""


class P4Plane:
    """A switch of `slots` slots; a program for each E of its jobs, up to 256.

    backend: of the engine: auto, native or python. Raises JobError where the engine can't run: its parsing libraries
    are missing, the programs are not installed.
    """

    name = "p4"

    def __init__(self, slots: int, elements: int, *, backend: str = "auto") -> None:
        if reason := missing():
            raise JobError(f"data plane p4: {reason}")
        self._slots, self._elements, self._backend = slots, elements, backend
        self._jobs: dict[int, JobConfig] = {}
        self._programs: dict[int, _Program] = {}

    @property
    def counters(self) -> dict[str, int]:
        """A fresh dict each time, of all programs together."""
        total: dict[str, int] = {}
        for program in self._programs.values():
            for name, packets in program.control.counters().items():
                total[name] = total.get(name, 0) + packets
        return total

    def admit(self, job: JobConfig, ports: Sequence[int]) -> None:
        check_admission(job, ports, list(self._jobs.values()), self._slots, self._elements)
        check_elements(job, self.name)
        program = self._program(job.elements)
        self.evict(job.job_id)
        program.control.admit(job, ports)
        self._jobs[job.job_id] = job

    def evict(self, job_id: int) -> None:
        job = self._jobs.pop(job_id, None)
        if job is not None:
            self._programs[job.elements].control.evict(job_id)

    def seen(self, slot: int, version: int) -> SlotView:
        for job in self._jobs.values():
            if any(s.first_slot <= slot < s.first_slot + s.window_slots for s in job.streams):
                return self._programs[job.elements].control.seen(slot, version)
        raise KeyError(slot)

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        size = bundle.shape[1]
        rows = [row.tobytes() for row in bundle]
        pieces: Pieces = []
        start = 0
        while start < len(rows):
            program = self._program_of(rows[start])
            end = start + 1
            while end < len(rows) and self._program_of(rows[end]) is program:
                end += 1
            program.process(rows[start:end], port, size, pieces)
            start = end
        return [
            Output(np.frombuffer(b"".join(frames), np.uint8).reshape(len(frames), size), ports)
            for ports, frames in pieces
        ]

    def _program_of(self, row: bytes) -> "_Program":
        """Where a packet's job is, if there is such a job; else any: all count strangers alike."""
        job = self._jobs.get(int.from_bytes(row[4:6], "big"))
        if job is not None:
            return self._program(job.elements)
        return next(iter(self._programs.values()), None) or self._program(IDLE_ELEMENTS)

    def _program(self, elements: int) -> "_Program":
        if elements not in self._programs:
            self._programs[elements] = _Program(elements, self._slots, self._backend)
        return self._programs[elements]


class _Program:
    """The program for one E on an engine, and its control plane."""

    def __init__(self, elements: int, slots: int, backend: str) -> None:
        self._switch = _compiled(elements, slots, backend)
        self.control = Control(self._run, elements, slots, PORTS)
        self._headers: dict[tuple[int, int], bytes] = {}

    def process(self, rows: list[bytes], port: int, size: int, pieces: Pieces) -> None:
        """Add what goes out for these datagrams to `pieces`."""
        headers = self._headers.get((port, size))
        if headers is None:
            headers = self._headers[port, size] = headers_of(port, size)
        physical = self.control.physical(port)
        for sent in self._switch.process_many([physical] * len(rows), [headers + row for row in rows]):
            if not sent:
                continue
            ports = tuple([receiver_of(frame) for _, frame in sent])
            result = sent[0][1][HEADERS_BYTES:]
            if pieces and pieces[-1][0] == ports:
                pieces[-1][1].append(result)
            else:
                pieces.append((ports, [result]))

    def _run(self, commands: Sequence[str]) -> list[str]:
        with self._switch.batch():
            return [self._switch.run_command(command) for command in commands]


def _compiled(elements: int, slots: int, backend: str) -> "Switch":
    from switchagg.p4vm.compile import compile_program
    from switchagg.p4vm.control import Switch
    from switchagg.p4vm.source import P4Error

    try:
        engine = compile_program(
            folder() / "v1model" / "switchagg.p4", backend=backend, defines=defines(elements, slots)
        )
    except P4Error as error:
        raise JobError(f"data plane p4: {error}") from error
    return Switch(engine)
