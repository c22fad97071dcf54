"""Tags of packets, in Python and C, against an oracle that reads A2 to A5 with Python's integers."""

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchagg.native import library
from switchagg.wire import CLOSE, FLAG_RESULT, FLAGS_AT, HEADER_BYTES, MARKED, Bundle, Op, Packet, Route, encode
from tests.oracles.sum_tags import cases, packet_tag, siphash
from transport.links.hop_tags import SECRET_BYTES, TAG_BYTES, Hop, HopKeys, secret_of_switch
from transport.links.native_udp import native_hop

SECRET = bytes(range(SECRET_BYTES))
ELEMENTS, CHILDREN = 7, 3
KEYS = [HopKeys.of(SECRET, rank) for rank in range(CHILDREN)]
PORTS = [40, 11, 12]

# Aumasson, Bernstein: vectors.h, SipHash-2-4 of the 24 bytes 00 01 … 17 under the key 00 01 … 0f, as its bytes.
PUBLISHED = "94af49f6c650adb8"


def derived(person: bytes, text: bytes, secret: bytes = SECRET, size: int = 16) -> bytes:
    return hashlib.blake2b(text, digest_size=size, key=secret, person=person).digest()


def tag(frame: bytes, chunk: int, child: int) -> int:
    return packet_tag(SECRET, frame, chunk, child)


class InC:
    """A hop in C, with the verbs of `Hop`."""

    def __init__(self, keys: Sequence[HopKeys], ports: Sequence[int], elements: int = ELEMENTS) -> None:
        self._library, self._ports = library.load(), ports
        self._hop = native_hop(elements, keys, ports)

    def close(self) -> None:
        self._library.sa_hop_free(self._hop)

    def verified(self, bundle: Bundle, *, result: bool) -> Bundle:
        rows = [np.ascontiguousarray(row) for row in bundle]
        kept = [
            row[:-TAG_BYTES]
            for row in rows
            if self._library.sa_hop_verify(
                self._hop, row.ctypes.data, len(row), result, 0 if result else int(row[13]) & 63 if len(row) > 13 else 0
            )
        ]
        return np.stack(kept) if kept else bundle[:0]

    def tagged(self, frames: Bundle) -> Bundle:
        return np.stack([self._tagged(row, 0, note=True) for row in frames])

    def tagged_for(self, frames: Bundle, hashes: Any, port: int) -> Bundle:
        assert [self._hash(row, 0) for row in frames] == hashes.tolist()
        return np.stack([self._tagged(row, self._ports.index(port)) for row in frames])

    def _hash(self, row: Bundle, child: int) -> int:
        number: int = self._library.sa_hop_hash(self._hop, row.ctypes.data, len(row), child)
        return number

    def _tagged(self, row: Bundle, child: int, note: bool = False) -> Bundle:
        row, written = np.ascontiguousarray(row), np.zeros(TAG_BYTES, np.uint8)
        if note:
            self._library.sa_hop_note(self._hop, row.ctypes.data)
        place = row.ctypes.data, ctypes.c_uint64(self._hash(row, child)), child, written.ctypes.data
        self._library.sa_hop_write_tag(self._hop, *place)
        return np.concatenate((row, written))


HOPS = [
    "python",
    pytest.param("native", marks=pytest.mark.skipif(bool(library.missing()), reason=f"{library.missing()}")),
]


@pytest.fixture(params=HOPS)
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    """make(keys, ports, elements): a hop."""
    made: list[InC] = []

    def in_c(keys: Sequence[HopKeys], ports: Sequence[int], elements: int = ELEMENTS) -> InC:
        made.append(InC(keys, ports, elements))
        return made[-1]

    yield in_c if request.param == "native" else lambda keys, ports, elements=ELEMENTS: Hop(elements, keys, ports)
    for hop in made:
        hop.close()


def frames_of(*packets: Packet) -> Bundle:
    return np.stack([np.frombuffer(encode(packet), np.uint8) for packet in packets])


def packet_of(chunk: int, rank: int = 1, *, seed: int = 0, **fields: Any) -> Packet:
    values = np.random.default_rng([seed, chunk]).integers(-(2**31), 2**31, ELEMENTS).astype(np.int32)
    given: dict[str, Any] = {"job": 5, "generation": 77, "stream": 3, "op": Op.SUM, "slot": 9, "version": 1}
    return Packet(**{**given, "rank": rank, "chunk": chunk % 2**32, "values": values, **fields})


def tag_in(bundle: Bundle) -> list[int]:
    return [int.from_bytes(bytes(row[-TAG_BYTES:]), "big") for row in bundle]


def test_the_oracle_has_the_published_hash() -> None:
    assert siphash(bytes(range(16)), bytes(range(15))) == 0xA129CA6149BE45E5  # the paper's own example
    assert siphash(bytes(range(16)), bytes(range(24))).to_bytes(8, "little").hex() == PUBLISHED


def test_keys_follow_from_the_secret() -> None:
    assert bytes(KEYS[2]) == b"".join(
        (derived(b"sa hop up", b"\0\2"), derived(b"sa hop down", b"\0\2"), derived(b"sa hop results", b""))
    )
    assert HopKeys.read(bytes(KEYS[2])) == KEYS[2]
    assert HopKeys.read(b"") is None
    with pytest.raises(ValueError, match="48 bytes, not 47"):
        HopKeys.read(bytes(47))
    assert secret_of_switch(SECRET, "räck") == derived(b"sa hop switch", "räck".encode(), size=32)
    assert "up" not in repr(KEYS[0])


@pytest.mark.parametrize("case", cases("a3_tags.json"), ids=lambda case: case["name"])
def test_a3_by_the_vectors(make: Any, case: dict[str, Any]) -> None:
    packet = bytes.fromhex(case["packet"])
    frames, elements = np.frombuffer(packet, np.uint8)[np.newaxis], (len(packet) - HEADER_BYTES) // 4 or 1
    keys = [HopKeys.of(bytes.fromhex(case["secret"]), case["child"])]
    hop = make(keys, PORTS[:1], elements)
    for chunk in range(0, case["chunk"], 2**31 - 1):  # its stream comes near the chunk (A4)
        hop.tagged(frames_of(packet_of(chunk, stream=2, values=np.zeros(0, np.int32))))
    if packet[FLAGS_AT] & FLAG_RESULT:
        tagged = hop.tagged_for(frames, Hop(elements, keys).hashes(frames), PORTS[0])
    else:
        tagged = hop.tagged(frames)
    assert tag_in(tagged) == [case["tag"]]


def test_tags_are_the_oracle_s_also_when_chunks_wrap(make: Any) -> None:
    """Both ends of each direction, chunk by chunk over four epochs; header-only packets, marks, routes."""
    switch, child = make(KEYS, PORTS), make(KEYS[1:2], [0])
    kinds: list[dict[str, Any]] = [
        {},
        {"op": Op.MAX, "marked": True},
        {"values": np.zeros(0, np.int32), "route": Route.TO_OWNER, "owner": 1},
        {"close": True, "retransmission": True},
    ]
    for number in range(24):
        chunk = number * (2**31 - 5) // 2 + number
        up = packet_of(chunk, **kinds[number % 4])
        sent = child.tagged(frames_of(up))
        assert tag_in(sent) == [tag(encode(up), chunk, 1)], chunk
        assert bytes(switch.verified(sent, result=False)[0]) == encode(up)
        down = packet_of(chunk, 2, seed=1, **{**kinds[number % 4], "result": True})
        plain = frames_of(down)
        hashes = Hop(ELEMENTS, KEYS, PORTS).hashes(plain)
        answers = [switch.tagged_for(plain, hashes, port) for port in PORTS]
        assert [tag_in(answer) for answer in answers] == [[tag(encode(down), chunk, rank)] for rank in range(CHILDREN)]
        assert bytes(child.verified(answers[1], result=True)[0]) == encode(down)
        assert not len(child.verified(answers[0], result=True))
        assert not len(switch.verified(answers[1], result=False))
        assert not len(child.verified(sent, result=True))


def test_every_changed_bit_and_every_other_length_is_refused(make: Any) -> None:
    values = np.array([1, -1, 2**31 - 1, 0, 0, 0, 0], np.int32)
    sent = make(KEYS[1:2], [0]).tagged(frames_of(packet_of(4, values=values)))
    switch = make(KEYS, PORTS)
    for bit in range(8 * sent.shape[1]):
        changed = sent.copy()
        changed[0, bit // 8] ^= 1 << bit % 8
        assert not len(switch.verified(changed, result=False)), bit
    tagged, plain = sent[:, -TAG_BYTES:], sent[:, :-TAG_BYTES]
    for size in range(sent.shape[1] + 30):
        whole = np.zeros((1, size), np.uint8)
        part = plain[:, : max(0, size - TAG_BYTES)]
        whole[:, : part.shape[1]] = part
        if size >= TAG_BYTES:
            whole[:, -TAG_BYTES:] = tagged  # zeros at the end don't change a linear hash
        right = size == sent.shape[1]
        assert len(switch.verified(whole, result=False)) == right, size
        longer = np.concatenate((sent, np.zeros((1, size), np.uint8)), axis=1)
        assert len(switch.verified(longer, result=False)) == (not size), size
    for other in (bytes(SECRET_BYTES), secret_of_switch(SECRET, "")):
        assert not len(make([HopKeys.of(other, rank) for rank in range(3)], PORTS).verified(sent, result=False))


def test_a_repetition_is_right_until_its_chunk_number_returns(make: Any) -> None:
    switch, child = make(KEYS, PORTS), make(KEYS[1:2], [0])
    old = child.tagged(frames_of(packet_of(4)))
    assert len(switch.verified(old, result=False)) == len(switch.verified(old, result=False)) == 1
    for chunk in (2**31, 2**32 - 1, 2**32 + 1):
        assert len(switch.verified(child.tagged(frames_of(packet_of(chunk))), result=False)) == 1
    assert not len(switch.verified(old, result=False))
    assert len(switch.verified(child.tagged(frames_of(packet_of(2**32 + 4))), result=False)) == 1


def test_a_wrong_tag_moves_no_epoch(make: Any) -> None:
    switch, child = make(KEYS, PORTS), make(KEYS[1:2], [0])
    for chunk in (2**30, 2**31 - 1, 2**32 - 1):
        forged = child.tagged(frames_of(packet_of(chunk)))
        forged[:, -1] ^= 1
        assert not len(switch.verified(forged, result=False))
    sent = make(KEYS[1:2], [0]).tagged(frames_of(packet_of(0), packet_of(1)))
    assert len(switch.verified(sent, result=False)) == 2


def test_one_child_is_not_another(make: Any) -> None:
    switch = make(KEYS, PORTS)
    for rank in range(64):
        for flags in (0, CLOSE, MARKED):
            frames = frames_of(packet_of(4))
            frames[:, 13] = rank | flags
            sent = make(KEYS[1:2], [0]).tagged(frames)
            assert len(switch.verified(sent, result=False)) == (rank == 1)


@settings(max_examples=200)
@given(rows=st.lists(st.binary(min_size=40, max_size=40), max_size=5), size=st.integers(0, 40), result=st.booleans())
def test_any_bytes_are_refused_alike(rows: list[bytes], size: int, result: bool) -> None:
    bundle = np.frombuffer(b"".join(row[:size] for row in rows), np.uint8).reshape(len(rows), size)
    assert not len(Hop(ELEMENTS, KEYS, PORTS).verified(bundle, result=result))
    if not library.missing():
        hop = InC(KEYS, PORTS)
        assert not len(hop.verified(bundle, result=result))
        hop.close()
