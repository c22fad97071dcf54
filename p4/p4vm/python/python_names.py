"""Names in generated Python: P4's own where Python allows them."""

import keyword
import re
from collections.abc import Iterable

from p4vm.algorithms import HASHES
from p4vm.ir import ir_nodes as ir


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


RUNTIME = words("EMPTY Header HeaderStack Reject Struct joined quotient remainder shift_left shift_right wrap")
"""What generated code uses of `runtime`."""

SLOTS_RESERVED = words("FIELDS VARBITS WHOLE_BYTES WIDTH WIRE assign bits copy pack reset take unpack valid")
"""What records have besides their fields."""

VARIABLES_RESERVED = words("False None True exited int item len outcome packet rejected self state value")
"""What routines use besides P4's variables."""


def identifier(name: str) -> str:
    """name as Python can write it: "MyIngress.forward" -> "MyIngress_forward"."""
    identifier_text = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not identifier_text or identifier_text[0].isdigit() or identifier_text.startswith("__"):
        identifier_text = f"n{identifier_text}"
    return f"{identifier_text}_" if keyword.iskeyword(identifier_text) else identifier_text


def docstring(text: str) -> str:
    """text as a docstring, whatever characters it has."""
    return '"""' + text.replace("\\", "/").replace('"', "'") + '"""'


class PythonNames:
    """Distinct names for things that may be called alike. reserved: names that are in use."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self.reserved = set(reserved)
        self.names: dict[object, str] = {}

    def fresh(self, name: str) -> str:
        """The name; where it is reserved, with a number."""
        unique_name = name = identifier(name)
        number = 2
        while unique_name in self.reserved:
            unique_name = f"{name}_{number}"
            number += 1
        self.reserved.add(unique_name)
        return unique_name

    def of(self, entity: object, name: str) -> str:
        """The name that this entity has, or now gets."""
        if entity not in self.names:
            self.names[entity] = self.fresh(name)
        return self.names[entity]


class ProgramNames:
    """Names of what is global in a program's module: classes, routines, tables, instances."""

    def __init__(self) -> None:
        self.globals = PythonNames({*RUNTIME, *HASHES, *VARIABLES_RESERVED, "Wire"})
        self.records: dict[str, str] = {}
        self.slots: dict[str, dict[str, str]] = {}

    def record(self, kind: ir.Record) -> str:
        """Class of a record: equal names are equal types."""
        if kind.name not in self.records:
            self.records[kind.name] = self.globals.fresh(kind.name)
        return self.records[kind.name]

    def slot(self, kind: ir.Record, field: str) -> str:
        if kind.name not in self.slots:
            self.slots[kind.name] = fields_of(kind)
        return self.slots[kind.name][field]

    def of(self, entity: ir.Routine | ir.Table | ir.ExternInstance | ir.ValueSet) -> str:
        return self.globals.of(entity, entity.name)


def fields_of(kind: ir.Record) -> dict[str, str]:
    """P4 name of each field -> slot."""
    names = PythonNames(SLOTS_RESERVED)
    return {name: names.fresh(name) for name, _ in kind.fields}
