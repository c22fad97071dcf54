"""The Python back end: writes a program as readable Python, runs it once, then runs packets. The others' oracle."""

import traceback
from collections.abc import Sequence
from struct import Struct as Wire
from typing import Any

from p4vm.algorithms import HASHES, RANDOM_SEED, custom_crc
from p4vm.engine import ActionCall, Counters, Crc, Digest, MeterRate, PacketReplica, TableEntry
from p4vm.ir import ir_nodes as ir
from p4vm.lines import place_of
from p4vm.node import deep
from p4vm.python import runtime as runtime
from p4vm.python.python_cells import Counter, DirectMeter, MeterArray, Meters, RegisterCells, Tally
from p4vm.python.python_names import RUNTIME
from p4vm.python.python_pipeline import MirrorSession, Pipeline
from p4vm.python.python_tables import ActionProfile, KeyParts, PythonTable, PythonValueSet, fitting
from p4vm.python.routines import RoutineLayout, module_of
from p4vm.source import P4Error, Position, engine_faults

FRAMES_MAX = 5000
"""Calls deep that writing a program may go: its tree is at most 200 levels deep, of a few calls each."""


class PythonEngine:
    """`engine.Engine` in Python. source: the program's Python. Raises P4Error: it asks for what there isn't."""

    backend = "python"

    def __init__(self, program: ir.ProgramIr) -> None:
        self.program = program
        errors = {name: number for number, name in enumerate(program.errors.members)}
        self.shared = runtime.SharedState(errors)
        self.registers: dict[str, RegisterCells] = {}
        self.tallies: dict[str, Tally] = {}
        self.meters: dict[str, Meters] = {}
        self.direct_meters: dict[str, DirectMeter] = {}
        self.profiles: dict[str, ActionProfile] = {}
        self.tables: dict[str, PythonTable] = {}
        self.value_sets: dict[str, PythonValueSet] = {}
        layout = RoutineLayout(program)
        self.module: dict[str, Any] = {name: getattr(runtime, name) for name in RUNTIME}
        self.module |= HASHES | {"Wire": Wire}
        self.make_instances(layout)
        self.source = ""
        try:
            with deep(FRAMES_MAX), engine_faults(self.place_of_fault):
                self.source = module_of(layout)
                exec(compile(self.source, self.code_name, "exec"), self.module)
        except (RecursionError, MemoryError) as fault:
            raise P4Error(f"{program.file} nests deeper than Python allows ({fault}); split its blocks") from fault
        self.pipeline = Pipeline(program, lambda thing: self.module[self.name(layout, thing)], self.shared)
        self.pipeline.direct_meters = list(self.direct_meters.values())
        self.meters |= self.direct_meters

    @property
    def code_name(self) -> str:
        return f"<{self.program.file}>"

    def place_of_fault(self, error: Exception) -> Position:
        """The program's line in which the Python made of it fails. Raises P4Error: it nests too deeply for Python."""
        number = error.lineno if isinstance(error, SyntaxError) else 0
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == self.code_name:
                number = frame.lineno
        place = place_of(self.source.splitlines(), number or 0, self.program.file)
        if isinstance(error, SyntaxError) and "too many" in error.msg:  # blocks, or levels of indentation
            raise P4Error(f"this nests deeper than Python allows ({error.msg}); split its blocks", place) from error
        return place

    @staticmethod
    def name(layout: RoutineLayout, thing: Any) -> str:
        return layout.names.record(thing) if isinstance(thing, ir.Record) else layout.names.of(thing)

    def make_instances(self, layout: RoutineLayout) -> None:
        """Registers, counters, meters, profiles, tables and value sets, where the module finds them."""
        for instance in self.program.externs:
            extern = self.make_instance(instance)
            if extern is not None:
                self.module[layout.names.of(instance)] = extern
        for table in self.program.tables:
            state = PythonTable(
                table,
                None if table.implementation is None else self.profiles[table.implementation.name],
                None if table.counter is None else self.tallies[table.counter.name],
                None if table.meter is None else self.direct_meters[table.meter.name],
                self.shared.random.next,
            )
            self.tables[table.name] = self.module[layout.names.of(table)] = state
        for value_set in self.program.value_sets:
            self.value_sets[value_set.name] = self.module[layout.names.of(value_set)] = PythonValueSet(value_set)

    def make_instance(self, instance: ir.ExternInstance) -> object:
        name = instance.name
        match instance.kind:
            case "register":
                return self.registers.setdefault(name, RegisterCells(instance))
            case "counter":
                return self.tallies.setdefault(name, Counter(instance, self.shared))
            case "direct_counter":
                return self.tallies.setdefault(name, Tally())
            case "meter":
                return self.meters.setdefault(name, MeterArray(instance, self.shared))
            case "direct_meter":
                return self.direct_meters.setdefault(name, DirectMeter(instance))
            case "action_profile" | "action_selector":
                return self.profiles.setdefault(name, ActionProfile())
        return None

    # ---- packets

    @property
    def counters(self) -> Counters:
        return self.shared.counters

    def process(self, port: int, data: bytes, now_us: int = 0) -> list[tuple[int, bytes]]:
        """All packets that this one causes, (port, bytes) in the order they leave."""
        with engine_faults(self.place_of_fault):
            return self.pipeline.process(port, data, now_us)

    def process_many(
        self, ports: Sequence[int], packets: Sequence[bytes], now_us: int = 0
    ) -> list[list[tuple[int, bytes]]]:
        process = self.pipeline.process
        with engine_faults(self.place_of_fault):
            return [process(port, data, now_us) for port, data in zip(ports, packets, strict=True)]

    # ---- what the control plane sets

    def set_table(self, table: str, entries: Sequence[TableEntry], default: ActionCall) -> None:
        self.tables[table].set(entries, default)

    def set_profile(self, profile: str, members: dict[int, ActionCall], groups: dict[int, tuple[int, ...]]) -> None:
        self.profiles[profile].set(members, groups)

    def set_value_set(self, name: str, entries: Sequence[KeyParts]) -> None:
        self.value_sets[name].set(entries)

    def set_group(self, group: int, replicas: Sequence[PacketReplica]) -> None:
        self.pipeline.groups[group] = tuple(replicas)

    def set_mirror(self, session: int, replicas: Sequence[PacketReplica], group: int = 0, truncate: int = 0) -> None:
        if replicas or group:
            self.pipeline.sessions[session] = MirrorSession(tuple(replicas), group, truncate or None)
        else:
            self.pipeline.sessions.pop(session, None)

    def set_queue_depths(self, depths: dict[int, int]) -> None:
        self.pipeline.depths = dict(depths)

    # ---- state

    def set_crc(self, crc: Crc) -> None:
        name, function = f"crc{crc.width}_custom", custom_crc(crc)
        self.module[name] = function
        for table in self.tables.values():
            table.hashes = table.hashes | {name: function}

    def register_read(self, name: str, index: int) -> int:
        register = self.registers[name]
        return int(register.cells[index]) if 0 <= index < register.size else 0

    def register_write(self, name: str, index: int, value: int) -> None:
        register = self.registers[name]
        if 0 <= index < register.size:
            register.cells[index] = fitting(value, register.kind)

    def register_reset(self, name: str) -> None:
        self.registers[name].reset()

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        return self.tallies[name].read(index)

    def counter_write(self, name: str, index: int, packets: int, size_bytes: int) -> None:
        self.tallies[name].write(index, packets, size_bytes)

    def counter_reset(self, name: str) -> None:
        self.tallies[name].reset()

    def meter_set_rates(self, name: str, index: int, rates: Sequence[MeterRate]) -> None:
        self.meters[name].set_rates(index, rates)

    def take_digests(self) -> list[Digest]:
        records = list(self.shared.digests)
        self.shared.digests.clear()
        return records

    def take_log(self) -> list[str]:
        records = list(self.shared.log)
        self.shared.log.clear()
        return records

    def reset(self) -> None:
        """State as at the start; entries, groups, sessions and rates stay."""
        for register in self.registers.values():
            register.reset()
        for tally in self.tallies.values():
            tally.reset()
        for meters in self.meters.values():
            meters.refill()
        shared = self.shared
        shared.random.state = RANDOM_SEED
        shared.digests.clear()
        shared.log.clear()
        shared.counters = Counters()

    def close(self) -> None:
        """Nothing is held open."""
