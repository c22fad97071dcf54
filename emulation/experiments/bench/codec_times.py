"""Codecs beside a copy of the same array, in turn, on one core: GB/s of float32."""

from __future__ import annotations

import ctypes
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from emulation.experiments.bench import bandwidths
from emulation.experiments.progress_text import Passing
from emulation.results.results import percentile
from switchagg.codecs import FIXED_POINT, Array, CallShape, Codec, codec_named
from switchagg.codecs.exact.groups import TYPES
from switchagg.codecs.exact.nearest import Rounding
from switchagg.native.library import CoreMissing, load
from switchagg.native.native_codec import begin
from switchagg.native.native_exact import NativeExactSums

ELEMENTS = 360
WORKERS = 8
LANES = ("lanes16", "lanes8", "rotated8", "fp16", "bf16", "qsgd10", "ternary4", "twobit4", "onebit4", "sign4")
LANES_WORKERS = 4
EXACT = {"exact": "float32", "exact of bf16": "bfloat16"}
"""Rows of sums that lose nothing, with the type that values have and results are rounded to."""
SIZES = (1 << 20, 25 * bandwidths.MEGABYTE)  # 1 MB fits a cache; DDP's bucket doesn't
NOTE = (
    "One pass each over the array, its result elsewhere, as for the copy, which reads and writes 4 bytes per value. "
    "Quantising takes the agreed exponents as given; exponents are found in a pass of its own, which reads only. "
    "Lanes: the same with the codec named, of 4 workers; encode + decode is the sum of both. lanes8, rotated8, qsgd "
    "and ternary are rounded at random. exact: of 4 workers, whole arrays; values are normally distributed."
)

Step = Callable[[], Any]


def measure(
    quick: bool,
    log: Callable[[str], None],
    sizes: Sequence[int] = SIZES,
    lanes: Sequence[str] = LANES,
    exact: Mapping[str, str] = EXACT,
) -> dict[str, Any]:
    """The part `numbers` of the document. sizes: of arrays, in bytes."""
    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    for size in sizes:
        log(Passing(f"codecs, {size} bytes"))
        try:
            native = _native(size, FIXED_POINT, WORKERS, ("exponents", "quantise", "dequantise"))
            for name in lanes:
                whats = (f"{name} scales", f"{name} encode", f"{name} decode")
                native |= _native(size, codec_named(name), LANES_WORKERS, whats)
            for name, target in exact.items():
                native |= _exact(size, name, target)
        except CoreMissing as error:
            native = {}
            failures["native"] = str(error)
        steps = {("memcpy", "numpy"): _copy(size)} | _python(size) | native
        times = _in_turn(steps, 5 if quick else 31 if size > 1 << 22 else 201)
        for name in (*lanes, *exact) if native else ():
            both = times[f"{name} encode", "native"], times[f"{name} decode", "native"]
            times[f"{name} encode + decode", "native"] = list(map(sum, zip(*both, strict=True)))
        copies = times["memcpy", "numpy"]
        for (what, implementation), samples in times.items():
            spread = bandwidths.spread(samples)
            rows.append(
                {
                    "what": what,
                    "implementation": implementation,
                    "size_bytes": size,
                    "time_ns": dataclasses.asdict(spread),
                    "bytes_per_s": size * 1e9 / spread.median,
                    # turn by turn: what slows the machine down for a while slows both
                    "share_of_memcpy": percentile([c / t for c, t in zip(copies, samples, strict=True)], 0.5),
                }
            )
    return {"rows": rows, "failures": failures, "note": NOTE}


def _in_turn(steps: dict[tuple[str, str], Step], turns: int) -> dict[tuple[str, str], list[float]]:
    """Times of each step, all of them in every turn.

    A step runs twice and its second run counts, which finds its memory as warm as the first run left it.
    """
    times: dict[tuple[str, str], list[float]] = {name: [] for name in steps}
    for _ in range(turns):
        for name, step in steps.items():
            step()
            begun_ns = time.perf_counter_ns()
            step()
            times[name].append(time.perf_counter_ns() - begun_ns)
    return times


def _values(size_bytes: int, per_word: int = 1) -> Any:
    """Rows of what E elements carry, whole."""
    width = ELEMENTS * per_word
    rows = max(1, size_bytes // 4 // width)
    return np.random.default_rng(1).standard_normal((rows, width)).astype(np.float32)


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


def _native(size_bytes: int, codec: Codec, workers: int, whats: tuple[str, str, str]) -> dict[tuple[str, str], Step]:
    """whats: names of codes, encoding, decoding. Raises CoreMissing."""
    values = _values(size_bytes, codec.values_per_word(np.dtype(np.float32)))
    return dict(zip(((what, "native") for what in whats), native_steps(codec, values, workers, ELEMENTS), strict=True))


def _exact(size_bytes: int, name: str, target: str) -> dict[tuple[str, str], Step]:
    """Codes, encoding and decoding of correctly rounded sums. Raises CoreMissing."""
    load()
    codec, values = NativeExactSums(), _values(size_bytes).reshape(-1)
    if target == "bfloat16":
        values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    rounding, back = Rounding(TYPES[target]), np.empty_like(values)
    codes = codec.codes(values)
    words = codec.encode(values, codes, LANES_WORKERS)
    sums = LANES_WORKERS * words  # as if all ranks had the same
    return {
        (f"{name} codes", "native"): lambda: codec.codes(values),
        (f"{name} encode", "native"): lambda: codec.encode(values, codes, LANES_WORKERS),
        (f"{name} decode", "native"): lambda: codec.decode(sums, codes, back, LANES_WORKERS, rounding),
    }


def native_steps(codec: Codec, values: Array, workers: int, elements: int) -> tuple[Step, Step, Step]:
    """Codes, encoding and decoding by the compiled core, as the endpoint does it: values <-> the payload's big-endian
    integers. values: rows of what so many elements carry, whole. Raises CoreMissing."""
    library = load()
    codes = np.empty(len(values), np.int32)
    payload = np.empty((len(values), 4 * elements), np.uint8)
    back = np.empty_like(values)
    coding = begin(codec, values.dtype, elements, workers)

    def prepare() -> None:
        library.sa_codec_prepare(ctypes.byref(coding), values.ctypes.data, values.size, codes.ctypes.data)

    def encode() -> None:
        addresses = (agreed.ctypes.data, payload.ctypes.data)
        library.sa_codec_encode(ctypes.byref(coding), values.ctypes.data, values.size, *addresses, 4 * elements)

    def decode() -> None:
        addresses = (agreed.ctypes.data, payload.ctypes.data)
        library.sa_codec_decode(ctypes.byref(coding), back.ctypes.data, values.size, *addresses, 4 * elements)

    prepare()
    agreed = codes.astype(np.int16)
    twin = codec.begin(CallShape(values.dtype, len(values), elements, workers))
    assert (codes == twin.prepare(values, slice(0, len(values)))).all()
    encode()
    coding.ranks = 1  # what is decoded is one worker's
    decode()
    first = np.array(values[:1])
    twin.agree(0, codes)
    words, twin.ranks = twin.encode(first, slice(0, 1)), 1
    assert (payload[:1].view(">i4") == words).all(), "what is timed must be the real thing"
    assert (back[:1] == twin.decode(words, slice(0, 1))).all()
    return prepare, encode, decode
