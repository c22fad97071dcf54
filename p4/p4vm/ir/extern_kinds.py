"""The externs that a `ir_nodes.CallExtern` may call: one row for each, which lowering and back ends read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from p4vm.ir import ir_nodes as ir
from p4vm.source import P4Error


@dataclass(frozen=True, slots=True)
class Extern:
    """method: what writes a call, of the ExternWriter of python.externs and of c_code.externs. "": a call is one line,
    `python` and `c`, or nothing.

    python, c: with {0}, {1}, … for the arguments, {instance} (C: its number), {fields} for the field list. After a
    colon stands what an argument is written by: in Python the level that it must bind by, in C a method of Expressions.
    writes: the number of the argument that a call writes, if it does; where the program's call returns a value,
    lowering puts a place for it there. inout: the call reads that argument too. always: it writes it whatever happens.
    """

    method: str = ""
    writes: int | None = None
    inout: bool = False
    always: bool = False
    python: str = ""
    c: str = ""


CLONE = Extern(python="packet.clone = {1:BIT_AND} & 0x7fff, {fields}", c="p4_wish_clone(e, {1:word}, {fields});")
RESUBMIT = Extern(python="packet.resubmit = ({fields},)", c="p4_wish_resubmit(e, {fields});")
RECIRCULATE = Extern(python="packet.recirculate = ({fields},)", c="p4_wish_recirculate(e, {fields});")


EXTERNS = {
    "register.read": Extern("register_read", 0, always=True),
    "register.write": Extern("register_write"),
    "counter.count": Extern(python="{instance}.count({0}, packet)", c="p4_count(e, {instance}, {0:index});"),
    "direct_counter.count": Extern(),  # where its table is applied
    "meter.execute_meter": Extern("meter_execute", 1, always=True),
    "direct_meter.read": Extern("direct_meter_read", 0, always=True),
    "random": Extern("random", 0, always=True),
    "hash": Extern("hash", 0, always=True),
    "Checksum16.get": Extern("checksum16"),
    "meter.execute": Extern("meter_execute", 1, always=True),
    "direct_meter.execute": Extern("direct_meter_read", 0, always=True),
    "Hash.get_hash": Extern("get_hash", 0, always=True),
    "Random.read": Extern("random_read", 0, always=True),
    "Digest.pack": Extern("digest"),
    "digest": Extern("digest"),
    "mark_to_drop": Extern("mark_to_drop", 0, inout=True),
    "clone": CLONE,
    "clone3": CLONE,
    "clone_preserving_field_list": CLONE,
    "resubmit": RESUBMIT,
    "resubmit_preserving_field_list": RESUBMIT,
    "recirculate": RECIRCULATE,
    "recirculate_preserving_field_list": RECIRCULATE,
    "truncate": Extern(python="packet.truncate({0})", c="p4_wish_truncate(e, {0:index});"),
    "verify_checksum": Extern("verify_checksum"),
    "verify_checksum_with_payload": Extern("verify_checksum"),
    "update_checksum": Extern("update_checksum", 2, inout=True),
    "update_checksum_with_payload": Extern("update_checksum", 2, inout=True),
    "log_msg": Extern("log_msg"),
    "assert": Extern("check"),
    "assume": Extern("check"),
    "packet_in.length": Extern("length"),
}
"""Name of a function, or type and method -> its `Extern`. python/python_externs.py implements the externs."""


@dataclass(frozen=True, slots=True)
class ExternArgument:
    """An argument in a row's text. write: (expression, what stands after the colon) -> text."""

    write: Callable[[ir.Expression, str], str]
    expression: ir.Expression

    def __format__(self, by: str) -> str:
        return self.write(self.expression, by)


def extern_of(call: ir.CallExtern) -> Extern:
    """The row of a call's extern. Raises P4Error: the engine doesn't have it."""
    if call.name not in EXTERNS:
        raise P4Error(f"there is no extern {call.name}; there are {', '.join(sorted(EXTERNS))}", call.position)
    return EXTERNS[call.name]


def algorithm_of(call: ir.CallExtern, argument: ir.Expression) -> str:
    """The member of HashAlgorithm that a call names. Raises P4Error: it isn't known when compiling."""
    kind = argument.type
    if not isinstance(argument, ir.Const) or not isinstance(kind, ir.EnumMember):
        raise P4Error(
            f"the algorithm of {call.name} isn't known when compiling; name one of HashAlgorithm", call.position
        )
    return kind.members[int(argument.value)]


def hash_name(call: ir.CallExtern) -> str:
    """The algorithm that a Hash was made with."""
    assert call.instance is not None
    return str(call.instance.arguments[0])


def random_bounds(call: ir.CallExtern) -> tuple[int, int]:
    """The least and the greatest number that a Random draws. Raises P4Error: the first is greater."""
    assert call.instance is not None
    low, high = (int(argument) for argument in call.instance.arguments)
    if not 0 <= low <= high < 1 << 64:
        raise P4Error(
            f"{call.instance.name} draws from {low} to {high}; from 0 to 2**64 - 1 is possible", call.position
        )
    return low, high


def colors_of(kind: ir.EnumMember) -> tuple[int, ...]:
    """The members for a meter's 0, 1 and 2."""
    return tuple(kind.members.index(color) for color in ("GREEN", "YELLOW", "RED"))
