"""Bad packets: random bytes from a host that is no member; packets of the job again, or changed, as if from a member.

What may be sent is what nobody without keys needs to fear (docs/security.md): never a packet of the job's generation
that its sender hasn't made.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import deque

from emulation.experiments.chaos.chaos_network import HUB, STRANGER, ChaosNetwork
from emulation.experiments.chaos.fault_kinds.fault_kind import ChaosEvent, pick
from emulation.experiments.chaos.fault_kinds.fault_table import ForgedPackets, RandomPackets
from emulation.testbed import netns
from switchagg.wire import HEADER, HEADER_BYTES

EVERY_PROTOCOL = 3
ETHERNET_BYTES, IP_AT, UDP_AT, DATA_AT = 14, 14, 34, 42
FRAME_MAX = 1514
REMEMBERED = 4000
PAUSE_S = 0.001
GENERATION_AT = int(HEADER.fields["generation"][1])  # type: ignore[index]


def forge(frame: bytearray, packet_at: int, chance: random.Random) -> None:
    """Give the packet in a frame another generation, and change up to three bits behind that."""
    generation_at = packet_at + GENERATION_AT
    frame[generation_at + pick(chance, 4)] ^= 1 + pick(chance, 255)
    for _ in range(pick(chance, 4)):
        bit = 8 * (generation_at + 4) + pick(chance, 8 * (len(frame) - generation_at - 4))
        frame[bit // 8] ^= 1 << bit % 8


class BadPackets:
    """Sends packets of one event's kind until `close`. packets_sent: how many."""

    def __init__(self, network: ChaosNetwork, switches: list[str], data_port: int, event: ChaosEvent) -> None:
        self.packets_sent = 0
        self._event, self._chance = event, random.Random(event.seed)
        self._targets = [(network.address(name), data_port) for name in switches]
        self._frames: deque[tuple[bytes, str]] = deque(maxlen=REMEMBERED)
        self._ports = {network.address(name): network.port(name) for name in network.nodes if name != HUB}
        self._data_port = data_port
        self._tap = netns.open_socket(network.pid(HUB), socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL))
        self._stranger = netns.open_socket(network.pid(STRANGER), socket.AF_INET, socket.SOCK_DGRAM)
        self._tap.setblocking(False)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bad packets")
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self._tap.close()
        self._stranger.close()

    def _run(self) -> None:
        while not self._end.is_set():
            self._record()
            try:
                if self._event.kind == RandomPackets.name:
                    self._send_random()
                elif self._frames:
                    self._send_frame()
            except OSError:  # A link is down, or a queue full: what is bad may get lost.
                pass
            time.sleep(PAUSE_S)

    def _record(self) -> None:
        """Remembers what the job's links carry: it arrives at the hub's port from a node, whole as on a wire."""
        for _ in range(64):
            try:
                frame, where = self._tap.recvfrom(65_536)
            except BlockingIOError:
                return
            address = socket.inet_ntoa(frame[IP_AT + 16 : IP_AT + 20])
            if where[2] != socket.PACKET_OUTGOING and where[0] != "br0" and self._is_data(frame):
                self._frames.append((frame, self._ports.get(address, "")))

    def _is_data(self, frame: bytes) -> bool:
        ports = [int.from_bytes(frame[at : at + 2], "big") for at in (UDP_AT, UDP_AT + 2)]
        udp = len(frame) > IP_AT + 9 and frame[IP_AT + 9] == socket.IPPROTO_UDP
        return udp and self._data_port in ports and DATA_AT + HEADER_BYTES <= len(frame) <= FRAME_MAX

    def _send_random(self) -> None:
        """To a switch, or where a rank gets the switch's packets."""
        members = [self._source(frame) for frame, _ in list(self._frames)[-16:]]
        targets = self._targets + [member for member in members if member not in self._targets]
        size = pick(self._chance, 1400)
        self._stranger.sendto(self._chance.randbytes(size), targets[pick(self._chance, len(targets))])
        self.packets_sent += 1

    def _send_frame(self) -> None:
        frame, port = self._frames[pick(self._chance, len(self._frames))]
        if not port:
            return
        copy = bytearray(frame)
        copy[UDP_AT + 6 : UDP_AT + 8] = bytes(2)  # no UDP checksum, as IPv4 allows: the sender's may be left to a NIC
        if self._event.kind == ForgedPackets.name:
            forge(copy, DATA_AT, self._chance)
        self._tap.sendto(copy, (port, 0))
        self.packets_sent += 1

    @staticmethod
    def _source(frame: bytes) -> tuple[str, int]:
        return socket.inet_ntoa(frame[IP_AT + 12 : IP_AT + 16]), int.from_bytes(frame[UDP_AT : UDP_AT + 2], "big")
