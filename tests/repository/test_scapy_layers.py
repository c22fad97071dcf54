"""tools/scapy: packets that scapy builds and reads are those of switchagg/wire.py."""

import importlib
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from switchagg.wire import Op, Packet, Route, encode

pytest.importorskip("scapy", reason="scapy is not installed: pip install scapy")

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

# Before any test runs: pytester forgets modules that its tests load, and scapy would know two of this one.
LAYERS = importlib.import_module("switchagg_scapy")
SENT = Packet(1, 7, 2, 3, Op.MAX, 9, 1, 4294967295, np.array([1, -2, 2**31 - 1, -(2**31)], np.int32), False, True)

HEADER_ONLY = replace(SENT, values=SENT.values[:0], route=Route.TO_OWNER, owner=37)


@pytest.fixture(scope="module")
def layers() -> ModuleType:
    return LAYERS


def built(layers: ModuleType, **changes: object) -> object:
    fields = {"job": 1, "generation": 7, "stream": 2, "rank": 3, "op": "MAX", "slot": 9, "chunk": 4294967295}
    fields |= {"flags": "VERSION+RETRANSMISSION", "values": [1, -2, 2**31 - 1, -(2**31)]}
    return layers.Chunk(**(fields | changes))


def test_builds_our_bytes(layers: ModuleType) -> None:
    assert bytes(built(layers)) == encode(SENT)
    assert bytes(built(layers, routing="TO_OWNER", owner=37, values=[])) == encode(HEADER_ONLY)
    assert bytes(built(layers, elements=360))[14:16] == b"\x01\x68"  # also what is wrong can be sent


def test_reads_our_bytes(layers: ModuleType) -> None:
    frame = Ether(bytes(Ether() / IP(src="10.0.0.1", dst="10.0.0.254") / UDP(sport=6000) / encode(SENT)))
    assert frame[UDP].dport != layers.PORT
    frame = Ether(bytes(Ether() / IP() / UDP(sport=6000, dport=layers.PORT) / encode(SENT)))
    chunk = frame[layers.Chunk]
    assert (chunk.job, chunk.generation, chunk.stream, chunk.rank, chunk.slot) == (1, 7, 2, 3, 9)
    assert (chunk.op, chunk.elements, chunk.chunk) == (1, 4, 4294967295)
    assert str(chunk.flags) == "VERSION+RETRANSMISSION"
    assert chunk.values == SENT.values.tolist()
    header_only = UDP(bytes(UDP(sport=6000, dport=layers.PORT) / encode(HEADER_ONLY)))[layers.Chunk]
    assert (header_only.op, header_only.routing, header_only.owner, header_only.elements, header_only.values) == (
        1,
        1,
        37,
        0,
        [],
    )
    assert bytes(frame[UDP].payload) == encode(SENT)


def test_the_default_port_is_ours(layers: ModuleType) -> None:
    assert (UDP() / built(layers)).dport == layers.PORT
    assert layers.Chunk in UDP(bytes(UDP(sport=layers.PORT, dport=6000) / encode(SENT)))


def test_a_result_answers_its_contribution(layers: ModuleType) -> None:
    """As `sr1` matches them, from the switch's address and port back."""
    sent = IP(src="10.0.0.1", dst="10.0.0.254") / UDP(sport=6000) / built(layers)

    def result(**changes: object) -> IP:
        back = {"flags": "RESULT+VERSION", "rank": 5} | changes
        made = IP(src="10.0.0.254", dst="10.0.0.1") / UDP(sport=layers.PORT, dport=6000) / built(layers, **back)
        return IP(bytes(made))

    assert result().answers(sent)
    assert result().hashret() == sent.hashret()
    wrong = {"flags": "VERSION"}, {"flags": "RESULT"}, {"job": 2}, {"generation": 8}, {"stream": 1}, {"chunk": 5}
    for changes in (*wrong, {"slot": 8}, {"routing": "FROM_OWNER"}, {"routing": "FROM_OWNER", "owner": 1}):
        assert not result(**changes).answers(sent)


def test_shows_all_fields(layers: ModuleType) -> None:
    shown = (IP() / UDP() / built(layers)).show2(dump=True)
    for line in ("op        = MAX", "flags     = VERSION+RETRANSMISSION", "elements  = 4", "chunk     = 4294967295"):
        assert line.replace(" ", "") in shown.replace(" ", "")
    assert built(layers).summary() == "switchagg contribution again MAX job 1 rank 3 stream 2 chunk 4294967295"
    assert "again MAX TO_OWNER 5 job 1" in built(layers, routing=1, owner=5, values=[]).summary()


def test_other_payloads_stay_raw(layers: ModuleType) -> None:
    whole = encode(SENT)
    for data in (b"GET /", b"", whole[:19], b"\0" + whole[1:]):
        read = UDP(bytes(UDP(sport=6000, dport=layers.PORT) / data))
        assert layers.Chunk not in read
        assert bytes(read.payload) == data
    for data in (whole[:-1], whole[:20], whole + b"more"):  # begins like one: as much as is there
        read = UDP(bytes(UDP(sport=6000, dport=layers.PORT) / data))
        assert bytes(read.payload) == data
    assert read[Raw].load == b"more"


def test_another_port_can_be_bound(layers: ModuleType) -> None:
    data = bytes(UDP(sport=6000, dport=7777) / encode(SENT))
    assert layers.Chunk not in UDP(data)
    layers.decode_as(7777)
    assert layers.Chunk in UDP(data)
