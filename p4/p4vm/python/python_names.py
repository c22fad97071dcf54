"""Names in generated Python: P4's own where Python allows them."""

from __future__ import annotations

import keyword
import re

from p4vm.algorithms import HASHES
from p4vm.ir import ir_nodes as ir


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


RUNTIME = words(
    "EMPTY Header HeaderStack Reject Struct clamp joined quotient remainder shift_left shift_right stack_of within wrap"
)
"""What generated code uses of `runtime`."""

SLOTS_TAKEN = words(
    "FIELDS VARBITS WHOLE WIDTH WIRE assign bits build copy pack pieces reset same take unpack valid values"
)
"""What records have besides their fields."""

VARIABLES_TAKEN = words("False None True entry exited here int item len packet rejected self state value")
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
    """Distinct names for things that may be called alike. Things are known by identity."""

    def __init__(self, taken: set[str] | None = None) -> None:
        self.taken = set(taken or ())
        self.given: dict[int, str] = {}
        self.kept: list[object] = []

    def fresh(self, wish: str) -> str:
        """wish; where it is taken, with a number."""
        unique_name = wish = identifier(wish)
        number = 2
        while unique_name in self.taken:
            unique_name = f"{wish}_{number}"
            number += 1
        self.taken.add(unique_name)
        return unique_name

    def of(self, thing: object, wish: str) -> str:
        """The name that this thing has, or now gets."""
        if id(thing) not in self.given:
            self.given[id(thing)] = self.fresh(wish)
            self.kept.append(thing)
        return self.given[id(thing)]


class ProgramNames:
    """Names of what is global in a program's module: classes, routines, tables, instances."""

    def __init__(self) -> None:
        self.globals = PythonNames({*RUNTIME, *HASHES, *VARIABLES_TAKEN, "Wire"})
        self.records: dict[str, str] = {}

    def record(self, kind: ir.Record) -> str:
        """Class of a record: equal names are equal types."""
        if kind.name not in self.records:
            self.records[kind.name] = self.globals.fresh(kind.name)
        return self.records[kind.name]

    def of(self, thing: ir.Routine | ir.Table | ir.ExternInstance | ir.ValueSet) -> str:
        return self.globals.of(thing, thing.name)


def fields_of(kind: ir.Record) -> dict[str, str]:
    """P4 name of each field -> slot."""
    names = PythonNames(set(SLOTS_TAKEN))
    return {name: names.fresh(name) for name, _ in kind.fields}
