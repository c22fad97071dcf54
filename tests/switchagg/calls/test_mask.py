"""Masks (X2): the block function against RFC 8439, the order of a keystream's words, and C as Python."""

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from switchagg.calls.mask import keystreams, masks
from switchagg.native import headers
from switchagg.native.library import load, missing
from tests.oracles.sum_tags import cases, chacha_block, mask_of

NEEDS_C = pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")
COUNTS = (1, 15, 16, 17, 357, 383, 384, 385, 1016, 2189, 15_997)
KEY = bytes(range(32))

# RFC 8439, 2.3.2 and A.1: key, block counter, nonce, block.
PUBLISHED = [
    (
        "00" * 32,
        0,
        "00" * 12,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        "00" * 32,
        1,
        "00" * 12,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        "00" * 31 + "01",
        1,
        "00" * 12,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        bytes(range(32)).hex(),
        1,
        "000000090000004a00000000",
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
]


def in_c(words: NDArray[np.uint32], key: bytes, place: tuple[int, int], indexes: tuple[int, int], shift: int) -> Any:
    """sa_mask on a payload that lies `shift` bytes behind an aligned place; in place where shift is odd."""
    library = load()
    frame, out = np.zeros(shift + 4 * len(words), np.uint8), np.zeros(shift + 4 * len(words), np.uint8)
    frame[shift:] = words.astype(">u4").view(np.uint8)
    target = frame if shift % 2 else out
    stream, chunk = place
    struct_of_key = headers.struct("sa_mask_key")(tuple(np.frombuffer(key, "<u4").tolist()))
    arguments = (chunk, stream, *indexes, frame.ctypes.data + shift, len(words), target.ctypes.data + shift)
    library.sa_mask(ctypes.byref(struct_of_key), *arguments)
    return target[shift:].view(">u4").astype(np.uint32)


def test_the_block_function_gives_what_the_rfc_prints() -> None:
    for key, counter, nonce, printed in PUBLISHED:
        assert chacha_block(bytes.fromhex(key), counter, bytes.fromhex(nonce)).hex() == printed
        nonces = np.frombuffer(bytes.fromhex(nonce), "<u4").reshape(1, 3)
        words = keystreams(bytes.fromhex(key), nonces, 32).reshape(16, 2)[:, counter]
        assert words.astype("<u4").tobytes().hex() == printed


@settings(max_examples=40, deadline=None)
@given(
    st.binary(min_size=32, max_size=32),
    *(st.integers(0, 2**bits - 1) for bits in (64, 8, 16, 16)),
    st.sampled_from([1, 16, 17, 40, 357]),
)
def test_masks_are_differences_of_keystreams(
    key: bytes, chunk: int, stream: int, first: int, end: int, count: int
) -> None:
    expected = mask_of(key, chunk, stream, first, end, count)
    assert masks(key, stream, [chunk], first, end, count)[0].tolist() == expected


def test_each_chunk_of_several_has_its_own_mask() -> None:
    streams, chunks, firsts, ends = [9, 9, 0], [7, 2**32 - 1, 2**40 + 3], [0, 1, 2], [5, 5, 6]
    several = masks(KEY, streams, chunks, firsts, ends, 40)
    for row, place in zip(several, zip(streams, chunks, firsts, ends, strict=True), strict=True):
        stream, chunk, first, end = place
        assert (row == masks(KEY, stream, [chunk], first, end, 40)[0]).all()


def test_masks_of_neighbours_leave_the_first_keystream_and_the_last() -> None:
    """And not nothing: who knows no key reads no sum (X3)."""
    ranks = [masks(KEY, 3, [2**33], rank, rank + 1, 357)[0] for rank in range(5)]
    total = np.sum(ranks, axis=0, dtype=np.uint32)
    assert (total == masks(KEY, 3, [2**33], 0, 5, 357)[0]).all()
    assert np.count_nonzero(total) > 350


@pytest.mark.parametrize("core", ["python", pytest.param("native", marks=NEEDS_C)])
@pytest.mark.parametrize("case", cases("v4_tags.json"), ids=lambda case: case["name"])
def test_x3_by_the_vectors(case: dict[str, Any], core: str) -> None:
    """A rank's words get its mask; a result without the masks of the ranks that give is the sum."""
    key, stream, chunk = bytes.fromhex(case["mask_key"]), case["stream"], case["chunk"]

    def masked(words: NDArray[np.uint32], first: int, end: int) -> NDArray[np.uint32]:
        if core == "python":
            return words + masks(key, stream, [chunk], first, end, len(words))[0]
        return in_c(words, key, (stream, chunk), (first, end), 0)

    left = np.array(case["secret_result"][:-3], np.uint32)
    for part in case["parts"]:
        rank = part["rank"]
        assert masked(np.array(part["words"], np.uint32), rank, rank + 1).tolist() == part["masked"]
        left = masked(left, rank + 1, rank)
    assert left.tolist() == case["result"][:-3]


@NEEDS_C
@pytest.mark.parametrize("count", COUNTS)
def test_c_gives_the_bits_of_python(count: int) -> None:
    numbers = np.random.default_rng(count)
    for shift in range(4):
        key, words = numbers.bytes(32), numbers.integers(0, 2**32, count, np.uint32)
        stream, chunk = int(numbers.integers(256)), int(numbers.integers(2**63)) >> shift * 16
        indexes = int(numbers.integers(2**16)), int(numbers.integers(2**16))
        expected = words + masks(key, stream, [chunk], *indexes, count)[0]
        assert (in_c(words, key, (stream, chunk), indexes, shift) == expected).all()
