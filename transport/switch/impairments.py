"""Impairments of the links of an emulated switch: rates, queues, delays and seeded faults, for each direction.

The options are those of scenarios and of the command line: `loss=0.01,delay=1ms,rate=200mbit`.
"""

import re
from dataclasses import dataclass, fields
from typing import Any

from switchagg.errors import JobError
from switchagg.option_syntax import close_match

SECOND_NS = 1_000_000_000
DELAY_MAX_NS = 10 * SECOND_NS
RATE_MAX_BPS = 400_000_000_000
RATE_MIN_BPS = 1_000
QUEUE_MIN_BYTES = 100
QUEUE_MAX_BYTES = 1 << 30
SEED_MAX = (1 << 64) - 1

SPAN_FRAMES = 8
"""A packet that is held back is late by up to so many full frames, as in virtual time."""

FULL_FRAME_BYTES = 1514


def _check(name: str, value: int, least: int, most: int, unit: str = "") -> None:
    if not least <= value <= most:
        raise JobError(f"{name} {value}: allowed {least} to {most} {unit}".rstrip())


@dataclass(frozen=True)
class LinkImpairments:
    """A direction of every port's link. A value out of range raises JobError, naming it.

    loss, duplicate, reorder, corrupt: probabilities per packet, 0 to 1. A corrupted packet has up to 15 bits in a row
    flipped; the receiver's UDP checksum finds every such burst (P5), so it is a loss with a name of its own.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    delay_ns: int = 0  # 0 to 10 s, added to every packet
    jitter_ns: int = 0  # 0 to 10 s: each packet is late by up to so much more, uniformly, and may overtake others
    rate_bps: int = 0  # 1 kbit/s to 400 Gbit/s; 0: the link is as fast as the machine
    queue_bytes: int = 4 << 20  # 100 B to 1 GiB per port and priority class, framing included: two windows of 1024
    ecn_threshold_bytes: int | None = None  # 0 to 1 GiB: above it, packets with ECT get CE; None: never
    span_ns: int | None = None  # 1 ns to 10 s: how late held-back packets are; None: 8 full frames at the rate

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder", "corrupt"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise JobError(f"{name} {getattr(self, name):g}: a probability per packet, 0 to 1")
        _check("delay", self.delay_ns, 0, DELAY_MAX_NS, "ns")
        _check("jitter", self.jitter_ns, 0, DELAY_MAX_NS, "ns")
        _check("span", 1 if self.span_ns is None else self.span_ns, 1, DELAY_MAX_NS, "ns")
        if self.rate_bps:
            _check("rate", self.rate_bps, RATE_MIN_BPS, RATE_MAX_BPS, "bit/s")
        _check("queue", self.queue_bytes, QUEUE_MIN_BYTES, QUEUE_MAX_BYTES, "bytes")
        _check("ecn", self.ecn_threshold_bytes or 0, 0, QUEUE_MAX_BYTES, "bytes")

    @property
    def held_back_ns(self) -> int:
        """The longest that a held-back packet is late; without a rate, as at 1 Gbit/s."""
        if self.span_ns is not None:
            return self.span_ns
        return max(1, SPAN_FRAMES * FULL_FRAME_BYTES * 8 * SECOND_NS // (self.rate_bps or 1_000_000_000))


PERFECT = LinkImpairments()


@dataclass(frozen=True)
class Impairments:
    """Impairments of all links of a switch: `up` from the workers to it, `down` to them.

    seed: 0 to 2⁶⁴ − 1. The fate of a port's nth packet in a direction follows from the seed, the port's number and
    n alone. A port is a worker's address; the ranks of the first job have the ports 0, 1, and so on.
    """

    up: LinkImpairments = PERFECT
    down: LinkImpairments = PERFECT
    seed: int = 0

    def __post_init__(self) -> None:
        _check("seed", self.seed, 0, SEED_MAX)

    def __str__(self) -> str:
        """A phrase that names the differences from perfect links."""
        up, down = _difference(self.up), _difference(self.down)
        if up == down:
            return f"both ways {up}" if up else "none"
        return "; ".join(f"{name} {what}" for name, what in (("up", up), ("down", down)) if what)


def parse_impairments(both: str = "", up: str = "", down: str = "") -> Impairments:
    """From the options of the command line: `both` for both directions, `up` and `down` add to it or replace some.

    Raises JobError for what isn't understood: one line with what is allowed.
    """
    shared = _parse(both)
    seed = shared.pop("seed", 0)
    directions = []
    for name, text in (("up", up), ("down", down)):
        impairment = _parse(text)
        if "seed" in impairment:
            raise JobError(f"seed stands with what holds for both directions, not with {name}")
        directions.append(LinkImpairments(**{**shared, **impairment}))
    return Impairments(directions[0], directions[1], seed)


TIMES = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": SECOND_NS}
RATES = {"bit": 1, "kbit": 1_000, "mbit": 1_000_000, "gbit": 1_000_000_000}
SIZES = {"b": 1, "kb": 1_000, "mb": 1_000_000, "kib": 1 << 10, "mib": 1 << 20}
SHARES = {"": 1.0, "%": 0.01}

WORDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "loss": ("loss", SHARES, "0.01 or 1%"),
    "duplicate": ("duplicate", SHARES, "0.01 or 1%"),
    "reorder": ("reorder", SHARES, "0.01 or 1%"),
    "corrupt": ("corrupt", SHARES, "0.01 or 1%"),
    "delay": ("delay_ns", TIMES, "1ms"),
    "jitter": ("jitter_ns", TIMES, "100us"),
    "span": ("span_ns", TIMES, "500us"),
    "rate": ("rate_bps", RATES, "200mbit"),
    "queue": ("queue_bytes", SIZES, "1mb"),
    "ecn": ("ecn_threshold_bytes", SIZES, "200kb"),
    "seed": ("seed", {"": 1}, "7"),
}
"""option -> field, units, example."""

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zµ%]*)")


def _parse(text: str) -> dict[str, Any]:
    """Fields from options like "loss=0.01,delay=1ms"."""
    options: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        word, equals, quantity = (piece.strip() for piece in part.partition("="))
        if word not in WORDS:
            allowed = ", ".join(f"{known}={WORDS[known][2]}" for known in WORDS)
            raise JobError(f"{part!r} not understood; allowed: {allowed}{close_match(word, WORDS)}")
        name, units, example = WORDS[word]
        matched = _QUANTITY.fullmatch(quantity.lower())
        if not equals or matched is None or matched[2] not in units:
            allowed = ", ".join(unit or "no unit" for unit in units)
            raise JobError(f"{part!r} not understood; allowed: {word}={example} (units: {allowed})")
        if name in options:
            raise JobError(f"{word} is given twice")
        if units is SHARES:
            options[name] = float(matched[1]) / (100 if matched[2] == "%" else 1)
        elif "." in matched[1]:
            options[name] = round(float(matched[1]) * units[matched[2]])
        else:
            options[name] = int(matched[1]) * units[matched[2]]
    return options


def _difference(link: LinkImpairments) -> str:
    values = {field.name: getattr(link, field.name) for field in fields(link)}
    return " ".join(f"{name}={value}" for name, value in values.items() if value != getattr(PERFECT, name))
