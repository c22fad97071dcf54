"""What the generated Python of a program stands on: the packet, header stacks, arithmetic unlike Python's own."""

from collections import deque
from collections.abc import Iterable
from typing import Any, Self

from p4vm import engine
from p4vm.algorithms import Random
from p4vm.engine import LOG_MAX, LOOP_TURNS_MAX, PACKET_BYTES_MAX, PARSER_STEPS_MAX, Counters, Digest

Varbit = tuple[int, int]
"""A varbit's value: (bits, number)."""
EMPTY: Varbit = (0, 0)


class Reject(Exception):
    """The parser ends. code: number of the error."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Dropped(Exception):
    """The packet that is being processed is dropped at once."""


class SharedState:
    """What packets of one engine share. errors: numbers of the core errors. turns: iterations of loops so far."""

    __slots__ = ("counters", "digests", "errors", "log", "random", "turns")

    def __init__(self, errors: dict[str, int]) -> None:
        self.errors = errors
        self.counters = Counters()
        self.random = Random()
        self.digests: deque[Digest] = deque(maxlen=LOG_MAX)
        self.log: deque[str] = deque(maxlen=LOG_MAX)
        self.turns = 0

    def count(self, name: str) -> None:
        names = self.counters.names
        names[name] = names.get(name, 0) + 1


class PacketBits:
    """One packet in a pass. data: bytes as the pass got them; size, at: bits in all, and read by the parser so far.

    standard: the standard metadata. clone: (session, field list) asked for; resubmit, recirculate: field lists asked
    for. keep: bytes that `truncate` leaves at most. passes: resubmissions, recirculations, clones behind it.
    """

    __slots__ = (
        "at",
        "clone",
        "data",
        "deparsed",
        "keep",
        "loose",
        "loose_bits",
        "now_us",
        "parts",
        "passes",
        "payload",
        "recirculate",
        "resubmit",
        "shared",
        "size",
        "state",
        "steps",
    )

    def __init__(self, shared: SharedState, data: bytes, now_us: int, passes: int) -> None:
        self.shared = shared
        self.data = data
        self.size = len(data) * 8
        self.at = 0
        self.steps = 0
        self.now_us = now_us
        self.passes = passes
        self.payload = b""
        self.deparsed: bytes | None = None
        self.state: dict[str, Any] = {}
        self.clone: tuple[int, int | None] | None = None
        self.resubmit: tuple[int | None] | None = None
        self.recirculate: tuple[int | None] | None = None
        self.keep: int | None = None
        self.parts: list[bytes] = []
        self.loose = 0
        self.loose_bits = 0

    def copy(self) -> "PacketBits":
        """Clears requests to the pipeline before another pass through egress, but those that hold for all copies."""
        copy = PacketBits(self.shared, self.data, self.now_us, self.passes)
        copy.payload = self.payload
        copy.keep = self.keep
        return copy

    def onward(self) -> "PacketBits":
        """The packet for its next pass: the bytes that were deparsed, or, without a deparser, the payload that goes on
        with the headers."""
        onward = self.copy()
        if self.deparsed is not None:
            onward.data, onward.payload, onward.size = self.deparsed, b"", len(self.deparsed) * 8
        return onward

    # ---- parser

    def reject(self, error: str) -> Reject:
        return Reject(self.shared.errors.get(error, 0))

    def step(self) -> None:
        """Counts the states that the parser enters."""
        self.steps += 1
        if self.steps > PARSER_STEPS_MAX:
            raise self.reject("ParserTimeout")

    def extract(self, header: Any) -> None:
        """Reads a header without varbits."""
        at = self.at
        end = at + header.WIDTH
        if end > self.size:
            raise self.reject("PacketTooShort")
        if header.WHOLE_BYTES and not at & 7:
            header.unpack(self.data, at >> 3)
        else:
            header.take(self.bits(at, end))
        self.at = end

    def extract_varbits(self, header: Any, varbits: int) -> None:
        """Reads a header whose one varbit field takes so many bits."""
        width = header.WIDTH + varbits
        if width & 7:
            raise self.reject("ParserInvalidArgument")
        end = self.at + width
        if end > self.size:
            raise self.reject("PacketTooShort")
        if varbits > header.VARBITS:
            raise self.reject("HeaderTooShort")
        header.take(self.bits(self.at, end), varbits)
        self.at = end

    def bits(self, at: int, end: int) -> int:
        """The packet's bits from `at` to `end`."""
        last = (end + 7) >> 3
        number = int.from_bytes(self.data[at >> 3 : last], "big")
        return number >> (last * 8 - end) & (1 << (end - at)) - 1

    def peek(self, width: int) -> int:
        end = self.at + width
        if end > self.size:
            raise self.reject("PacketTooShort")
        return self.bits(self.at, end)

    def advance(self, width: int) -> None:
        if self.at + width > self.size:
            raise self.reject("PacketTooShort")
        self.at += width

    def parsed(self) -> None:
        """The parser has ended: the rest is payload."""
        self.payload = self.data[(self.at + 7) >> 3 :]

    # ---- deparser

    def emit(self, header: Any) -> None:
        if not header.valid:
            return
        if header.WHOLE_BYTES and not self.loose_bits:
            self.parts.append(header.pack())
            return
        width, number = header.bits()
        self.loose = self.loose << width | number
        self.loose_bits += width
        if not self.loose_bits & 7:
            self.flush()

    def flush(self) -> None:
        """Bits emitted so far, with zeros up to a whole byte."""
        over = -self.loose_bits & 7
        self.parts.append((self.loose << over).to_bytes((self.loose_bits + over) >> 3, "big"))
        self.loose = self.loose_bits = 0

    def deparse(self) -> bool:
        """Puts the packet together, before it is cut; False: it is longer than packets may be."""
        if self.loose_bits:
            self.flush()
        self.parts.append(self.payload)
        self.deparsed = b"".join(self.parts)
        return len(self.deparsed) <= PACKET_BYTES_MAX

    # ---- externs and bounds

    def turn(self) -> None:
        """Counts an iteration of a loop."""
        shared = self.shared
        shared.turns += 1
        if shared.turns > LOOP_TURNS_MAX:
            shared.counters.too_many_turns += 1
            raise Dropped

    def truncate(self, keep: int) -> None:
        self.keep = keep if self.keep is None else min(self.keep, keep)

    def digest(self, receiver: int, values: Iterable[int]) -> None:
        self.shared.digests.append(Digest(receiver, tuple(map(int, values))))

    def log(self, text: str, values: Iterable[int]) -> None:
        self.shared.log.append(engine.formatted(text, list(values)))

    def failed(self, what: str, position: str) -> Dropped:
        """The exception of an assert or assume that failed."""
        self.shared.count(f"{what}_failed")
        self.shared.log.append(f"{position}: {what} failed")
        return Dropped()


class Struct:
    """A struct, header union or header: generated classes say their fields, and how to clear and assign them.

    FIELDS: (slot, letter, width): u unsigned, i int<W>, v varbit, r a record or stack. WIDTH: bits on the wire without
    varbits; VARBITS: at most so many more; WHOLE_BYTES: `unpack` and `pack` exist.
    """

    __slots__ = ()
    FIELDS: tuple[tuple[str, str, int], ...] = ()
    WIDTH = VARBITS = 0
    WHOLE_BYTES = False

    def assign(self, other: Self) -> Self:
        raise NotImplementedError

    def copy(self) -> Self:
        return type(self)().assign(self)

    def bits(self) -> Varbit:
        """All fields one behind the other."""
        total = all_bits = 0
        for slot, letter, width in self.FIELDS:
            value = getattr(self, slot)
            width, number = value if letter == "v" else value.bits() if letter == "r" else (width, value)
            total += width
            all_bits = all_bits << width | number & (1 << width) - 1
        return total, all_bits

    def take(self, number: int, varbits: int = 0) -> None:
        """All fields from a number of WIDTH + varbits bits."""
        left = self.WIDTH + varbits
        for slot, letter, width in self.FIELDS:
            width = varbits if letter == "v" else width
            left -= width
            value = number >> left & (1 << width) - 1
            if letter == "r":
                getattr(self, slot).take(value)
            elif letter == "v":
                setattr(self, slot, (width, value))
            else:
                setattr(self, slot, wrap(value, 1 << width >> 1) if letter == "i" else value)


class Header(Struct):
    """A header."""

    __slots__ = ("valid",)

    def take(self, number: int, varbits: int = 0) -> None:
        self.valid = True
        super().take(number, varbits)


class HeaderStack:
    """A header stack. element: its class."""

    __slots__ = ("element", "items", "next_index", "size")

    def __init__(self, element: Any, size: int) -> None:
        self.element = element
        self.size = size
        self.items = [element() for _ in range(size)]
        self.next_index = 0

    def at(self, index: int) -> Any:
        """An element; beyond the stack a new one, which nothing else refers to."""
        return self.items[index] if 0 <= index < self.size else self.element()

    def reset(self) -> None:
        for item in self.items:
            item.reset()
        self.next_index = 0

    def assign(self, other: "HeaderStack") -> None:
        for left, right in zip(self.items, other.items, strict=True):
            left.assign(right)
        self.next_index = other.next_index

    def copy(self) -> "HeaderStack":
        copy = HeaderStack(self.element, self.size)
        copy.assign(self)
        return copy

    def push(self, count: int) -> None:
        """push_front; count < 0: pop_front."""
        fresh = [self.element() for _ in range(min(abs(count), self.size))]
        if count >= 0:
            self.items = fresh + self.items[: self.size - len(fresh)]
        else:
            self.items = self.items[len(fresh) :] + fresh
        self.next_index = min(max(self.next_index + count, 0), self.size)

    def take(self, number: int) -> None:
        """All elements from a number of their bits; nextIndex stays."""
        for item in reversed(self.items):
            item.take(number & (1 << item.WIDTH) - 1)
            number >>= item.WIDTH


def joined(pieces: Iterable[Varbit]) -> bytes:
    """(width, number) one after the other, then zeros up to a whole byte. Numbers may be negative."""
    all_bits = total = 0
    for width, number in pieces:
        all_bits = all_bits << width | number & (1 << width) - 1
        total += width
    over = -total & 7
    return (all_bits << over).to_bytes((total + over) >> 3, "big")


def wrap(number: int, half: int) -> int:
    """As int<W>, half = 2**(W-1), or 0 for W = 0."""
    return (number + half & 2 * half - 1) - half if half else 0


def shift_left(number: int, count: int, width: int) -> int:
    return number << count if count < width else 0


def shift_right(number: int, count: int, width: int) -> int:
    return number >> min(count, width)


def quotient(number: int, by: int) -> int:
    """Of unsigned numbers; 0 for a divisor of 0."""
    return number // by if by else 0


def remainder(number: int, by: int) -> int:
    """Of unsigned numbers; 0 for a divisor of 0."""
    return number % by if by else 0
