"""Rules of the core library that its declarations cannot say: what extract, emit, lookahead and verify take."""

from __future__ import annotations

from p4vm.check import resolve, types
from p4vm.check.scope import CallNote, State, fail
from p4vm.front import tree


def check_core_call(state: State, node: tree.Call, note: CallNote, base: types.Extern | None) -> None:
    """Raises P4Error: the call breaks a rule of the core library. Notes the value of static_assert."""
    if base is None:
        if note.name == "verify" and state.place.kind != "parser state":
            fail(node, "verify can be called in parser states only; use if")
        if note.name == "static_assert":
            check_static_assert(state, node, note)
    elif base.name == "packet_in" and note.type_arguments:
        kind = note.type_arguments[0]
        if note.name == "extract":
            check_extract(node, note, kind)
        elif note.name == "lookahead" and (varbits(kind) or not has_size(kind)):
            fail(node, f"lookahead reads values of a fixed size; {kind} has none")
    elif (base.name, note.name) == ("packet_out", "emit") and not all(map(emittable, note.type_arguments)):
        fail(node, f"emit writes headers, header stacks, unions and structs of them, not {note.type_arguments[0]}")


def check_static_assert(state: State, node: tree.Call, note: CallNote) -> None:
    constants = state.checked.constants
    condition = note.arguments[0]
    if condition is None or condition not in constants:
        fail(node, "static_assert needs a condition known at compile time")
    if not constants[condition]:
        text = note.arguments[1] if len(note.arguments) > 1 else None
        said = constants.get(text, "") if text is not None else ""
        fail(node, "static_assert failed" + (f": {' '.join(str(said).split())}" if said else ""))
    constants[node] = True


def check_extract(node: tree.Call, note: CallNote, kind: types.Type) -> None:
    if isinstance(kind, types.Variable):
        return
    if not isinstance(kind, types.Structure) or kind.kind != "header":
        fail(node, f"extract fills a header, not {kind}")
    found = varbits(kind)
    if len(note.parameters) == 1 and found:
        fail(node, f"header {kind} has a varbit field; write extract(header, bits of the varbit)")
    if len(note.parameters) == 2 and found != 1:
        fail(node, f"extract with two arguments needs a header with one varbit field; {kind} has {found}")


def varbits(kind: types.Type) -> int:
    """How many varbit fields a type has."""
    kind = resolve.bare(kind)
    if isinstance(kind, types.Structure):
        return sum(varbits(field) for _, field in kind.fields)
    if isinstance(kind, types.Stack):
        return varbits(kind.element)
    if isinstance(kind, types.Tuple):
        return sum(map(varbits, kind.items))
    return int(isinstance(kind, types.Varbits))


def has_size(kind: types.Type) -> bool:
    kind = resolve.bare(kind)
    if isinstance(kind, types.Variable):
        return True
    return not (isinstance(kind, types.Structure) and kind.kind == "header_union") and fixed(kind)


def fixed(kind: types.Type) -> bool:
    """Whether values of the type have bits on the wire."""
    kind = resolve.bare(kind)
    if isinstance(kind, types.Structure):
        return all(fixed(field) for _, field in kind.fields)
    if isinstance(kind, types.Stack):
        return fixed(kind.element)
    if isinstance(kind, types.Tuple):
        return all(map(fixed, kind.items))
    if isinstance(kind, types.Enum):
        return kind.base is not None
    return isinstance(kind, types.Bits | types.Varbits | types.Variable) or kind == types.BOOL


def emittable(kind: types.Type) -> bool:
    if isinstance(kind, types.Structure):
        return kind.kind != "struct" or all(emittable(field) for _, field in kind.fields)
    if isinstance(kind, types.Tuple):
        return all(map(emittable, kind.items))
    return isinstance(kind, types.Stack | types.Variable)


def size_of(kind: types.Type, method: str) -> int | None:
    """What minSizeInBits and its like give for a type; None: it depends on type parameters."""
    bits = size_in_bits(kind, method.startswith("max"))
    return bits if bits is None or method.endswith("Bits") else (bits + 7) // 8


def size_in_bits(kind: types.Type, largest: bool) -> int | None:
    kind = resolve.bare(kind)
    if isinstance(kind, types.Bits):
        return kind.width
    if isinstance(kind, types.Varbits):
        return kind.width if largest else 0
    if isinstance(kind, types.Enum) and kind.base is not None:
        return kind.base.width
    if kind == types.BOOL:
        return 1
    if isinstance(kind, types.Stack):
        one = size_in_bits(kind.element, largest)
        return None if one is None else kind.size * one
    if isinstance(kind, types.Structure):
        sizes = [size_in_bits(field, largest) for _, field in kind.fields]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return None
        if kind.kind == "header_union":
            return (max if largest else min)(known, default=0)
        return sum(known)
    return None
