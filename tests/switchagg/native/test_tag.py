"""native/rule/tag: SipHash against its published vectors, the linear hash against Python's integers (V2)."""

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from switchagg.native import headers
from switchagg.native.library import load, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")

PRIME = 2**61 - 1
COUNTS = (1, 2, 15, 16, 17, 357, 2047, 2048, 2049, 4096, 16_000)
EXTREMES = np.array([0, 1, -1, 2**31 - 1, -(2**31), 2**30, -(2**30)], np.int32)

# Aumasson, Bernstein: vectors.h of the reference implementation, SipHash-2-4 of 64 bits. The key is 00 01 ... 0f,
# message i is 00 01 ... i - 1; here are those of whole words.
PUBLISHED = """
310e0edd47db6f72 6224939a79f5f593 db9bc2577fcc2a3f 94af49f6c650adb8
ce7cf2722f512771 d0a704536ba93e0e 51a9cb9ecba312e6 bd838d3aafbf8db7
"""


def key_of(text: bytes) -> Any:
    return headers.struct("sa_tag_key")(tuple(np.frombuffer(text, "<u8").tolist()))


def siphash(key: Any, message: bytes) -> int:
    words = np.frombuffer(message, "<u8").astype(np.uint64)
    number: int = load().sa_siphash(ctypes.byref(key), words.ctypes.data, len(words))
    return number


def random_of(key: Any, chunk: int, stream: int, domain: int, index: int, code: int) -> int:
    number: int = load().sa_tag_random(ctypes.byref(key), chunk, stream, domain, index, code)
    return number


class Hash:
    """The hash of a key in C, with its coefficients as Python integers. wide: for processors that multiply 52 bits."""

    def __init__(self, key: bytes, count: int, wide: bool = True) -> None:
        self.memory = np.full(4 * (count + 16) + 16, 2**32 - 1, np.uint32)  # SA_HASH_MEMORY, of anything
        self.count = count
        self.struct = headers.struct("sa_linear_hash")()
        random, place = key_of(key), self.memory.ctypes.data
        load().sa_linear_hash_init(ctypes.byref(self.struct), ctypes.byref(random), count, place, wide)
        self.coefficients = [random_of(random, j, 0, 0, 0, 0) for j in range(count)]

    def of(self, words: NDArray[np.int32], signed: bool, shift: int = 0) -> int:
        frame = np.zeros(shift + 4 * len(words), np.uint8)
        frame[shift:] = words.astype(">i4").view(np.uint8)
        place = ctypes.byref(self.struct), frame.ctypes.data + shift
        answer: int = load().sa_hash_signed(*place) if signed else load().sa_hash_unsigned(*place, len(words))
        return answer

    def expected(self, words: NDArray[np.int32], signed: bool) -> int:
        numbers = (words if signed else words.view(np.uint32)).tolist()
        return sum(r * w for r, w in zip(self.coefficients, numbers, strict=False)) % PRIME


def test_siphash_gives_what_its_authors_published() -> None:
    key = key_of(bytes(range(16)))
    for count, vector in enumerate(PUBLISHED.split()):
        assert siphash(key, bytes(range(8 * count))).to_bytes(8, "little").hex() == vector


@settings(max_examples=300)
@given(
    st.binary(min_size=16, max_size=16),
    *(st.integers(0, 2**bits - 1) for bits in (64, 8, 8, 16)),
    st.integers(-(2**31), 2**31 - 1),
)
def test_a_pseudorandom_number_is_the_hash_of_its_arguments(
    text: bytes, chunk: int, stream: int, domain: int, index: int, code: int
) -> None:
    key = key_of(text)
    message = chunk.to_bytes(8, "little") + bytes([stream, domain]) + index.to_bytes(2, "little")
    number = siphash(key, message + code.to_bytes(4, "little", signed=True)) >> 3
    assert random_of(key, chunk, stream, domain, index, code) == number % PRIME


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_the_hash_is_that_of_pythons_integers(count: int, signed: bool, wide: bool) -> None:
    numbers = np.random.default_rng(count)
    hashed = Hash(numbers.bytes(16), count, wide)
    assert all(0 <= coefficient < PRIME for coefficient in hashed.coefficients)
    rows = [np.full(count, extreme, np.int32) for extreme in EXTREMES]
    rows += [numbers.choice(EXTREMES, count), numbers.integers(-(2**31), 2**31, count).astype(np.int32)]
    for shift, words in enumerate(rows):
        assert hashed.of(words, signed, shift % 4) == hashed.expected(words, signed)


@pytest.mark.parametrize("wide", [False, True])
def test_the_hash_holds_at_the_greatest_sums(wide: bool) -> None:
    """Coefficients that no key gives: all bits but one, as far as 2^61 - 2 allows, and words of 2^32 - 1."""
    count = 16_000
    hashed = Hash(bytes(16), count, wide)
    start = -hashed.memory.ctypes.data % 64 // 4
    if hashed.struct.wide:
        halves = hashed.memory[start:].view(np.uint64)[: 2 * count].reshape(2, count)
        halves[:] = [[PRIME - 1], [(PRIME - 1) >> 52]]
    else:
        limbs = hashed.memory[start:][: 3 * count].reshape(3, count)
        limbs[:] = [[2**21 - 2], [2**21 - 1], [2**19 - 1]]
    words = np.full(count, -1, np.int32)
    assert hashed.of(words, False) == (PRIME - 1) * (2**32 - 1) * count % PRIME


@settings(max_examples=100)
@given(st.binary(min_size=16, max_size=16), st.integers(1, 40), st.data())
def test_the_hash_of_a_sum_is_the_sum_of_hashes(key: bytes, count: int, data: st.DataObject) -> None:
    """Where no word of the sum wraps, in either reading."""
    hashed = Hash(key, count)
    words = st.lists(st.integers(-(2**29), 2**29), min_size=count, max_size=count)
    first, second = (np.array(data.draw(words), np.int32) for _ in range(2))
    total = (hashed.of(first, True) + hashed.of(second, True)) % PRIME
    assert hashed.of(first + second, True) == total
    first, second = np.abs(first), np.abs(second)
    total = (hashed.of(first, False) + hashed.of(second, False)) % PRIME
    assert hashed.of(first + second, False) == total
    assert hashed.of(first, False) == hashed.of(first, True)  # of numbers without a sign, the two readings are one


def test_the_hash_of_the_first_words_alone() -> None:
    """A payload may be shorter than the coefficients: as of a header-only packet."""
    numbers = np.random.default_rng(1)
    hashed = Hash(numbers.bytes(16), 360)
    words = numbers.integers(-(2**31), 2**31, 360).astype(np.int32)
    for count in (0, 1, 357, 359):
        assert hashed.of(words[:count], False) == hashed.expected(words[:count], False)
