"""A P4Info against the program that runs: ids, names and widths, and values as bytes.

A controller names everything by the ids of the P4Info that it has sent. They may be other numbers than ours: parts are
matched by name, and must have the program's widths and kinds of match.
"""

from typing import Any

from google.protobuf import json_format, text_format
from p4.config.v1 import p4info_pb2

from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.control.p4info import p4info, shortest
from p4vm.ir import ir_nodes as ir
from p4vm.p4runtime.refusal import INVALID, MISSING, RuntimeRefusal, refusing

KINDS = {
    "tables": "table",
    "actions": "action",
    "action_profiles": "action profile",
    "counters": "counter",
    "direct_counters": "direct counter",
    "meters": "meter",
    "direct_meters": "direct meter",
    "registers": "register",
    "value_sets": "value set",
    "controller_packet_metadata": "controller header",
}
"""Lists of a P4Info that a client may name parts of, and how errors call a part."""


def info_of(program: ir.ProgramIr) -> Any:
    """The program's own P4Info, as a message; without enums: protobuf's Python implementation knows no maps of code as
    old as the package p4runtime brings."""
    content = p4info(program)
    content.pop("typeInfo", None)
    return json_format.ParseDict(content, p4info_pb2.P4Info())


def info_file(program: ir.ProgramIr, suffix: str) -> bytes:
    """The program's P4Info as a file: .bin binary, .json, else text."""
    message = info_of(program)
    if suffix == ".bin":
        return bytes(message.SerializeToString())
    text = json_format.MessageToJson(message) if suffix == ".json" else text_format.MessageToString(message)
    return str(text).encode()


class ForwardingPipeline:
    """Parts by id and ids by name, of a P4Info that agrees with the switch's program.

    Raises RuntimeRefusal: it names what the program doesn't have, or has otherwise.
    """

    def __init__(self, switch: ControlledSwitch, info: Any | None = None) -> None:
        self.switch = switch
        program_info = info_of(switch.program)
        self.info = program_info if info is None else info
        self._parts: dict[str, dict[int, Any]] = {}
        self._ids: dict[tuple[str, str], int] = {}
        for kind, word in KINDS.items():
            known = {part.preamble.name: part for part in getattr(program_info, kind)}
            for part in getattr(self.info, kind):
                name = part.preamble.name
                if name not in known:
                    raise RuntimeRefusal(
                        INVALID, f"the P4Info has a {word} {name}, the program {switch.program.file} has not"
                    )
                if _shape(part) != _shape(known[name]):
                    raise RuntimeRefusal(
                        INVALID, f"{word} {name}: {_shape(part)} in the P4Info, {_shape(known[name])} here"
                    )
                self._parts.setdefault(kind, {})[part.preamble.id] = part
                self._ids[kind, name] = part.preamble.id

    def part(self, kind: str, number: int) -> Any:
        """The part with this id. Raises RuntimeRefusal."""
        part = self._parts.get(kind, {}).get(number)
        if part is None:
            raise RuntimeRefusal(MISSING, f"there is no {KINDS[kind]} with id {number} ({number:#010x}) in the P4Info")
        return part

    def parts(self, kind: str, number: int) -> list[Any]:
        """The part with this id, of id 0 all."""
        return [self.part(kind, number)] if number else list(self._parts.get(kind, {}).values())

    def header(self, name: str) -> Any | None:
        """packet_in or packet_out: what stands before packets to and from controllers; None: nothing does."""
        number = self._ids.get(("controller_packet_metadata", name))
        return None if number is None else self.part("controller_packet_metadata", number)

    def id_of(self, kind: str, name: str) -> int:
        """The id of a part of the program; 0: the P4Info doesn't have it."""
        return self._ids.get((kind, name), 0)

    # ---- actions

    def call(self, action: Any) -> tuple[str, dict[str, str | int]]:
        """Name and arguments of a p4.v1.Action. Raises RuntimeRefusal."""
        part = self.part("actions", action.action_id)
        known = {parameter.id: parameter for parameter in part.params}
        arguments: dict[str, str | int] = {}
        for argument in action.params:
            parameter = known.get(argument.param_id)
            if parameter is None or parameter.name in arguments:
                why = "twice" if parameter is not None else "which it doesn't have"
                raise RuntimeRefusal(INVALID, f"action {part.preamble.name} got parameter {argument.param_id} {why}")
            arguments[parameter.name] = number(argument.value, parameter.bitwidth, parameter.name)
        return part.preamble.name, arguments

    def fill_action(self, message: Any, action: ir.TableAction, arguments: tuple[int, ...]) -> None:
        """A p4.v1.Action of what the engine holds."""
        message.action_id = self.id_of("actions", action.name)
        if message.action_id:
            ids = {parameter.name: parameter.id for parameter in self.part("actions", message.action_id).params}
            for parameter, value in zip(action.data, arguments, strict=True):
                kind = parameter.variable.type
                message.params.add(param_id=ids[parameter.variable.name], value=shortest(value, kind))


def number(value: bytes, width: int, what: str) -> int:
    """A value as P4Runtime writes it: big-endian, zeros in front allowed. Raises RuntimeRefusal."""
    if not value:
        raise RuntimeRefusal(INVALID, f"{what}: no bytes; a value has at least one")
    integer = int.from_bytes(value, "big")
    if width and integer.bit_length() > width:
        raise RuntimeRefusal(
            INVALID, f"{what}: {integer:#x} needs {integer.bit_length()} bits, the P4Info says {width}"
        )
    return integer


def key_places(switch: ControlledSwitch, table: Any) -> dict[int, int]:
    """For a table of the P4Info: id of a match field -> index of the program's key."""
    state = switch.tables.parts[table.preamble.name]
    with refusing():
        return {field.id: state.key_index(field.name) for field in table.match_fields}


def _shape(part: Any) -> str:
    """The widths and names that the P4Info and the program must share, as text for errors."""
    if hasattr(part, "match_fields"):
        match = p4info_pb2.MatchField.MatchType.Name
        return (
            ", ".join(sorted(f"bit<{field.bitwidth}> {match(field.match_type)}" for field in part.match_fields))
            or "no key"
        )
    for name in ("params", "metadata"):
        if hasattr(part, name):
            return ", ".join(f"bit<{field.bitwidth}> {field.name}" for field in getattr(part, name)) or "no parameters"
    return ""
