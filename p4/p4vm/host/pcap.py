"""Captures in the classic pcap format: microseconds, Ethernet; tcpdump and Wireshark read it."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from p4vm.source import P4Error

MAGIC = 0xA1B2C3D4
LINK_ETHERNET = 1
SNAP = 262_144
"""Longest packet a reader need be ready for, bytes."""

FILE_HEADER = struct.Struct("<IHHiIII")
RECORD = struct.Struct("<IIII")


def open_capture(path: Path) -> BinaryIO:
    """A new file with its header written. Raises P4Error."""
    try:
        file = path.open("wb")
        file.write(FILE_HEADER.pack(MAGIC, 2, 4, 0, 0, SNAP, LINK_ETHERNET))
        file.flush()
    except OSError as error:
        raise P4Error(f"{path}: can't be written: {error.strerror}") from None
    return file


def record(time_us: int, data: bytes) -> bytes:
    """A packet as it stands in a file. time_us: since 1970."""
    return RECORD.pack(time_us // 1_000_000, time_us % 1_000_000, len(data), len(data)) + data


def read(path: Path) -> Iterator[tuple[int, bytes]]:
    """(time in µs, packet) for each in a file that `open_capture` began. A record cut short ends it. Raises P4Error."""
    with path.open("rb") as file:
        header = file.read(FILE_HEADER.size)
        if len(header) < FILE_HEADER.size or FILE_HEADER.unpack(header)[0] != MAGIC:
            raise P4Error(f"{path}: no capture in the classic pcap format (microseconds, little-endian)")
        while len(start := file.read(RECORD.size)) == RECORD.size:
            seconds, micros, length, _ = RECORD.unpack(start)
            data = file.read(min(length, SNAP))
            if len(data) < length:
                return
            yield seconds * 1_000_000 + micros, data
