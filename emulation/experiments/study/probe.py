"""The effects of a codec of rows on values: its error on one rank, clipped lanes, and lanes that overflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from emulation.experiments.study.wire_bytes import ELEMENTS
from switchagg.calls.chunked_call import row_of
from switchagg.codecs import Array, CallShape, Codec
from switchagg.codecs.rounding import call_key

SCALED = ("lanes", "ternary", "qsgd", "fp16", "bf16")
"""Codecs whose agreed code is the upper half of a float32, the scale: what exceeds it is clipped."""


def probe(codec: Codec, calls: Sequence[Sequence[Array]], fed: bool, number: int) -> dict[str, Any]:
    """Errors of several sums; a sum is a list of every rank's array.

    own: mean over ranks of ||C(v) - v||² / ||v||². clipped: share of values beyond the agreed scale; None: the codec
    has none. carried: lanes whose sum isn't that of the ranks' lanes, which must be none; None without lanes.
    """
    squares = np.zeros((2, len(calls[0])))
    clipped = counted = carried = 0
    bits = getattr(codec, "lane_bits", 0)
    for arrays in calls:
        words, width = row_of(np.dtype(np.float32), ELEMENTS, codec)
        rows = -(-len(arrays[0]) // width)
        values = [np.zeros((rows, width), np.float32) for _ in arrays]
        for padded, array in zip(values, arrays, strict=True):
            padded.reshape(-1)[: len(array)] = array
        everything = slice(0, rows)
        keys = [call_key(number, rank, 0, 0) for rank in range(len(arrays))]
        shapes = [CallShape(np.dtype(np.float32), rows, words, len(arrays), key, fed) for key in keys]
        codings = list(map(codec.begin, shapes))
        if codec.rounds:
            rank_codes = [coding.prepare(block, everything) for coding, block in zip(codings, values, strict=True)]
            codes = np.maximum.reduce(rank_codes)
            for coding in codings:
                coding.agree(0, codes)
            if codec.name.startswith(SCALED):
                scales = (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)[:, np.newaxis]
                clipped += sum(int((np.abs(block) > scales).sum()) for block in values)
                counted += sum(map(len, arrays))
        encoded = [
            np.ascontiguousarray(coding.encode(block, everything))
            for coding, block in zip(codings, values, strict=True)
        ]
        for rank, coding in enumerate(codings):
            coding.ranks = 1
            decoded = coding.decode(encoded[rank], everything)
            squares[0, rank] += np.square(decoded - values[rank], dtype=np.float64).sum()
            squares[1, rank] += np.square(values[rank], dtype=np.float64).sum()
        if bits:
            of_ranks = [_lanes(block, bits) for block in encoded]
            sums = _lanes(np.add.reduce(encoded, dtype=np.int32), bits)
            carried += int((np.sum(of_ranks, axis=0) != sums).sum())
    shares = [float(error / norm) for error, norm in squares.T if norm]
    return {
        "own": float(np.mean(shares)) if shares else None,
        "clipped": clipped / counted if counted else None,
        "carried": carried if bits else None,
    }


def _lanes(words: Array, bits: int) -> Array:
    """(lanes, …) int64: what each holds."""
    shifts = np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits)
    lanes: Array = (words.view(np.uint32)[np.newaxis] >> shifts[:, *[np.newaxis] * words.ndim]).astype(np.int64)
    return lanes & ((1 << bits) - 1)
