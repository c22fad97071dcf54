"""Packets as tests compare and show them: field by field, whatever the bytes are."""

import struct
from typing import SupportsBytes

from switchagg.wire import (
    CLOSE,
    FLAG_RESULT,
    FLAG_RETRANSMISSION,
    FLAG_VERSION,
    HEADER_BYTES,
    MARKED,
    RANK_BITS,
    Op,
    Packet,
    Route,
    encode,
    op_of,
    owner_of,
)

SHOWN_MOST = 8
"""Values in a line, and differing ones in a list."""

_HEADER = struct.Struct(">IHHIBBHI")
_ROUTES = [*(route.name for route in Route), "3"]  # which no packet has (P6)


def bytes_of(packet: Packet | SupportsBytes) -> bytes:
    """The datagram: of a Packet, of bytes, of anything that has bytes, like a scapy layer; of layers with UDP among
    them what UDP carries."""
    if isinstance(packet, Packet):
        return encode(packet)
    find = getattr(packet, "getlayer", None)
    udp = None if find is None else find("UDP")
    return bytes(packet if udp is None else udp.payload)


def fields_of(data: bytes) -> dict[str, object]:
    """Field -> value, in the order of the wire: value[0], value[1] … from what follows the header, `rest` what is left
    over. Bytes shorter than a header are all `rest`."""
    if len(data) < HEADER_BYTES:
        return {"rest": data.hex()}
    kind, job, slot, generation, stream, rank, elements, chunk = _HEADER.unpack_from(data)
    end = len(data) - len(data) % 4
    values = struct.unpack(f">{(end - HEADER_BYTES) // 4}i", data[HEADER_BYTES:end])
    fields: dict[str, object] = {
        "magic": f"{kind >> 16:#06x}",
        "wire_version": kind >> 12 & 15,
        "op": op_of(kind).name,
        "route": _ROUTES[kind >> 9 & 3],
        "owner": owner_of(kind),
        "RESULT": bool(kind & FLAG_RESULT),
        "VERSION": int(bool(kind & FLAG_VERSION)),
        "RETRANSMISSION": bool(kind & FLAG_RETRANSMISSION),
        "job": job,
        "slot": slot,
        "generation": generation,
        "stream": stream,
        "rank": rank & RANK_BITS,
        "CLOSE": bool(rank & CLOSE),
        "MARKED": bool(rank & MARKED),
        "elements": elements,
        "chunk": chunk,
    }
    fields |= {f"value[{index}]": value for index, value in enumerate(values)}
    return fields | ({"rest": data[end:].hex()} if data[end:] else {})


def describe(data: bytes) -> str:
    """A datagram in one line."""
    fields = fields_of(data)
    if "magic" not in fields:
        return f"{len(data)} bytes: {fields['rest'] or 'none'}"
    values = [value for name, value in fields.items() if name.startswith("value")]
    listed = ", ".join(map(str, values[:SHOWN_MOST])) + (", …" if len(values) > SHOWN_MOST else "")
    names = ("job", "generation", "stream", "chunk", "slot", "rank", "elements")
    words = ["result" if fields["RESULT"] else "contribution"]
    words += [f"{name} {fields[name]}" for name in names[:-1]]
    words.insert(-1, f"version {fields['VERSION']}")
    if fields["op"] != Op.SUM.name:
        words.append(str(fields["op"]))
    if fields["route"] != Route.ALL.name:
        words.append(f"{fields['route']} {fields['owner']}")
    words += [name for name in ("RETRANSMISSION", "CLOSE", "MARKED") if fields[name]]
    words += [
        f"{name} {fields[name]}" for name, usual in (("magic", "0x5341"), ("wire_version", 2)) if fields[name] != usual
    ]
    if fields["elements"] != len(values):
        words.append(f"elements {fields['elements']}")
    return f"{' '.join(words)} [{listed}]" + (f" and {fields['rest']}" if "rest" in fields else "")


def difference(expected: bytes, received: bytes) -> list[str]:
    """A line for each field that differs, of many values the first; none if the datagrams are equal."""
    wanted, actual = fields_of(expected), fields_of(received)
    names = [name for name in wanted | actual if wanted.get(name, "nothing") != actual.get(name, "nothing")]
    values = [name for name in names if name.startswith("value")]
    listed = [name for name in names if name not in values[SHOWN_MOST:]]
    lines = [
        f"{name:<14} expected {wanted.get(name, 'nothing')}, received {actual.get(name, 'nothing')}" for name in listed
    ]
    return lines + ([f"value[…]       and {len(values) - SHOWN_MOST} more"] if len(values) > SHOWN_MOST else [])
