"""P4Runtime's P4Info, the description of a program that a controller needs, in the JSON form of its messages.

Ids: the kind's number in the highest byte, a hash of the full name below. Alias: the shortest end of the name that no
other name of its kind has.
"""

import base64
from collections import Counter
from typing import Any

from p4vm.control.control_cells import instances
from p4vm.control.control_profiles import ProfileState, profile_states
from p4vm.control.control_values import full_mask, width_of
from p4vm.control.core import parameter_name
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import is_signed
from p4vm.ir.walk import with_tables
from p4vm.node import Node

ACTION, TABLE, VALUE_SET, HEADER, PROFILE = 0x01, 0x02, 0x03, 0x04, 0x11
COUNTER, DIRECT_COUNTER, METER, DIRECT_METER, REGISTER = 0x12, 0x13, 0x14, 0x15, 0x16
ID_MASK = (1 << 24) - 1

_MATCHES = {"exact": "EXACT", "lpm": "LPM", "ternary": "TERNARY", "range": "RANGE", "optional": "OPTIONAL"}
_KINDS = {
    COUNTER: "counter",
    DIRECT_COUNTER: "direct_counter",
    METER: "meter",
    DIRECT_METER: "direct_meter",
    REGISTER: "register",
}
_UNITS = {"packets": "PACKETS", "bytes": "BYTES", "packets_and_bytes": "BOTH"}


def jenkins_hash(text: str) -> int:
    """Bob Jenkins's one-at-a-time hash, 32 bits."""
    value = 0
    for byte in text.encode():
        value = (value + byte) & 0xFFFFFFFF
        value = (value + (value << 10)) & 0xFFFFFFFF
        value ^= value >> 6
    value = (value + (value << 3)) & 0xFFFFFFFF
    value ^= value >> 11
    return (value + (value << 15)) & 0xFFFFFFFF


class _Ids:
    """Ids of names: those that @id gives, else hashes; two names that hash alike get different ones."""

    def __init__(self, program: ir.ProgramIr) -> None:
        named = [(TABLE, table.name, table.annotations) for table in program.tables]
        named += [(ACTION, action.name, action.annotations) for table in program.tables for action in table.actions]
        named += [(PROFILE, name, {}) for name in profile_states(program)]
        named += [(VALUE_SET, part.name, {}) for part in program.value_sets]
        for kind, word in _KINDS.items():
            named += [(kind, name, part.annotations) for name, part in instances(program, word).items()]
        parts = {(kind, name): notes.get("id", "").strip().lower() for kind, name, notes in named}
        counts = Counter((kind, end) for kind, name in parts for end in _ends(name))
        self._aliases = {
            (kind, name): next((end for end in _ends(name) if counts[kind, end] == 1), name) for kind, name in parts
        }
        self._ids = {
            part: part[0] << 24 | int(text, 0) & ID_MASK
            for part, text in parts.items()
            if text.startswith("0x") or text.isdecimal()
        }
        self._parts = {number: part for part, number in self._ids.items()}

    def alias(self, kind: int, name: str) -> str:
        return self._aliases.get((kind, name), name)

    def of(self, kind: int, name: str) -> int:
        if (kind, name) not in self._ids:
            number = jenkins_hash(name) & ID_MASK
            while self._parts.setdefault(kind << 24 | number, (kind, name)) != (kind, name):
                number = number + 1 & ID_MASK
            self._ids[kind, name] = kind << 24 | number
        return self._ids[kind, name]


def _ends(name: str) -> list[str]:
    """a.b.c: c, b.c, a.b.c."""
    words = name.split(".")
    return [".".join(words[start:]) for start in range(len(words) - 1, -1, -1)]


def p4info(program: ir.ProgramIr) -> dict[str, Any]:
    """The P4Info message as JSON holds it."""
    ids = _Ids(program)
    actions = {action.name: action for table in program.tables for action in table.actions}
    message: dict[str, Any] = {
        "pkgInfo": {"arch": program.architecture.name},
        "tables": [_table(table, ids) for table in program.tables],
        "actions": [_action(action, ids) for _, action in sorted(actions.items())],
        "actionProfiles": [_profile(part, ids) for _, part in sorted(profile_states(program).parts.items())],
        "counters": [_array(COUNTER, part, ids) for _, part in sorted(instances(program, "counter").items())],
        "directCounters": [
            _direct(DIRECT_COUNTER, table.counter, table, ids) for table in program.tables if table.counter is not None
        ],
        "meters": [_array(METER, part, ids) for _, part in sorted(instances(program, "meter").items())],
        "directMeters": [
            _direct(DIRECT_METER, table.meter, table, ids) for table in program.tables if table.meter is not None
        ],
        "controllerPacketMetadata": [_header(name, part, ids) for name, part in program.controller_headers.items()],
        "valueSets": [_value_set(part, ids) for part in program.value_sets],
        "registers": [_register(part, ids) for _, part in sorted(instances(program, "register").items())],
    }
    if program.enums:
        message["typeInfo"] = {"serializableEnums": {name: _enum(enum) for name, enum in program.enums.items()}}
    return {name: value for name, value in message.items() if value}


def unserved(program: ir.ProgramIr) -> list[str]:
    """A line for each digest of the program: P4Runtime has them, our P4Info and service don't."""
    digests = (node for routine in program.routines for node in with_tables(routine) if _is_digest(node))
    why = "digests over P4Runtime are UNIMPLEMENTED; the program runs, and `p4 run --log` shows them"
    return [f"{place}: {why}" for place in dict.fromkeys(node.position for node in digests)]


def _is_digest(node: Node) -> bool:
    return isinstance(node, ir.CallExtern) and node.name == "digest"


def _header(name: str, header: ir.ControllerHeader, ids: _Ids) -> dict[str, Any]:
    """The header in front of packets to or from controllers."""
    note = f'@controller_header("{name}")'
    return {
        "preamble": {"id": ids.of(HEADER, header.type_name), "name": name, "alias": name, "annotations": [note]},
        "metadata": [
            {"id": at, "name": field, "bitwidth": width} for at, (field, width) in enumerate(header.fields, 1)
        ],
    }


def _enum(enum: ir.SerializableEnum) -> dict[str, Any]:
    kind = ir.Bits(enum.width)
    members = [
        {"name": name, "value": base64.b64encode(shortest(value, kind)).decode()}
        for name, value in enum.members.items()
    ]
    return {"underlyingType": {"bitwidth": enum.width}, "members": members}


def _preamble(kind: int, name: str, ids: _Ids) -> dict[str, Any]:
    return {"preamble": {"id": ids.of(kind, name), "name": name, "alias": ids.alias(kind, name)}}


def _array(kind: int, part: ir.ExternInstance, ids: _Ids) -> dict[str, Any]:
    """A counter or meter."""
    return _preamble(kind, part.name, ids) | _spec(part) | {"size": str(part.cells)}


def _direct(kind: int, part: ir.ExternInstance, table: ir.Table, ids: _Ids) -> dict[str, Any]:
    return _preamble(kind, part.name, ids) | _spec(part) | {"directTableId": ids.of(TABLE, table.name)}


def _spec(part: ir.ExternInstance) -> dict[str, Any]:
    unit = next((_UNITS[a] for a in part.arguments if isinstance(a, str) and a in _UNITS), "BOTH")
    return {"spec": {"unit": unit}}


def _table(table: ir.Table, ids: _Ids) -> dict[str, Any]:
    keys = [key for key in table.keys if key.match != "selector"]
    message = _preamble(TABLE, table.name, ids)
    message["matchFields"] = [
        {"id": place, "name": key.name, "bitwidth": width_of(key.expression.type), "matchType": _MATCHES[key.match]}
        for place, key in enumerate(keys, 1)
    ]
    message["actionRefs"] = [_action_reference(action, ids) for action in table.actions]
    if table.default_const:
        message["constDefaultActionId"] = ids.of(ACTION, table.actions[table.default].name)
    message["initialDefaultAction"] = _default_action(table, ids)
    if table.implementation is not None:
        message["implementationId"] = ids.of(PROFILE, table.implementation.name)
    direct = [(DIRECT_COUNTER, table.counter), (DIRECT_METER, table.meter)]
    resources = [ids.of(kind, part.name) for kind, part in direct if part is not None]
    if resources:
        message["directResourceIds"] = resources
    message["size"] = str(table.size)
    if table.entries_const:
        message["isConstTable"] = True
    if table.entries:
        message["hasInitialEntries"] = True
    return message


def _default_action(table: ir.Table, ids: _Ids) -> dict[str, Any]:
    action = table.actions[table.default]
    values = zip(action.data, table.default_arguments, strict=True)
    arguments = [
        {"paramId": place, "value": _encoded(value, parameter.variable.type)}
        for place, (parameter, value) in enumerate(values, 1)
    ]
    return {"actionId": ids.of(ACTION, action.name)} | ({"arguments": arguments} if arguments else {})


def shortest(value: int, kind: ir.Type) -> bytes:
    """A value as P4Runtime writes it: without bytes of zeros in front."""
    bits = value & full_mask(kind)
    return bits.to_bytes(max(1, (bits.bit_length() + 7) // 8), "big")


def _encoded(value: int, kind: ir.Type) -> str:
    """As JSON has bytes."""
    return base64.b64encode(shortest(value, kind)).decode()


def _action_reference(action: ir.TableAction, ids: _Ids) -> dict[str, Any]:
    reference: dict[str, Any] = {"id": ids.of(ACTION, action.name)}
    if action.default_only:
        reference |= {"annotations": ["@defaultonly"], "scope": "DEFAULT_ONLY"}
    elif action.table_only:
        reference |= {"annotations": ["@tableonly"], "scope": "TABLE_ONLY"}
    return reference


def _action(action: ir.TableAction, ids: _Ids) -> dict[str, Any]:
    message = _preamble(ACTION, action.name, ids)
    message["params"] = [
        {"id": place, "name": parameter_name(parameter), "bitwidth": width_of(parameter.variable.type)}
        for place, parameter in enumerate(action.data, 1)
    ]
    return message


def _profile(profile: ProfileState, ids: _Ids) -> dict[str, Any]:
    message = _preamble(PROFILE, profile.name, ids)
    message["tableIds"] = [ids.of(TABLE, table) for table in profile.tables]
    if profile.selects:
        message["withSelector"] = True
    return message | {"size": str(profile.size)}


def _value_set(part: ir.ValueSet, ids: _Ids) -> dict[str, Any]:
    matches = part.matches or ("exact",) * len(part.types)
    message = _preamble(VALUE_SET, part.name, ids)
    message["match"] = [
        {"id": place, "bitwidth": width_of(kind), "matchType": _MATCHES[match]}
        for place, (kind, match) in enumerate(zip(part.types, matches, strict=True), 1)
    ]
    return message | {"size": part.size}


def _register(part: ir.ExternInstance, ids: _Ids) -> dict[str, Any]:
    form = "int" if is_signed(part.cell) else "bit"
    spec = {"bitstring": {form: {"bitwidth": width_of(part.cell)}}}
    return _preamble(REGISTER, part.name, ids) | {"typeSpec": spec, "size": part.cells}
