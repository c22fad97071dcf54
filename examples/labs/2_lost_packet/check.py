"""Sends the folder's packets to a live switch on loopback, and compares what it does with what is predicted."""

import runpy
import sys
from pathlib import Path
from typing import Any

from emulation.cli.start.shipped import shipped
from switchagg.dataplane.p4.plane_traffic import SAYS
from switchagg.testing import Job, Switch

WORKERS, ELEMENTS, WINDOW, GENERATION = 2, 2, 2, 7
LOST_RESULT = (1, 0)
"""The first result to this rank of this chunk never arrives."""

VERDICTS = {"reply": "REPLY", "broadcast": "BROADCAST"}
"""Counters of the switch and their verdicts; all other counters count drops."""


class Story:
    """The events so far. have: (rank, chunk) of results that arrived; counted: each packet's counter, in order."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.have: set[tuple[int, int]] = set()
        self.was_lost = False
        self.counted: list[tuple[int, int, str]] = []  # rank, chunk, counter
        self.frames: list[bytes] = []

    def fault_before(self, packet: Any) -> str:
        """The reason why a worker would not send this packet now; "" if it would."""
        rank, chunk = packet.rank, packet.chunk
        slot, version = self.job.config.place(0, chunk)
        if (packet.slot, int(bool(packet.flags.VERSION))) != (slot, version):
            return (
                f"chunk {chunk} goes in slot {slot} version {version} (W2); this one says slot {packet.slot} version "
                + (f"{int(bool(packet.flags.VERSION))}")
            )
        if chunk >= WINDOW and (rank, chunk - WINDOW) not in self.have:
            return f"rank {rank} has no result of chunk {chunk - WINDOW}, so it may not send chunk {chunk} (W6)"
        return ""

    def play(self, packet: Any) -> str:
        """Send it; returns the name of the counter that counted it."""
        counted = self.job.switch.deliver(self.job.workers[packet.rank], packet)
        for rank, port in enumerate(self.job.workers):
            while port.receive(0) is not None:
                if (rank, packet.chunk) == LOST_RESULT and not self.was_lost:
                    self.was_lost = True
                else:
                    self.have.add((rank, packet.chunk))
        self.counted.append((packet.rank, packet.chunk, counted))
        self.frames.append(bytes(packet))
        return counted

    def missing(self) -> list[str]:
        """The event that the story still lacks."""
        if LOST_RESULT not in self.have:
            return [
                "rank 1 never gets the result of chunk 0",
                "nobody tells it that one was lost: it must ask again (W7)",
            ]
        for chunk in (2, 4):
            if not {(0, chunk), (1, chunk)} <= self.have:
                return [f"not both ranks have the result of chunk {chunk}", "step 3: the next turns of slot 0"]
        if not any(counted == "drop_older" for _, _, counted in self.counted):
            return [
                "no old copy has come late yet",
                "step 4: a packet that was sent before, once a newer chunk has taken its slot version over (S2)",
            ]
        return []


def faults_of(job: Job, packets: list[tuple[Any, str]]) -> list[str]:
    story = Story(job)
    for number, (packet, predicted) in enumerate(packets, 1):
        name = f"packet {number} (rank {packet.rank}, chunk {packet.chunk})"
        if packet.rank >= WORKERS:
            return [f"{name}: the job has ranks 0 and 1"]
        if fault := story.fault_before(packet):
            return [f"{name}: {fault}"]
        counted = story.play(packet)
        verdict = VERDICTS.get(counted, "DROP")
        why = SAYS[counted]
        if verdict != predicted:
            return [f"{name}: you say {predicted}, the switch does {verdict}", why]
        if why.startswith("S1"):
            return [f"{name}: the switch dropped it, as it doesn't know the sender", why]
    return story.missing()


def faults(folder: Path) -> list[str]:
    """The faults of the folder's by_hand.py."""
    layers = str(shipped()["scapy"])
    if layers not in sys.path:
        sys.path.append(layers)
    packets = runpy.run_path(str(folder / "by_hand.py"))["PACKETS"]
    with Switch("reference", slots=WINDOW, elements=ELEMENTS) as switch:
        return faults_of(switch.job(WORKERS, elements=ELEMENTS, window=WINDOW, generation=GENERATION), packets)
