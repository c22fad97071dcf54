"""Types of the checked program -> types of the small one: parameters bound, names unique, tuples made records."""

from collections.abc import Mapping

from p4vm.ir import ir_nodes as ir
from p4vm.lower.lower_names import unused
from p4vm.source import NOWHERE, P4Error, Position
from p4vm.tree import types

INT = ir.Bits(-1, True)
"""int, of any size: in constants while they are computed, never in a finished program."""
BOOL = ir.Bool()
BIT32 = ir.Bits(32)
BIT64 = ir.Bits(64)
NESTING_MAX = 64


class Kinds:
    """All records of one program. Equal fields below one name are one record, whatever generic type they come from."""

    def __init__(self, errors: list[str]) -> None:
        self.error = ir.EnumMember("error", tuple(errors))
        self._simple: dict[str, ir.Type] = {"bool": BOOL, "error": self.error, "string": ir.Text()}
        self.records: list[ir.Record] = []
        self._records_by_type: dict[tuple[str, str, tuple[tuple[str, ir.Type], ...]], ir.Record] = {}
        self._names: set[str] = set()
        self._tuples = 0
        self._structures: dict[types.StructureType, ir.Record] = {}  # those that no type parameter can change

    def record(self, kind: str, name: str, fields: tuple[tuple[str, ir.Type], ...]) -> ir.Record:
        known = self._records_by_type.get((kind, name, fields))
        if known is not None:
            return known
        unique = unused(name, self._names)
        record = ir.Record(kind, unique, fields)
        self._names.add(unique)
        self._records_by_type[kind, name, fields] = record
        self.records.append(record)
        return record

    def tuple_record(self, items: tuple[ir.Type, ...]) -> ir.Record:
        fields = tuple((f"f{number}", item) for number, item in enumerate(items))
        known = self._records_by_type.get(("struct", "tuple", fields))
        if known is None:
            known = self.record("struct", f"tuple_{self._tuples}", fields)
            self._tuples += 1
            self._records_by_type["struct", "tuple", fields] = known
        return known

    def convert(
        self, kind: types.Type, bound: Mapping[str, types.Type], position: Position = NOWHERE, depth: int = 0
    ) -> ir.Type:
        """bound: types of the type parameters in scope, by name."""
        if depth > NESTING_MAX:
            raise P4Error(f"type nested more than {NESTING_MAX} deep; use fewer levels of structs", position)
        match kind:
            case types.BitsType():
                return ir.Bits(kind.width, kind.signed)
            case types.IntegerType():
                return INT
            case types.VarbitsType():
                return ir.Varbits(kind.width)
            case types.EnumType():
                return (
                    ir.Bits(kind.base.width, kind.base.signed) if kind.base else ir.EnumMember(kind.name, kind.members)
                )
            case types.NewType():
                return self.convert(kind.original, bound, position, depth + 1)
            case types.SimpleType():
                if kind.name not in self._simple:
                    raise P4Error(
                        f"a value of type {kind} is not supported here; give it a type with a width", position
                    )
                return self._simple[kind.name]
            case types.TypeVariable():
                if kind.name in bound:
                    return self.convert(bound[kind.name], {}, position, depth + 1)
                raise P4Error(
                    f"type parameter {kind.name} of {kind.owner} is not known here; write it as <…>", position
                )
            case _:
                return self._composite(kind, bound, position, depth + 1)

    def _composite(self, kind: types.Type, bound: Mapping[str, types.Type], position: Position, depth: int) -> ir.Type:
        match kind:
            case types.StructureType():
                known = self._structures.get(kind)
                if known is None:
                    fields = tuple((name, self.convert(item, bound, position, depth)) for name, item in kind.fields)
                    name = plain(kind.name)
                    known = self.record("union" if kind.kind == "header_union" else kind.kind, name, fields)
                    if name == kind.name:
                        self._structures[kind] = known
                return known
            case types.StackType():
                element = self.convert(kind.element, bound, position, depth)
                if not isinstance(element, ir.Record):
                    raise P4Error(f"{kind}: only headers and header unions can be stacked", position)
                return ir.Array(element, kind.size)
            case types.TupleType(is_list=False):
                return self.tuple_record(tuple(self.convert(item, bound, position, depth) for item in kind.items))
        raise P4Error(
            f"a value of type {kind} is not supported here; use bits, bool, enums, structs or headers", position
        )


def plain(name: str) -> str:
    """A generic type's name without its arguments."""
    return name.split("<", 1)[0].strip()


def bind(kind: types.Type, bound: Mapping[str, types.Type]) -> types.Type:
    """The type with its parameters replaced; structures keep their name: their fields tell them apart."""
    if not bound:
        return kind
    match kind:
        case types.TypeVariable():
            return bound.get(kind.name, kind)
        case types.StructureType():
            fields = tuple((name, bind(item, bound)) for name, item in kind.fields)
            return types.StructureType(kind.kind, kind.name, fields, kind.annotations)
        case types.StackType():
            element = bind(kind.element, bound)
            return types.StackType(element, kind.size) if isinstance(element, types.StructureType) else kind
        case types.TupleType():
            return types.TupleType(tuple(bind(item, bound) for item in kind.items), kind.is_list)
        case types.ExternType():
            return types.ExternType(kind.name, tuple(bind(item, bound) for item in kind.arguments))
        case types.SetType():
            return types.SetType(bind(kind.element, bound))
    return kind


def width_bounds(kind: ir.Type) -> tuple[int, int]:
    """Fewest and most bits that a header, struct, union or stack has; varbits count 0 and all, stacks all elements."""
    match kind:
        case ir.Bits():
            return max(kind.width, 0), max(kind.width, 0)
        case ir.Bool():
            return 1, 1
        case ir.Varbits():
            return 0, kind.width
        case ir.EnumMember():
            return 32, 32
        case ir.Array():
            low, high = width_bounds(kind.element)
            return low * kind.size, high * kind.size
        case ir.Record():
            parts = [width_bounds(item) for _, item in kind.fields]
            if kind.kind == "union":
                return min((low for low, _ in parts), default=0), max((high for _, high in parts), default=0)
            return sum(low for low, _ in parts), sum(high for _, high in parts)
    return 0, 0
