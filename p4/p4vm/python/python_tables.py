"""Tables, value sets and action profiles of the Python back end: what matches, and which entry wins."""

from collections.abc import Callable, Sequence

from p4vm.algorithms import HASHES
from p4vm.bit_arithmetic import wrap
from p4vm.engine import ActionCall, GroupRef, MemberRef, TableEntry, entries_of
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import is_signed, width_of
from p4vm.python.python_cells import DirectMeter, Tally
from p4vm.python.runtime import PacketBits, joined

KeyParts = tuple[tuple[int, int | None], ...]


class Outcome:
    """What an apply came to. action: index; arguments: of its data parameters."""

    __slots__ = ("action", "arguments", "hit")

    def __init__(self, hit: bool, action: int, arguments: tuple[int, ...]) -> None:
        self.hit = hit
        self.action = action
        self.arguments = arguments


def fitting(value: int, kind: ir.Type) -> int:
    """value cut to the type."""
    return wrap(value, kind if isinstance(kind, ir.Bits) else ir.Bits(width_of(kind)))


class Matcher:
    """Finds the first of its rows, in order, whose parts hold the keys.

    kinds: match kinds, types: of the keys. A row is one part per key: masks are compared on all keys as one number.
    """

    def __init__(self, kinds: Sequence[str], types: Sequence[ir.Type]) -> None:
        self.kinds = kinds
        self.types = types
        self.widths = [width_of(kind) for kind in types]
        self.rows: list[tuple[int, int, list[tuple[int, int, int]], int]] = []

    def masked(self, parts: KeyParts) -> tuple[int, int]:
        """(value, mask) of the keys as one number; ranges are left open."""
        value = mask = 0
        for kind, width, (number, more) in zip(self.kinds, self.widths, parts, strict=True):
            full = (1 << width) - 1
            if kind == "exact" or (more is None and kind != "range"):
                cover = full
            elif kind == "lpm":
                cover = full & ~(full >> min(more or 0, width))
            else:
                cover = 0 if kind == "range" else (more or 0) & full
            value = value << width | number & cover
            mask = mask << width | cover
        return value, mask

    def ranges(self, parts: KeyParts) -> list[tuple[int, int, int]]:
        """(which key, lowest, highest), as `pattern` makes keys."""
        segments = []
        for at, (kind, width, (low, high)) in enumerate(zip(self.kinds, self.widths, parts, strict=True)):
            if kind == "range":
                of = self.types[at]
                half = 1 << width >> 1 if is_signed(of) else 0
                low, high = fitting(low, of), fitting(low if high is None else high, of)
                segments.append((at, low + half, high + half))
        return segments

    def set_rows(self, rows: Sequence[KeyParts]) -> None:
        self.rows = [(*self.masked(parts), self.ranges(parts), at) for at, parts in enumerate(rows)]

    def joined_keys(self, keys: tuple[int, ...]) -> int:
        number = 0
        for width, key in zip(self.widths, keys, strict=True):
            number = number << width | key
        return number

    def find(self, keys: tuple[int, ...]) -> int:
        """The row's number, -1 if there is none."""
        number = self.joined_keys(keys)
        for value, mask, ranges, at in self.rows:
            if number & mask == value and all(low <= keys[key] <= high for key, low, high in ranges):
                return at
        return -1


class PythonValueSet:
    """A parser's value set."""

    def __init__(self, value_set: ir.ValueSet) -> None:
        count = len(value_set.types)
        self.matcher = Matcher(value_set.matches or ("exact",) * count, value_set.types)

    def set(self, entries: Sequence[KeyParts]) -> None:
        self.matcher.set_rows(entries)

    def holds(self, keys: tuple[int, ...]) -> bool:
        return self.matcher.find(keys) >= 0


class ActionProfile:
    """An action profile or selector. groups: members in ascending order."""

    def __init__(self) -> None:
        self.calls: dict[int, ActionCall] = {}
        self.groups: dict[int, tuple[int, ...]] = {}
        self.version = 0

    def set(self, members: dict[int, ActionCall], groups: dict[int, tuple[int, ...]]) -> None:
        self.calls = dict(members)
        self.groups = {handle: tuple(sorted(chosen)) for handle, chosen in groups.items()}
        self.version += 1


class PythonTable:
    """One table's entries, its profile, its direct counter and meter."""

    def __init__(
        self,
        table: ir.Table,
        profile: ActionProfile | None,
        counter: Tally | None,
        meter: DirectMeter | None,
        draw: Callable[[], int],
    ) -> None:
        self.table = table
        self.profile = profile
        self.counter = counter
        self.meter = meter
        self.draw = draw
        self.outcomes: dict[int, Outcome] = {}
        self.outcomes_version = 0
        self.entries: list[TableEntry] = []
        self.outcomes_of_entries: list[Outcome | None] = []
        self.matching = [at for at, key in enumerate(table.keys) if key.match != "selector"]
        self.hashes = HASHES
        self.selecting = [at for at, key in enumerate(table.keys) if key.match == "selector"]
        kinds = [table.keys[at].match for at in self.matching]
        self.matcher = Matcher(kinds, [table.keys[at].expression.type for at in self.matching])
        self.prioritised = not set(kinds) <= {"exact", "lpm"}
        self.exact: dict[tuple[int, ...], int] | None = None
        self.prefixes: list[tuple[int, dict[int, int]]] = []
        self.default = Outcome(False, 0, ())
        self.set(entries_of(table), ActionCall(table.default, table.default_arguments))

    def outcome(self, hit: bool, call: ActionCall) -> Outcome:
        data = self.table.actions[call.action].data
        arguments = [fitting(value, p.variable.type) for value, p in zip(call.arguments, data, strict=True)]
        return Outcome(hit, call.action, tuple(arguments))

    def set(self, entries: Sequence[TableEntry], default: ActionCall) -> None:
        """Replace all."""
        count = len(self.table.keys)
        rows = [
            tuple(entry.keys[at] for at in self.matching) if len(entry.keys) == count else entry.keys
            for entry in entries
        ]
        order = list(range(len(entries)))
        if self.prioritised:
            order.sort(key=lambda at: entries[at].priority)
        else:
            order.sort(key=lambda at: -self.prefix(rows[at]))
        self.entries = [entries[at] for at in order]
        self.outcomes_of_entries = [
            self.outcome(True, entry.action) if isinstance(entry.action, ActionCall) else None for entry in self.entries
        ]
        self.default = self.outcome(False, default)
        self.matcher.set_rows([rows[at] for at in order])
        self.index()
        handles = {entry.handle for entry in entries}
        if self.counter is not None:
            self.counter.keep(handles)
        if self.meter is not None:
            self.meter.keep(handles)

    def prefix(self, row: KeyParts) -> int:
        """Bits of all lpm parts."""
        total = 0
        for kind, width, (_, length) in zip(self.matcher.kinds, self.matcher.widths, row, strict=True):
            if kind == "lpm":
                total += width if length is None else length
        return total

    def index(self) -> None:
        """Dictionaries for what exact and lpm keys find: one per mask, in the order of rows."""
        self.exact = None
        self.prefixes = []
        if self.prioritised:
            return
        by_mask: dict[int, dict[int, int]] = {}
        for value, mask, _, at in self.matcher.rows:
            by_mask.setdefault(mask, {}).setdefault(value, at)
        # rows come longest prefix first, and one sum of prefixes may have several masks where lpm keys are several
        self.prefixes = list(by_mask.items())
        if all(kind == "exact" for kind in self.matcher.kinds):
            rows = self.matcher.rows
            split = [self.split(value) for value, _, _, _ in rows]
            self.exact = {}
            for at, keys in enumerate(split):
                self.exact.setdefault(keys, at)

    def split(self, number: int) -> tuple[int, ...]:
        """The keys that one number holds."""
        keys = []
        for width in reversed(self.matcher.widths):
            keys.append(number & (1 << width) - 1)
            number >>= width
        return tuple(reversed(keys))

    def find(self, keys: tuple[int, ...]) -> int:
        """Which entry wins, -1 for none."""
        if self.exact is not None:
            return self.exact.get(keys, -1)
        if self.prioritised:
            return self.matcher.find(keys)
        number = self.matcher.joined_keys(keys)
        best = -1
        for mask, rows in self.prefixes:
            at = rows.get(number & mask, -1)
            if at >= 0 and (best < 0 or at < best):
                best = at
        return best

    def look(self, packet: PacketBits, keys: tuple[int, ...]) -> Outcome:
        """What the table has for these keys; a hit is counted and metered."""
        if not self.entries:
            return self.missed()
        selectors: tuple[int, ...] = ()
        if self.selecting:
            selectors = tuple(keys[at] for at in self.selecting)
            keys = tuple(keys[at] for at in self.matching)
        at = self.find(keys)
        if at < 0:
            return self.missed()
        outcome = self.outcomes_of_entries[at]
        if outcome is None:
            outcome = self.member(self.entries[at].action, selectors)
            if outcome is None:
                return self.missed()
        if self.counter is not None:
            self.counter.add(self.entries[at].handle, packet)
        if self.meter is not None:
            self.meter.execute(self.entries[at].handle, packet)
        return outcome

    def missed(self) -> Outcome:
        if self.meter is not None:
            self.meter.color = 0
        return self.default

    def member(self, chosen: ActionCall | MemberRef | GroupRef, selectors: tuple[int, ...]) -> Outcome | None:
        """What an entry's member, or the one its group selects, does."""
        profile = self.profile
        if profile is None or isinstance(chosen, ActionCall):
            return None
        handle = chosen.handle
        if isinstance(chosen, GroupRef):
            group = profile.groups.get(handle, ())
            if not group:
                return None
            handle = group[self.hashed(selectors) % len(group)]
        if self.outcomes_version != profile.version:
            self.outcomes = {}
            self.outcomes_version = profile.version
        if handle not in self.outcomes:
            call = profile.calls.get(handle)
            if call is None:
                return None
            self.outcomes[handle] = self.outcome(True, call)
        return self.outcomes[handle]

    def hashed(self, selectors: tuple[int, ...]) -> int:
        types = [self.table.keys[at].expression.type for at in self.selecting]
        data = joined((width_of(kind), key) for kind, key in zip(types, selectors, strict=True))
        implementation = self.table.implementation
        algorithm = str(implementation.arguments[0]) if implementation and implementation.arguments else "crc16"
        return self.draw() if algorithm == "random" else self.hashes.get(algorithm, HASHES["crc16"])(data)
