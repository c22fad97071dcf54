"""A program as compiled C, behind the same methods as the Python engine."""

import ctypes
import sys
import weakref
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p4vm.bit_arithmetic import wrap
from p4vm.c_code.c_tables import ProgramLayout
from p4vm.c_code.c_types import rep
from p4vm.c_code.c_wire import data_limbs
from p4vm.engine import ActionCall, Counters, Crc, Digest, MeterRate, PacketReplica, TableEntry, entries_of, formatted
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import is_signed, width_of
from p4vm.native.native_tables import (
    DirectCells,
    KeyParts,
    PackedEntries,
    ProfileArrays,
    argument_limbs,
    array,
    members_of,
    rows_of,
    value_set_rows,
)
from p4vm.native.runtime_library import load
from p4vm.source import P4Error

COUNTS = ("received", "transmitted", "dropped", "parser_rejected", "too_many_passes", "too_many_turns")
NAMED_COUNTS = (
    "register_out_of_range",
    "counter_out_of_range",
    "meter_out_of_range",
    "assert_failed",
    "assume_failed",
    "oversize",
    "too_many_bytes",
    "no_memory",
)
"""COUNTS and then NAMED_COUNTS are `enum p4_count`."""
OUTPUT = np.dtype([("port", np.uint32), ("size", np.uint32), ("at", np.uint64)])
"""As `struct p4_output`: bytes at … at + size - 1 of a batch's data leave through a port."""
BATCH_BYTES_MAX = 1 << 26
GROUPS, SESSIONS, DEPTHS = range(3)
LOG, DIGESTS = range(2)


@dataclass(frozen=True, slots=True)
class Batch:
    """The outputs of a batch: firsts[i] … firsts[i + 1] - 1 are packet i's. Valid until the engine's next call.

    outputs: of `OUTPUT`, in the order they leave; data: uint8.
    """

    firsts: NDArray[np.uint64]
    outputs: NDArray[np.void]
    data: NDArray[np.uint8]


class NativeEngine:
    """`engine.Engine` in C. library: what compile.py made of the program; tag: which program of it."""

    backend = "native"

    def __init__(
        self, program: ir.ProgramIr, library: str | Path | ctypes.CDLL, layout: ProgramLayout, tag: str = "0"
    ) -> None:
        self.program = program
        self.layout = layout
        self.library: Any = load(library) if isinstance(library, str | Path) else library
        described = ctypes.addressof(ctypes.c_char.in_dll(self.library, f"p4_program_{tag}"))
        handle = self.library.p4_engine_new(described)
        if not handle:
            raise P4Error(f"{program.file}: no memory for its registers, counters and meters; make them smaller")
        self.handle: int | None = handle
        self.finalizer = weakref.finalize(self, self.library.p4_engine_free, handle)
        count = len(layout.registers)
        places = (ctypes.c_uint64 * (4 * count + 1)).in_dll(self.library, f"p4_registers_{tag}")
        self.register_places = [tuple(places[4 * at : 4 * at + 4]) for at in range(count)]
        self.numbers = {table.name: at for at, table in enumerate(layout.tables)}
        self.initial = {extern.name: extern.initial for extern in program.externs if extern.initial}
        self.waiting: dict[str, tuple[Sequence[TableEntry], ActionCall]] = {}
        self.entries: dict[str, Sequence[TableEntry]] = {}
        self.members: dict[str, ProfileArrays] = {}
        self.depths: dict[int, int] = {}
        self.slots = {table.name: DirectCells({}, []) for table in layout.tables}
        self.port = (ctypes.c_uint16 * 1)()
        self.offsets = (ctypes.c_uint32 * 2)()
        self.firsts = (ctypes.c_uint64 * 2)()
        self.set_initial_cells()
        for table in program.tables:
            self.set_table(table.name, entries_of(table), ActionCall(table.default, table.default_arguments))

    @property
    def alive(self) -> int:
        """The engine's address."""
        if self.handle is None:
            raise P4Error("this engine was closed; make another")
        return self.handle

    # ---- packets

    def process(self, port: int, data: bytes, now_us: int = 0) -> list[tuple[int, bytes]]:
        """All packets that this one causes, (port, bytes) in the order they leave."""
        if self.waiting:
            self.fill_tables()
        engine, library = self.alive, self.library
        self.port[0] = port & 0xFFFF
        self.offsets[1] = len(data)
        library.p4_engine_run(engine, 1, self.port, self.offsets, bytes(data), now_us, self.firsts)
        count = self.firsts[1]
        if not count:
            return []
        outputs = library.p4_engine_outputs(engine)
        start = library.p4_engine_data(engine)
        return [(outputs[at].port, ctypes.string_at(start + outputs[at].at, outputs[at].size)) for at in range(count)]

    def process_many(
        self, ports: Sequence[int], packets: Sequence[bytes], now_us: int = 0
    ) -> list[list[tuple[int, bytes]]]:
        """As `process` for each, in order; for speed."""
        if len(ports) != len(packets):
            raise ValueError("as many ports as packets")
        outputs: list[list[tuple[int, bytes]]] = []
        start = 0
        while start < len(packets):
            offsets = [0]
            for total in accumulate(map(len, packets[start:])):
                if total > BATCH_BYTES_MAX and len(offsets) > 1:
                    break
                offsets.append(total)
            end = start + len(offsets) - 1
            batch = self.run_batch(
                np.array([port & 0xFFFF for port in ports[start:end]], np.uint16),
                np.array(offsets, np.uint32),
                np.frombuffer(b"".join(packets[start:end]), np.uint8),
                now_us,
            )
            outputs += outputs_of(batch)
            start = end
        return outputs

    def run_batch(
        self, ports: NDArray[np.uint16], offsets: NDArray[np.uint32], data: NDArray[np.uint8], now_us: int = 0
    ) -> Batch:
        """Packet i came in at ports[i], and is data[offsets[i]] … data[offsets[i + 1] - 1]. Copies nothing."""
        if self.waiting:
            self.fill_tables()
        count = len(ports)
        if (
            len(offsets) != count + 1
            or (count and int(offsets[-1]) > len(data))
            or np.any(np.diff(offsets.astype(np.int64)) < 0)
        ):
            raise ValueError("offsets: one more than ports, ascending, the last within the data")
        ports, offsets = np.ascontiguousarray(ports, np.uint16), np.ascontiguousarray(offsets, np.uint32)
        data = np.ascontiguousarray(data, np.uint8)
        firsts = np.zeros(count + 1, np.uint64)
        self.library.p4_engine_run(
            self.alive, count, address(ports), address(offsets), data.ctypes.data, now_us, address(firsts)
        )
        total = int(firsts[count])
        if not total:
            return Batch(firsts, np.zeros(0, OUTPUT), np.zeros(0, np.uint8))
        where = ctypes.addressof(self.library.p4_engine_outputs(self.alive).contents)
        outputs = view(where, OUTPUT.itemsize * total).view(OUTPUT)
        size = int(outputs[-1]["at"]) + int(outputs[-1]["size"])
        start = self.library.p4_engine_data(self.alive)
        return Batch(firsts, outputs, view(start, size))

    # ---- what the control plane sets

    def set_table(self, table: str, entries: Sequence[TableEntry], default: ActionCall) -> None:
        """Takes effect before the next packet: many changes in a row cost one."""
        self.waiting[table] = (entries, default)

    def fill_tables(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for name, (entries, default) in waiting.items():
            self.fill_table(name, entries)
            number = self.numbers[name]
            arguments = argument_limbs(default, self.layout.tables[number].actions[default.action])
            self.succeed(
                self.library.p4_engine_set_default(
                    self.alive, number, default.action, address(array(arguments)), len(arguments)
                )
            )

    def fill_table(self, name: str, entries: Sequence[TableEntry]) -> None:
        number = self.numbers[name]
        layout, slots = self.layout.tables[number], self.slots[name]
        self.entries[name] = entries
        if layout.counter is not None or layout.meter is not None:
            self.settle_cells(number, {entry.handle for entry in entries})
        members = self.members.get(self.profile_name(layout.profile), None)
        rows = rows_of(layout, entries, members.slots if members else {}, members.groups if members else {}, slots)
        self.send_rows(0, number, rows)

    def settle_cells(self, number: int, handles: set[int]) -> None:
        """Cells of a table's direct counter and meter: zero for handles that are gone, room for all that are there."""
        layout = self.layout.tables[number]
        slots = self.slots[layout.name]
        for slot in slots.keep(handles):
            self.clear_cell(layout.counter, layout.meter, slot)
        for handle in handles:
            slots.get(handle)
        self.grow(layout.counter, layout.meter, len(slots.of) + len(slots.free))

    def clear_cell(self, counter: int | None, meter: int | None, slot: int) -> None:
        if counter is not None:
            cell = self.library.p4_engine_counter(self.alive, counter, slot)
            if cell:
                cell[0].packets = cell[0].bytes = 0
        if meter is not None:
            self.library.p4_engine_set_meter(self.alive, meter, slot, 0, None, None)

    def grow(self, counter: int | None, meter: int | None, cells: int) -> None:
        if counter is not None:
            self.succeed(self.library.p4_engine_grow_counter(self.alive, counter, cells))
        if meter is not None:
            self.succeed(self.library.p4_engine_grow_meter(self.alive, meter, cells))

    def send_rows(self, value_set: int, number: int, rows: PackedEntries) -> None:
        self.succeed(
            self.library.p4_engine_set_table(
                self.alive,
                value_set,
                number,
                rows.count,
                address(rows.values),
                address(rows.masks),
                address(rows.bounds),
                rows.entries.ctypes.data,
                address(rows.arguments),
                rows.argument_count,
            )
        )

    @staticmethod
    def succeed(answer: int) -> None:
        if answer:
            raise MemoryError("no memory for the switch's tables")

    def profile_name(self, number: int | None) -> str:
        return next((name for name, at in self.layout.profiles.items() if at == number), "")

    def set_profile(self, profile: str, members: dict[int, ActionCall], groups: dict[int, tuple[int, ...]]) -> None:
        number = self.layout.profiles[profile]
        users = [table for table in self.layout.tables if table.profile == number]
        arrays = self.members[profile] = members_of(users[0].actions if users else [], members if users else {}, groups)
        self.succeed(
            self.library.p4_engine_set_profile(
                self.alive,
                number,
                len(arrays.slots),
                address(arrays.calls),
                address(arrays.arguments),
                arrays.argument_count,
                len(arrays.groups),
                address(arrays.firsts),
                address(arrays.chosen),
            )
        )
        for table in users:  # their entries name slots
            if table.name not in self.waiting:
                self.fill_table(table.name, self.entries[table.name])

    def set_value_set(self, name: str, entries: Sequence[KeyParts]) -> None:
        number = self.layout.value_set_numbers[name]
        self.send_rows(1, number, value_set_rows(self.layout.value_sets[number], entries))

    def set_group(self, group: int, replicas: Sequence[PacketReplica]) -> None:
        self.set_replicas(GROUPS, group, replicas)

    def set_mirror(self, session: int, replicas: Sequence[PacketReplica], group: int = 0, truncate: int = 0) -> None:
        self.set_replicas(SESSIONS, session, replicas, group, truncate)

    def set_queue_depths(self, depths: dict[int, int]) -> None:
        for port in self.depths:
            self.set_replicas(DEPTHS, port, [])
        self.depths = dict(depths)
        for port, depth in depths.items():
            self.set_replicas(DEPTHS, port, [PacketReplica(depth)])

    def set_replicas(
        self, which: int, number: int, replicas: Sequence[PacketReplica], group: int = 0, truncate: int = 0
    ) -> None:
        flat = [part & 0xFFFF_FFFF for replica in replicas for part in (replica.port, replica.instance)]
        numbers = np.array(flat or [0, 0], np.uint32)
        self.succeed(
            self.library.p4_engine_set_replicas(
                self.alive, which, number, len(replicas), address(numbers), group, min(truncate, 0xFFFF_FFFF)
            )
        )

    def set_crc(self, crc: Crc) -> None:
        parameters = (ctypes.c_uint32 * 6)(*map(int, astuple(crc)))
        self.library.p4_engine_set_crc(self.alive, parameters)

    # ---- cells

    def register_cell(self, name: str, index: int) -> tuple[int, int, ir.Type]:
        """(address, bytes, type) of a cell; address 0: there is none."""
        number, kind, cells = self.layout.registers[name]
        group, offset, size, stride = self.register_places[number]
        if not 0 <= index < cells:
            return 0, size, kind
        return self.library.p4_engine_registers(self.alive, group) + index * stride + offset, size, kind

    def register_read(self, name: str, index: int) -> int:
        where, size, kind = self.register_cell(name, index)
        if not where:
            return 0
        return signed(number_of(ctypes.string_at(where, size), width_of(kind)), kind)

    def register_write(self, name: str, index: int, value: int) -> None:
        where, size, kind = self.register_cell(name, index)
        if where:
            ctypes.memmove(where, bytes_of(value & (1 << width_of(kind)) - 1, size, width_of(kind)), size)

    def register_reset(self, name: str) -> None:
        number, kind, cells = self.layout.registers[name]
        group, offset, size, stride = self.register_places[number]
        if not cells:
            return
        start = self.library.p4_engine_registers(self.alive, group)
        rows = view(start, cells * stride).reshape(cells, stride)
        initial = self.initial.get(name, 0) & (1 << width_of(kind)) - 1
        rows[:, offset : offset + size] = np.frombuffer(bytes_of(initial, size, width_of(kind)), np.uint8)

    def set_initial_cells(self) -> None:
        """Set registers to what they hold at the start, where that isn't zero."""
        for name in self.initial:
            self.register_reset(name)

    def cell_of(self, name: str, index: int) -> tuple[int, bool, int]:
        """(number of the counter or meter, whether it is direct, cell); the cell of a direct one is made if need be."""
        counters, meters = self.layout.counters, self.layout.meters
        number = (counters if name in counters else meters)[name][0]
        for table in self.layout.tables:
            owned = table.counter if name in counters else table.meter
            if owned == number:
                if self.waiting:
                    self.fill_tables()
                slots = self.slots[table.name]
                slot = slots.get(index)
                self.grow(table.counter, table.meter, len(slots.of) + len(slots.free))
                return number, True, slot
        return number, False, index

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        number, _, cell = self.cell_of(name, index)
        counter = self.library.p4_engine_counter(self.alive, number, cell) if cell >= 0 else None
        return (counter[0].packets, counter[0].bytes) if counter else (0, 0)

    def counter_write(self, name: str, index: int, packets: int, size_bytes: int) -> None:
        number, _, cell = self.cell_of(name, index)
        counter = self.library.p4_engine_counter(self.alive, number, cell) if cell >= 0 else None
        if counter:
            counter[0].packets, counter[0].bytes = packets & (1 << 64) - 1, size_bytes & (1 << 64) - 1

    def counter_reset(self, name: str) -> None:
        self.library.p4_engine_reset_counter(self.alive, self.layout.counters[name][0])

    def meter_set_rates(self, name: str, index: int, rates: Sequence[MeterRate]) -> None:
        number, _, cell = self.cell_of(name, index)
        if cell >= 0:
            cell_rates = (ctypes.c_double * 2)(*(rate.rate for rate in rates))
            bursts = (ctypes.c_uint64 * 2)(*(rate.burst for rate in rates))
            self.library.p4_engine_set_meter(self.alive, number, cell, len(rates), cell_rates, bursts)

    # ---- what programs tell

    @property
    def counters(self) -> Counters:
        """Counts of packets at this moment."""
        counts = self.library.p4_engine_counts(self.alive)[: len(COUNTS) + len(NAMED_COUNTS)]
        named = zip(NAMED_COUNTS, counts[len(COUNTS) :], strict=True)
        counters = Counters(names={name: count for name, count in named if count})
        for name, count in zip(COUNTS, counts, strict=False):
            setattr(counters, name, count)
        return counters

    def take_digests(self) -> list[Digest]:
        return [Digest(values[0], tuple(values[1:])) for _, values in self.take_records(DIGESTS)]

    def take_log(self) -> list[str]:
        return [
            formatted(self.layout.sites[site].text, values)
            if self.layout.sites[site].kind == "log_msg"
            else self.layout.sites[site].text
            for site, values in self.take_records(LOG)
        ]

    def take_records(self, which: int) -> list[tuple[int, list[int]]]:
        """(number of the site, values) of each."""
        records = []
        while record := self.library.p4_engine_record(self.alive, which):
            site, count = record.contents.id, record.contents.limbs
            words = (ctypes.c_uint64 * count).from_address(ctypes.addressof(record.contents) + record.contents.size())
            values = []
            at = 0
            for kind in self.layout.sites[site].types:
                width = data_limbs(kind)
                values.append(signed(sum(word << 64 * n for n, word in enumerate(words[at : at + width])), kind))
                at += width
            records.append((site, values))
            self.library.p4_engine_take_record(self.alive, which)
        return records

    def reset(self) -> None:
        """All state but tables, groups, sessions and rates as at the start."""
        self.library.p4_engine_reset(self.alive)
        self.set_initial_cells()

    def close(self) -> None:
        self.handle = None
        self.finalizer()


def view(start: int, size: int) -> NDArray[np.uint8]:
    """Bytes of the engine's memory, not copied."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))


def address(values: NDArray[Any]) -> int:
    return int(values.ctypes.data)


def outputs_of(batch: Batch) -> list[list[tuple[int, bytes]]]:
    """A batch's outputs by packet, as `process_many` gives them."""
    blob = batch.data.tobytes()
    outputs = [(port, blob[at : at + size]) for port, size, at in batch.outputs.tolist()]
    firsts = batch.firsts.tolist()
    return [outputs[first:last] for first, last in pairwise(firsts)]


def signed(value: int, kind: ir.Type) -> int:
    """Bits as a number of the type."""
    return wrap(value, kind) if is_signed(kind) else value


def number_of(stored: bytes, width: int) -> int:
    """The number in a cell as C stores it."""
    if rep(width).bits:
        return int.from_bytes(stored, sys.byteorder)
    words = [int.from_bytes(stored[at : at + 8], sys.byteorder) for at in range(0, len(stored), 8)]
    return sum(word << 64 * at for at, word in enumerate(words))


def bytes_of(value: int, size: int, width: int) -> bytes:
    if rep(width).bits:
        return value.to_bytes(size, sys.byteorder)
    return b"".join((value >> 8 * at & (1 << 64) - 1).to_bytes(8, sys.byteorder) for at in range(0, size, 8))
