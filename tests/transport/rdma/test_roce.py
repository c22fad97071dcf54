"""RoCEv2 packets in C (roce.h) against a second implementation, golden bytes, scapy, and damage of all kinds."""

import ctypes
import random
import socket
import struct
import zlib
from typing import Any

import pytest

from switchagg.native import library
from tests.transport.rdma import oracle

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")

SMALL, ANY = 0, 1
V4, V6 = ("10.1.2.3", "10.1.2.4"), ("fd00::1", "fd00::2")


class Packet(ctypes.Structure):
    """`struct sa_roce_packet`."""

    _fields_ = [
        *((name, ctypes.c_uint8) for name in ("opcode", "pad", "syndrome")),
        *((name, ctypes.c_bool) for name in ("solicited", "migration", "fecn", "becn", "ack_request")),
        *((name, ctypes.c_uint16) for name in ("shape", "partition")),
        *((name, ctypes.c_uint32) for name in ("queue_pair", "psn", "rkey")),
        ("address", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("length", "immediate", "msn", "payload_bytes")),
        ("payload", ctypes.c_void_p),
    ]


def core() -> ctypes.CDLL:
    loaded = library.load()
    for name in ("sa_crc32", "sa_crc32_portable"):
        getattr(loaded, name).restype = ctypes.c_uint32
        getattr(loaded, name).argtypes = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t]
    loaded.sa_roce_check.restype = ctypes.c_bool
    return loaded


def path_of(ends: tuple[str, str], ports: tuple[int, int] = (4791, 4791)) -> Any:
    path = ctypes.create_string_buffer(64)
    family = socket.AF_INET6 if ":" in ends[0] else socket.AF_INET
    core().sa_roce_path_init(path, family, *(socket.inet_pton(family, end) for end in ends), *ports)
    return path


def seal(path: Any, identification: int, body: bytes) -> bytes:
    """`body` with room for the ICRC, which C writes."""
    memory = ctypes.create_string_buffer(body, len(body))
    core().sa_roce_seal(path, identification, memory, len(body))
    return memory.raw


def check(path: Any, body: bytes, expected: int, believed: int) -> tuple[bool, int]:
    found = ctypes.c_uint16()
    return core().sa_roce_check(path, body, len(body), expected, believed, ctypes.byref(found)), found.value


def parse(body: bytes) -> tuple[int, Packet]:
    packet = Packet()
    return core().sa_roce_parse(body, len(body), ctypes.byref(packet)), packet


# ---- the CRC


@pytest.mark.parametrize("function", ["sa_crc32", "sa_crc32_portable"])
def test_the_crc_is_zlib_s(function: str) -> None:
    compute = getattr(core(), function)
    rng = random.Random(1)
    for size in [*range(200), 1024, 4096, 4097, 9001]:
        data, start = rng.randbytes(size), rng.getrandbits(32)
        assert compute(start, data, size) == zlib.crc32(data, start)


def test_the_crc_of_two_pieces_is_that_of_one() -> None:
    compute = core().sa_crc32_joined
    compute.restype = ctypes.c_uint32
    compute.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    rng = random.Random(5)
    for head in range(113):
        for rest in (0, 1, 15, 16, 17, 63, 64, 65, 111, 112, 200, 1024, 4096 + rng.randrange(64)):
            data = rng.randbytes(head + rest)
            assert compute(data[:head], head, data[head:], rest) == zlib.crc32(data)


# ---- the ICRC


def test_the_icrc_equals_the_oracle_s() -> None:
    rng = random.Random(2)
    for ends in (V4, V6):
        for _ in range(300):
            ports, identification = (rng.getrandbits(16), 4791), rng.getrandbits(16) * (ends is V4)
            body = rng.randbytes(rng.choice([12, 28, 32, 12 + 256, 12 + 1024, 28 + 4096])) + bytes(4)
            ip = oracle.sealed(oracle.datagram(*ends, ports, body, identification))
            assert seal(path_of(ends, ports), identification, body)[-4:] == ip[-4:]


def test_the_identification_is_recovered_from_the_icrc() -> None:
    rng = random.Random(3)
    path = path_of(V4)
    for identification in [*range(70), *(rng.getrandbits(16) for _ in range(100))]:
        sent = seal(path, identification, rng.randbytes(12 + 4 * rng.randrange(1025)) + bytes(4))
        for expected in (0, identification, rng.getrandbits(16)):
            assert check(path, sent, expected, ANY) == (True, identification)
            assert check(path, sent, expected, SMALL)[0] is (identification < 64 or expected == identification)


def test_the_dont_fragment_bit_may_be_missing() -> None:
    ip = bytearray(oracle.datagram(*V4, (4791, 4791), oracle.packet("CNP", 7, 0) + bytes(4), 0xBEEF))
    ip[6] = 0
    body = oracle.sealed(bytes(ip))[28:]
    assert check(path_of(V4), body, 0, ANY) == (True, 0xBEEF)
    assert check(path_of(V4), body, 0, SMALL)[0] is False
    ip[6] = 0x20  # more fragments: never RoCE
    assert check(path_of(V4), oracle.sealed(bytes(ip))[28:], 0, ANY)[0] is False


@pytest.mark.parametrize("ends", [V4, V6])
def test_damaged_packets_are_rejected(ends: tuple[str, str]) -> None:
    """Any burst of up to 15 bits: the CRC sees it, whatever identification one may then believe in."""
    rng = random.Random(4)
    path = path_of(ends)
    for _ in range(3000):
        sent = seal(path, 5, rng.randbytes(12 + 4 * rng.randrange(300)) + bytes(4))
        burst = rng.randrange(1, 1 << 15) << rng.randrange(len(sent) * 8 - 15)
        damaged = (int.from_bytes(sent, "little") ^ burst).to_bytes(len(sent), "little")
        masked_only = damaged[:4] + b"\xff" + damaged[5:] == sent[:4] + b"\xff" + sent[5:]
        assert check(path, damaged, 5, SMALL)[0] is masked_only


def test_packets_of_other_addresses_are_rejected() -> None:
    sent = seal(path_of(V4), 0, oracle.packet("RC_SEND_ONLY", 3, 9, b"four") + bytes(4))
    assert check(path_of(V4), sent, 0, SMALL)[0]
    for path in (path_of(V4[::-1]), path_of(("10.1.2.3", "10.1.2.5")), path_of(V4, (4791, 4790))):
        assert not check(path, sent, 0, SMALL)[0]


# ---- headers


@pytest.mark.parametrize("name", oracle.OPCODES)
def test_build_and_parse_agree_with_the_oracle(name: str) -> None:
    rng = random.Random(name)
    for _ in range(50):
        fields: dict[str, Any] = {
            **{flag: rng.getrandbits(1) for flag in ("solicited", "migration", "fecn", "becn", "ack_request")},
            "partition": rng.getrandbits(16),
        }
        if name in oracle.WITH_RETH:
            fields |= {"address": rng.getrandbits(64), "rkey": rng.getrandbits(32), "length": rng.getrandbits(32)}
        if name.endswith("_IMM"):
            fields["immediate"] = rng.getrandbits(32)
        if name == "RC_ACK":
            fields |= {"syndrome": rng.getrandbits(8), "msn": rng.getrandbits(24)}
        payload = b"" if name in ("RC_ACK", "CNP") else rng.randbytes(rng.randrange(4097))
        queue_pair, psn = rng.getrandbits(24), rng.getrandbits(24)
        wanted = oracle.packet(name, queue_pair, psn, payload, **fields)

        packet = Packet(opcode=oracle.OPCODES[name], queue_pair=queue_pair, psn=psn, pad=-len(payload) % 4, **fields)
        headers = ctypes.create_string_buffer(32)
        size = core().sa_roce_build(ctypes.byref(packet), headers)
        assert headers.raw[:size] == wanted[:size]
        assert size + len(payload) + -len(payload) % 4 == len(wanted)

        fault, read = parse(wanted + bytes(4))
        assert fault == 0
        assert {field: getattr(read, field) for field in fields} == fields
        assert (read.opcode, read.queue_pair, read.psn) == (oracle.OPCODES[name], queue_pair, psn)
        assert read.payload_bytes == len(payload)


def test_golden_bytes() -> None:
    """By hand, field by field."""
    wanted = bytes.fromhex(
        "0b 80 ffff 00 000012 80 fffffe"  # RC WRITE ONLY with immediate, solicited; to 0x12; asks for an ACK; PSN
        "0000000012345678 0000abcd 00000004"  # RETH
        "deadbeef"
        "01020304"
    )
    packet = {"address": 0x12345678, "rkey": 0xABCD, "length": 4, "immediate": 0xDEADBEEF}
    made = oracle.packet("RC_WRITE_ONLY_IMM", 0x12, 0xFFFFFE, b"\1\2\3\4", solicited=1, ack_request=1, **packet)
    assert made == wanted
    fault, read = parse(wanted + bytes(4))
    assert (fault, read.solicited, read.ack_request, read.psn) == (0, True, True, 0xFFFFFE)
    assert {name: getattr(read, name) for name in packet} == packet
    ack = bytes.fromhex("11 00 ffff 00 000013 00 000005 1f000007")
    assert oracle.packet("RC_ACK", 0x13, 5, syndrome=0x1F, msn=7) == ack
    cnp = bytes.fromhex("81 00 ffff 40 000014 00 000000" + "00" * 16)
    assert oracle.packet("CNP", 0x14, 0, becn=1) == cnp


GOOD, SHORT, VERSION, OPCODE, LENGTH, PAD = range(6)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", SHORT),
        (oracle.packet("RC_SEND_ONLY", 1, 1)[:11] + bytes(4), SHORT),
        (oracle.packet("RC_SEND_ONLY", 1, 1) + bytes(4), GOOD),
        (b"\x04\x01" + oracle.packet("RC_SEND_ONLY", 1, 1)[2:] + bytes(4), VERSION),
        (oracle.packet("RC_WRITE_ONLY", 1, 1)[:-1] + bytes(4), SHORT),
        (oracle.packet("RC_SEND_ONLY", 1, 1, bytes(4)) + bytes(3), LENGTH),
        (oracle.packet("RC_SEND_ONLY", 1, 1, bytes(4100)) + bytes(4), LENGTH),
        (oracle.packet("RC_ACK", 1, 1) + bytes(8), LENGTH),
        (oracle.packet("CNP", 1, 1) + bytes(8), LENGTH),
        (b"\x04\x30" + oracle.packet("RC_SEND_ONLY", 1, 1)[2:] + bytes(4), PAD),
        *((bytes([opcode]) + bytes(31), OPCODE) for opcode in (0x0D, 0x10, 0x12, 0x2C, 0x31, 0x40, 0x64, 0x80, 0xFF)),
    ],
)
def test_what_is_no_packet_is_refused(body: bytes, fault: int) -> None:
    assert parse(body)[0] == fault


def test_every_opcode_is_read_or_refused() -> None:
    for opcode in range(256):
        fault, _ = parse(struct.pack(">BBHII", opcode, 0, 0xFFFF, 1, 1) + bytes(20 + 4))
        assert (fault == OPCODE) is (opcode not in (oracle.OPCODES | oracle.UNSUPPORTED).values())


# ---- scapy


@pytest.mark.parametrize("name", ["RC_SEND_ONLY", "UC_WRITE_MIDDLE", "RC_ACK", "CNP"])
def test_scapy_agrees(name: str) -> None:
    pytest.importorskip("scapy.contrib.roce", reason="needs scapy")
    from scapy.contrib.roce import AETH, BTH, CNPPadding
    from scapy.layers.inet import IP, UDP
    from scapy.packet import Raw

    payload = b"" if name in ("RC_ACK", "CNP") else b"payload."
    ours = oracle.packet(name, 0x123456, 0x654321, payload, syndrome=0x1F, msn=9, becn=int(name == "CNP"))
    layers = BTH(opcode=oracle.OPCODES[name], dqpn=0x123456, psn=0x654321, becn=int(name == "CNP"))
    if name == "RC_ACK":
        layers /= AETH(syndrome=0x1F, msn=9)
    elif name == "CNP":
        layers /= CNPPadding()
    else:
        layers /= Raw(payload)
    theirs = bytes(IP(src=V4[0], dst=V4[1], id=77, flags="DF") / UDP(sport=1234, dport=4791) / layers)
    assert seal(path_of(V4, (1234, 4791)), 77, ours + bytes(4)) == theirs[28:]
