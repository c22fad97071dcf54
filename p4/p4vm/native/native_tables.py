"""Entries of tables, profiles and value sets as the arrays that the runtime takes (runtime/tables.h)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p4vm.c_code.c_tables import KeyLayout, TableLayout
from p4vm.c_code.c_types import limbs_of
from p4vm.engine import ActionCall, GroupRef, MemberRef, TableEntry
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import width_of

KeyParts = Sequence[tuple[int, int | None]]
LIMB = (1 << 64) - 1
NOBODY = 0xFFFF_FFFF
"""Slot of a member or group that doesn't exist."""
ACTION, MEMBER, GROUP = range(3)
"""As `enum p4_entry_kind`."""
ENTRY = np.dtype([("kind", np.uint32), ("target", np.uint32), ("direct", np.uint32), ("argument", np.uint32)])
"""As `struct p4_entry`."""


def limbs(value: int, count: int) -> list[int]:
    """The low 64 * count bits, least significant limb first."""
    return [value >> 64 * at & LIMB for at in range(count)]


def array(values: list[int]) -> NDArray[np.uint64]:
    """Never empty, so that it has an address."""
    return np.array(values or [0], np.uint64)


def argument_limbs(call: ActionCall, kinds: Iterable[ir.Type]) -> list[int]:
    """The values of an action's data, each cut to its type."""
    data: list[int] = []
    for value, kind in zip(call.arguments, kinds, strict=True):
        width = width_of(kind)
        data += limbs(value & (1 << width) - 1, limbs_of(width))
    return data


class PackedKeys:
    """Rows of keys, packed. layout: where each key goes."""

    def __init__(self, layout: KeyLayout) -> None:
        self.layout = layout
        self.values: list[int] = []
        self.masks: list[int] = []
        self.bounds: list[int] = []
        self.matching = [place for place in layout.places if place.match != "selector"]

    def add(self, parts: KeyParts) -> None:
        """parts: as in ir.Entry; those of selector keys may be left out."""
        layout = self.layout
        places = layout.places if len(parts) == len(layout.places) else self.matching
        values, masks = [0] * layout.words, [0] * layout.words
        low, high = [0] * layout.range_words, [0] * layout.range_words
        for place, (number, more) in zip(places, parts, strict=True):
            if place.match == "selector":
                continue
            full = (1 << place.width) - 1
            if place.match == "range":
                flip = 1 << place.width >> 1 if place.signed else 0
                end = place.word + place.limbs
                low[place.word : end] = limbs((number & full) ^ flip, place.limbs)
                high[place.word : end] = limbs(((number if more is None else more) & full) ^ flip, place.limbs)
                continue
            cover = covered(place.match, place.width, more)
            for at in range(place.limbs):
                values[place.word + at] |= (number & cover) >> 64 * at << place.shift & LIMB
                masks[place.word + at] |= cover >> 64 * at << place.shift & LIMB
        self.values += values
        self.masks += masks
        self.bounds += low + high


def covered(match: str, width: int, more: int | None) -> int:
    """The bits of a key that must agree."""
    full = (1 << width) - 1
    if match == "exact" or more is None:
        return full
    return full & ~(full >> min(more, width)) if match == "lpm" else more & full


def prefix_bits(layout: KeyLayout, parts: KeyParts) -> int:
    """Bits of all lpm parts."""
    places = layout.places if len(parts) == len(layout.places) else [p for p in layout.places if p.match != "selector"]
    total = 0
    for place, (_, more) in zip(places, parts, strict=True):
        if place.match == "lpm":
            total += place.width if more is None else more
    return total


def in_order(layout: TableLayout, entries: Sequence[TableEntry]) -> list[TableEntry]:
    """Entries in the order in which they are tried: by priority, or the longest prefix first."""
    if layout.by_priority:
        return sorted(entries, key=lambda entry: entry.priority)
    if any(place.match == "lpm" for place in layout.keys.places):
        return sorted(entries, key=lambda entry: -prefix_bits(layout.keys, entry.keys))
    return list(entries)


@dataclass(slots=True)
class DirectCells:
    """Handles -> cells, dense; freed cells are used again."""

    of: dict[int, int]
    free: list[int]

    def get(self, handle: int) -> int:
        slot = self.of.get(handle)
        if slot is None:
            slot = self.of[handle] = self.free.pop() if self.free else len(self.of)
        return slot

    def keep(self, handles: set[int]) -> list[int]:
        """Forgets all others; returns the cells they leave."""
        left = [self.of.pop(handle) for handle in set(self.of) - handles]
        self.free += left
        return left


@dataclass(slots=True)
class PackedEntries:
    """A table's entries as arrays: keys, masks, bounds of ranges, actions and their data."""

    count: int
    values: NDArray[np.uint64]
    masks: NDArray[np.uint64]
    bounds: NDArray[np.uint64]
    entries: NDArray[np.void]
    arguments: NDArray[np.uint64]
    argument_count: int


def rows_of(
    layout: TableLayout,
    entries: Sequence[TableEntry],
    members: dict[int, int],
    groups: dict[int, int],
    slots: DirectCells,
) -> PackedEntries:
    """members, groups: handle -> slot in the profile."""
    keys = PackedKeys(layout.keys)
    arguments: list[int] = []
    ordered = in_order(layout, entries)
    targets = np.zeros(len(ordered), ENTRY)
    direct = layout.counter is not None or layout.meter is not None
    for at, entry in enumerate(ordered):
        keys.add(entry.keys)
        slot = slots.get(entry.handle) if direct else 0
        match entry.action:
            case ActionCall():
                targets[at] = (ACTION, entry.action.action, slot, len(arguments))
                arguments += argument_limbs(entry.action, layout.actions[entry.action.action])
            case MemberRef():
                targets[at] = (MEMBER, members.get(entry.action.handle, NOBODY), slot, 0)
            case GroupRef():
                targets[at] = (GROUP, groups.get(entry.action.handle, NOBODY), slot, 0)
    return PackedEntries(
        len(ordered),
        array(keys.values),
        array(keys.masks),
        array(keys.bounds),
        targets,
        array(arguments),
        len(arguments),
    )


def value_set_rows(layout: KeyLayout, entries: Sequence[KeyParts]) -> PackedEntries:
    keys = PackedKeys(layout)
    for parts in entries:
        keys.add(parts)
    targets = np.zeros(len(entries), ENTRY)
    return PackedEntries(len(entries), array(keys.values), array(keys.masks), array(keys.bounds), targets, array([]), 0)


@dataclass(slots=True)
class ProfileArrays:
    """A profile's arrays. slots: handle -> slot of members; groups: of groups."""

    slots: dict[int, int]
    groups: dict[int, int]
    calls: NDArray[np.uint32]
    arguments: NDArray[np.uint64]
    argument_count: int
    firsts: NDArray[np.uint32]
    chosen: NDArray[np.uint32]


def members_of(
    actions: Sequence[Sequence[ir.Type]], members: dict[int, ActionCall], groups: dict[int, tuple[int, ...]]
) -> ProfileArrays:
    """actions: of the profile's users, the types of their data."""
    slots = {handle: at for at, handle in enumerate(members)}
    calls: list[int] = []
    arguments: list[int] = []
    for call in members.values():
        calls += [call.action, len(arguments)]
        arguments += argument_limbs(call, actions[call.action])
    firsts, chosen = [0], []
    for group in groups.values():
        chosen += [slots.get(handle, NOBODY) for handle in sorted(group)]
        firsts.append(len(chosen))
    return ProfileArrays(
        slots,
        {handle: at for at, handle in enumerate(groups)},
        np.array(calls or [0], np.uint32),
        array(arguments),
        len(arguments),
        np.array(firsts, np.uint32),
        np.array(chosen or [0], np.uint32),
    )
