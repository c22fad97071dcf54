"""The externs of v1model that a `nodes.CallExtern` may call: one row for each, which lowering and back ends read."""

from __future__ import annotations

from dataclasses import dataclass

from p4vm.ir import nodes as ir
from p4vm.source import P4Error


@dataclass(frozen=True, slots=True)
class Extern:
    """writer: the method that writes a call, of python.externs.ExternWriter and c_code.externs.ExternWriter alike.

    writes: the number of the argument that a call writes, if it does. inout: it reads that one too. always: it writes
    it whatever happens.
    """

    writer: str
    writes: int | None = None
    inout: bool = False
    always: bool = False


EXTERNS = {
    "register.read": Extern("register_read", 0, always=True),
    "register.write": Extern("register_write"),
    "counter.count": Extern("counter_count"),
    "direct_counter.count": Extern("nothing"),
    "meter.execute_meter": Extern("meter_execute", 1, always=True),
    "direct_meter.read": Extern("direct_meter_read", 0, always=True),
    "random": Extern("random", 0, always=True),
    "hash": Extern("hash", 0, always=True),
    "Checksum16.get": Extern("checksum16"),
    "digest": Extern("digest"),
    "mark_to_drop": Extern("mark_to_drop", 0, inout=True),
    "clone": Extern("clone"),
    "clone3": Extern("clone"),
    "clone_preserving_field_list": Extern("clone"),
    "resubmit": Extern("resubmit"),
    "resubmit_preserving_field_list": Extern("resubmit"),
    "recirculate": Extern("recirculate"),
    "recirculate_preserving_field_list": Extern("recirculate"),
    "truncate": Extern("truncate"),
    "verify_checksum": Extern("verify_checksum"),
    "verify_checksum_with_payload": Extern("verify_checksum"),
    "update_checksum": Extern("update_checksum", 2, inout=True),
    "update_checksum_with_payload": Extern("update_checksum", 2, inout=True),
    "log_msg": Extern("log_msg"),
    "assert": Extern("check"),
    "assume": Extern("check"),
    "packet_in.length": Extern("length"),
}
"""Name of a function, or type and method -> what is known of it. What they do is in python/externs.py."""

KINDS = frozenset({"action_profile", "action_selector", *(name.partition(".")[0] for name in EXTERNS if "." in name)})
KINDS -= {"packet_in"}
"""Types of extern instances that the engine has."""


def extern_of(call: ir.CallExtern) -> Extern:
    """The row of a call's extern. Raises P4Error: v1model doesn't have it."""
    if call.name not in EXTERNS:
        raise P4Error(
            f"there is no extern {call.name} in v1model; there are {', '.join(sorted(EXTERNS))}", call.position
        )
    return EXTERNS[call.name]


def algorithm_of(call: ir.CallExtern, argument: ir.Expression) -> str:
    """Which of HashAlgorithm a call names. Raises P4Error: that isn't known when compiling."""
    kind = argument.type
    if not isinstance(argument, ir.Const) or not isinstance(kind, ir.Symbol):
        raise P4Error(
            f"the algorithm of {call.name} isn't known when compiling; name one of HashAlgorithm", call.position
        )
    return kind.members[int(argument.value)]
