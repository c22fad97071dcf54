"""Memory that a native worker allocates beyond its tensors, counted by the C library's allocator around a call."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from emulation.experiments.bench.bandwidths import MEGABYTE
from switchagg.calls.array_calls import array_call
from switchagg.dataplane.native import NativePlane
from switchagg.job import JobConfig, StreamConfig
from switchagg.wire import frame_bytes
from transport.links.udp_link import UdpLink
from transport.switch.native_switch_loop import NativeSwitchLoop
from transport.worker.native_worker_loop import NativeWorkerLoop

LOOPBACK = ("127.0.0.1", 0)
WINDOW, ELEMENTS = 256, 360
CALL_S = 30.0


class _Allocated(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "chunks", "a", "b", "mapped", "c", "d", "used", "free", "releasable")
    ]


def worker_memory() -> dict[str, Any] | None:
    """Bytes a worker of one job holds after a call of 25 MB over loopback; None without glibc 2.33 or later.

    `memory_bytes`: the loop and its endpoint; `link_memory_bytes`: what the link reserves for Python's receiving, which
    a native loop never touches. Raises library.CoreMissing, JobError.
    """
    allocator = ctypes.CDLL(None)
    if not hasattr(allocator, "mallinfo2"):
        return None
    allocator.mallinfo2.restype = _Allocated

    def used() -> int:
        statistics = allocator.mallinfo2()
        return int(statistics.used + statistics.mapped)

    job = JobConfig(1, 7, 1, ELEMENTS, (StreamConfig(0, WINDOW),))
    array = np.ones(25 * MEGABYTE // 4, np.float32)
    switch_link = UdpLink(LOOPBACK)
    switch = NativeSwitchLoop(switch_link, NativePlane(WINDOW, ELEMENTS))
    switch.start()
    try:
        before = used()
        link = UdpLink(LOOPBACK)
        link_bytes = used() - before
        switch.admit(job, [link.address])
        before = used()
        loop = NativeWorkerLoop(link, job, 0, switch_link.address)
        try:
            loop.submit(0, array_call(array, "sum", job)).result(CALL_S)
            held = used() - before
        finally:
            loop.close()
    finally:
        switch.stop()
    return {
        "window_slots": WINDOW,
        "elements": ELEMENTS,
        "memory_bytes": held,
        "link_memory_bytes": link_bytes,
        "memory_limit_bytes": 2 * WINDOW * (frame_bytes(ELEMENTS) + 28),
        "tensor_bytes": array.nbytes,
    }
