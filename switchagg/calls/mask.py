"""Masks of secret sums: rules X2 and X3; twin of native/rule/mask.c.

A rank adds to the words of a chunk the difference of two keystreams of ChaCha20 (RFC 8439), its own and the next
rank's. The sum of all ranks' words has of these the first and the last one left, and who has the key takes them off.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from switchagg.tag import KEY_BYTES

MASK_KEY_BYTES = 32

NO_KEY = bytes(KEY_BYTES + MASK_KEY_BYTES)
"""What endpoints take where nobody gives them a key: that of tags, and behind it that of masks."""

Words = NDArray[np.uint32]

_CONSTANTS = b"expand 32-byte k"
_BLOCK_WORDS = 16
_TWICE_ROUNDS = 20


def keystreams(key: bytes, nonces: Words, count: int) -> Words:
    """(k, count): keystreams of k nonces. key: 32 bytes; nonces: (k, 3).

    A keystream has as many blocks as hold `count` words, b; its element j is word j // b of block j mod b: so it comes
    from a processor's vectors, where a lane is a block, without being sorted (X2).
    """
    blocks = -(-count // _BLOCK_WORDS)
    start = np.empty((4, 4, len(nonces), blocks), np.uint32)
    start[:3] = np.frombuffer(_CONSTANTS + key, "<u4").reshape(3, 4, 1, 1)
    start[3, 0] = np.arange(blocks)
    start[3, 1:] = nonces.T[:, :, np.newaxis]
    a, b, c, d = start.copy()
    for number in range(_TWICE_ROUNDS):
        for changed, added, turned, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            changed += added
            turned ^= changed
            turned[:] = turned << np.uint32(bits) | turned >> np.uint32(32 - bits)
        step = 1 if number % 2 else -1  # what lies in columns and what in diagonals change places
        b, c, d = np.roll(b, step, 0), np.roll(c, 2 * step, 0), np.roll(d, 3 * step, 0)
    words: Words = (start + np.stack((a, b, c, d))).reshape(_BLOCK_WORDS, len(nonces), blocks)
    return words.transpose(1, 0, 2).reshape(len(nonces), -1)[:, :count]


def masks(key: bytes, streams: ArrayLike, chunks: ArrayLike, first: ArrayLike, end: ArrayLike, count: int) -> Words:
    """(k, count): what ranks first … end - 1 add to words of k chunks together: Z_first - Z_end, modulo 2**32 (X3).

    key: 32 bytes. chunks: unwrapped, (k,). streams, first, end: one for all chunks, or (k,).
    """
    numbers = np.asarray(chunks, np.uint64)
    nonces = np.empty((2, len(numbers), 3), np.uint32)
    nonces[:, :, 0], nonces[:, :, 1] = numbers & np.uint64(0xFFFFFFFF), numbers >> np.uint64(32)
    nonces[0, :, 2], nonces[1, :, 2] = np.asarray(first), np.asarray(end)
    nonces[:, :, 2] |= np.asarray(streams, np.uint32) << np.uint32(16)
    added, subtracted = keystreams(key, nonces.reshape(-1, 3), count).reshape(2, len(numbers), count)
    return added - subtracted
