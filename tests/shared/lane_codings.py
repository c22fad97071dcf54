"""Codecs of lanes on rows, calls and switches in memory, in Python and in C."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from switchagg.calls.array_calls import array_call, rounds_of
from switchagg.codecs import CallShape
from switchagg.codecs.codec import FLOAT32
from switchagg.codecs.lanes import Lanes, LaneScales
from switchagg.codecs.rounding import call_key
from switchagg.dataplane.reference import ReferencePlane
from switchagg.endpoint import CallCompleted, Endpoint
from switchagg.job import JobConfig
from switchagg.native.library import load, missing
from switchagg.native.native_codec import begin
from switchagg.native.native_endpoint import NativeEndpoint

CORES = [Endpoint] if missing() else [Endpoint, NativeEndpoint]
needs_core = pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")


def rows_of(lanes: Lanes, values: Any, words: int) -> Any:
    """(rows, width) copy, the last row padded with zeros."""
    width = words * lanes.values_per_word(FLOAT32)
    rows = np.zeros((-(-len(values) // width), width), np.float32)
    rows.reshape(-1)[: len(values)] = values
    return rows


def coding_of(lanes: Lanes, rows: int, words: int, workers: int, key: int = 0, nearest: bool = False) -> LaneScales:
    return lanes.begin(CallShape(FLOAT32, rows, words, workers, key, nearest))


def summed(lanes: Lanes, contributions: Sequence[Any], words: int) -> Any:
    """The sum of one array of each worker, as a switch adds: int32 that wrap."""
    rows = [rows_of(lanes, values, words) for values in contributions]
    every = slice(0, len(rows[0]))
    codings = [coding_of(lanes, every.stop, words, len(rows), call_key(1, rank, 0, 0)) for rank in range(len(rows))]
    codes = np.max([coding.prepare(own, every) for coding, own in zip(codings, rows, strict=True)], axis=0)
    total = np.zeros((every.stop, words), np.uint32)
    for coding, own in zip(codings, rows, strict=True):
        coding.agree(0, codes)
        total += coding.encode(own, every).view(np.uint32)
    return codings[0].decode(total.view(np.int32), every).reshape(-1)[: len(contributions[0])]


def in_c(
    lanes: Lanes, values: Any, codes: Any, words: int, workers: int, key: int = 0, nearest: bool = False
) -> tuple[Any, Any]:
    """(own codes, words in big-endian payloads) of the compiled core, from an array that lies anywhere."""
    around = np.zeros(4 * len(values) + 1, np.uint8)
    place = around[1:]
    place[:] = np.ascontiguousarray(values).view(np.uint8)
    coding = begin(lanes, FLOAT32, words, workers)
    coding.key = key
    coding.random &= not nearest
    own = np.empty(len(codes), np.int32)
    payload = np.full((len(codes), 4 * words + 20), 0xA5, np.uint8)
    library, agreed = load(), codes.astype(np.int16)
    library.sa_codec_prepare(ctypes.byref(coding), place.ctypes.data, len(values), own.ctypes.data)
    library.sa_codec_encode(
        ctypes.byref(coding),
        place.ctypes.data,
        len(values),
        agreed.ctypes.data,
        payload.ctypes.data + 20,
        payload.shape[1],
    )
    assert (payload[:, :20] == 0xA5).all()
    return own, payload[:, 20:].copy().view(">i4").astype(np.int32)


def back_in_c(lanes: Lanes, sums: Any, count: int, codes: Any, workers: int) -> Any:
    big_endian, agreed, values = sums.astype(">i4"), codes.astype(np.int16), np.full(count + 1, 77, np.float32)
    coding = begin(lanes, FLOAT32, sums.shape[1], workers)
    load().sa_codec_decode(
        ctypes.byref(coding),
        values.ctypes.data,
        count,
        agreed.ctypes.data,
        big_endian.ctypes.data,
        big_endian.strides[0],
    )
    assert values[-1] == 77
    return values[:-1]


def through_a_switch(core: Any, lanes: Lanes, inputs: Sequence[Any], job: JobConfig) -> list[Any]:
    """The arrays after one call through the reference switch."""
    switch = ReferencePlane(job.slots[1], job.elements)
    switch.admit(job, range(job.workers))
    endpoints = [core(job, rank) for rank in range(job.workers)]
    copies = [array.copy() for array in inputs]
    for rank, (endpoint, array) in enumerate(zip(endpoints, copies, strict=True)):
        call = array_call(array, "sum", job, lanes)
        call.key = call_key(7, rank, 0, 0)
        endpoint.submit(0, call)
    done = 0
    for turn in range(10_000):
        for rank, endpoint in enumerate(endpoints):
            for output in switch.process(endpoint.frames_to_send(turn), rank):
                for port in output.ports:
                    endpoints[port].receive(output.bundle, turn)
        done += sum(isinstance(endpoint.next_event(), CallCompleted) for endpoint in endpoints)
        if done == job.workers:
            return copies
    raise AssertionError("the call never ended")


def by_rounds(lanes: Lanes, inputs: Sequence[Any], elements: int) -> list[Any]:
    """The same as plain reductions."""
    copies = [array.copy() for array in inputs]
    runs = [
        rounds_of(array, elements, len(inputs), lanes, key=call_key(7, rank, 0, 0)) for rank, array in enumerate(copies)
    ]
    for parts in zip(*runs, strict=True):
        combine = np.maximum if parts[0][1] == "max" else np.add
        total = combine.reduce([words for words, _ in parts])
        for words, _ in parts:
            words[:] = total
    return copies
