"""Tags and masks of sums, and tags of packets, in Python's integers, written from rules V2 to V5, X2, X3, A2 and A3
alone: what both cores are compared with.

`python tests/oracles/sum_tags.py` writes the vectors, `FILES`; nothing of the product is imported.
"""

import hashlib
import json
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
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


def chacha_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """The block function as RFC 8439 writes it."""
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter]
    start += struct.unpack("<3I", nonce)
    state = list(start)

    def turn(x: int, y: int, z: int, bits: int) -> None:
        state[x] = (state[x] + state[y]) % 2**32
        turned = state[z] ^ state[x]
        state[z] = (turned << bits | turned >> 32 - bits) % 2**32

    for _ in range(10):
        for a, b, c, d in [(i, 4 + i, 8 + i, 12 + i) for i in range(4)] + [
            (i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)
        ]:
            turn(a, b, d, 16), turn(c, d, b, 12), turn(a, b, d, 8), turn(c, d, b, 7)
    return struct.pack("<16I", *((x + y) % 2**32 for x, y in zip(start, state, strict=True)))


def keystream(key: bytes, chunk: int, stream: int, index: int, count: int) -> list[int]:
    """The words of Z_index (X2)."""
    blocks, nonce = -(-count // 16), struct.pack("<QHBB", chunk, index, stream, 0)
    words = [struct.unpack("<16I", chacha_block(key, counter, nonce)) for counter in range(blocks)]
    return [words[j % blocks][j // blocks] for j in range(count)]


def mask_of(key: bytes, chunk: int, stream: int, first: int, end: int, count: int) -> list[int]:
    """What ranks first to end - 1 add to words together, modulo 2**32 (X3)."""
    streams = (keystream(key, chunk, stream, index, count) for index in (first, end))
    return [(plus - minus) % 2**32 for plus, minus in zip(*streams, strict=True)]


def packet_tag(secret: bytes, packet: bytes, chunk: int, child: int) -> int:
    """The tag of a packet, without it, from or to this child (A2, A3). chunk: not modulo 2**32."""

    def key(person: bytes, text: bytes = b"") -> bytes:
        return hashlib.blake2b(text, digest_size=16, key=secret, person=person).digest()

    rank = child.to_bytes(2, "big")
    up, down, results = key(b"sa hop up", rank), key(b"sa hop down", rank), key(b"sa hop results")
    is_result = packet[3] & 1
    words = [word for (word,) in struct.iter_unpack(">I", packet[20:])]
    pad = siphash(down if is_result else up, packet[:20] + (chunk >> 32).to_bytes(4, "little"))
    return (linear_hash(results if is_result else up, words, signed=False) + (pad >> 3) % PRIME) % PRIME


def sums(seed: int = 4) -> list[dict[str, Any]]:
    """Chunks of several ranks: each rank's words, in the open and with its mask, and tag; and the result, of which each
    element is the sum of those in the open; `secret_result` is the sum of those with masks, which jobs with partial
    sums don't have (X1)."""
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
        mask_key = random.Random(name).randbytes(32)
        parts, total, masked_total = [], [0] * (size + 3), [0] * (size + 3)
        most = 2**31 // workers
        for rank in ranks:
            words = [rng.randrange(-most, most) if signed else rng.randrange(2 * most) for _ in range(size)]
            if name.startswith("the greatest"):
                words = [2**31 - rank] * size
            has_code = coded and (rank == ranks[0] or rng.random() < 0.5)
            tag = tag_of(key, rank, stream, chunk, code, has_code, words, signed)
            mask = mask_of(mask_key, chunk, stream, rank, rank + 1, size)
            masked = [(word + added) % 2**32 for word, added in zip(words, mask, strict=True)]
            words = [word % 2**32 for word in words]
            parts.append({"rank": rank, "has_code": has_code, "words": words, "masked": masked, "tag": tag})
            total = [(a + b) % 2**32 for a, b in zip(total, [*words, *tag], strict=True)]
            masked_total = [(a + b) % 2**32 for a, b in zip(masked_total, [*masked, *tag], strict=True)]
        givers = code_givers(key, stream, chunk, code, ranks, total, signed)
        assert givers == sum(part["has_code"] for part in parts)
        cases.append(
            {
                "name": name,
                "key": key.hex(),
                "mask_key": mask_key.hex(),
                "workers": workers,
                "stream": stream,
                "chunk": chunk,
                "code": code,
                "signed": signed,
                "coded": coded,
                "parts": parts,
                "result": total,
                "secret_result": masked_total,
                "code_givers": givers,
            }
        )
    return cases


def tagged_packets() -> list[dict[str, Any]]:
    """Packets of children and results, and the tag of each."""
    rng = random.Random(3)
    cases = []
    for name, kind, child, chunk, size in (
        ("a child's values", "2000", 1, 5, 9),
        ("a result", "2001", 2, 5, 9),
        ("a child's packet without values", "2208", 0, 0, 0),
        ("a full result in the fourth epoch, of MAX", "2801", 63, 3 * 2**32 + 7, 360),
        ("the greatest words at the end of an epoch", "2000", 63, 2 * 2**32 - 1, 9),
    ):
        secret, values = rng.randbytes(32), rng.randbytes(4 * size)
        values = bytes([255]) * len(values) if name.startswith("the greatest") else values
        start = bytes.fromhex("5341" + kind) + struct.pack(">HHIBBHI", 1, 3, 7, 2, child, size, chunk % 2**32)
        packet, tag = start + values, packet_tag(secret, start + values, chunk, child)
        given = {"name": name, "secret": secret.hex(), "child": child, "chunk": chunk}
        cases.append({**given, "packet": packet.hex(), "tag": tag})
    return cases


SECRET_JOB = """\
# X3: a switch adds masked words as all others. Chunk, words, code and key of tags are those of v4_tags.stf, and so are
# the tags; the key of masks is 10 11 ... 2f. Of the masks Z_0 - Z_2 is left in the result.
switch 1 5
job id=1 generation=7 workers=2 elements=5 streams=0+1 ports=0,1
"""


def secret_packets() -> str:
    """The packets of two ranks of a secret sum, and those of the result."""
    key, mask_key, inputs = bytes(range(16)), bytes(range(16, 48)), ([1, -5], [2, 7])
    lines, total = [], [0] * 5
    for rank, words in enumerate(inputs):
        mask = mask_of(mask_key, 0, 0, rank, rank + 1, 2)
        tag = tag_of(key, rank, 0, 0, 3, rank == 1, words, signed=True)
        sent = [(word + added) % 2**32 for word, added in zip(words, mask, strict=True)] + tag
        total = [(a + b) % 2**32 for a, b in zip(total, sent, strict=True)]
        lines.append(f"packet {rank} 5341 20 00 0001 0000 00000007 00 {rank:02x} 0005 00000000 {hexadecimal(sent)}")
    lines += [
        f"expect {rank} 5341 20 01 0001 0000 00000007 00 01 0005 00000000 {hexadecimal(total)}" for rank in (0, 1)
    ]
    return SECRET_JOB + "".join(f"{line}\n" for line in lines)


def hexadecimal(words: Sequence[int]) -> str:
    return " ".join(f"{word:08x}" for word in words)


def lines_of(cases: Sequence[dict[str, Any]]) -> str:
    """A list in JSON, a line for each case."""
    return "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"


FOLDER = Path(__file__).parents[1] / "vectors"
FILES: dict[str, Callable[[], str]] = {
    "v4_tags.json": lambda: lines_of(sums()),
    "a3_tags.json": lambda: lines_of(tagged_packets()),
    "x3_masks.stf": secret_packets,
}


def cases(name: str) -> list[dict[str, Any]]:
    """What a file of `FILES` in JSON has."""
    read: list[dict[str, Any]] = json.loads((FOLDER / name).read_text())
    return read


if __name__ == "__main__":
    for file, text in FILES.items():
        (FOLDER / file).write_text(text())
