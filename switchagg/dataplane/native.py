"""The switch in C (`switchagg/native/rule/plane.c`) behind the data-plane contract; the GIL is free while it works."""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from switchagg.aggregator import Parent, SlotView, check_admission
from switchagg.dataplane.contract import Output
from switchagg.errors import JobError
from switchagg.job import JobConfig
from switchagg.native import headers
from switchagg.native.library import LEAF_OUTCOMES, OUTCOMES, PARTIAL_OUTCOMES, CoreMissing, job_struct, load
from switchagg.wire import HEADER_BYTES, Bundle, frame_bytes

RUN: np.dtype[Any] = np.dtype(headers.struct("sa_run"))
REGISTERS: np.dtype[Any] = np.dtype(headers.struct("sa_registers"))
_Parent = headers.struct("sa_parent")


class _Admitted(NamedTuple):
    job: JobConfig
    ports: tuple[int, ...]
    parent: Parent | None

    @property
    def receivers(self) -> tuple[int, ...]:
        """The ports in the order in which `struct sa_ranks` counts."""
        return 2 * self.ports if self.parent is None else (*self.ports, self.parent.port)


class NativePlane:
    """A switch of `slots` slots and up to `elements` int32 each; registers exist per admitted job.

    Raises JobError, with the reason, where the compiled core is missing. Pickling keeps jobs and registers, not the
    counters.
    """

    name = "native"

    def __init__(self, slots: int, elements: int) -> None:
        try:
            self._library = load()
        except CoreMissing as error:
            raise JobError(f"data plane native: {error}") from error
        self._slots = slots
        self.elements = elements
        self._jobs: dict[int, _Admitted] = {}
        self._plane = self._library.sa_plane_new()
        if not self._plane:
            raise MemoryError("data plane native: no memory")
        self._counters = self._library.sa_plane_counters(self._plane)
        self._free = weakref.finalize(self, self._library.sa_plane_free, self._plane)

    @property
    def handle(self) -> int:
        """`struct sa_plane *`, for a loop in C; it lives as long as this object."""
        handle: int = self._plane
        return handle

    @property
    def counters(self) -> dict[str, int]:
        """A copy, without the zeros."""
        names = OUTCOMES + LEAF_OUTCOMES + PARTIAL_OUTCOMES
        return {name: packets for name, packets in zip(names, self._counters[: len(names)], strict=True) if packets}

    def admit(self, job: JobConfig, ports: Sequence[int], parent: Parent | None = None) -> None:
        jobs = [admitted.job for admitted in self._jobs.values()]
        check_admission(job, ports, jobs, self._slots, self.elements, parent)
        numbers = (ctypes.c_uint32 * len(ports))(*ports)
        above = None if parent is None else ctypes.byref(_Parent(parent.port, parent.rank))
        if self._library.sa_plane_admit(self._plane, ctypes.byref(job_struct(job)), numbers, len(ports), above):
            first, end = job.slots
            raise JobError(f"job {job.job_id}: no memory for {end - first} slots of {job.elements} elements")
        self._jobs[job.job_id] = _Admitted(job, tuple(ports), parent)

    def evict(self, job_id: int) -> None:
        if self._jobs.pop(job_id, None) is not None:
            self._library.sa_plane_evict(self._plane, job_id)

    def seen(self, slot: int, version: int) -> SlotView:
        chunk, bitmap = ctypes.c_uint32(), ctypes.c_uint64()
        if self._library.sa_plane_seen(self._plane, slot, version, ctypes.byref(chunk), ctypes.byref(bitmap)):
            raise KeyError(slot)
        return slot_view(chunk.value, bitmap.value)

    def registers_of(self, job: JobConfig) -> NDArray[Any]:
        """A copy of `seen` (bitmap of ranks) and `held` (chunk) of its slots' versions, slot after slot.

        Empty for a job that isn't admitted. Takes microseconds, where `seen` for each slot takes a loop milliseconds.
        """
        admitted = self._jobs.get(job.job_id)
        if admitted is None or admitted.job != job:
            return np.empty(0, REGISTERS)
        first, end = job.slots
        return self._registers(job.job_id)[: 2 * (end - first) * REGISTERS.itemsize].view(REGISTERS).copy()

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        rows, size = bundle.shape
        if not bundle.flags.c_contiguous:
            bundle = np.ascontiguousarray(bundle)
        largest = size  # of a result: packets with values cause no larger ones
        if size <= HEADER_BYTES:
            largest = max((frame_bytes(admitted.job.elements) for admitted in self._jobs.values()), default=0)
        results = np.empty(rows * (largest + HEADER_BYTES), np.uint8)
        header_only = results[rows * largest :].reshape(rows, HEADER_BYTES)
        runs = np.empty(rows, RUN)
        out = results.ctypes.data
        count = self._library.sa_plane_process(
            self._plane,
            bundle.ctypes.data,
            rows,
            size,
            port,
            out,
            out + rows * largest,
            runs.ctypes.data,
        )
        outputs = []
        start = header_only_start = 0
        for packets, result_bytes, job_id, (first, valued_to), (header_only_first, header_only_to) in runs[
            :count
        ].tolist():
            ports = self._jobs[job_id].receivers
            if valued_to:
                end = start + packets * result_bytes
                frames = results[start:end].reshape(packets, result_bytes)
                outputs.append(Output(frames, ports[first : first + valued_to]))
                start = end
            if header_only_to:
                frames = header_only[header_only_start : header_only_start + packets]
                outputs.append(Output(frames, ports[header_only_first : header_only_first + header_only_to]))
                header_only_start += packets
        return outputs

    def __reduce__(self) -> tuple[Any, ...]:
        shares = [(*admitted, self._registers(admitted.job.job_id).tobytes()) for admitted in self._jobs.values()]
        return _restored, (self._slots, self.elements, shares)

    def _registers(self, job_id: int) -> NDArray[np.uint8]:
        """All registers of an admitted job as they lie in memory; valid until it is evicted."""
        size = ctypes.c_uint64()
        address = self._library.sa_plane_registers(self._plane, job_id, ctypes.byref(size))
        registers: NDArray[np.uint8] = np.ctypeslib.as_array(address, (size.value,))
        return registers


def slot_view(chunk: int, bitmap: int) -> SlotView:
    """The view of a slot version that holds this chunk and has seen these ranks."""
    return SlotView(chunk, tuple(rank for rank in range(bitmap.bit_length()) if bitmap >> rank & 1))


def _restored(
    slots: int, elements: int, shares: list[tuple[JobConfig, tuple[int, ...], Parent | None, bytes]]
) -> NativePlane:
    plane = NativePlane(slots, elements)
    for job, ports, parent, registers in shares:
        plane.admit(job, ports, parent)
        plane._registers(job.job_id)[:] = np.frombuffer(registers, np.uint8)
    return plane
