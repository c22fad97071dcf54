"""Quantise and dequantise beside a copy of the same array, in turn, on one core: GB/s of float32."""

from __future__ import annotations

import ctypes
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from emulation.bench import arithmetic
from emulation.results import percentile
from switchagg.codecs import FIXED_POINT, CallShape
from switchagg.codecs.fixed_point import exponents as own_exponents
from switchagg.native.codec import begin, declared
from switchagg.native.library import Missing

ELEMENTS = 360
WORKERS = 8
SIZES = (1 << 20, 25 * arithmetic.MEGABYTE)  # within a cache; DDP's bucket, beyond it
NOTE = (
    "One pass each over the array, its result elsewhere, as for the copy: both read and write 4 bytes per value. "
    "Quantising takes the agreed exponents as given; exponents are found in a pass of its own, which reads only."
)

Step = Callable[[], Any]


def measure(quick: bool, log: Callable[[str], None]) -> dict[str, Any]:
    """The part `numbers` of the document."""
    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    for size in SIZES:
        log(f"quantise and dequantise, {size} bytes")
        try:
            native = _native(size)
        except Missing as error:
            native = {}
            failures["native"] = str(error)
        steps = {("memcpy", "numpy"): _copy(size)} | _python(size) | native
        times = _in_turn(steps, 5 if quick else 31 if size > 1 << 22 else 201)
        copies = times["memcpy", "numpy"]
        for (what, implementation), found in times.items():
            each = arithmetic.spread(found)
            rows.append(
                {
                    "what": what,
                    "implementation": implementation,
                    "size_bytes": size,
                    "time_ns": dataclasses.asdict(each),
                    "bytes_per_s": size * 1e9 / each.median,
                    # turn by turn: what slows the machine down for a while slows both
                    "share_of_memcpy": percentile([c / t for c, t in zip(copies, found, strict=True)], 0.5),
                }
            )
    return {"rows": rows, "failures": failures, "note": NOTE}


def _in_turn(steps: dict[tuple[str, str], Step], turns: int) -> dict[tuple[str, str], list[float]]:
    """Times of each step, all of them in every turn.

    Each runs twice and the second counts: it finds its memory as warm as its own run left it, whatever ran before.
    """
    times: dict[tuple[str, str], list[float]] = {name: [] for name in steps}
    for _ in range(turns):
        for name, step in steps.items():
            step()
            begun = time.perf_counter_ns()
            step()
            times[name].append(time.perf_counter_ns() - begun)
    return times


def _values(size_bytes: int) -> Any:
    """Rows of E values, whole."""
    rows = max(1, size_bytes // 4 // ELEMENTS)
    return np.random.default_rng(1).standard_normal((rows, ELEMENTS)).astype(np.float32)


def _copy(size_bytes: int) -> Step:
    values = _values(size_bytes)
    target = np.empty_like(values)
    return lambda: ctypes.memmove(target.ctypes.data, values.ctypes.data, values.nbytes)


def _python(size_bytes: int) -> dict[tuple[str, str], Step]:
    values = _values(size_bytes)
    rows = slice(0, len(values))
    coding = FIXED_POINT.begin(CallShape(values.dtype, len(values), ELEMENTS, WORKERS))
    coding.agree(0, coding.prepare(values, rows))
    integers = coding.encode(values, rows)
    return {
        ("exponents", "python"): lambda: coding.prepare(values, rows),
        ("quantise", "python"): lambda: coding.encode(values, rows),
        ("dequantise", "python"): lambda: coding.decode(integers, rows),
    }


def _native(size_bytes: int) -> dict[tuple[str, str], Step]:
    """As the endpoint does it: values <-> the payload's big-endian integers. Raises Missing."""
    library = declared()
    values = _values(size_bytes)
    codes = np.empty(len(values), np.int32)
    payload = np.empty((len(values), 4 * ELEMENTS), np.uint8)
    back = np.empty_like(values)
    coding = begin(FIXED_POINT, values.dtype, ELEMENTS, WORKERS)

    def exponents() -> None:
        library.sa_codec_prepare(coding, values.ctypes.data, values.size, codes.ctypes.data)

    def quantise() -> None:
        addresses = (agreed.ctypes.data, payload.ctypes.data)
        library.sa_codec_encode(coding, values.ctypes.data, values.size, *addresses, 4 * ELEMENTS)

    def dequantise() -> None:
        addresses = (agreed.ctypes.data, payload.ctypes.data)
        library.sa_codec_decode(coding, back.ctypes.data, values.size, *addresses, 4 * ELEMENTS)

    exponents()
    agreed = codes.astype(np.int16)
    assert (codes == own_exponents(values)).all()
    quantise()
    dequantise()
    assert np.abs(back - values).max() < 1e-5, "what is timed must be the real thing"
    return {
        ("exponents", "native"): exponents,
        ("quantise", "native"): quantise,
        ("dequantise", "native"): dequantise,
    }
