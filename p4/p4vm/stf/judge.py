"""Compares the packets a test got with those it expects, and reports where they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from p4vm.source import Position
from p4vm.stf.stf_parse import Expect

GROUP = 8
"""Nibbles between two spaces where packets are shown."""
WINDOW = 12 * GROUP
"""Nibbles of a packet that are shown around the first wrong one."""


@dataclass(frozen=True, slots=True)
class OutputPacket:
    """A packet that left, and the statement whose packet caused it."""

    data: bytes
    cause: Position


def judge(expected: Mapping[int, Sequence[Expect]], received: Mapping[int, Sequence[OutputPacket]]) -> list[str]:
    """Failures, port by port."""
    failures: list[str] = []
    for port in sorted({*expected, *received}):
        failures += _judge_port(port, expected.get(port, ()), received.get(port, ()))
    return failures


def _judge_port(port: int, expected: Sequence[Expect], received: Sequence[OutputPacket]) -> list[str]:
    failures = []
    for place, (line, packet) in enumerate(zip(expected, received, strict=False), 1):
        fault = difference(line, packet.data)
        if fault is not None:
            failures.append(_differs(line, packet, place, *fault))
    for place in range(len(received), len(expected)):
        line = expected[place]
        wanted = "" if line.nibbles is None else f"; expected {spaced(line.nibbles[:WINDOW])}"
        failures.append(
            f"{line.position.file}:{line.position.line}: expect {port}: no packet came: port {port} sent "
            f"{len(received)}, this would be packet {place + 1}{wanted}"
        )
    for place in range(len(expected), len(received)):
        packet = received[place]
        failures.append(
            f"{packet.cause.file}:{packet.cause.line}: nothing expects what this packet caused: port {port} sent "
            f"{len(packet.data)} bytes (packet {place + 1} there): {spaced(packet.data.hex()[:WINDOW])}"
        )
    return failures


def difference(line: Expect, data: bytes) -> tuple[int, str] | None:
    """(first wrong nibble from 0, what is wrong), or None: it matches."""
    if line.nibbles is None:
        return None
    digits = data.hex()
    for place, (wanted, digit) in enumerate(zip(line.nibbles, digits, strict=False)):
        if wanted not in ("*", digit):
            return place, f"differs at byte {place // 2}"
    if len(digits) < len(line.nibbles):
        return len(digits), f"is too short: {len(data)} bytes, expected {-(-len(line.nibbles) // 2)}"
    if line.exact and len(digits) > len(line.nibbles):
        return len(line.nibbles), f"is too long: {len(data)} bytes, expected exactly {len(line.nibbles) // 2}"
    return None


def _differs(line: Expect, packet: OutputPacket, place: int, wrong: int, what: str) -> str:
    assert line.nibbles is not None
    start = max(0, wrong // GROUP * GROUP - WINDOW // 2)
    dots = "… " if start else ""
    marker = " " * (len(dots) + len(spaced("0" * (wrong - start) + "0")) - 1) + "^"
    return "\n".join(
        [
            f"{line.position.file}:{line.position.line}: expect {line.port}: packet {place} on this port {what}",
            f"    expected {dots}{spaced(line.nibbles[start : start + WINDOW])}{'' if not line.exact else ' $'}",
            f"    got      {dots}{spaced(packet.data.hex()[start : start + WINDOW])}",
            f"             {marker}",
        ]
    )


def spaced(nibbles: str) -> str:
    return " ".join(nibbles[start : start + GROUP] for start in range(0, len(nibbles), GROUP))
