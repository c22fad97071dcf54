"""native.native_endpoint, and what lies below it: numbers bit for bit as in Python (F1 to F7), memory, references.

What the endpoint does packet by packet is in test_endpoint.py and conformance/test_endpoint_lockstep.py.
"""

import ctypes
import gc
import platform
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from switchagg.calls.array_calls import array_call
from switchagg.calls.chunked_call import ArrayCall
from switchagg.codecs import FIXED_POINT, CallShape, codec_for
from switchagg.codecs.fixed_point import NONFINITE, ZERO, Scales
from switchagg.codecs.fixed_point import exponents as own_exponents
from switchagg.codecs.limbs import LIMBS, from_limbs, to_limbs
from switchagg.dataplane.reference import ReferencePlane
from switchagg.endpoint import CallCompleted, Endpoint
from switchagg.job import JobConfig, StreamConfig
from switchagg.native.library import load, missing
from switchagg.native.native_codec import DTYPES, begin
from switchagg.native.native_endpoint import NativeEndpoint
from switchagg.wire import FLAG_RESULT, FLAGS_AT, HEADER_BYTES, Op, frame_bytes

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")

ELEMENTS = (1, 3, 8, 17, 360)
FLOATS = (np.float32, np.float64)
Array = NDArray[Any]


def width_of(dtype: np.dtype[Any], elements: int) -> int:
    return elements if dtype.itemsize == 4 else elements // LIMBS


def rows_of(values: Array, elements: int) -> Array:
    """(rows, width) copy, the last row padded with zeros (W3)."""
    width = width_of(values.dtype, elements)
    rows = np.zeros((-(-len(values) // width), width), values.dtype)
    rows.reshape(-1)[: len(values)] = values
    return rows


def agreed_scales(codes: Array, workers: int, dtype: np.dtype[Any]) -> Scales:
    scales = Scales(CallShape(dtype, len(codes), 0, workers))
    scales.agree(0, codes.astype(np.int32))
    return scales


def in_python(values: Array, codes: Array, workers: int, elements: int) -> Array:
    """What these values look like in packets: (rows, elements) int32."""
    rows = rows_of(values, elements)
    if values.dtype.kind == "f":
        rows = agreed_scales(codes, workers, values.dtype).encode(rows, slice(0, len(rows)))
    return to_limbs(rows, elements) if rows.dtype == np.int64 else rows


def back_in_python(sums: Array, count: int, codes: Array, workers: int, dtype: np.dtype[Any]) -> Array:
    """(count,) values of the summed (rows, elements) int32."""
    rows = from_limbs(sums) if dtype.itemsize == 8 else sums
    if dtype.kind == "f":
        rows = agreed_scales(codes, workers, dtype).decode(rows, slice(0, len(rows)))
    return rows.reshape(-1)[:count]


def coding_of(dtype: np.dtype[Any], elements: int, workers: int = 1) -> Any:
    codec = codec_for(dtype, FIXED_POINT)
    assert codec is not None
    return ctypes.byref(begin(codec, dtype, elements, workers))


def exponents(values: Array, elements: int) -> Array:
    codes = np.full(-(-len(values) // width_of(values.dtype, elements)), 12345, np.int32)
    coding = coding_of(values.dtype, elements)
    load().sa_codec_prepare(coding, values.ctypes.data, len(values), codes.ctypes.data)
    return codes


def quantise(values: Array, codes: Array, workers: int, elements: int) -> Array:
    """(rows, elements) int32, written by C into frames, whose other bytes must stay."""
    rows = -(-len(values) // width_of(values.dtype, elements))
    frames = np.full((rows, frame_bytes(elements)), 0xA5, np.uint8)
    load().sa_codec_encode(
        coding_of(values.dtype, elements, workers),
        values.ctypes.data,
        len(values),
        codes.astype(np.int16).ctypes.data,
        frames.ctypes.data + HEADER_BYTES,
        frame_bytes(elements),
    )
    assert (frames[:, :HEADER_BYTES] == 0xA5).all()
    return frames[:, HEADER_BYTES:].copy().view(">i4").astype(np.int32)


def dequantise(sums: Array, count: int, codes: Array, workers: int, dtype: np.dtype[Any], shift: int = 0) -> Array:
    """(count,) values that C makes of summed (rows, elements) int32; nothing beside them is written."""
    big_endian = sums.astype(">i4")
    around = np.full(count * dtype.itemsize + 16 + shift, 0xA5, np.uint8)  # shift: an array may lie anywhere
    load().sa_codec_decode(
        coding_of(dtype, sums.shape[1], workers),
        around.ctypes.data + 8 + shift,
        count,
        codes.astype(np.int16).ctypes.data,
        big_endian.ctypes.data,
        4 * sums.shape[1],
    )
    assert (around[: 8 + shift] == 0xA5).all()
    assert (around[-8:] == 0xA5).all()
    return around[8 + shift : -8].copy().view(dtype)


def check_numbers(values: Array, sums: Array, raised: Array, workers: int, elements: int) -> None:
    """Own codes, then quantised under codes at least as large, and any sums turned back: Python and C give the same."""
    codes = np.zeros(len(raised), np.int32)
    if values.dtype.kind == "f":
        codes = own_exponents(rows_of(values, elements))
        assert exponents(values, elements).tolist() == codes.tolist()
        codes = np.maximum(codes, raised)
    mine = in_python(values, codes, workers, elements)
    assert quantise(values, codes, workers, elements).tobytes() == mine.tobytes()
    want = back_in_python(sums, len(values), codes, workers, values.dtype)
    for shift in (0, 1):
        assert dequantise(sums, len(values), codes, workers, values.dtype, shift).tobytes() == want.tobytes()


def lengths(dtype: type, elements: int) -> st.SearchStrategy[int]:
    return st.integers(1, 3 * width_of(np.dtype(dtype), elements) + 1)


def any_floats(dtype: type, size: int) -> st.SearchStrategy[Array]:
    """Any bits at all, or numbers a few binary orders apart, so that rounding has something to do."""
    info = np.finfo(dtype)
    bits = np.uint32 if dtype is np.float32 else np.uint64
    anything = arrays(bits, size, elements=st.integers(0, 2**info.bits - 1)).map(lambda a: a.view(dtype))
    mantissas = arrays(np.float64, size, elements=st.floats(-1, 1))
    shrink = arrays(np.int32, size, elements=st.integers(-70, 0))
    near = st.builds(
        lambda m, s, e: np.ldexp(m, s + e).astype(dtype), mantissas, shrink, st.integers(info.minexp - 30, info.maxexp)
    )
    return st.one_of(anything, near)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("elements", ELEMENTS[:4])
@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=150)
@given(st.data())
def test_floats_are_the_same_bits(dtype: type, elements: int, data: st.DataObject) -> None:
    if np.dtype(dtype).itemsize == 8 and elements < 3:
        return
    values = data.draw(lengths(dtype, elements).flatmap(lambda size: any_floats(dtype, size)))
    rows = len(rows_of(values, elements))
    raised = data.draw(arrays(np.int32, rows, elements=st.integers(ZERO, NONFINITE)))
    sums = data.draw(arrays(np.int32, (rows, elements), elements=st.integers(-(2**31), 2**31 - 1)))
    check_numbers(values, sums, raised, data.draw(st.integers(1, 64)), elements)


@pytest.mark.parametrize("elements", ELEMENTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_random_numbers_are_the_same_bits_for_every_n(dtype: type, elements: int) -> None:
    if np.dtype(dtype).itemsize == 8 and elements < 3:
        return
    numbers = np.random.default_rng(elements)
    width = width_of(np.dtype(dtype), elements)
    for workers in range(1, 65):
        size = int(numbers.integers(1, 4 * width + 2))
        rows = -(-size // width)
        if np.dtype(dtype).kind == "f":
            info = np.finfo(dtype)
            powers = numbers.integers(info.minexp - 30, info.maxexp, rows).repeat(width)[:size]
            values = np.ldexp(numbers.uniform(-1, 1, size), powers - numbers.integers(0, 40, size)).astype(dtype)
        else:
            values = numbers.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, size, dtype, endpoint=True)
        sums = numbers.integers(-(2**31), 2**31, (rows, elements)).astype(np.int32)
        raised = np.where(numbers.random(rows) < 0.7, ZERO, numbers.integers(-200, 200, rows)).astype(np.int32)
        check_numbers(values, sums, raised, workers, elements)


def awkward(dtype: type) -> list[Array]:
    """Rows of three that tend to be got wrong."""
    info = np.finfo(dtype)
    least, tiny, largest = info.smallest_subnormal, info.tiny, info.max
    below = np.nextafter(dtype(1), dtype(0))
    digits = 31 if dtype is np.float32 else 62
    ties = [np.ldexp(dtype(k + 0.5), -digits) for k in range(3)]
    rows = [
        [0, 0, 0],
        [-0.0, 0, -0.0],
        [least, -least, 0],
        [tiny, -least, least],
        [tiny - least, least * 3, -0.0],
        [largest, -largest, largest],
        [largest, tiny, least],
        [below, -below, below],
        [0.75, *ties[:2]],
        [-0.75, -ties[1], -ties[2]],
        [1, np.nan, 0],
        [-np.nan, 1, 1],
        [np.inf, 0, 0],
        [0, 0, -np.inf],
        [np.nan, np.inf, -np.inf],
    ]
    return [np.array(row, dtype) for row in rows]


@pytest.mark.parametrize("workers", [1, 2, 3, 64])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_awkward_numbers_are_the_same_bits(dtype: type, workers: int) -> None:
    """Each alone, under its own code and under those of all the others, in chunks of one row and all in one array."""
    elements = 3 if dtype is np.float32 else 9
    rows = awkward(dtype)
    extremes = np.array([-(2**31), 2**31 - 1, -1, 0, 1, 1 << 24, (1 << 24) + 1, 77, -(2**30)][:elements], np.int32)
    codes = [int(own_exponents(row[np.newaxis])[0]) for row in rows]
    for row in rows:
        for raised in {*codes, ZERO, NONFINITE, NONFINITE - 1, -2000, 2000}:
            check_numbers(row, extremes[np.newaxis], np.array([raised], np.int32), workers, elements)
    together = np.concatenate(rows)
    check_numbers(together, np.tile(extremes, (len(rows), 1)), np.full(len(rows), ZERO, np.int32), workers, elements)


def test_powers_of_two_at_every_exponent() -> None:
    """F1, F2: also where the scale needs two factors."""
    for dtype in FLOATS:
        info = np.finfo(dtype)
        elements = 4 if dtype is np.float32 else 12
        for power in range(info.minexp - info.nmant, info.maxexp):
            value = np.ldexp(dtype(1), power)
            values = np.array([value, -value, value / 3, 0], dtype)
            sums = np.full((1, elements), 1 << 25, np.int32)
            check_numbers(values, sums, np.array([ZERO], np.int32), 1, elements)


def allreduce(core: type[Endpoint] | type[NativeEndpoint], job: JobConfig, inputs: list[Array], op: str) -> list[Array]:
    """The arrays after one call through the reference switch, sent and answered in bundles of up to 64."""
    switch = ReferencePlane(job.slots[1], job.elements)
    switch.admit(job, range(job.workers))
    endpoints = [core(job, rank) for rank in range(job.workers)]
    copies = [array.copy() for array in inputs]
    for endpoint, array in zip(endpoints, copies, strict=True):
        endpoint.submit(0, array_call(array, op, job))
    done = 0
    for turn in range(10_000):
        if done == job.workers:
            return copies
        for rank, endpoint in enumerate(endpoints):
            for output in switch.process(endpoint.frames_to_send(turn), rank):
                for port in output.ports:
                    endpoints[port].receive(output.bundle, turn)
        done += sum(isinstance(endpoint.next_event(), CallCompleted) for endpoint in endpoints)
    raise AssertionError("the call never ended")


@pytest.mark.parametrize(
    ("dtype", "op"), [(np.float32, "sum"), (np.float64, "sum"), (np.int32, "sum"), (np.int32, "max"), (np.int64, "sum")]
)
@pytest.mark.parametrize(("workers", "elements", "size"), [(1, 360, 1000), (2, 8, 2000), (7, 17, 1000), (64, 3, 50)])
@pytest.mark.parametrize("verify", ["off", "on"])
def test_results_are_those_of_python(dtype: type, op: str, workers: int, elements: int, size: int, verify: str) -> None:
    numbers = np.random.default_rng(workers)
    inputs = [(numbers.standard_normal(size) * 1e6).astype(dtype) for _ in range(workers)]
    room = elements + 3 * (verify == "on")
    job = JobConfig(1, 1, workers, room, (StreamConfig(0, 32),), verify=verify)
    results = [allreduce(core, job, inputs, op) for core in (Endpoint, NativeEndpoint)]
    assert all(array.tobytes() == results[0][0].tobytes() for arrays_ in results for array in arrays_)
    if dtype in (np.int32, np.int64):
        want = np.max(inputs, axis=0) if op == "max" else np.sum(inputs, axis=0, dtype=dtype)
        assert results[1][0].tolist() == want.tolist()


def answered(frames: NDArray[np.uint8], values: Array | None = None) -> NDArray[np.uint8]:
    """The results of a worker alone; with other values where they are given."""
    results = frames.copy()
    results[:, FLAGS_AT] |= FLAG_RESULT
    if values is not None:
        results[:, HEADER_BYTES:] = values.astype(">i4").view(np.uint8)
    return results


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.filterwarnings("ignore:.* encountered")
def test_any_agreed_codes_and_sums_are_safe(dtype: type) -> None:
    """What only a broken worker or switch sends: codes outside their range, or below a worker's own.

    What becomes of a float beyond the integers is the machine's choice; on x86 both cores give what it gives.
    """
    job = JobConfig(1, 1, 2, 6, (StreamConfig(0, 64),))
    numbers = np.random.default_rng(5)
    codes = np.array(
        [2**31 - 1, -(2**31), 5000, -5000, NONFINITE + 1, ZERO - 1, 40, -40, 0, 130, -150, 32766], np.int32
    )
    results = []
    frames: list[list[bytes]] = []
    sums = numbers.integers(-(2**31), 2**31, (200, 6)).astype(np.int32)
    for core in (Endpoint, NativeEndpoint):
        array = np.random.default_rng(3).standard_normal(60).astype(dtype)
        endpoint = core(job, 0)
        endpoint.submit(0, array_call(array, "sum", job))
        frames.append([])
        while len(sent := endpoint.frames_to_send(0)):
            frames[-1].append(sent.tobytes())
            is_scale = sent[:, 2] & 15 == Op.MAX
            values = sums[: len(sent)].copy()
            values[is_scale] = np.resize(codes, (int(is_scale.sum()), 6))
            endpoint.receive(answered(sent, values), 1)
        assert isinstance(endpoint.next_event(), CallCompleted)
        results.append(array.tobytes())
    assert results[0] == results[1]
    if platform.machine() in ("x86_64", "AMD64"):
        assert frames[0] == frames[1]


def test_the_core_holds_little_beyond_the_arrays() -> None:
    """At most two frames per slot, though nothing is copied; beyond that only 2 bytes per chunk of floats, its code."""
    window, elements = 256, 360
    job = JobConfig(1, 1, 4, elements, (StreamConfig(0, window),))
    endpoint = NativeEndpoint(job, 0)
    at_rest = endpoint.memory_bytes
    assert at_rest <= 2 * window * frame_bytes(elements)
    tensors = [np.zeros(64 << 20, np.uint8).view(dtype) for dtype in DTYPES[:4]]
    costs = []
    for tensor in tensors:
        before = endpoint.memory_bytes
        endpoint.submit(0, array_call(tensor, "sum", job))
        costs.append(endpoint.memory_bytes - before)
    chunks = [-(-(64 << 20) // (4 * elements)), -(-(64 << 20) // (8 * (elements // 3)))]
    assert [cost - min(costs) for cost in costs] == [2 * chunks[0], 2 * chunks[1], 0, 0]
    assert min(costs) < 512
    assert at_rest + costs[0] <= 2 * window * frame_bytes(elements)  # 93 KiB of codes for 64 MiB of float32


def test_memory_ends_with_the_call() -> None:
    job = JobConfig(1, 1, 1, 8, (StreamConfig(0, 4),))
    endpoint = NativeEndpoint(job, 0)
    at_rest = endpoint.memory_bytes
    for size in (0, 1, 100):
        array = np.ones(size, np.float32)
        endpoint.submit(0, array_call(array, "sum", job))
        assert endpoint.memory_bytes > at_rest
        while len(frames := endpoint.frames_to_send(0)):
            endpoint.receive(answered(frames), 0)
        event = endpoint.next_event()
        assert isinstance(event, CallCompleted)
        assert event.call.array is array  # type: ignore[union-attr]
        assert endpoint.memory_bytes == at_rest


def test_arrays_live_until_their_event_or_the_endpoint_ends() -> None:
    job = JobConfig(1, 1, 1, 8, (StreamConfig(0, 4),))
    endpoint = NativeEndpoint(job, 0)
    arrays_ = [np.ones(8, np.int32), np.ones(8, np.int32)]
    alive = [weakref.ref(array) for array in arrays_]
    for array in arrays_:
        endpoint.submit(0, array_call(array, "sum", job))
    del array, arrays_
    gc.collect()
    frames = endpoint.frames_to_send(0)
    endpoint.receive(answered(frames[:1]), 0)
    assert alive[0]() is not None
    assert isinstance(endpoint.next_event(), CallCompleted)
    assert [ref() is None for ref in alive] == [True, False]
    del endpoint
    gc.collect()
    assert alive[1]() is None


def test_only_validated_calls_are_accepted() -> None:
    endpoint = NativeEndpoint(JobConfig(1, 1, 1, 8, (StreamConfig(0, 4),)), 0)
    for stream, array in (
        (1, np.ones(8, np.float32)),
        (0, np.ones((2, 4), np.float32)),
        (0, np.ones(8, np.float32)[::2]),
        (0, np.frombuffer(bytes(8), np.float32)),
    ):
        with pytest.raises(AssertionError):
            endpoint.submit(stream, ArrayCall(array, Op.SUM, FIXED_POINT))
    with pytest.raises(ValueError, match="not in"):
        endpoint.submit(0, ArrayCall(np.ones(8, np.float16), Op.SUM, FIXED_POINT))


def test_a_missing_core_is_reported() -> None:
    program = (
        "from switchagg.native.native_endpoint import NativeEndpoint as N\n"
        "from switchagg.native.library import CoreMissing\n"
        "from switchagg.job import JobConfig, StreamConfig\n"
        "try: N(JobConfig(1, 1, 1, 8, (StreamConfig(0, 4),)), 0)\n"
        "except CoreMissing as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"SWITCHAGG_NATIVE": "0"}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "SWITCHAGG_NATIVE=0 asks to go without it; unset it\n"
    assert done.stderr == ""
