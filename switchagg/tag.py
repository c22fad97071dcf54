"""The arithmetic of tags, by which workers verify sums (V2 to V5): SipHash-2-4, and a linear hash modulo
2**61 - 1. Pure; twin of native/rule/tag.c. calls/verified_sums.py says what endpoints do with it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.job import TAG_ELEMENTS
from switchagg.wire import Values

PRIME = (1 << 61) - 1
LIMB_BITS = 21
KEY_BYTES = 16

COEFFICIENT, PAD, CODE_GIVER = range(3)
"""Domains: what a pseudorandom number is for."""

BLOCK = 512
"""Elements whose products with limbs, of 53 bits, add up to fewer than 2**63."""

Words = NDArray[np.uint64]

Runs = Sequence[tuple[int, int]]
"""Ranks first … end - 1, of each run."""


def siphash(key: bytes, *words: Words) -> Words:
    """SipHash-2-4 (Aumasson, Bernstein) of messages, as little-endian words of equal shapes. key: KEY_BYTES."""
    k0, k1 = np.frombuffer(key, "<u8").astype(np.uint64)
    state = [
        np.full(words[0].shape, half ^ np.uint64(constant), np.uint64)
        for half, constant in (
            (k0, 0x736F6D6570736575),
            (k1, 0x646F72616E646F6D),
            (k0, 0x6C7967656E657261),
            (k1, 0x7465646279746573),
        )
    ]
    for word in (*words, np.full_like(words[0], (8 * len(words)) << 56)):
        state[3] ^= word
        _rounds(state, 2)
        state[0] ^= word
    state[2] ^= np.uint64(0xFF)
    _rounds(state, 4)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _rounds(state: list[Words], count: int) -> None:
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 = v0 + v1
        v2 = v2 + v3
        v1 = _rotated(v1, 13) ^ v0
        v3 = _rotated(v3, 16) ^ v2
        v0 = _rotated(v0, 32) + v3
        v2 = v2 + v1
        v1 = _rotated(v1, 17) ^ v2
        v3 = _rotated(v3, 21) ^ v0
        v2 = _rotated(v2, 32)
    state[:] = v0, v1, v2, v3


def _rotated(words: Words, bits: int) -> Words:
    rotated: Words = words << np.uint64(bits) | words >> np.uint64(64 - bits)
    return rotated


def random_numbers(key: bytes, domain: int, chunk: Any, stream: int = 0, index: Any = 0, code: Any = 0) -> list[int]:
    """P(domain, chunk, stream, index, code) of V2. chunk, index, code: numbers or arrays that broadcast to 1-D."""
    codes = np.asarray(code, np.int64).astype(np.uint64) << np.uint64(32)  # i32 in the upper half
    indices = np.asarray(index, np.uint64) << np.uint64(16)
    second = codes | indices | np.uint64(stream | domain << 8)
    first, second = np.broadcast_arrays(np.atleast_1d(np.asarray(chunk, np.uint64)), np.atleast_1d(second))
    return [number % PRIME for number in (siphash(key, first, second) >> np.uint64(3)).tolist()]


class SumTags:
    """The tags of one job's sums. key: of the generation (V1). covered: elements of a chunk before its tag."""

    def __init__(self, key: bytes, covered: int) -> None:
        self._key, self._covered = key, covered
        coefficients = np.array(random_numbers(key, COEFFICIENT, np.arange(covered)), np.int64)
        limbs = [coefficients >> LIMB_BITS * limb & ((1 << LIMB_BITS) - 1) for limb in range(TAG_ELEMENTS)]
        self._limbs = np.stack(limbs, axis=1)
        self._of_code = random_numbers(key, CODE_GIVER, 0)[0]
        self._inverse = pow(self._of_code, PRIME - 2, PRIME)

    def hashes(self, values: Values, signed: bool) -> list[int]:
        """(k,): the sum of coefficients times elements, of (k, E) values, as V3 reads them."""
        words = np.ascontiguousarray(values[:, : self._covered])
        words = (words if signed else words.view(np.uint32)).astype(np.int64)
        totals = [0] * len(words)
        for first in range(0, self._covered, BLOCK):
            block = slice(first, first + BLOCK)
            totals = [
                total + _number(sums)
                for total, sums in zip(totals, (words[:, block] @ self._limbs[block]).tolist(), strict=True)
            ]
        return [total % PRIME for total in totals]

    def pads(self, stream: int, chunks: Sequence[int], codes: Sequence[int], givers: Sequence[Runs]) -> list[int]:
        """(k,): of each chunk the sum of G_w - G_(w+1) over the ranks that give (V5)."""
        rows = [row for row, runs in enumerate(givers) for _ in runs for _ in range(2)]
        totals = [0] * len(chunks)
        if rows:
            indices = [index for runs in givers for run in runs for index in run]
            chunk_of, code_of = np.array(chunks, np.uint64)[rows], np.array(codes, np.int64)[rows]
            numbers = random_numbers(self._key, PAD, chunk_of, stream, np.array(indices), code_of)
            for place, row in enumerate(rows):
                totals[row] += -numbers[place] if place % 2 else numbers[place]
        return totals

    def tags(
        self,
        rank: int,
        stream: int,
        chunks: Sequence[int],
        codes: Sequence[int],
        has_code: Sequence[bool],
        values: Values,
        signed: bool,
    ) -> NDArray[np.int32]:
        """(k, 3): what a rank puts into the last elements of chunks (V4). has_code: its own code is the agreed one."""
        pads = self.pads(stream, chunks, codes, [((rank, rank + 1),)] * len(chunks))
        numbers = [
            (number + pad + self._of_code * has) % PRIME
            for number, pad, has in zip(self.hashes(values, signed), pads, has_code, strict=True)
        ]
        wide = np.array(numbers, np.int64)[:, np.newaxis] >> np.arange(TAG_ELEMENTS) * LIMB_BITS
        return (wide & ((1 << LIMB_BITS) - 1)).astype(np.int32)

    def code_givers(
        self,
        stream: int,
        chunks: Sequence[int],
        codes: Sequence[int],
        givers: Sequence[Runs],
        values: Values,
        signed: bool,
    ) -> list[int]:
        """(k,): m of V5 for results (k, E): how many times u is in what is left of each; 0 where nothing is left."""
        limbs = values[:, self._covered :].astype(np.int64) & 0xFFFFFFFF
        parts = zip(limbs.tolist(), self.hashes(values, signed), self.pads(stream, chunks, codes, givers), strict=True)
        return [(_number(tag) - number - pad) * self._inverse % PRIME for tag, number, pad in parts]


def _number(limbs: Sequence[int]) -> int:
    """The number that has these limbs, of any size and sign."""
    return sum(limb << LIMB_BITS * place for place, limb in enumerate(limbs))
