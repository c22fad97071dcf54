"""The algorithms that both back ends keep, against published values and against other ways to compute them."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4vm import algorithms
from p4vm.engine import MeterRate

CHECK = b"123456789"


def rfc1071(data: bytes) -> int:
    """The Internet checksum the slow way: 16-bit words, end-around carry."""
    total = 0
    for at in range(0, len(data), 2):
        total += int.from_bytes(data[at : at + 2].ljust(2, b"\0"), "big")
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def bitwise_crc16(data: bytes) -> int:
    """CRC-16/ARC bit by bit."""
    remainder = 0
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0xA001 if remainder & 1 else 0)
    return remainder


@pytest.mark.parametrize(
    ("name", "data", "value"),
    [
        ("crc16", CHECK, 0xBB3D),
        ("crc16_custom", CHECK, 0xBB3D),
        ("crc16", b"", 0),
        ("crc32", CHECK, 0xCBF43926),
        ("crc32_custom", CHECK, 0xCBF43926),
        ("crc32", b"", 0),
        # RFC 1071, section 3: the words sum to 0xDDF2
        ("csum16", bytes.fromhex("0001f203f4f5f6f7"), 0x220D),
        ("csum16", b"", 0xFFFF),
        ("csum16", b"\xff\xff", 0),
        ("csum16", b"\x12", 0xEDFF),
        # an IPv4 header without its checksum, which is b861
        ("csum16", bytes.fromhex("450000730000400040110000c0a80001c0a800c7"), 0xB861),
        ("xor16", bytes.fromhex("1234 00ff 01"), 0x13CB),
        ("xor16", b"", 0),
        ("identity", bytes.fromhex("0102030405060708ff"), 0x0102030405060708),
        ("identity", bytes.fromhex("0102"), 0x0102),
    ],
)
def test_known_values(name: str, data: bytes, value: int) -> None:
    assert algorithms.HASHES[name](data) == value


@given(st.binary(max_size=80))
def test_hashes_as_computed_otherwise(data: bytes) -> None:
    assert algorithms.csum16(data) == rfc1071(data)
    assert algorithms.crc16(data) == bitwise_crc16(data)
    assert algorithms.crc32(data) == zlib.crc32(data)
    words = [int.from_bytes(data[at : at + 2].ljust(2, b"\0"), "big") for at in range(0, len(data), 2)]
    expected = 0
    for word in words:
        expected ^= word
    assert algorithms.xor16(data) == expected


def test_random_is_splitmix64_from_its_seed() -> None:
    # published first outputs of splitmix64 for seed 1234567
    generator = algorithms.Random()
    generator.state = 1234567
    assert [generator.next() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert algorithms.Random().state == algorithms.RANDOM_SEED


def test_random_keeps_within_its_bounds() -> None:
    generator = algorithms.Random()
    drawn = [generator.between(-3, 3) for _ in range(500)]
    assert set(drawn) == set(range(-3, 4))
    assert all(generator.between(0, (1 << 64) - 1) >> 64 == 0 for _ in range(50))
    before = generator.state
    assert generator.between(5, 4) is None
    assert generator.state == before
    assert generator.between(9, 9) == 9


def test_a_meter_without_rates_is_green() -> None:
    assert [algorithms.Meter().color(now, 1) for now in range(5)] == [0] * 5


def test_a_meter_goes_from_green_over_yellow_to_red_and_recovers() -> None:
    # 1 packet per 10 µs committed, burst 2; 1 per 5 µs peak, burst 4
    meter = algorithms.Meter([MeterRate(0.1, 2), MeterRate(0.2, 4)])
    assert [meter.color(0, 1) for _ in range(6)] == [0, 0, 1, 1, 2, 2]
    assert meter.color(5, 1) == 1  # a token at the peak, none committed
    assert meter.color(10, 1) == 0
    assert meter.color(10_000, 1) == 0


def test_a_red_packet_takes_no_committed_tokens() -> None:
    meter = algorithms.Meter([MeterRate(0.0, 3), MeterRate(0.0, 2)])
    assert [meter.color(0, 1) for _ in range(4)] == [0, 0, 2, 2]
    meter.set_rates([MeterRate(0.0, 3)])
    assert [meter.color(0, 1) for _ in range(5)] == [0, 0, 0, 1, 1]


def test_a_meter_of_bytes_takes_what_the_packet_has() -> None:
    meter = algorithms.Meter([MeterRate(1.0, 100)])
    assert [meter.color(0, 60), meter.color(0, 60), meter.color(20, 60)] == [0, 1, 0]
    meter.refill()
    assert meter.color(0, 100) == 0


def test_a_meter_bears_times_and_rates_of_any_size() -> None:
    chance = random.Random(7)
    meter = algorithms.Meter([MeterRate(1e300, 1 << 62), MeterRate(1e308, 1 << 62)])
    for now in sorted(chance.randrange(1 << 63) for _ in range(20)):
        assert meter.color(now, 1 << 20) in (0, 1, 2)
