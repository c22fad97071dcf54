"""Tables of the Python back end against the rules read literally, and its arithmetic against the specification's."""

import random
from collections.abc import Callable

import native_programs
import programs
import pytest

from p4vm.engine import ActionCall, TableEntry
from p4vm.ir import ir_nodes as ir
from p4vm.python.python_engine import PythonEngine
from p4vm.python.python_tables import PythonTable
from p4vm.python.runtime import PacketBits, SharedState

WIDTH = 5
KINDS = [
    ("exact",),
    ("lpm",),
    ("ternary",),
    ("range",),
    ("optional",),
    ("exact", "lpm"),
    ("lpm", "lpm"),
    ("exact", "exact", "exact"),
    ("lpm", "ternary"),
    ("exact", "range", "optional"),
    ("range", "range"),
]
PACKET = PacketBits(SharedState({}), b"", 0, 0)


def bare_table(kinds: tuple[str, ...], *, signed: bool) -> PythonTable:
    """A table on constants, with one action of one argument."""
    of = ir.Bits(WIDTH, signed)
    action = programs.routine("act", "action", ("data", "value", ir.Bits(16)))
    keys = [ir.Key(f"k{at}", kind, ir.Const(of, 0)) for at, kind in enumerate(kinds)]
    return PythonTable(ir.Table("t", keys, [ir.TableAction("act", action)], 0, (999,)), None, None, None, lambda: 0)


def as_signed(value: int) -> int:
    return value - 32 if value & 16 else value


def holds(kind: str, part: tuple[int, int | None], key: int, *, signed: bool) -> bool:
    """Whether one key, as unsigned bits, matches; as the rules say, bit by bit."""
    value, more = part
    if kind == "range":
        assert more is not None
        return value <= (as_signed(key) if signed else key) <= more
    value %= 32
    if kind == "exact":
        return key == value
    if kind == "lpm":
        return f"{key:05b}"[: more or 0] == f"{value:05b}"[: more or 0]
    return all(not (more or 0) >> bit & 1 or (key ^ value) >> bit & 1 == 0 for bit in range(5))


def random_entry(chance: random.Random, kinds: tuple[str, ...], at: int, *, signed: bool) -> TableEntry:
    parts: list[tuple[int, int | None]] = []
    for kind in kinds:
        value = chance.randrange(32)
        if kind == "range":
            bounds = sorted(chance.randrange(-16, 16) if signed else chance.randrange(32) for _ in range(2))
            parts.append((bounds[0], bounds[1]))
        elif kind == "lpm":
            parts.append((value, chance.randint(0, 5)))
        elif kind == "optional":
            parts.append((value, chance.choice((0, 31))))
        else:
            parts.append((value, chance.randrange(32) if kind == "ternary" else None))
    return TableEntry(tuple(parts), ActionCall(0, (at,)), chance.randrange(4), at)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_the_entry_that_wins_is_the_one_the_rules_name(kinds: tuple[str, ...], signed: bool) -> None:
    chance = random.Random(f"{kinds} {signed}")
    table = bare_table(kinds, signed=signed)
    for _ in range(12):
        entries = [random_entry(chance, kinds, at, signed=signed) for at in range(chance.randint(0, 12))]
        table.set(entries, ActionCall(0, (999,)))
        for _ in range(40):
            keys = tuple(chance.randrange(32) for _ in kinds)
            fits = [
                entry
                for entry in entries
                if all(holds(*each, signed=signed) for each in zip(kinds, entry.keys, keys, strict=True))
            ]
            if set(kinds) <= {"exact", "lpm"}:
                lengths = [sum(part[1] or 0 for part in entry.keys) for entry in fits]
                best = [entry for entry, length in zip(fits, lengths, strict=True) if length == max(lengths)]
            else:
                best = [entry for entry in fits if entry.priority == min(each.priority for each in fits)]
            shown = tuple(
                as_signed(key) + 16 if signed and kind == "range" else key
                for kind, key in zip(kinds, keys, strict=True)
            )
            outcome = table.look(PACKET, shown)
            assert outcome.hit == bool(best)
            assert outcome.arguments == (best[0].handle if best else 999,)


def test_of_prefixes_as_long_in_all_the_first_wins() -> None:
    table = bare_table(("lpm", "lpm"), signed=False)
    rows = [((0, 1), (0, 0)), ((0, 0), (16, 1)), ((16, 1), (0, 0))]
    table.set([TableEntry(row, ActionCall(0, (at,)), handle=at) for at, row in enumerate(rows)], ActionCall(0, (9,)))
    assert table.look(PACKET, (16, 16)).arguments == (1,)
    assert table.look(PACKET, (0, 16)).arguments == (0,)
    assert table.look(PACKET, (16, 0)).arguments == (2,)


OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "|+|": lambda a, b: a + b,
    "|-|": lambda a, b: a - b,
    "<<": lambda a, b: a * 2**b,
    ">>": lambda a, b: a // 2**b,
}
UNSIGNED: dict[str, Callable[[int, int], int]] = {
    "/": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
}
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def expected(operator: str, left: int, right: int, *, signed: bool) -> int:
    """The result as 4 unsigned bits; comparisons 0 or 1."""
    if operator in COMPARISONS:
        return COMPARISONS[operator](left, right)
    result = (OPERATORS | UNSIGNED)[operator](left, right)
    if operator.startswith("|") and len(operator) == 3:
        low, high = (-8, 7) if signed else (0, 15)
        result = min(max(result, low), high)
    return result % 16


FOUR_BITS = """
header byte_t { bit<4> a; bit<4> b; }
struct headers { byte_t byte; }
struct metadata { }
parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.byte); transition accept; }
}
control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    register<bit<4>>(32) results;
    apply {
        %(kind)s a = (%(kind)s)hdr.byte.a;
        bit<4> b = hdr.byte.b;
        %(kind)s c = (%(kind)s)b;
        %(written)s
    }
}
"""


@pytest.mark.parametrize("signed", [False, True])
def test_every_operator_on_all_numbers_of_four_bits(signed: bool) -> None:
    """left, right: the first byte of dst; results: registers, one cell per operator."""
    kind = "int<4>" if signed else "bit<4>"
    operators = [*OPERATORS, *(() if signed else UNSIGNED), *COMPARISONS]
    results = [f"(bit<4>)({kind})(a {operator} {'b' if operator in ('<<', '>>') else 'c'})" for operator in operators]
    results = [
        result if operator not in COMPARISONS else f"(a {operator} c ? 4w1 : 0)"
        for operator, result in zip(operators, results, strict=True)
    ]
    results += ["(bit<4>)(-a)", "(bit<4>)~a"]
    written = " ".join(f"results.write({at}, {result});" for at, result in enumerate(results))
    engine = PythonEngine(native_programs.lowered(FOUR_BITS % {"kind": kind, "written": written}, "four bits"))
    for number in range(256):
        engine.process(0, bytes([number]) + bytes(13))
        a, b = number >> 4, number & 15
        shown_a, shown_b = ((a ^ 8) - 8, (b ^ 8) - 8) if signed else (a, b)
        for at, operator in enumerate(operators):
            right_value = b if operator in ("<<", ">>") else shown_b
            got = engine.register_read("In.results", at)
            assert got == expected(operator, shown_a, right_value, signed=signed), (operator, a, b)
        assert engine.register_read("In.results", len(operators)) == -a % 16
        assert engine.register_read("In.results", len(operators) + 1) == 15 - a
