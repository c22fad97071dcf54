"""The tags of verified sums in Python's integers, written from rules V2 to V5 alone: what both cores are compared with.

`python tests/oracles/sum_tags.py > tests/vectors/v4_tags.json` writes the vectors; nothing of the product is imported.
"""

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

PRIME = 2**61 - 1
MASK = 2**64 - 1


def siphash(key: bytes, message: bytes) -> int:
    """SipHash-2-4 as its paper has it (Aumasson and Bernstein, 2012)."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def turn(x: int, bits: int) -> int:
        return (x << bits | x >> 64 - bits) & MASK

    def rounds(count: int) -> None:
        for _ in range(count):
            for a, b, bits in ((0, 1, 13), (2, 3, 16)):
                v[a] = v[a] + v[b] & MASK
                v[b] = turn(v[b], bits) ^ v[a]
            v[0] = turn(v[0], 32)
            for a, b, bits in ((2, 1, 17), (0, 3, 21)):
                v[a] = v[a] + v[b] & MASK
                v[b] = turn(v[b], bits) ^ v[a]
            v[2] = turn(v[2], 32)

    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) & 255])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def number(key: bytes, domain: int, chunk: int, stream: int = 0, index: int = 0, code: int = 0) -> int:
    """P of V2."""
    message = chunk.to_bytes(8, "little") + bytes([stream, domain]) + index.to_bytes(2, "little")
    return (siphash(key, message + code.to_bytes(4, "little", signed=True)) >> 3) % PRIME


def linear_hash(key: bytes, words: Sequence[int], signed: bool) -> int:
    """The sum of coefficients times words; words: of 32 bits, in any reading."""
    total = 0
    for place, word in enumerate(words):
        value = word % 2**32
        value -= 2**32 if signed and value >= 2**31 else 0
        total += number(key, 0, place) * value
    return total % PRIME


def tag_of(
    key: bytes, rank: int, stream: int, chunk: int, code: int, has_code: bool, words: Sequence[int], signed: bool
) -> list[int]:
    """The three elements by which a rank ends a chunk (V4)."""
    pads = number(key, 1, chunk, stream, rank, code) - number(key, 1, chunk, stream, rank + 1, code)
    tag = (linear_hash(key, words, signed) + pads + (number(key, 2, 0) if has_code else 0)) % PRIME
    return [tag % 2**21, (tag >> 21) % 2**21, tag >> 42]


def code_givers(
    key: bytes, stream: int, chunk: int, code: int, ranks: Iterable[int], elements: Sequence[int], signed: bool
) -> int | None:
    """The m of V5 of a result of these ranks, tag included, tried one by one; None: it is a wrong sum for any m."""
    ranks, words, limbs = list(ranks), elements[:-3], [element % 2**32 for element in elements[-3:]]
    left = limbs[0] + 2**21 * limbs[1] + 2**42 * limbs[2] - linear_hash(key, words, signed)
    for rank in ranks:
        left -= number(key, 1, chunk, stream, rank, code) - number(key, 1, chunk, stream, rank + 1, code)
    unit = number(key, 2, 0)
    return next((m for m in range(len(ranks) + 1) if (left - m * unit) % PRIME == 0), None)


def vectors(seed: int = 4) -> list[dict[str, Any]]:
    """Chunks of several ranks: each rank's words and tag, and the result, of which each element is their sum."""
    rng = random.Random(seed)
    cases = []
    for name, workers, size, signed, coded, ranks in (
        ("fixed point of four ranks", 4, 9, True, True, range(4)),
        ("lanes of three ranks", 3, 9, False, True, range(3)),
        ("integers of two ranks", 2, 9, False, False, range(2)),
        ("one rank", 1, 5, False, False, range(1)),
        ("all but the owner, rank 1", 4, 9, True, True, (0, 2, 3)),
        ("the owner, rank 2", 4, 9, False, False, (2,)),
        ("a partial sum of ranks 0, 1, 4", 5, 9, True, True, (0, 1, 4)),
        ("a full packet of eight ranks", 8, 357, True, True, range(8)),
        ("the last chunk and stream", 3, 9, True, True, range(3)),
        ("the greatest words", 2, 9, False, False, range(2)),
    ):
        key = rng.randbytes(16)
        stream, chunk, code = rng.randrange(256), rng.randrange(2**40), rng.randrange(-148, 129) if coded else 0
        if name.startswith("the last"):
            key, stream, chunk, code = bytes([255]) * 16, 255, 2**64 - 1, -32768
        parts, total = [], [0] * (size + 3)
        most = 2**31 // workers
        for rank in ranks:
            words = [rng.randrange(-most, most) if signed else rng.randrange(2 * most) for _ in range(size)]
            if name.startswith("the greatest"):
                words = [2**31 - rank] * size
            has_code = coded and (rank == ranks[0] or rng.random() < 0.5)
            tag = tag_of(key, rank, stream, chunk, code, has_code, words, signed)
            parts.append({"rank": rank, "has_code": has_code, "words": [word % 2**32 for word in words], "tag": tag})
            total = [(a + b) % 2**32 for a, b in zip(total, [*words, *tag], strict=True)]
        givers = code_givers(key, stream, chunk, code, ranks, total, signed)
        assert givers == sum(part["has_code"] for part in parts)
        cases.append(
            {
                "name": name,
                "key": key.hex(),
                "workers": workers,
                "stream": stream,
                "chunk": chunk,
                "code": code,
                "signed": signed,
                "coded": coded,
                "parts": parts,
                "result": total,
                "code_givers": givers,
            }
        )
    return cases


def text() -> str:
    """The file of vectors."""
    return "[\n" + ",\n".join(json.dumps(case) for case in vectors()) + "\n]\n"


if __name__ == "__main__":
    print(text(), end="")
