"""64-bit integers in the int32 elements of a chunk, as three limbs (F6)."""

import numpy as np
from numpy.typing import NDArray

LIMB_BITS = 25

WORKERS_MOST = 128
"""Most ranks in a sum of limbs, which are read without a sign: 128 times (2**25 - 1) stays below 2**32."""

LIMBS = 3


def to_limbs(values: NDArray[np.int64], elements: int) -> NDArray[np.int32]:
    """(k, elements) int32 that carry (k, elements // 3) int64: low limbs first, then middle, high, then zeros (F6)."""
    count, width = values.shape
    bits = values.view(np.uint64)
    limbs = np.zeros((count, elements), np.int32)
    mask = np.uint64((1 << LIMB_BITS) - 1)
    for limb in range(LIMBS):
        part = (bits >> np.uint64(limb * LIMB_BITS)) & mask
        limbs[:, limb * width : (limb + 1) * width] = part.astype(np.int32)
    return limbs


def from_limbs(sums: NDArray[np.int32]) -> NDArray[np.int64]:
    """(k, elements // 3) int64 of summed limbs, exact modulo 2**64 (F6)."""
    width = sums.shape[1] // LIMBS
    parts = sums.view(np.uint32).astype(np.uint64)
    total = np.zeros((sums.shape[0], width), np.uint64)
    for limb in range(LIMBS):
        total += parts[:, limb * width : (limb + 1) * width] << np.uint64(limb * LIMB_BITS)
    return total.view(np.int64)
