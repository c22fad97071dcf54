"""The calls that an `ir_nodes.CallExtern` may make: one row for each, with its text in each language.

What else externs do, lower/lower_externs.py writes in terms of other statements.
"""

from dataclasses import dataclass

from p4vm.architectures.v1model import DROP_PORT
from p4vm.ir import ir_nodes as ir
from p4vm.source import P4Error


@dataclass(frozen=True, slots=True)
class CallRow:
    """python, c: a line, with {0}, {1}, … for the arguments; "{s.instance}" for the instance (C: its number) and what
    else the writers of calls know. "": the writers have a method for it.

    writes: the call writes its first argument, a variable of the width that the row asks for. ends: it may end the
    routines around it.
    """

    python: str = ""
    c: str = ""
    writes: bool = False
    ends: bool = False


RANDOM = "packet.shared.random.between({1}, {2}) & 0xffffffffffffffff"
STANDARD_PYTHON, STANDARD_C = "packet.state['standard']", "((struct state *)e->current)->standard"
"""Where v1model's externs that don't get standard metadata find it."""
CALLS = {
    "register.out_of_range": CallRow(
        "packet.shared.count('register_out_of_range')", "e->counts[P4_REGISTER_OUT_OF_RANGE]++;"
    ),
    "counter.count": CallRow("{s.instance}.count({0}, packet)", "p4_count(e, {s.instance}, {0});"),
    "meter.color": CallRow(
        "{0} = {s.instance}.execute({1}, packet)", "{0} = p4_meter_color(e, {s.instance}, {1});", writes=True
    ),
    "direct_meter.color": CallRow("{0} = {s.instance}.color", "{0} = p4_direct_color(e, {s.table});", writes=True),
    "random": CallRow("{0} = " + RANDOM, "{0} = p4_random_between(e, {1}, {2});", writes=True),
    "clone": CallRow("packet.clone = {0} & 0x7fff, {1}", "p4_request_clone(e, {0}, {1});"),
    "resubmit": CallRow("packet.resubmit = ({0},)", "p4_request_resubmit(e, {0});"),
    "recirculate": CallRow("packet.recirculate = ({0},)", "p4_request_recirculate(e, {0});"),
    "truncate": CallRow("packet.truncate({0})", "p4_request_truncate(e, {0});"),
    "mark_to_drop": CallRow(
        f"{STANDARD_PYTHON}.egress_spec = {DROP_PORT}; {STANDARD_PYTHON}.mcast_grp = 0",
        f"{STANDARD_C}.f_egress_spec = {DROP_PORT}, {STANDARD_C}.f_mcast_grp = 0;",
    ),
    "checksum_error": CallRow(f"{STANDARD_PYTHON}.checksum_error = 1", f"{STANDARD_C}.f_checksum_error = 1;"),
    "digest": CallRow(),
    "Digest.pack": CallRow(),
    "log_msg": CallRow(),
    "assert": CallRow(
        "raise packet.failed('assert', {s.position!r})", "return p4_failed(e, P4_ASSERT_FAILED, {s.site});", ends=True
    ),
    "assume": CallRow(
        "raise packet.failed('assume', {s.position!r})", "return p4_failed(e, P4_ASSUME_FAILED, {s.site});", ends=True
    ),
    "packet_in.length": CallRow("{0} = len(packet.data)", "{0} = (uint32_t)(e->limit >> 3);", writes=True),
    "parser.step": CallRow("packet.step()", "if (p4_step(e)) return p4_reject(e, {0});", ends=True),
    "parser.reject": CallRow("raise Reject({0})", "return p4_reject(e, {0});", ends=True),
    "packet_in.advance": CallRow("packet.advance({0})", "if (p4_advance(e, {0})) return p4_reject(e, {1});", ends=True),
    "loop.turn": CallRow("packet.turn()", "if (p4_turn(e)) return P4_DROP;", ends=True),
}


def call_of(statement: ir.CallExtern) -> CallRow:
    """The row of a call. Raises P4Error: the engine doesn't have it."""
    if statement.name not in CALLS:
        known = ", ".join(sorted(CALLS))
        raise P4Error(f"there is no extern {statement.name}; there are {known}", statement.position)
    return CALLS[statement.name]
