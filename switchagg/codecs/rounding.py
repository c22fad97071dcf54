"""Numbers to round at random with: rule F10. A hash of a counter, so there is no state to keep: a row
that is encoded again is rounded as before, and a run that is repeated has the same bits on every machine."""

import numpy as np
from numpy.typing import NDArray

PAIRS = 4
"""Most pairs of lanes in a word: each has a sequence of its own."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    """A permutation of 64-bit numbers whose results look random (the last steps of splitmix64)."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def call_key(seed: int, rank: int, stream: int, number: int) -> int:
    """K of a call: another one for each rank and each call. seed: of the job, any integer. number: of the call, in its
    stream."""
    key = 0
    for part in (seed, rank, stream, number):
        key = _mix((key ^ part) + _GOLDEN & _MASK)
    return key


def draws(key: int, sequences: NDArray[np.uint64], count: int) -> NDArray[np.uint32]:
    """(*sequences.shape, count): the first numbers of these sequences of a call, uniform in 32 bits."""
    mixed = (sequences + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed = (mixed ^ mixed >> np.uint64(31))[..., np.newaxis]
    numbers: NDArray[np.uint32] = np.arange(count, dtype=np.uint32)
    words = hashes(mixed.astype(np.uint32) + numbers)
    words ^= (mixed >> np.uint64(32)).astype(np.uint32)
    return words


def hashes(numbers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The hash H of F10 of 32-bit numbers, which it overwrites."""
    numbers ^= numbers >> np.uint32(16)
    numbers *= np.uint32(0x7FEB352D)
    numbers ^= numbers >> np.uint32(15)
    numbers *= np.uint32(0x846CA68B)
    numbers ^= numbers >> np.uint32(16)
    return numbers
