"""Departure times of frames: a packet socket sees what an interface sends *after* its qdisc, with a kernel timestamp.

The kernel writes a few bytes of each frame into a ring we read some times a second. A full ring costs departures, not
CPU: taps are thereby bounded, and a gap across the loss is never used. Linux 6.2 or later for UDP bundles.
"""

from __future__ import annotations

import ctypes
import mmap
import socket
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulation.testbed import netns

_SOL_PACKET, _PACKET_RX_RING, _PACKET_VERSION, _PACKET_VNET_HDR = 263, 5, 10, 15
_TPACKET_V2 = 1
_SO_ATTACH_FILTER = 26
_ETH_P_ALL = 3
_STATUS_USER = 1
_SNAP_BYTES = 64  # Ethernet, IPv4 and TCP headers: enough to know how long a segment's headers are
_FRAME_BYTES = 256
_RING_FRAMES = 512
_BLOCK_BYTES = 4096
_ETHERNET_IPV4_BYTES, _UDP_BYTES, _TCP = 34, 8, 6

# struct tpacket2_hdr and what follows it in the ring, for Ethernet and a virtio_net_hdr of 10 bytes
_RING = np.dtype(
    {
        "names": ["status", "length", "seconds", "nanoseconds", "gso_bytes", "protocol", "tcp_offset"],
        "formats": ["<u4", "<u4", "<u4", "<u4", "<u2", "u1", "u1"],
        "offsets": [0, 4, 16, 20, 66 + 4, 76 + 23, 76 + 46],
        "itemsize": _FRAME_BYTES,
    }
)

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Departures:
    """Frames in order of departure. `wire_bytes` as HTB counts them: a GSO bundle is its segments with all headers."""

    time_ns: Int64Array  # CLOCK_REALTIME
    wire_bytes: Int64Array
    complete: bool  # False: the ring was full, frames after these are missing


_NONE = Departures(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), complete=True)


class Tap:
    """Listens to what one interface in the namespace of `pid` sends. Raises OSError."""

    def __init__(self, pid: int, interface: str) -> None:
        self._socket = netns.open_socket(pid, socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            _attach_outgoing_filter(self._socket)
            self._socket.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V2)
            self._socket.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
            total = _RING_FRAMES * _FRAME_BYTES
            request = struct.pack("=IIII", _BLOCK_BYTES, total // _BLOCK_BYTES, _FRAME_BYTES, _RING_FRAMES)
            self._socket.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
            self._map = mmap.mmap(self._socket.fileno(), total)
            self._ring = np.frombuffer(self._map, dtype=_RING)
            self._socket.bind((interface, _ETH_P_ALL))
        except BaseException:
            self._socket.close()
            raise
        self._head = 0

    def drain(self) -> Departures:
        """The departures since the last call."""
        if not self._ring["status"][self._head] & _STATUS_USER:
            return _NONE
        ready = (self._ring["status"] & _STATUS_USER).astype(bool)
        count = _RING_FRAMES if ready.all() else int(np.roll(ready, -self._head).argmin())
        order = (self._head + np.arange(count)) % _RING_FRAMES
        frames = self._ring[order]  # a copy: the slots go back to the kernel now
        self._ring["status"][order] = 0
        self._head = (self._head + count) % _RING_FRAMES
        time_ns = frames["seconds"].astype(np.int64) * 1_000_000_000 + frames["nanoseconds"]
        return Departures(time_ns, wire_bytes(frames), count < _RING_FRAMES)

    def close(self) -> None:
        """Stops listening."""
        del self._ring
        self._map.close()
        self._socket.close()


def wire_bytes(frames: npt.NDArray[np.void]) -> Int64Array:
    """Bytes of Ethernet frames that a bundle becomes: every segment after the first repeats the headers."""
    length = frames["length"].astype(np.int64)
    gso = frames["gso_bytes"].astype(np.int64)
    transport = np.where(frames["protocol"] == _TCP, (frames["tcp_offset"] >> 4).astype(np.int64) * 4, _UDP_BYTES)
    headers = _ETHERNET_IPV4_BYTES + transport
    segments = np.where(gso > 0, -(-(length - headers) // np.maximum(gso, 1)), 1)
    return np.asarray(length + (segments - 1) * headers, dtype=np.int64)


def _attach_outgoing_filter(sock: socket.socket) -> None:
    """Classic BPF: the first bytes of outgoing frames, nothing of the others."""
    outgoing, ancillary_packet_type = 4, 0xFFFF_F004
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (0x30, 0, 0, ancillary_packet_type),  # ldb type
            (0x15, 0, 1, outgoing),  # jeq #outgoing, next, drop
            (0x06, 0, 0, _SNAP_BYTES),  # ret #snap
            (0x06, 0, 0, 0),  # drop: ret #0
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
