"""The interface of every back end of the engine: packets in, packets out, and what a control plane may set and read.

Back ends check nothing here: `control.ControlledSwitch` checks widths, names and sizes once, for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from p4vm.ir import ir_nodes as ir

PASSES_MAX = 256
"""Resubmissions and recirculations one packet may cause before it is dropped and counted: no program hangs."""
PARSER_STEPS_MAX = 4096
"""States one packet may enter: beyond it the parser ends in reject, with error ParserTimeout."""
LOOP_TURNS_MAX = 1 << 16
"""Turns of all loops that one incoming packet causes; beyond it the packet is dropped and counted."""
RUNS_MAX = 1 << 12
"""Passes through ingress and through egress that one incoming packet causes in all; beyond it copies are dropped."""
LOG_MAX = 10_000
"""Lines of the log, and digests, that wait to be taken; the oldest give way."""
CELLS_MAX = 1 << 28
"""Cells of one register, counter or meter."""
PACKET_BYTES_MAX = 1 << 17
"""Longer ones are dropped: as they are received, and, before truncate and recirculate, as they are deparsed: dropped +=
1, names["oversize"] += 1."""
CAUSED_BYTES_MAX = 1 << 26
"""Bytes of all packets that one incoming packet causes, sent (after truncate), resubmitted or recirculated. A further
packet that doesn't fit is dropped: dropped += 1, names["too_many_bytes"] += 1."""


@dataclass(frozen=True, slots=True)
class ActionCall:
    """action: index into the table's (or profile users') actions; arguments: values of its data parameters."""

    action: int
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberRef:
    """A member of the table's action profile."""

    handle: int


@dataclass(frozen=True, slots=True)
class GroupRef:
    """A group of the table's action selector."""

    handle: int


@dataclass(frozen=True, slots=True)
class TableEntry:
    """keys as in `ir.Entry`. priority: smaller wins among ternary, range, optional matches. handle: names the entry."""

    keys: tuple[tuple[int, int | None], ...]
    action: ActionCall | MemberRef | GroupRef
    priority: int = 0
    handle: int = 0


def entries_of(table: ir.Table) -> list[TableEntry]:
    """The entries that the program gives."""
    return [
        TableEntry(tuple(entry.keys), ActionCall(entry.action, entry.arguments), entry.priority or 0, at)
        for at, entry in enumerate(table.entries)
    ]


@dataclass(frozen=True, slots=True)
class PacketReplica:
    """A copy that a multicast group or a mirror session makes."""

    port: int
    instance: int = 0


@dataclass(frozen=True, slots=True)
class MeterRate:
    """rate: packets or bytes per µs (as the CLI's); burst: packets or bytes."""

    rate: float
    burst: int


@dataclass(frozen=True, slots=True)
class Crc:
    """The function of crc16_custom (width 16) or crc32_custom (width 32), in the usual parameters of a CRC."""

    width: int
    polynomial: int
    initial: int
    final_xor: int
    reflect_data: bool
    reflect_remainder: bool


@dataclass(frozen=True, slots=True)
class Digest:
    """receiver: digest's first argument; values: the fields, in order (flattened)."""

    receiver: int
    values: tuple[int, ...]


@dataclass(slots=True)
class Counters:
    """The fates of packets. Every field counts packets since the start."""

    received: int = 0
    transmitted: int = 0
    dropped: int = 0
    parser_rejected: int = 0
    too_many_passes: int = 0
    too_many_turns: int = 0
    names: dict[str, int] = field(default_factory=dict)


class Engine(Protocol):
    """A program on one back end. Not thread-safe; no method blocks; `process` raises nothing but
    EngineFault, for any bytes.

    Time is given by the caller, in µs since the switch started; it never goes back.
    """

    program: ir.ProgramIr
    backend: str

    @property
    def counters(self) -> Counters: ...

    def process(self, port: int, data: bytes, now_us: int = 0) -> list[tuple[int, bytes]]:
        """All packets that this one causes, (port, bytes) in the order they leave."""

    def process_many(
        self, ports: Sequence[int], packets: Sequence[bytes], now_us: int = 0
    ) -> list[list[tuple[int, bytes]]]:
        """As `process` for each, in order; for speed."""

    def set_table(self, table: str, entries: Sequence[TableEntry], default: ActionCall) -> None:
        """Replace all entries; counters and meters of entries whose handle stays are kept."""

    def set_profile(self, profile: str, members: dict[int, ActionCall], groups: dict[int, tuple[int, ...]]) -> None: ...

    def set_value_set(self, name: str, entries: Sequence[tuple[tuple[int, int | None], ...]]) -> None: ...

    def set_group(self, group: int, replicas: Sequence[PacketReplica]) -> None:
        """A multicast group's copies, in order; empty: no such group."""

    def set_mirror(self, session: int, replicas: Sequence[PacketReplica], group: int = 0, truncate: int = 0) -> None:
        """A clone session's copies (or a multicast group's); truncate: bytes kept, 0: all. Empty: no such session."""

    def set_queue_depths(self, depths: dict[int, int]) -> None:
        """Port -> enq_qdepth/deq_qdepth that egress is to see (hosts with real queues tell it)."""

    def set_crc(self, crc: Crc) -> None:
        """Set the custom CRC of that width; until then it is crc16 or crc32."""

    def register_read(self, name: str, index: int) -> int: ...

    def register_write(self, name: str, index: int, value: int) -> None: ...

    def register_reset(self, name: str) -> None: ...

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        """(packets, bytes). For a direct counter index is the entry's handle."""

    def counter_write(self, name: str, index: int, packets: int, size_bytes: int) -> None: ...

    def counter_reset(self, name: str) -> None: ...

    def meter_set_rates(self, name: str, index: int, rates: Sequence[MeterRate]) -> None:
        """Committed, then peak; none: the meter says green again. For a direct meter index is the entry's handle."""

    def take_digests(self) -> list[Digest]:
        """The digests since the last call."""

    def take_log(self) -> list[str]:
        """Lines of log_msg, failed assert and assume since the last call; the oldest are dropped beyond 10,000."""

    def reset(self) -> None:
        """All state but tables, groups and sessions as at the start: registers, counters, meters."""

    def close(self) -> None: ...


def formatted(text: str, values: list[int]) -> str:
    """text with {…} replaced by the values in turn, decimal; \\{ and \\} are braces."""
    pieces: list[str] = []
    at = used = 0
    while at < len(text):
        if text[at : at + 2] in (r"\{", r"\}"):
            pieces.append(text[at + 1])
            at += 2
            continue
        end = text.find("}", at) if text[at] == "{" else -1
        if end < 0 or used == len(values):
            pieces.append(text[at])
            at += 1
            continue
        pieces.append(str(int(values[used])))
        used += 1
        at = end + 1
    return "".join(pieces)
