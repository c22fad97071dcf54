"""RoCEv2 packets a second time, from the specification and in Python: what the C core is held to.

ICRC: zlib's CRC-32 over eight bytes 0xff, the IP header, the UDP header and the rest but the ICRC itself, with the
fields that may change on the way as ones; stored little-endian.
"""

import ipaddress
import struct
import zlib
from typing import Any

OPERATIONS = [
    f"{verb}_{place}"
    for verb in ("SEND", "WRITE")
    for place in ("FIRST", "MIDDLE", "LAST", "LAST_IMM", "ONLY", "ONLY_IMM")
]
OPCODES = {
    **{f"RC_{name}": number for number, name in enumerate(OPERATIONS)},
    **{f"UC_{name}": 0x20 + number for number, name in enumerate(OPERATIONS)},
    "RC_ACK": 0x11,
    "CNP": 0x81,
}
UNSUPPORTED = {
    **{"RC_READ_REQUEST": 0x0C, "RC_COMPARE_SWAP": 0x13, "RC_FETCH_ADD": 0x14, "RC_SEND_LAST_INVALIDATE": 0x16},
    **{"RC_SEND_ONLY_INVALIDATE": 0x17, "RC_FLUSH": 0x1C, "RC_ATOMIC_WRITE": 0x1D},
}
"""Requests that a responder of ours refuses; what follows their BTH is payload here."""
WITH_RETH = {name for name in OPCODES if name.endswith(("WRITE_FIRST", "WRITE_ONLY", "WRITE_ONLY_IMM"))}


def bth(opcode: int, queue_pair: int, psn: int, **more: Any) -> bytes:
    """solicited, migration, pad, partition, fecn, becn, ack_request: 0 (0xffff) unless given."""
    flags = more.get("solicited", 0) << 7 | more.get("migration", 0) << 6 | more.get("pad", 0) << 4
    congestion = more.get("fecn", 0) << 31 | more.get("becn", 0) << 30
    partition = more.get("partition", 0xFFFF)
    return struct.pack(
        ">BBHII", opcode, flags, partition, congestion | queue_pair, more.get("ack_request", 0) << 31 | psn
    )


def packet(name: str, queue_pair: int, psn: int, payload: bytes = b"", **more: Any) -> bytes:
    """A packet without its ICRC; also address, rkey, length, immediate, syndrome, msn."""
    pad = -len(payload) % 4
    found = bth((OPCODES | UNSUPPORTED)[name], queue_pair, psn, pad=pad, **more)
    if name in WITH_RETH:
        found += struct.pack(">QII", more.get("address", 0), more.get("rkey", 0), more.get("length", 0))
    if name.endswith("_IMM"):
        found += struct.pack(">I", more.get("immediate", 0))
    if name == "RC_ACK":
        found += struct.pack(">I", more.get("syndrome", 0) << 24 | more.get("msn", 0))
    if name == "CNP":
        found += bytes(16)
    return found + payload + bytes(pad)


def datagram(source: str, to: str, ports: tuple[int, int], body: bytes, identification: int = 0) -> bytes:
    """The IP packet around a body that ends with its ICRC or lacks it; TOS, TTL and checksums are of no matter."""
    udp = struct.pack(">HHHH", *ports, 8 + len(body), 0x1234) + body
    ends = ipaddress.ip_address(source).packed + ipaddress.ip_address(to).packed
    if len(ends) == 8:
        return struct.pack(">BBHHHBBH", 0x45, 2, 20 + len(udp), identification, 0x4000, 63, 17, 7) + ends + udp
    return struct.pack(">IHBB", 0x6ABCDEF0, len(udp), 17, 61) + ends + udp


def icrc(ip: bytes) -> int:
    """Of an IP packet as captured, whose last four bytes are the ICRC's place."""
    masked = bytearray(ip[:-4])
    if ip[0] >> 4 == 4:
        udp = (ip[0] & 15) * 4
        masked[1] = masked[8] = masked[10] = masked[11] = 0xFF
    else:
        udp = 40
        masked[0] |= 0x0F
        masked[1:4] = b"\xff\xff\xff"
        masked[7] = 0xFF
    masked[udp + 6] = masked[udp + 7] = 0xFF
    masked[udp + 8 + 4] = 0xFF
    return zlib.crc32(bytes(masked), zlib.crc32(b"\xff" * 8))


def sealed(ip: bytes) -> bytes:
    """The packet with its ICRC written."""
    return ip[:-4] + struct.pack("<I", icrc(ip))


def intact(ip: bytes) -> bool:
    """Whether a captured packet's ICRC is right."""
    return bool(icrc(ip) == struct.unpack("<I", ip[-4:])[0])
