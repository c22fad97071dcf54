# SPDX-License-Identifier: GPL-2.0-only
# This file alone: scapy, which it builds on, is GPL-2.0-only. Nothing of switchagg imports it.
"""Packets of switchagg (switchagg/PROTOCOL.md, P1 to P4) for scapy, which reads, builds, sends and shows them.

    >>> from scapy.all import IP, UDP, sr1
    >>> from switchagg_scapy import Chunk      # with tools/scapy on PYTHONPATH
    >>> contribution = Chunk(job=1, generation=7, rank=0, slot=0, chunk=0, values=[1, -2, 3])
    >>> result = sr1(IP(dst="10.0.0.254") / UDP(sport=6000) / contribution, timeout=1)

`elements` is filled in when a packet is built; the checksum of P5 is UDP's own. A capture of another UDP port:
`decode_as(port)`.
"""

import struct

from scapy.config import conf
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteField,
    FieldLenField,
    FieldListField,
    FlagsField,
    IntField,
    ShortField,
    SignedIntField,
    XShortField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_layers

PORT = 5556
MAGIC = 0x5341
WIRE_VERSION = 2
HEADER_BYTES = 20
FLAGS = ["RESULT", "VERSION", "RETRANSMISSION"]


class Chunk(Packet):
    """A contribution, or with the flag RESULT the switch's answer. values: signed 32-bit integers, or none."""

    name = "switchagg"
    fields_desc = [  # noqa: RUF012
        XShortField("magic", MAGIC),
        BitField("wire_version", WIRE_VERSION, 4),
        BitEnumField("op", 0, 1, {0: "SUM", 1: "MAX"}),
        BitEnumField("routing", 0, 2, {0: "ALL", 1: "TO_OWNER", 2: "FROM_OWNER"}),  # every Packet has a method `route`
        BitField("owner", 0, 6),
        FlagsField("flags", 0, 3, FLAGS),
        ShortField("job", 0),
        ShortField("slot", 0),
        IntField("generation", 0),
        ByteField("stream", 0),
        FlagsField("congestion", 0, 2, ["CLOSE", "MARKED"]),
        BitField("rank", 0, 6),
        FieldLenField("elements", None, count_of="values", fmt="H"),
        IntField("chunk", 0),
        FieldListField("values", [], SignedIntField("value", 0), count_from=lambda packet: packet.elements),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *_: object, **__: object) -> type[Packet]:
        """What begins otherwise is none of ours, also on our port."""
        if _pkt and (len(_pkt) < HEADER_BYTES or struct.unpack_from("!H", _pkt)[0] != MAGIC):
            return conf.raw_layer
        return cls

    def hashret(self) -> bytes:
        """The same for a contribution and its result: scapy looks for answers by it."""
        return struct.pack("!HIBI", self.job, self.generation, self.stream, self.chunk)

    def answers(self, other: Packet) -> bool:
        """W5: a result answers the contributions to its chunk, whoever's was the last."""
        return (
            isinstance(other, Chunk)
            and bool(self.flags.RESULT)
            and not other.flags.RESULT
            and self.hashret() == other.hashret()
            and (self.slot, bool(self.flags.VERSION)) == (other.slot, bool(other.flags.VERSION))
            and (self.routing, self.owner) == (other.routing, other.owner)
        )

    def mysummary(self) -> str:
        kind = "result" if self.flags.RESULT else "contribution"
        again = " again" if self.flags.RETRANSMISSION else ""
        route = " %routing% %owner%" if self.routing else ""
        return self.sprintf(f"switchagg {kind}{again} %op%{route} job %job% rank %rank% stream %stream% chunk %chunk%")


def decode_as(port: int) -> None:
    """Take datagrams from or to this UDP port for ours, if they begin so."""
    bind_layers(UDP, Chunk, dport=port)
    bind_layers(UDP, Chunk, sport=port)


decode_as(PORT)
bind_layers(UDP, Chunk, dport=PORT)  # what `UDP() / Chunk()` sends to
