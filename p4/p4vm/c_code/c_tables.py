"""How keys of tables and value sets are laid out in limbs, for generated code and for native/native_tables.py."""

from dataclasses import dataclass, field

from p4vm.c_code.c_types import limbs_of
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import is_signed, width_of
from p4vm.source import P4Error


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """match: as in ir.Key. word: its first limb, of the packed words, or of the ranges'; shift: within it.

    limbs: more than 1 only where shift is 0 and the limbs are its own.
    """

    match: str
    width: int
    word: int
    shift: int
    limbs: int
    signed: bool = False


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """places: one for each key. words: limbs of packed keys; range_limbs: of each range, which follow them."""

    places: tuple[KeyPlace, ...]
    words: int
    range_limbs: tuple[int, ...]

    @property
    def range_words(self) -> int:
        return sum(self.range_limbs)


def key_layout(keys: list[tuple[ir.Type, str]]) -> KeyLayout:
    """keys: (type, match) of each."""
    places = []
    used = words = ranges = 0
    range_limbs: list[int] = []
    for kind, match in keys:
        width = width_of(kind)
        if not isinstance(kind, ir.Bits | ir.Bool | ir.EnumMember):
            raise P4Error("a table's key must be a number, bool, enum or error")
        limbs = limbs_of(width)
        if match == "selector":
            places.append(KeyPlace(match, width, 0, 0, limbs))
        elif match == "range":
            places.append(KeyPlace(match, width, ranges, 0, limbs, is_signed(kind)))
            range_limbs.append(limbs)
            ranges += limbs
        elif limbs == 1 and words and used + width <= 64:
            places.append(KeyPlace(match, width, words - 1, used, 1))
            used += width
        else:
            places.append(KeyPlace(match, width, words, 0, limbs))
            words += limbs
            used = width if limbs == 1 else 64
    return KeyLayout(tuple(places), words, tuple(range_limbs))


@dataclass(slots=True)
class TableLayout:
    """actions: for each, the types of its data; profile: number of its implementation, if any; counter, meter: numbers
    of its direct ones; by_priority: not the longest prefix but the priority decides."""

    name: str
    keys: KeyLayout
    actions: list[list[ir.Type]]
    profile: int | None = None
    counter: int | None = None
    meter: int | None = None
    by_priority: bool = False


@dataclass(slots=True)
class RecordSite:
    """A place in the program that writes records. kind: log_msg, assert, assume, digest. text: of the log."""

    kind: str
    text: str = ""
    types: list[ir.Type] = field(default_factory=list)


@dataclass(slots=True)
class ProgramLayout:
    """The layout of a generated program for its host: where its names stand in arrays.

    registers: name -> (number, type, cells); counters, meters: name -> (number, cells; 0: direct).
    """

    tables: list[TableLayout] = field(default_factory=list)
    value_sets: list[KeyLayout] = field(default_factory=list)
    value_set_numbers: dict[str, int] = field(default_factory=dict)
    profiles: dict[str, int] = field(default_factory=dict)
    registers: dict[str, tuple[int, ir.Type, int]] = field(default_factory=dict)
    counters: dict[str, tuple[int, int]] = field(default_factory=dict)
    meters: dict[str, tuple[int, int]] = field(default_factory=dict)
    sites: list[RecordSite] = field(default_factory=list)


def layout_of(program: ir.ProgramIr) -> ProgramLayout:
    """Everything but the sites, which generation finds. Raises P4Error."""
    layout = ProgramLayout()
    for instance in program.externs:
        _place_instance(layout, instance)
    for table in program.tables:
        keys = key_layout([(key.expression.type, key.match) for key in table.keys])
        matches = {key.match for key in table.keys}
        layout.tables.append(
            TableLayout(
                table.name,
                keys,
                [[parameter.variable.type for parameter in action.data] for action in table.actions],
                layout.profiles[table.implementation.name] if table.implementation else None,
                layout.counters[table.counter.name][0] if table.counter else None,
                layout.meters[table.meter.name][0] if table.meter else None,
                not matches <= {"exact", "lpm", "selector"},
            )
        )
    for number, value_set in enumerate(program.value_sets):
        kinds = [scalar for kind in value_set.types for scalar in scalars_of(kind)]
        matches_of = [*value_set.matches, *["exact"] * len(kinds)]
        layout.value_sets.append(key_layout(list(zip(kinds, matches_of, strict=False))))
        layout.value_set_numbers[value_set.name] = number
    return layout


def scalars_of(kind: ir.Type) -> list[ir.Type]:
    """The types of a struct's parts, in order; of anything else its own."""
    if isinstance(kind, ir.Record):
        return [scalar for _, field in kind.fields for scalar in scalars_of(field)]
    return [kind]


def _place_instance(layout: ProgramLayout, instance: ir.ExternInstance) -> None:
    match instance.kind:
        case "register":
            layout.registers[instance.name] = (len(layout.registers), instance.cell, instance.cells)
        case "counter" | "direct_counter":
            layout.counters[instance.name] = (len(layout.counters), instance.cells)
        case "meter" | "direct_meter":
            layout.meters[instance.name] = (len(layout.meters), instance.cells)
        case "action_profile" | "action_selector":
            layout.profiles[instance.name] = len(layout.profiles)
