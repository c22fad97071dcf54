"""Bytes that a rank's link carries for the collectives of a codec, through a switch: every packet, with its headers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from switchagg.calls.array_calls import array_call, chunked_call
from switchagg.codecs import FIXED_POINT, PLAIN, Array, Codec
from switchagg.codecs.array_codec import SUM, Reduction, SumTerms, Tensors
from switchagg.codecs.compression import Compression
from switchagg.codecs.spec import CodecSpec
from switchagg.description import Kind
from switchagg.job import JobConfig, StreamConfig
from switchagg.layout import Layout, shares_of
from switchagg.wire import HEADER_BYTES, frame_bytes
from transport.links.link_kinds import LINKS

ELEMENTS = 360
WINDOW = 256


FULL, EMPTY = (LINKS["udp"].framing.ethernet_bytes(size) for size in (frame_bytes(ELEMENTS), HEADER_BYTES))


@dataclass
class WireTraffic:
    """The traffic of a rank, summed up. up, down: bytes of Ethernet frames; rounds: dependent collectives."""

    workers: int
    up: int = 0
    down: int = 0
    rounds: int = 0

    def add(self, reduction: Reduction) -> None:
        """A collective that all ranks carry out."""
        up, down = carried(
            reduction.kind, reduction.array.size, reduction.array.dtype, reduction.op, reduction.codec, self.workers
        )
        self.up += up
        self.down += down
        self.rounds += 1 + (reduction.codec.rounds if reduction.codec else reduction.array.dtype.kind == "f")


@cache
def carried(kind: Kind, size: int, dtype: np.dtype[Any], op: str, codec: Codec | None, workers: int) -> tuple[int, int]:
    """Bytes that a rank sends and gets for one collective: scales, and the packet that describes it (W12), included."""
    if size == 0:
        return 0, 0
    if kind == "all_gather":  # in others' chunks a rank says nothing, but says so (W14)
        layout = Layout(shares_of(kind), size * dtype.itemsize, 4 * ELEMENTS, workers)
        local, remote = layout.rows, layout.chunks - layout.rows
        return FULL * (1 + local) + EMPTY * remote, FULL * (1 + remote) + EMPTY * local
    job = JobConfig(1, 1, workers, ELEMENTS, (StreamConfig(0, WINDOW),))
    codec = codec or (FIXED_POINT if dtype.kind == "f" else PLAIN)
    call = chunked_call(array_call(np.zeros(size, dtype), op, job, codec), job)
    return FULL * (1 + call.chunks), FULL * (1 + call.chunks)


class CountedCompression(Compression):
    """A rank's compression whose collectives are counted."""

    def __init__(self, spec: CodecSpec, rank: int, workers: int, seed: int = 0) -> None:
        super().__init__(spec, rank, workers, seed)
        self.traffic = WireTraffic(workers)

    def rounds(self, array: Array, tensors: Tensors | None, key: int = 0, terms: SumTerms = SUM) -> Iterator[Reduction]:
        """As of `Compression`."""
        for reduction in super().rounds(array, tensors, key, terms):
            self.traffic.add(reduction)
            yield reduction
