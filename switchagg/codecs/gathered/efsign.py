"""`efsign`: the sign of each value in one bit, and of each tensor the mean magnitude, ||v||_1 / d (EF-signSGD)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from switchagg.codecs.array_codec import ArrayCodec, ArrayShape, Memory, Reduction
from switchagg.codecs.codec import Array
from switchagg.codecs.gathered.choosing import spans
from switchagg.codecs.gathered.packing import Words, bit_words, gather, pack_bits
from switchagg.description import Kind

_SIGNS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1, bitorder="little").view(np.bool_)
_BLOCK = 1 << 12
"""Bytes of signs that are looked up at once: their values stay in the cache."""


@dataclass(frozen=True)
class EfSign(ArrayCodec):
    """A tensor with a value that isn't finite arrives as such values; it leaves no residual."""

    name: ClassVar[str] = "efsign"
    adds: ClassVar[bool] = False
    rounds: ClassVar[int] = 1
    needs_feedback: ClassVar[bool] = True

    def moved(self, values: int, workers: int) -> Mapping[Kind, float]:
        return {"all_gather": 4.0 * workers * (bit_words(values) + 1)}

    def rounds_of(
        self, values: Array, residual: Array | None, shape: ArrayShape, memory: Sequence[Memory]
    ) -> Iterator[Reduction]:
        parts = [part for part in spans(shape.tensors) if part.stop > part.start]
        scales = np.array([np.abs(values[part]).mean(dtype=np.float64) for part in parts], np.float32)
        signs = [pack_bits(np.signbit(values[part])) for part in parts]
        words = np.concatenate([scales.view(np.int32), *signs])
        if residual is not None:
            residual[:] = values
            known = np.where(np.isfinite(scales), scales, 0)
            _add(residual, parts, np.concatenate([(-known).view(np.int32), *signs])[np.newaxis])
            for part in np.array(parts)[~np.isfinite(scales)]:
                residual[part] = 0
        everyones = yield from gather(words, shape.rank, shape.workers)
        values[:] = 0
        _add(values, parts, everyones)


def _add(total: Array, parts: Sequence[slice], ranks: Words) -> None:
    """Add what words stand for, those of a rank behind those of another; by blocks, which stay in the cache."""
    at, looked_up = len(parts), np.empty((_BLOCK, 8), np.float32)
    for number, part in enumerate(parts):
        into = total[part]
        octets = ranks[:, at : at + bit_words(len(into))].view(np.uint8)
        at += bit_words(len(into))
        tables = [np.where(_SIGNS, -scale, scale) for scale in ranks[:, number].view(np.float32)]
        with np.errstate(invalid="ignore", over="ignore"):
            for first in range(0, octets.shape[1], _BLOCK):
                block = into[8 * first : 8 * (first + _BLOCK)]
                for table, octet_row in zip(tables, octets[:, first : first + _BLOCK], strict=True):
                    values = looked_up[: len(octet_row)]
                    np.take(table, octet_row, axis=0, out=values, mode="clip")
                    block += values.reshape(-1)[: len(block)]
