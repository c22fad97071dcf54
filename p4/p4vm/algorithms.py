"""Hashes, checksums, meters and random numbers, exactly as both back ends compute them.

1.  The bytes of data (what hash, checksums and selectors work on): all scalars in order, each as its bits, first is
    most significant; zero bits at the end up to whole bytes. int<W> as two's complement, Bool 1 bit, an EnumMember 32
    bits, a varbit the bits it has now. An invalid header within the data gives none; a valid one all its fields;
    stacks their elements in order. `_with_payload`: then the bytes the parser left unread.
2.  crc16, and crc16_custom until set_crc: 0x8005 reflected, start 0, no final exclusive-or (CRC-16/ARC). crc32,
    crc32_custom: the Ethernet one. csum16: RFC 1071, complemented, a last odd byte is the high one; of nothing:
    0xFFFF. xor16: exclusive-or of big-endian 16-bit words, a last odd byte is the high one. identity: the first 8
    bytes (or fewer) as a big-endian number. random: the next 64 bits of the generator. All are numbers of at most 64
    bits, H.
3.  hash(result, algorithm, base, data, max): result = (base + H mod max) mod 2**64, then cut to its type; base and
    max are cut to 64 bits first; max 0 counts as 1.
4.  Checksums compare with and store H cut to the field's width.
5.  Selectors: H of the selector keys in order, by the selector's own algorithm; the member is number H mod n of the
    group's n members in ascending order of their handles.
6.  random(result, low, high): splitmix64, state starts at RANDOM_SEED: state += 0x9E3779B97F4A7C15; z = state; z = (z
    ^ z >> 30) * 0xBF58476D1CE4E5B9; z = (z ^ z >> 27) * 0x94D049BB133111EB; x = z ^ z >> 31, all modulo 2**64; result
    = low + (x * (high - low + 1) >> 64), cut to its type. low and high: their low 64 bits, as signed numbers if their
    type is signed. low > high: result stays as it was and the generator isn't asked.
7.  Meters: per cell, rates from the last set to the first (peak, then committed), each with tokens (whole numbers,
    full when set) and `filled`, 0 when set. For a packet at now_us: due = floor(double(now_us) * rate), at most
    2**62; tokens = min(tokens + max(due - filled, 0), burst); filled = due. Fewer tokens than the cost: the color is
    the number of rates that remain (RED 2 at the peak, YELLOW 1 at the committed), later rates stay untouched. Else
    the cost is taken. All rates had enough, or none are set: GREEN 0. cost: 1, or the packet's bytes (as it arrived).
"""

import zlib
from collections.abc import Callable, Sequence

from p4vm.engine import Crc, MeterRate

RANDOM_SEED = 1
WORD = (1 << 64) - 1
DUE_MAX = 1 << 62


def _crc16_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ 0xA001 if byte & 1 else byte >> 1
        table.append(byte)
    return table


CRC16 = _crc16_table()


def crc16(data: bytes) -> int:
    """CRC-16/ARC."""
    remainder = 0
    for byte in data:
        remainder = remainder >> 8 ^ CRC16[(remainder ^ byte) & 0xFF]
    return remainder


def reflected(value: int, width: int) -> int:
    """The bits in opposite order."""
    return int(f"{value:0{width}b}"[::-1], 2)


def custom_crc(crc: Crc) -> Callable[[bytes], int]:
    """The CRC with these parameters."""
    top, mask = 1 << (crc.width - 1), (1 << crc.width) - 1

    def compute(data: bytes) -> int:
        remainder = crc.initial
        for byte in data:
            remainder ^= (reflected(byte, 8) if crc.reflect_data else byte) << (crc.width - 8)
            for _ in range(8):
                remainder = (remainder << 1 ^ crc.polynomial if remainder & top else remainder << 1) & mask
        return (reflected(remainder, crc.width) if crc.reflect_remainder else remainder) ^ crc.final_xor

    return compute


def crc32(data: bytes) -> int:
    """CRC-32 of Ethernet."""
    return zlib.crc32(data)


def xor16(data: bytes) -> int:
    """Exclusive-or of the big-endian 16-bit words."""
    even, odd = data[::2], data[1::2]
    high = low = 0
    for byte in even:
        high ^= byte
    for byte in odd:
        low ^= byte
    return high << 8 | low


def csum16(data: bytes) -> int:
    """The Internet checksum, complemented."""
    if len(data) & 1:
        data += b"\0"
    # 65536 leaves 1 modulo 65535, so the whole as one number leaves what its words' sum leaves
    number = int.from_bytes(data, "big")
    return ~(number % 65535 or (65535 if number else 0)) & 0xFFFF


def identity(data: bytes) -> int:
    """The first 8 bytes as a number."""
    return int.from_bytes(data[:8], "big")


HASHES: dict[str, Callable[[bytes], int]] = {
    "crc16": crc16,
    "crc16_custom": crc16,
    "crc32": crc32,
    "crc32_custom": crc32,
    "csum16": csum16,
    "xor16": xor16,
    "identity": identity,
}
"""By v1model's names of HashAlgorithm; `random` is `Random.next`."""


class Random:
    """splitmix64, from RANDOM_SEED."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = RANDOM_SEED

    def next(self, _data: bytes = b"") -> int:
        """64 bits."""
        self.state = state = self.state + 0x9E3779B97F4A7C15 & WORD
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & WORD
        state = (state ^ state >> 27) * 0x94D049BB133111EB & WORD
        return state ^ state >> 31

    def between(self, low: int, high: int) -> int | None:
        """low … high, both among them; None if low > high."""
        return None if low > high else low + (self.next() * (high - low + 1) >> 64)


class Meter:
    """One cell. rates: committed, then peak."""

    __slots__ = ("buckets",)

    def __init__(self, rates: Sequence[MeterRate] = ()) -> None:
        self.buckets: list[list[float]] = []
        self.set_rates(rates)

    def set_rates(self, rates: Sequence[MeterRate]) -> None:
        """None: green from now on."""
        self.buckets = [[rate.rate, rate.burst, rate.burst, 0] for rate in reversed(rates)]

    def refill(self) -> None:
        for bucket in self.buckets:
            bucket[2:] = [bucket[1], 0]

    def color(self, now_us: int, cost: int) -> int:
        """The colour of a packet, which takes tokens."""
        left = len(self.buckets)
        for bucket in self.buckets:
            rate, burst, tokens, filled = bucket
            due = min(int(min(now_us * rate, float(DUE_MAX))), DUE_MAX)
            tokens = min(tokens + max(due - filled, 0), burst)
            bucket[3] = due
            if tokens < cost:
                bucket[2] = tokens
                return left
            bucket[2] = tokens - cost
            left -= 1
        return 0
