"""Bad packets in virtual time: those of a switch again, or changed, as if from where they came; random bytes.

As `chaos/bad_packets.py` sends them to real switches.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from emulation.experiments.chaos.bad_packets import REMEMBERED, forge
from emulation.experiments.chaos.fault_kinds.fault_kind import ChaosEvent, pick
from emulation.experiments.chaos.fault_kinds.fault_table import ForgedPackets, RandomPackets
from emulation.sim.failover.switch_process import SwitchProcess
from emulation.sim.network.virtual_clock import VirtualClock

PAUSE_NS = 5_000_000
RANDOM_BYTES_MOST = 1400
STRANGER = 30_000
"""The address of a host that is no member."""


class SeenPacket(NamedTuple):
    """A packet of the job. ports: of a result, whom it went to; else it came from sender, addressed `to`."""

    data: bytes
    sender: int
    to: int
    ports: tuple[int, ...]


class VirtualPackets:
    """All packets that are remembered, of any generation, and what is sent of them while events of their kinds last.
    ranks: addresses of their hosts."""

    def __init__(self, clock: VirtualClock, processes: Sequence[SwitchProcess], ranks: Sequence[int]) -> None:
        self.packets_sent = 0
        self._clock, self._processes, self._ranks = clock, processes, ranks
        self._seen: deque[SeenPacket] = deque(maxlen=REMEMBERED)
        self._events: dict[int, ChaosEvent] = {}

    def begin(self, event: ChaosEvent) -> None:
        """Packets of the event's kind come from now on."""
        self._events[event.number] = event
        for process in self._processes:
            process.tap = self
            process.follow()
        self._send(event, random.Random(event.seed))

    def end(self) -> None:
        """No packets come any more."""
        self._events.clear()
        for process in self._processes:
            process.tap = None
            process.follow()

    def note_contribution(self, frame: Any, sender: int, to: int) -> None:
        """See `PacketTap`."""
        if frame is not None:
            self._seen.append(SeenPacket(frame.tobytes(), sender, to, ()))

    def note_results(self, bundle: Any, ports: Sequence[int], bits: int) -> None:
        """See `PacketTap`."""
        self._seen += [SeenPacket(row.tobytes(), -1, bits, tuple(ports)) for row in bundle]

    def _send(self, event: ChaosEvent, chance: random.Random) -> None:
        if event.number not in self._events:
            return
        if event.kind == RandomPackets.name:
            self._send_random(chance)
        elif self._seen:
            self._send_seen(event, chance)
        then: Callable[[Any, int, int], None] = partial(_again, self._send, event, chance)
        self._clock.schedule(self._clock.now_ns + PAUSE_NS, then)

    def _send_random(self, chance: random.Random) -> None:
        packet = np.frombuffer(chance.randbytes(1 + pick(chance, RANDOM_BYTES_MOST)), np.uint8).reshape(1, -1)
        place = pick(chance, len(self._processes) + len(self._ranks))
        self.packets_sent += 1
        if place < len(self._processes):
            process = self._processes[place]
            process.take(packet, STRANGER, process.node.address)
        else:
            self._processes[0].node.send_results(packet, [self._ranks[place - len(self._processes)]], 0)

    def _send_seen(self, event: ChaosEvent, chance: random.Random) -> None:
        packet = self._seen[pick(chance, len(self._seen))]
        copy = bytearray(packet.data)
        if event.kind == ForgedPackets.name:
            forge(copy, 0, chance)
        frame = np.frombuffer(bytes(copy), np.uint8).reshape(1, -1)
        self.packets_sent += 1
        if packet.ports:
            to = packet.ports[pick(chance, len(packet.ports))]
            self._processes[0].node.send_results(frame, [to], packet.to)
        else:
            for process in self._processes:
                process.take(frame, packet.sender, packet.to)


def _again(
    send: Callable[[ChaosEvent, random.Random], None], event: ChaosEvent, chance: random.Random, *_: object
) -> None:
    send(event, chance)
