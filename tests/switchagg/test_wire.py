"""wire: P1 to P6."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from switchagg.errors import DecodeError
from switchagg.job import MAX_ELEMENTS, MODULUS
from switchagg.wire import (
    FLAG_RETRANSMISSION,
    FLAG_VERSION,
    HEADER_BYTES,
    OWNERS,
    REASONS,
    Op,
    Packet,
    Route,
    decode,
    encode,
    fault,
    frame_bytes,
    givers,
    headers,
    kind_of,
    payload,
)


def packet_of(route: Route, owner: int, values: list[int], **others: int) -> Packet:
    numbers = np.array(values or [0] * (route is Route.ALL), np.int32)
    return Packet(route=route, owner=owner if route else 0, values=numbers, **others)  # type: ignore[arg-type]


packets = st.builds(
    packet_of,
    route=st.sampled_from(Route),
    owner=st.integers(0, OWNERS - 1),
    job=st.integers(0, 2**16 - 1),
    generation=st.integers(0, MODULUS - 1),
    stream=st.integers(0, 255),
    rank=st.integers(0, 63),
    op=st.sampled_from(Op),
    slot=st.integers(0, 2**16 - 1),
    version=st.integers(0, 1),
    chunk=st.integers(0, MODULUS - 1),
    values=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40),
    result=st.booleans(),
    retransmission=st.booleans(),
    close=st.booleans(),
    marked=st.booleans(),
)

GOLDEN = "5341 28 06 1234 5678 9abcdef0 0c 3f 0002 fedcba98 80000000 00000001"


def test_layout_is_the_documented_one() -> None:
    packet = decode(bytes.fromhex(GOLDEN))
    assert (packet.job, packet.slot, packet.generation) == (0x1234, 0x5678, 0x9ABCDEF0)
    assert (packet.stream, packet.rank, packet.chunk) == (0x0C, 0x3F, 0xFEDCBA98)
    assert (packet.op, packet.version, packet.retransmission, packet.result) == (Op.MAX, 1, True, False)
    assert (packet.route, packet.owner) == (Route.ALL, 0)
    assert packet.values.tolist() == [-(2**31), 1]
    assert encode(packet) == bytes.fromhex(GOLDEN)


def test_layout_of_a_header_only_packet_with_a_route() -> None:
    """P2: magic, then 0010 1 10 110101 110: version 2, MAX, FROM_OWNER, owner 53, RETRANSMISSION and VERSION."""
    data = bytes.fromhex("5341 2dae 1234 5678 9abcdef0 0c 3f 0000 fedcba98")
    packet = decode(data)
    assert (packet.op, packet.route, packet.owner, packet.values.size) == (Op.MAX, Route.FROM_OWNER, 53, 0)
    assert (packet.version, packet.retransmission, packet.result) == (1, True, False)
    assert encode(packet) == data
    assert kind_of(Op.MAX, FLAG_VERSION | FLAG_RETRANSMISSION, Route.FROM_OWNER, 53) == 0x53412DAE


def test_the_byte_of_the_rank() -> None:
    """P7: MARKED, CLOSE, six bits of rank."""
    packet = decode(bytes.fromhex(GOLDEN.replace(" 3f ", " bf ")))
    assert (packet.rank, packet.close, packet.marked) == (63, False, True)
    assert encode(replace(packet, close=True, marked=False, rank=5))[13] == 0x45
    with pytest.raises(struct.error, match="rank 64"):
        encode(replace(packet, rank=64))


def test_who_gives() -> None:
    """S4, of three ranks."""
    assert givers(kind_of(Op.SUM, 7), 0b111) == 0b111
    assert givers(kind_of(Op.SUM, 7, Route.TO_OWNER, 1), 0b111) == 0b101
    assert givers(kind_of(Op.MAX, 0, Route.FROM_OWNER, 1), 0b111) == 0b010


@given(packets)
def test_decode_undoes_encode(packet: Packet) -> None:
    data = encode(packet)
    assert len(data) == frame_bytes(len(packet.values)) == HEADER_BYTES + 4 * len(packet.values)
    again = decode(data)
    assert again == packet
    assert again.values.dtype == np.int32
    assert again.values.tolist() == packet.values.tolist()


@given(packets)
def test_columns_and_packets_agree(packet: Packet) -> None:
    bundle = np.frombuffer(encode(packet), np.uint8)[np.newaxis, :]
    row = headers(bundle)[0]
    assert (int(row["job"]), int(row["slot"]), int(row["chunk"])) == (packet.job, packet.slot, packet.chunk)
    assert (int(row["stream"]), int(row["rank"]), int(row["elements"])) == (
        packet.stream,
        packet.rank + 64 * packet.close + 128 * packet.marked,
        len(packet.values),
    )
    assert payload(bundle)[0].tolist() == packet.values.tolist()


def check_total(data: bytes) -> None:
    reason = ""
    try:
        packet = decode(data)
    except DecodeError as error:
        reason = error.reason
    assert reason in REASONS or (not reason and encode(packet) == data)  # what decodes is exactly what would be sent


@given(st.binary(max_size=120))
@example(bytes.fromhex(GOLDEN))
def test_any_bytes_decode_or_raise(data: bytes) -> None:
    check_total(data)


@given(packets, st.data())
def test_damaged_packets_decode_or_raise(packet: Packet, data: st.DataObject) -> None:
    frame = bytearray(encode(packet))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    check_total(bytes(frame))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d[:19], "short"),
        (lambda d: b"", "short"),
        (lambda d: b"\0" + d[1:], "magic"),
        (lambda d: d[:2] + b"\x18" + d[3:], "wire_version"),
        (lambda d: d[:2] + b"\x26" + d[3:], "op"),
        (lambda d: d[:2] + b"\x27" + d[3:], "op"),
        (lambda d: d[:3] + b"\x08" + d[4:], "flags"),
        (lambda d: d[:2] + b"\x21" + d[3:], "flags"),
        (lambda d: d[:-1], "length"),
        (lambda d: d + b"\0", "length"),
        (lambda d: d[:20], "length"),
        (lambda d: d[:14] + b"\0\0" + d[16:20], "length"),
        (lambda d: d[:2] + b"\x22" + d[3:14] + b"\0\0" + d[16:], "length"),
        (lambda d: d[:14] + b"\xff\xff" + d[16:], "length"),
    ],
)
def test_reasons(change: object, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(change(bytes.fromhex(GOLDEN)))  # type: ignore[operator]
    assert caught.value.reason == reason


def test_the_largest_packet() -> None:
    packet = decode(bytes.fromhex(GOLDEN))
    size = frame_bytes(MAX_ELEMENTS)
    assert size <= 65_507  # what UDP over IPv4 can carry
    assert fault(kind_of(Op.SUM, 0), MAX_ELEMENTS, size) == ""
    assert fault(kind_of(Op.SUM, 0), MAX_ELEMENTS + 1, frame_bytes(MAX_ELEMENTS + 1)) == "length"
    assert packet != "a packet"
