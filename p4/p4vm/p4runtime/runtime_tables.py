"""Entries of tables as P4Runtime has them: written and read with their direct counters and meters."""

from collections.abc import Iterator
from typing import Any

from p4.v1 import p4runtime_pb2

from p4vm.control.control_tables import PRIORITY_MAX, TableState
from p4vm.control.control_values import Pair, Word, full_mask, whole_range, width_of
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.control.p4info import shortest
from p4vm.engine import ActionCall, MemberRef, TableEntry
from p4vm.ir import ir_nodes as ir
from p4vm.p4runtime.refusal import INVALID, RuntimeRefusal, refusing, unimplemented
from p4vm.p4runtime.runtime_cells import fill_counter, fill_meter, write_counter, write_meter
from p4vm.p4runtime.runtime_pipeline import ForwardingPipeline, key_places, number
from p4vm.p4runtime.runtime_profiles import Profiles

Update = p4runtime_pb2.Update


class Tables:
    """Entries, by the ids of a pipeline. Every method raises RuntimeRefusal."""

    def __init__(self, pipeline: ForwardingPipeline, profiles: Profiles) -> None:
        self.pipeline, self.profiles = pipeline, profiles
        self.switch: ControlledSwitch = pipeline.switch
        self._notes: dict[tuple[str, int], tuple[int, bytes]] = {}  # what controllers note at an entry

    def write(self, kind: int, entry: Any) -> None:
        table = self.pipeline.part("tables", entry.table_id)
        state = self.switch.tables.parts[table.preamble.name]
        if entry.idle_timeout_ns:
            raise unimplemented(f"{state.name}: idle_timeout_ns (entries that age)")
        if entry.is_default_action:
            self._write_default(kind, state, entry)
            return
        with refusing():
            if kind == Update.INSERT:
                handle = self._insert(state, self._keys(table, state, entry), state.rank(entry.priority), entry)
            else:
                handle = self._find(table, state, entry)
                if kind == Update.MODIFY:
                    self._modify(state, handle, entry)
                else:
                    self.switch.table_delete(state.name, handle)
                    self._notes.pop((state.name, handle), None)
                    return
        self._notes[state.name, handle] = (entry.controller_metadata, entry.metadata)
        self._direct(kind, state, handle, entry)

    def _insert(self, state: TableState, keys: dict[str, Word], rank: int | None, entry: Any) -> int:
        kind = entry.action.WhichOneof("type")
        if kind == "action":
            name, arguments = self.pipeline.call(entry.action.action)
            return self.switch.table_add(state.name, name, keys, arguments, rank)
        reference = self.profiles.reference(state, entry.action)
        if isinstance(reference, MemberRef):
            return self.switch.table_indirect_add(state.name, keys, reference.handle, rank)
        return self.switch.table_indirect_add_with_group(state.name, keys, reference.handle, rank)

    def _modify(self, state: TableState, handle: int, entry: Any) -> None:
        if entry.action.WhichOneof("type") == "action":
            name, arguments = self.pipeline.call(entry.action.action)
            self.switch.table_modify(state.name, name, handle, arguments)
        elif entry.HasField("action"):
            self.switch.table_indirect_modify(state.name, handle, self.profiles.reference(state, entry.action))

    def _write_default(self, kind: int, state: TableState, entry: Any) -> None:
        if kind != Update.MODIFY or entry.match or entry.priority:
            raise RuntimeRefusal(INVALID, f"{state.name}: a default entry is only modified, without match and priority")
        with refusing():
            if not entry.HasField("action"):
                if state.default != state.first_default:
                    self.switch.table_reset_default(state.name)
            elif entry.action.WhichOneof("type") == "action":
                name, arguments = self.pipeline.call(entry.action.action)
                self.switch.table_set_default(state.name, name, arguments)
            else:
                raise unimplemented(f"{state.name}: a default entry that is a member of an action profile")

    def _direct(self, kind: int, state: TableState, handle: int, entry: Any) -> None:
        counter, meter = state.table.counter, state.table.meter
        if entry.HasField("counter_data"):
            if counter is None:
                raise RuntimeRefusal(INVALID, f"{state.name} has no direct counter")
            write_counter(self.switch, counter.name, handle, entry.counter_data)
        if meter is not None and (entry.HasField("meter_config") or kind == Update.MODIFY):
            write_meter(self.switch, meter.name, handle, entry.meter_config)
        elif entry.HasField("meter_config"):
            raise RuntimeRefusal(INVALID, f"{state.name} has no direct meter")

    # ---- reading

    def read(self, query: Any) -> Iterator[Any]:
        """Entries that a request means: all of a table or of all tables, one, or default entries."""
        for table in self.pipeline.parts("tables", query.table_id):
            state = self.switch.tables.parts[table.preamble.name]
            if query.is_default_action:
                yield self._default(table, state)
                continue
            only = self._find(table, state, query) if query.match else None
            for entry in list(state.entries.values()):
                if only is None or entry.handle == only:
                    yield self._message(table, state, entry, query)

    def handles(self, entry: Any) -> tuple[TableState, list[int]]:
        """The table and the handles that the entry of a DirectCounterEntry or DirectMeterEntry means."""
        table = self.pipeline.part("tables", entry.table_id)
        state = self.switch.tables.parts[table.preamble.name]
        return state, [self._find(table, state, entry)] if entry.match else list(state.entries)

    def identity(self, state: TableState, handle: int) -> Any:
        """Table, match and priority of an entry: what names it."""
        table = self.pipeline.part("tables", self.pipeline.id_of("tables", state.name))
        return self._named(table, state, state.entries[handle])

    def _default(self, table: Any, state: TableState) -> Any:
        message = p4runtime_pb2.TableEntry(
            table_id=table.preamble.id, is_default_action=True, is_const=state.table.default_const
        )
        if isinstance(state.default, ActionCall):
            action = state.table.actions[state.default.action]
            self.pipeline.fill_action(message.action.action, action, state.default.arguments)
        return message

    def _named(self, table: Any, state: TableState, entry: TableEntry) -> Any:
        message = p4runtime_pb2.TableEntry(table_id=table.preamble.id)
        places = {place: number for number, place in key_places(self.switch, table).items()}
        for place, (key, pair) in enumerate(zip(state.keys, entry.keys, strict=True)):
            if not _matches_all(key, pair):
                _fill_match(message.match.add(field_id=places[place]), key, pair)
        if state.prioritized:
            message.priority = PRIORITY_MAX - entry.priority
        return message

    def _message(self, table: Any, state: TableState, entry: TableEntry, query: Any) -> Any:
        message = self._named(table, state, entry)
        if isinstance(entry.action, ActionCall):
            action = state.table.actions[entry.action.action]
            self.pipeline.fill_action(message.action.action, action, entry.action.arguments)
        else:
            self.profiles.fill_reference(message.action, state, entry.action)
        message.controller_metadata, message.metadata = self._notes.get((state.name, entry.handle), (0, b""))
        message.is_const = state.table.entries_const
        counter, meter = state.table.counter, state.table.meter
        if counter is not None and query.HasField("counter_data"):
            fill_counter(self.switch, counter.name, entry.handle, message.counter_data)
        if meter is not None and query.HasField("meter_config"):
            fill_meter(self.switch, meter.name, entry.handle, message.meter_config)
        return message

    # ---- keys

    def _find(self, table: Any, state: TableState, entry: Any) -> int:
        """The handle of the entry with this match and priority."""
        with refusing():
            return self.switch.table_find(state.name, self._keys(table, state, entry), state.rank(entry.priority))

    def _keys(self, table: Any, state: TableState, entry: Any) -> dict[str, Word]:
        places = key_places(self.switch, table)
        keys: dict[str, Word] = {}
        for match in entry.match:
            if match.field_id not in places:
                raise RuntimeRefusal(INVALID, f"{state.name} has no match field {match.field_id}")
            key = state.keys[places[match.field_id]]
            if key.name in keys:
                raise RuntimeRefusal(INVALID, f"{state.name}: match field {key.name} is given twice")
            keys[key.name] = _pair(key, match)
        return keys


def _pair(key: ir.Key, match: Any) -> Pair:
    """A p4.v1.FieldMatch as the engine holds it. Raises RuntimeRefusal."""
    kind, width = match.WhichOneof("field_match_type"), width_of(key.expression.type)
    if kind != key.match:
        raise RuntimeRefusal(INVALID, f"{key.name} is {key.match}; the match given is {kind or 'none'}")
    part = getattr(match, kind)
    if kind == "range":
        low, high = number(part.low, width, key.name), number(part.high, width, key.name)
        if low > high:
            raise RuntimeRefusal(INVALID, f"{key.name}: {low}..{high}: the low end is above the high one")
        return low, high
    value = number(part.value, width, key.name)
    if kind == "exact":
        return value, None
    if kind == "optional":
        return value, full_mask(key.expression.type)
    if kind == "lpm":
        if not 0 < part.prefix_len <= width:
            raise RuntimeRefusal(
                INVALID, f"{key.name}: prefix length {part.prefix_len}; 1 to {width}, or leave the match out"
            )
        mask, second = (1 << width) - (1 << (width - part.prefix_len)), part.prefix_len
    else:
        mask = second = number(part.mask, width, key.name)
        if not mask:
            raise RuntimeRefusal(INVALID, f"{key.name}: a mask of 0 matches anything; leave the match out")
    if value & ~mask:
        raise RuntimeRefusal(INVALID, f"{key.name}: {value:#x} has bits outside its mask {mask:#x}; they must be 0")
    return value, second


def _matches_all(key: ir.Key, pair: Pair) -> bool:
    """Whether P4Runtime leaves the match out, as it takes any value."""
    if key.match == "range":
        return pair == whole_range(key.expression.type)
    return key.match != "exact" and pair[1] == 0


def _fill_match(message: Any, key: ir.Key, pair: Pair) -> None:
    kind = key.expression.type
    value, second = pair
    part = getattr(message, key.match)
    if key.match == "range":
        part.low, part.high = shortest(value, kind), shortest(second or 0, kind)
        return
    part.value = shortest(value, kind)
    if key.match == "lpm":
        part.prefix_len = second
    elif key.match == "ternary":
        part.mask = shortest(second or 0, kind)
