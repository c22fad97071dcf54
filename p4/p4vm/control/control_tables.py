"""Tables of a running program: entries by handle and by key, default actions, const ones kept."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from p4vm.control.control_names import ControlNames
from p4vm.control.control_values import BMV2_MATCHES, PRIORITIZED, Pair, Word, key_pair, whole_range
from p4vm.control.core import Arguments, ControlCore, action_call, action_names, refused_table
from p4vm.engine import ActionCall, Engine, GroupRef, MemberRef, TableEntry
from p4vm.ir import ir_nodes as ir
from p4vm.source import P4Error

_INDEX = re.compile(r"\$(\d+)")
PRIORITY_MAX = (1 << 31) - 1

Keys = Sequence[Word] | Mapping[str, Word]
"""A key's parts, in order or by name. By name, a value alone means itself whatever the kind of match, and parts left
out match anything (of kind exact none may be left out)."""


@dataclass(slots=True, eq=False)
class TableState:
    """A table: `entries` by handle, oldest first. default: as set; `first_default`: as the program has it.

    kind: as bmv2 names it, the broadest kind of match among its keys. prioritized: whether entries have priorities.
    """

    table: ir.Table
    keys: list[ir.Key]
    key_names: ControlNames[int]
    actions: ControlNames[int]
    default: ActionCall | MemberRef
    first_default: ActionCall
    entries: dict[int, TableEntry] = field(default_factory=dict)
    by_key: dict[tuple[tuple[Pair, ...], int], int] = field(default_factory=dict)
    next_handle: int = 0
    kind: str = field(init=False)
    prioritized: bool = field(init=False)

    def __post_init__(self) -> None:
        matches = {BMV2_MATCHES[key.match] for key in self.keys}
        self.kind = next((kind for kind in ("range", "ternary", "lpm") if kind in matches), "exact")
        self.prioritized = self.kind in PRIORITIZED

    @property
    def name(self) -> str:
        return self.table.name

    def key_index(self, name: str) -> int:
        """The key that a name, or the end of one, means; $0 stands for [0], valid for isValid(). Raises P4Error."""
        matches = self.key_names.matches(_INDEX.sub(r"[\1]", name))
        if len(matches) == 1:
            return self.key_names.parts[matches[0]]
        if matches:
            raise P4Error(f"key {name[:80]} of {self.name} may mean {' or '.join(matches)}")
        known = ", ".join(key.name for key in self.keys) or "none"
        raise P4Error(f"Table {self.name} has no key {name[:80]}; it has: {known}")

    def rank(self, priority: int | None, top: int = PRIORITY_MAX) -> int | None:
        """The engine's priority, of which the smaller wins, for one of 1 to `top`, of which the greater wins. None and
        0 stand for no priority. Raises P4Error: the table needs one, or has none."""
        if not self.prioritized:
            if priority:
                raise P4Error(f"{self.name} has no ternary, range or optional key, so no priority; leave it out")
            return None
        if priority is None or not 0 < priority <= top:
            raise P4Error(f"{self.name} is {self.kind}: give a priority from 1 to {top} (the greater wins)")
        return top - priority

    def identity(self, keys: tuple[Pair, ...], priority: int) -> tuple[tuple[Pair, ...], int]:
        """The key and rank of an entry, which no other may have."""
        return keys, priority if self.prioritized else 0


def _spellings(name: str) -> list[str]:
    """A key's name, and how tests of p4c spell it."""
    if not name.endswith(".isValid()"):
        return [name, name.removesuffix("$")]
    return [name, *(name.replace("isValid()", valid) for valid in ("$valid$", "$valid", "valid"))]


def table_state(table: ir.Table) -> TableState:
    """The state a program starts with: its own entries have the handles 0, 1, …"""
    default = ActionCall(table.default, tuple(table.default_arguments))
    keys = [key for key in table.keys if key.match != "selector"]
    names = ControlNames(
        "key", {spelling: index for index, key in enumerate(keys) for spelling in _spellings(key.name)}
    )
    state = TableState(table, keys, names, action_names(table.actions), default, default)
    for entry in table.entries:
        call = ActionCall(entry.action, tuple(entry.arguments))
        priority = entry.priority or 0
        handle = state.next_handle
        state.entries[handle] = TableEntry(tuple(entry.keys), call, priority, handle)
        state.by_key.setdefault(state.identity(tuple(entry.keys), priority), handle)
        state.next_handle += 1
    return state


class TableControl(ControlCore):
    """Commands for tables. Names may be given in full or as a suffix that means one thing.

    Every method raises P4Error, one line, where names, widths, numbers of arguments or handles are wrong, the table is
    full or const, or the key is taken. Nothing has changed then.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.tables = ControlNames("table", {table.name: table_state(table) for table in self.program.tables})
        for state in self.tables.parts.values():
            if state.entries:
                self._push("table", state.name)

    def _tell(self, kind: str, name: str) -> None:
        if kind == "table":
            state = self.tables.parts[name]
            self.engine.set_table(name, list(state.entries.values()), self._default_call(state))

    def _default_call(self, state: TableState) -> ActionCall:
        assert isinstance(state.default, ActionCall)
        return state.default

    # ---- entries

    def table_add(
        self, table: str, action: str, keys: Keys = (), arguments: Arguments = (), priority: int | None = None
    ) -> int:
        """Add an entry; its handle. keys: words as on the command line, numbers, or pairs (value, mask or prefix
        length or upper bound). priority: smaller wins; needed where a key is ternary, range or optional."""
        state = self.tables[table]
        if state.table.implementation is not None:
            raise refused_table(
                "WRONG_TABLE_TYPE",
                f"{state.name} takes members of {state.table.implementation.name}; "
                "use act_prof_create_member and table_indirect_add",
            )
        return self._add(state, self._call(state, action, arguments), keys, priority)

    def _add(
        self, state: TableState, action: ActionCall | MemberRef | GroupRef, keys: Keys, priority: int | None
    ) -> int:
        self._changeable(state)
        if not state.keys:
            raise refused_table("NO_TABLE_KEY", f"{state.name} has no key, so no entries; use table_set_default")
        pairs = self._pairs(state, keys)
        rank = self._priority(state, priority)
        holder = state.by_key.get(state.identity(pairs, rank))
        if holder is not None:
            raise refused_table(
                "DUPLICATE_ENTRY",
                f"entry {holder} of {state.name} has this key already; use table_modify {state.name} ACTION {holder} …",
            )
        if len(state.entries) >= state.table.size:
            raise refused_table(
                "TABLE_FULL",
                f"{state.name} holds {state.table.size} entries; delete some, or set its size in the program",
            )
        handle = state.next_handle
        state.next_handle += 1
        self._put(state, TableEntry(pairs, action, rank, handle))
        return handle

    def table_modify(self, table: str, action: str, handle: int, arguments: Arguments = ()) -> None:
        """Give an entry another action or other arguments; its counter and meter stay."""
        state = self.tables[table]
        self._changeable(state)
        entry = self._entry(state, handle)
        if isinstance(entry.action, MemberRef | GroupRef):
            raise refused_table("WRONG_TABLE_TYPE", f"{state.name} takes members of an action profile")
        call = self._call(state, action, arguments)
        self._put(state, TableEntry(entry.keys, call, entry.priority, handle))

    def table_delete(self, table: str, handle: int) -> None:
        state = self.tables[table]
        self._changeable(state)
        entry = self._entry(state, handle)
        del state.entries[handle]
        state.by_key.pop(state.identity(entry.keys, entry.priority), None)
        self._push("table", state.name)

    def table_find(self, table: str, keys: Keys, priority: int | None = None) -> int:
        """The handle of the entry with exactly this key (and priority, where the table has them)."""
        state = self.tables[table]
        pairs = self._pairs(state, keys)
        rank = self._priority(state, priority)
        handle = state.by_key.get(state.identity(pairs, rank))
        if handle is None:
            raise refused_table("BAD_MATCH_KEY", f"{state.name} has no entry with this key; see table_dump")
        return handle

    def table_clear(self, table: str) -> None:
        """Delete all entries; the default action stays."""
        state = self.tables[table]
        self._changeable(state)
        state.entries.clear()
        state.by_key.clear()
        self._push("table", state.name)

    def table_num_entries(self, table: str) -> int:
        return len(self.tables[table].entries)

    # ---- default action

    def table_set_default(self, table: str, action: str, arguments: Arguments = ()) -> None:
        """Set the action for packets that no entry matches."""
        state = self.tables[table]
        call = self._call(state, action, arguments, default=True)
        if state.table.default_const and call != state.first_default:
            raise default_is_const(state)
        state.default = call
        self._push("table", state.name)

    def table_reset_default(self, table: str) -> None:
        """The default action as the program has it."""
        state = self.tables[table]
        state.default = state.first_default
        self._push("table", state.name)

    # ---- checks

    def _put(self, state: TableState, entry: TableEntry) -> None:
        state.entries[entry.handle] = entry
        state.by_key[state.identity(entry.keys, entry.priority)] = entry.handle
        self._push("table", state.name)

    def _changeable(self, state: TableState) -> None:
        if state.table.entries_const:
            raise refused_table("IMMUTABLE_TABLE_ENTRIES", f"the program declares the entries of {state.name} const")

    def _entry(self, state: TableState, handle: int) -> TableEntry:
        if handle in state.entries:
            return state.entries[handle]
        if 0 <= handle < state.next_handle:
            raise refused_table("INVALID_HANDLE", f"entry {handle} of {state.name} was deleted; see table_dump")
        raise refused_table("INVALID_HANDLE", f"{state.name} never had an entry {handle}; see table_dump")

    def _call(self, state: TableState, action: str, arguments: Arguments, default: bool = False) -> ActionCall:
        try:
            index = state.actions[action]
        except P4Error as error:
            raise P4Error(f"Table {state.name} has no action {action[:80]}; {_remedy(error)}") from None
        chosen = state.table.actions[index]
        if chosen.table_only and default:
            raise P4Error(f"Action {chosen.name} is @tableonly in {state.name}: it can't be the default action")
        if chosen.default_only and not default:
            raise P4Error(f"Action {chosen.name} is @defaultonly in {state.name}: no entry may have it")
        return action_call(chosen, index, arguments)

    def _pairs(self, state: TableState, keys: Keys) -> tuple[Pair, ...]:
        by_name = isinstance(keys, Mapping)
        words = _words_in_order(state, keys) if isinstance(keys, Mapping) else keys
        if len(words) != len(state.keys):
            wanted = ", ".join(f"{key.name} {key.match}" for key in state.keys)
            raise P4Error(f"Table {state.name} needs {len(state.keys)} key fields ({wanted}), got {len(words)}")
        pairs = []
        for key, word in zip(state.keys, words, strict=True):
            try:
                pairs.append(key_pair(word, key, plain=by_name))
            except P4Error as error:
                raise P4Error(f"Invalid match key: Error while parsing {key.name} - {error.message}") from None
        return tuple(pairs)

    def _priority(self, state: TableState, priority: int | None) -> int:
        if not state.prioritized:
            return 0
        if priority is None:
            raise P4Error(
                f"Table {state.name} is {state.kind}, but no priority was given; end with a number (smaller wins)"
            )
        if not 0 <= priority <= PRIORITY_MAX:
            raise P4Error(f"priority {priority}: expected 0 to {PRIORITY_MAX}")
        return priority


def default_is_const(state: TableState) -> P4Error:
    return refused_table("DEFAULT_ENTRY_IS_CONST", f"the program declares the default action of {state.name} const")


def _remedy(error: P4Error) -> str:
    """The part of a name error that says what there is."""
    _, mark, rest = error.message.partition("; ")
    return rest if mark else error.message.partition(": ")[2]


def _words_in_order(state: TableState, keys: Mapping[str, Word]) -> list[Word]:
    words = {state.key_index(name): word for name, word in keys.items()}
    return [words[at] if at in words else _anything(state, key) for at, key in enumerate(state.keys)]


def _anything(state: TableState, key: ir.Key) -> Word:
    if key.match == "exact":
        raise P4Error(f"Table {state.name} needs a value for {key.name}: its kind is exact")
    return whole_range(key.expression.type) if key.match == "range" else (0, 0)
