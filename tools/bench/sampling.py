"""Where CPUs spend their time: the kernel's clock samples all of them (perf_event_open), with call chains.

Needs no program and no hardware counters, so it runs in virtual machines; it needs CAP_PERFMON, which root has.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import shutil
import struct
import subprocess
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulation.scenario.errors import RunFailed

PERIOD_NS = 400_000  # a sample costs some µs: at this pace one in a hundred
RING_BYTES = 32 << 20  # each CPU has a ring, which holds half a minute of deep chains

_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_SOFTWARE, _CPU_CLOCK = 1, 0
_IP, _TID, _TIME, _CALLCHAIN = 1 << 0, 1 << 1, 1 << 2, 1 << 5
_DISABLED, _NO_USER_CHAIN, _CLOCK = 1 << 0, 1 << 22, 1 << 25
_ATTRIBUTES_BYTES, _CLOCK_AT = 128, 92  # struct perf_event_attr, and its clockid
_CLOSE_ON_EXEC = 8
_ENABLE, _DISABLE = 0x2400, 0x2401
_RECORD_LOST, _RECORD_SAMPLE = 2, 9
_HEAD_AT = 1024  # data_head in struct perf_event_mmap_page
_MARKERS_FROM = (1 << 64) - 4096  # PERF_CONTEXT_KERNEL and the like stand between addresses


@dataclass(frozen=True)
class Sample:
    """A CPU's work at `time_ns` (CLOCK_MONOTONIC). address: of the instruction; chain: of its callers in the kernel,
    the innermost first, () in user space."""

    pid: int
    time_ns: int
    address: int
    chain: tuple[int, ...]


class Sampler:
    """Samples all CPUs from entering to leaving; then `samples`. Raises RunFailed where the kernel refuses."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._rings: list[tuple[int, mmap.mmap]] = []

    def __enter__(self) -> Sampler:
        try:
            for cpu in sorted(os.sched_getaffinity(0)):
                descriptor = _open(cpu)
                self._rings.append((descriptor, mmap.mmap(descriptor, mmap.PAGESIZE + RING_BYTES)))
        except OSError as error:
            self._close()
            raise RunFailed(
                f"the kernel doesn't let CPUs be sampled (perf_event_open: {error}): run it as root"
            ) from error
        self._control(_ENABLE)
        return self

    def __exit__(self, *error: object) -> None:
        self._control(_DISABLE)
        for _, ring in self._rings:
            self.samples += _samples(ring)
        self._close()

    def _control(self, request: int) -> None:
        for descriptor, _ in self._rings:
            fcntl.ioctl(descriptor, request, 0)

    def _close(self) -> None:
        for descriptor, ring in self._rings:
            ring.close()
            os.close(descriptor)
        self._rings.clear()


def _open(cpu: int) -> int:
    """A disabled event that samples one CPU. Raises OSError."""
    flags = _DISABLED | _NO_USER_CHAIN | _CLOCK
    sample = _IP | _TID | _TIME | _CALLCHAIN
    attributes = bytearray(_ATTRIBUTES_BYTES)
    struct.pack_into("=IIQQQQQ", attributes, 0, _SOFTWARE, len(attributes), _CPU_CLOCK, PERIOD_NS, sample, 0, flags)
    struct.pack_into("=i", attributes, _CLOCK_AT, time.CLOCK_MONOTONIC)
    call = ctypes.CDLL(None, use_errno=True).syscall
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(f"unknown on {platform.machine()}")
    descriptor: int = call(number, bytes(attributes), -1, cpu, -1, _CLOSE_ON_EXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def _samples(ring: mmap.mmap) -> Iterator[Sample]:
    """Samples of a ring that was never full. Raises RunFailed if it was."""
    (end,) = struct.unpack_from("=Q", ring, _HEAD_AT)
    data = memoryview(ring)[mmap.PAGESIZE :]
    try:
        at = 0
        while at < end:
            kind, _, size = struct.unpack_from("=IHH", data, at)
            if kind == _RECORD_LOST:
                raise RunFailed("more samples than there is room for: measure for fewer seconds")
            if kind == _RECORD_SAMPLE:
                address, pid, _, time_ns, count = struct.unpack_from("=QIIQQ", data, at + 8)
                chain = struct.unpack_from(f"={count}Q", data, at + 40)
                yield Sample(pid, time_ns, address, tuple(entry for entry in chain if entry < _MARKERS_FROM))
            at += size
    finally:
        data.release()


class Symbols:
    """Names of addresses: of the kernel, and of one library in some processes."""

    def __init__(self, library: Path, pids: Sequence[int]) -> None:
        """Reads the processes' maps: they must be running. Raises RunFailed where the kernel hides its addresses."""
        self._kernel = _Table(Path("/proc/kallsyms").read_text(encoding="ascii"))
        if self._kernel.hidden:
            raise RunFailed("the kernel hides its addresses (kernel.kptr_restrict): run it as root")
        self._functions = _Table(listed(library))
        self._places = {pid: _place(pid, library) for pid in pids}

    def of_kernel(self, address: int) -> str:
        """The function's name; "" for an address in user space."""
        return self._kernel.name(address) if address >> 63 else ""

    def of_library(self, pid: int, address: int) -> str | None:
        """The function's name, "" where the library has no symbols; None: the address isn't in it."""
        first, end, base = self._places[pid]
        return self._functions.name(address - base) if first <= address < end else None


def listed(library: Path) -> str:
    """A library's functions with their addresses; "" without nm (binutils)."""
    if shutil.which("nm") is None:
        return ""
    return subprocess.run(["nm", str(library)], capture_output=True, text=True, check=False, timeout=60).stdout


class _Table:
    """Functions by address, as nm and /proc/kallsyms list them."""

    def __init__(self, text: str) -> None:
        rows = (line.split() for line in text.splitlines())
        entries = sorted((int(row[0], 16), row[2]) for row in rows if len(row) >= 3 and row[1] in "tTwWi")
        self._addresses = [address for address, _ in entries]
        # A clone for one processor, or a part of a function, has a suffix: .avx2, .isra.0.
        self._names = [name.partition(".")[0] for _, name in entries]
        self.hidden = not any(self._addresses)

    def name(self, address: int) -> str:
        at = bisect_right(self._addresses, address) - 1
        return self._names[at] if at >= 0 else ""


def _place(pid: int, library: Path) -> tuple[int, int, int]:
    """First and last address of a library's code in a process, and where its address 0 would be."""
    first, end, base = 0, 0, 0
    for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
        if not line.endswith(f"/{library.name}"):
            continue
        begin, _, stop = line.split()[0].partition("-")
        if int(line.split()[2], 16) == 0:
            base = int(begin, 16)
        if "x" in line.split()[1]:
            first, end = int(begin, 16), int(stop, 16)
    return first, end, base
