"""switchagg/tag.py: SipHash against its published vectors, tags and verdicts against Python's integers (V2 to V5)."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchagg.calls.verified_sums import runs_of
from switchagg.tag import PRIME, SumTags, random_numbers, siphash
from tests.oracles import sum_tags

KEYS = st.binary(min_size=16, max_size=16)

# Aumasson, Bernstein: vectors.h of the reference implementation. The key is 00 01 ... 0f, message i is 00 01 ... i - 1.
PUBLISHED = {
    0: "310e0edd47db6f72",
    1: "fd67dc93c539f874",
    7: "37d1018bf50002ab",
    8: "6224939a79f5f593",
    15: "e545be4961ca29a1",
    16: "db9bc2577fcc2a3f",
}


def test_siphash_gives_what_its_authors_published() -> None:
    key = bytes(range(16))
    for size, digest in PUBLISHED.items():
        assert sum_tags.siphash(key, bytes(range(size))).to_bytes(8, "little").hex() == digest
    words = np.frombuffer(bytes(range(16)), "<u8").astype(np.uint64)
    assert siphash(key, words[:1], words[1:]).tobytes().hex() == PUBLISHED[16]


@settings(max_examples=200)
@given(
    KEYS,
    st.integers(0, 2**64 - 1),
    *(st.integers(0, most) for most in (255, 2, 2**16 - 1)),
    st.integers(-(2**31), 2**31 - 1),
)
def test_v2_a_pseudorandom_number_follows_from_its_arguments(
    key: bytes, chunk: int, stream: int, domain: int, index: int, code: int
) -> None:
    chunks = np.array([chunk, 0, chunk], np.uint64)
    numbers = random_numbers(key, domain, chunks, stream, index, code)
    expected = [sum_tags.number(key, domain, number, stream, index, code) for number in chunks.tolist()]
    assert numbers == expected
    assert random_numbers(key, domain, chunk, stream, index, code) == expected[:1]


def elements(data: st.DataObject, count: int) -> list[int]:
    extremes = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**21, PRIME % 2**32])
    return data.draw(st.lists(extremes | st.integers(0, 2**32 - 1), min_size=count, max_size=count))


def values_of(rows: list[list[int]]) -> Any:
    return np.array(rows, np.uint32).view(np.int32)


@settings(max_examples=100)
@given(KEYS, st.integers(1, 20), st.booleans(), st.data())
def test_v4_the_hash_is_that_of_integers(key: bytes, size: int, signed: bool, data: st.DataObject) -> None:
    rows = [elements(data, size + 3) for _ in range(3)]
    expected = [sum_tags.linear_hash(key, row[:size], signed) for row in rows]
    assert SumTags(key, size).hashes(values_of(rows), signed) == expected


@pytest.mark.parametrize("size", [357, 511, 512, 513, 1025, 15_997])
@pytest.mark.parametrize("signed", [False, True])
def test_the_hash_of_long_and_full_rows(size: int, signed: bool) -> None:
    key = bytes(range(100, 116))
    rows = [[2**32 - 1] * size, [2**31] * size, [2**31 - 1] * size]
    padded = [[*row, 0, 0, 0] for row in rows]
    coefficients = sum(sum_tags.number(key, 0, place) for place in range(size))
    expected = [(row[0] - 2**32 * (signed and row[0] >= 2**31)) * coefficients % PRIME for row in rows]
    assert SumTags(key, size).hashes(values_of(padded), signed) == expected


@pytest.mark.parametrize("name", sum_tags.FILES)
def test_the_vectors_are_the_oracles(name: str) -> None:
    assert (sum_tags.FOLDER / name).read_text() == sum_tags.FILES[name]()


@pytest.mark.parametrize("case", sum_tags.cases("v4_tags.json"), ids=lambda case: case["name"])
def test_v4_and_v5_by_the_vectors(case: dict[str, Any]) -> None:
    tags = SumTags(bytes.fromhex(case["key"]), len(case["result"]) - 3)
    place = case["stream"], [case["chunk"]], [case["code"]]
    ranks = 0
    for part in case["parts"]:
        values = values_of([part["words"] + [0, 0, 0]])
        tag = tags.tags(part["rank"], *place, [part["has_code"]], values, case["signed"])
        assert tag.tolist() == [part["tag"]]
        ranks |= 1 << part["rank"]
    result = values_of([case["result"]])
    assert tags.code_givers(*place, [runs_of(ranks)], result, case["signed"]) == [case["code_givers"]]


@settings(max_examples=100)
@given(KEYS, st.integers(1, 2**12 - 1), st.booleans(), st.data())
def test_v5_the_verdict_is_the_oracles(key: bytes, ranks: int, signed: bool, data: st.DataObject) -> None:
    """Of right sums and of wrong ones, whatever ranks give."""
    size, stream, chunk, code = 4, 3, data.draw(st.integers(0, 2**64 - 1)), data.draw(st.integers(-200, 200))
    present = [rank for rank in range(12) if ranks >> rank & 1]
    total = [0] * (size + 3)
    for rank in present:
        words = data.draw(st.lists(st.integers(0, 2**27), min_size=size, max_size=size))
        tag = sum_tags.tag_of(key, rank, stream, chunk, code, data.draw(st.booleans()), words, signed)
        total = [(a + b) % 2**32 for a, b in zip(total, [*words, *tag], strict=True)]
    wrong = data.draw(st.sampled_from([None, *range(size + 3)]))
    if wrong is not None:
        total[wrong] ^= 1 << data.draw(st.integers(0, 31))
    expected = sum_tags.code_givers(key, stream, chunk, code, present, total, signed)
    assert (expected is None) is (wrong is not None)
    tags = SumTags(key, size)
    counted = tags.code_givers(stream, [chunk], [code], [runs_of(ranks)], values_of([total]), signed)[0]
    assert counted == expected if expected is not None else counted > len(present)


@given(st.integers(0, 2**63 - 1))
def test_runs_are_those_of_the_bitmap(ranks: int) -> None:
    runs = runs_of(ranks)
    assert [rank for first, end in runs for rank in range(first, end)] == [r for r in range(63) if ranks >> r & 1]
    assert all(first < end for first, end in runs)
    assert all(end < first for (_, end), (first, _) in itertools.pairwise(runs))
