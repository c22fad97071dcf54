"""Registers, counters, meters and value sets of a running program."""

import math
from collections.abc import Sequence

from p4vm.control.control_names import ControlNames
from p4vm.control.control_tables import TableControl
from p4vm.control.control_values import Pair, Word, fit, parse_key, parse_number, width_of
from p4vm.control.core import refused
from p4vm.engine import Engine, MeterRate
from p4vm.ir import ir_nodes as ir
from p4vm.source import P4Error

COUNT_MAX = (1 << 63) - 1
RATES = 2
"""A meter has two: committed and peak."""


def instances(program: ir.ProgramIr, *kinds: str) -> dict[str, ir.ExternInstance]:
    """Extern instances of these kinds by name, also those that only tables name."""
    by_name = {instance.name: instance for instance in program.externs if instance.kind in kinds}
    for table in program.tables:
        for instance in (table.counter, table.meter):
            if instance is not None and instance.kind in kinds:
                by_name.setdefault(instance.name, instance)
    return by_name


class CellControl(TableControl):
    """Commands register_*, counter_*, meter_*, pvs_*. A direct counter's or meter's index is the handle of an entry of
    its table. Methods raise P4Error as those of `TableControl` do."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        program = self.program
        self.registers = ControlNames("register", instances(program, "register"))
        self.counters = ControlNames("counter", instances(program, "counter", "direct_counter"))
        self.meters = ControlNames("meter", instances(program, "meter", "direct_meter"))
        self.value_sets = ControlNames("parser value set", {part.name: part for part in program.value_sets})
        self._rates: dict[tuple[str, int], tuple[MeterRate, ...]] = {}
        self._members: dict[str, list[tuple[Pair, ...]]] = {part.name: [] for part in program.value_sets}

    # ---- registers

    def register_read(self, register: str, index: int) -> int:
        """A cell's value; it is negative for a negative int<W>."""
        return self.engine.register_read(self._cell(self.registers, register, index).name, index)

    def register_read_all(self, register: str) -> list[int]:
        instance = self.registers[register]
        return [self.engine.register_read(instance.name, index) for index in range(instance.cells)]

    def register_write(self, register: str, index: int, value: int | str) -> None:
        instance = self._cell(self.registers, register, index)
        self.engine.register_write(instance.name, index, self._value(instance, value))

    def register_write_range(self, register: str, first: int, last: int, value: int | str) -> None:
        """The same value in all cells from first to last."""
        self._cell(self.registers, register, first)
        instance = self._cell(self.registers, register, last)
        number = self._value(instance, value)
        for index in range(first, last + 1):
            self.engine.register_write(instance.name, index, number)

    def register_reset(self, register: str) -> None:
        """All cells 0."""
        self.engine.register_reset(self.registers[register].name)

    def _value(self, instance: ir.ExternInstance, value: int | str) -> int:
        try:
            return parse_number(value, instance.cell) if isinstance(value, str) else fit(value, instance.cell)
        except P4Error as error:
            raise P4Error(f"Bad format for value of {instance.name}: {error.message}") from None

    # ---- counters

    def counter_read(self, counter: str, index: int) -> tuple[int, int]:
        """(packets, bytes)."""
        return self.engine.counter_read(self._cell(self.counters, counter, index).name, index)

    def counter_write(self, counter: str, index: int, packets: int, size_bytes: int) -> None:
        instance = self._cell(self.counters, counter, index)
        for value in (packets, size_bytes):
            if not 0 <= value <= COUNT_MAX:
                raise P4Error(f"counter value {value}: expected 0 to {COUNT_MAX}")
        self.engine.counter_write(instance.name, index, packets, size_bytes)

    def counter_reset(self, counter: str) -> None:
        self.engine.counter_reset(self.counters[counter].name)

    # ---- meters

    def meter_set_rates(self, meter: str, index: int, rates: Sequence[MeterRate]) -> None:
        """Committed rate, then peak rate; the meter's buckets start full."""
        instance = self._cell(self.meters, meter, index)
        checked = _rates(instance.name, rates)
        self._rates[instance.name, index] = checked
        self.engine.meter_set_rates(instance.name, index, checked)

    def meter_clear_rates(self, meter: str, index: int) -> None:
        """As if it had never got rates: the meter says green."""
        instance = self._cell(self.meters, meter, index)
        self._rates.pop((instance.name, index), None)
        self.engine.meter_set_rates(instance.name, index, ())

    def meter_array_set_rates(self, meter: str, rates: Sequence[MeterRate]) -> None:
        """All of an array's meters, or those of all entries of a direct meter's table."""
        instance = self.meters[meter]
        checked = _rates(instance.name, rates)
        table = self.table_of(instance)
        self._flush()
        for index in range(instance.cells) if table is None else list(self.tables.parts[table].entries):
            self._rates[instance.name, index] = checked
            self.engine.meter_set_rates(instance.name, index, checked)

    def meter_get_rates(self, meter: str, index: int) -> tuple[MeterRate, ...]:
        """As set; none: never set, the meter says green."""
        return self._rates.get((self._cell(self.meters, meter, index).name, index), ())

    # ---- parser value sets

    def pvs_add(self, value_set: str, *words: Word) -> None:
        """Add a member: a word for each field. A member that is there already is left as it is."""
        chosen = self.value_sets[value_set]
        member = self._value_set_member(chosen, words)
        members = self._members[chosen.name]
        if member in members:
            return
        if len(members) >= chosen.size:
            raise P4Error(f"parser value set {chosen.name} holds {chosen.size} values; remove some")
        members.append(member)
        self.engine.set_value_set(chosen.name, members)

    def pvs_remove(self, value_set: str, *words: Word) -> None:
        """Remove a member; that it isn't there is no error, as in bmv2."""
        chosen = self.value_sets[value_set]
        member = self._value_set_member(chosen, words)
        self._members[chosen.name] = [other for other in self._members[chosen.name] if other != member]
        self.engine.set_value_set(chosen.name, self._members[chosen.name])

    def pvs_clear(self, value_set: str) -> None:
        chosen = self.value_sets[value_set]
        self._members[chosen.name] = []
        self.engine.set_value_set(chosen.name, [])

    def pvs_get(self, value_set: str) -> list[tuple[Pair, ...]]:
        return list(self._members[self.value_sets.full(value_set)])

    def _value_set_member(self, chosen: ir.ValueSet, words: Sequence[Word]) -> tuple[Pair, ...]:
        matches = chosen.matches or ("exact",) * len(chosen.types)
        if len(words) == 1 and len(chosen.types) > 1 and isinstance(words[0], str | int):
            words = _parted(chosen, str(words[0]))
        if len(words) != len(chosen.types):
            raise P4Error(f"parser value set {chosen.name} needs {len(chosen.types)} values, got {len(words)}")
        parts = zip(words, chosen.types, matches, strict=True)
        return tuple(parse_key(word, kind, match, plain=True) for word, kind, match in parts)

    # ---- checks

    def table_of(self, instance: ir.ExternInstance) -> str | None:
        """The table whose entries a direct counter or meter counts; None: an array."""
        if not instance.kind.startswith("direct_"):
            return None
        for table in self.program.tables:
            if any(direct is not None and direct.name == instance.name for direct in (table.counter, table.meter)):
                return table.name
        raise P4Error(f"{instance.name} is direct, but no table names it")

    def _cell(self, arrays: ControlNames[ir.ExternInstance], name: str, index: int) -> ir.ExternInstance:
        """The array that is meant. Raises P4Error: it has no such cell."""
        instance = arrays[name]
        table = self.table_of(instance)
        if table is not None:
            self._entry(self.tables.parts[table], index)
            self._flush()  # the engine must know the entry
        elif not 0 <= index < instance.cells:
            why = f"{instance.name} has {instance.cells} cells, from 0; {index} is none of them"
            raise refused(arrays.kind, "INVALID_INDEX", why)
        return instance


def _rates(name: str, rates: Sequence[MeterRate]) -> tuple[MeterRate, ...]:
    if len(rates) != RATES:
        raise P4Error(
            f"Invalid number of rates, expected {RATES} but got {len(rates)}: {name} needs RATE:BURST for the "
            "committed and for the peak rate"
        )
    for rate in rates:
        if not math.isfinite(rate.rate) or rate.rate < 0 or not 0 <= rate.burst <= COUNT_MAX:
            raise refused("meter", "INVALID_INFO_RATE_VALUE", f"{rate.rate}:{rate.burst}; expected numbers from 0")
    if rates[0].rate > rates[1].rate:
        raise refused(
            "meter",
            "INVALID_INFO_RATE_VALUE",
            f"the committed rate {rates[0].rate} is above the peak rate {rates[1].rate}; give the lower one first",
        )
    return tuple(rates)


def _parted(chosen: ir.ValueSet, text: str) -> list[Word]:
    """bmv2 knows one number for all fields together: the first field in its highest bits."""
    total = sum(width_of(kind) for kind in chosen.types)
    number = parse_number(text, ir.Bits(total))
    words: list[Word] = []
    for kind in chosen.types:
        total -= width_of(kind)
        words.append((number >> total) & ((1 << width_of(kind)) - 1))
    return words
