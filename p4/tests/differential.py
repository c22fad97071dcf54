"""Two engines with one program do the same: random entries, packets, times and registers, everything compared.

`compare(first, second, seed=…)` raises Different at the first thing that differs, and says how to see it again.
As a program: `python p4/tests/differential.py PROGRAM.p4 [SEEDS]` compares native with Python.
"""

import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from p4vm.engine import ActionCall, Engine, GroupRef, MemberRef, MeterRate, PacketReplica, TableEntry
from p4vm.ir import ir_nodes as ir
from p4vm.ir.ir_nodes import is_signed, width_of
from p4vm.ir.walk import with_tables
from p4vm.node import Node, nodes

CELLS_SEEN = 40
"""Cells of each register, counter and meter that are set and compared."""


class Different(AssertionError):
    """The engines differ."""


class Chance:
    """Random values that programs react to: constants of the program and fields of packets sent before, by width."""

    def __init__(self, program: ir.ProgramIr, seed: int) -> None:
        self.random = random.Random(seed)
        self.pool: dict[int, list[int]] = {}
        for routine in program.routines:
            for node in with_tables(routine):
                if isinstance(node, ir.Const) and isinstance(node.value, int):
                    self.pool.setdefault(width_of(node.type), []).append(node.value)

    def remember(self, width: int, value: int) -> None:
        known = self.pool.setdefault(width, [])
        known.append(value)
        del known[:-200]

    def value(self, kind: ir.Type) -> int:
        """A value of the type, as unsigned bits."""
        width = width_of(kind)
        full = (1 << width) - 1
        if isinstance(kind, ir.EnumMember):
            return self.random.randrange(len(kind.members))
        known = self.pool.get(width)
        if known and self.random.random() < 0.6:
            return self.random.choice(known) & full
        return self.random.choice((0, 1, full, self.random.getrandbits(width) if width else 0)) & full

    def some(self, most: int) -> int:
        return self.random.randint(0, most)


class Packets:
    """Packets that follow the program's parser: walks its states and writes the fields that lead on."""

    def __init__(self, program: ir.ProgramIr, chance: Chance) -> None:
        self.program = program
        self.chance = chance

    def one(self, samples: Sequence[bytes]) -> bytes:
        chance = self.chance.random
        kind = chance.random()
        if kind < 0.1:
            return chance.randbytes(chance.choice((0, 1, 13, 14, 20, 34, 60, 200)))
        data = chance.choice(samples) if samples and kind < 0.5 else self.walked()
        if chance.random() < 0.15:
            data = data[: chance.randint(0, len(data))]
        if data and chance.random() < 0.2:
            at = chance.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        return data + chance.randbytes(chance.choice((0, 0, 3, 26)))

    def walked(self) -> bytes:
        """The bits of one way through the parser."""
        fields: list[list[int]] = []  # [width, value]
        places: dict[str, int] = {}
        self.walk(self.program.blocks["parser"], fields, places, 12)
        number = total = 0
        for width, value in fields:
            number = number << width | value & (1 << width) - 1
            total += width
        over = -total % 8
        return (number << over).to_bytes((total + over) // 8, "big")

    def walk(self, parser: ir.Routine, fields: list[list[int]], places: dict[str, int], steps: int) -> None:
        self.statements(parser.body, fields, places, steps)
        name: str | None = next(iter(parser.states))
        while name is not None and steps > 0:
            steps -= 1
            name = self.statements(parser.states[name], fields, places, steps)

    def statements(
        self, body: Iterable[ir.Statement], fields: list[list[int]], places: dict[str, int], steps: int
    ) -> str | None:
        """The state that follows, if one does: one of those that the last statements go to."""
        ways: list[tuple[str | None, list[Node]]] = []
        for statement in body:
            match statement:
                case ir.Extract(target=target) if isinstance(target.type, ir.Record):
                    self.extract(target, target.type, fields, places)
                case ir.CallExtern(name="packet_in.advance", arguments=[ir.Const(value=int(bits)), _]) if bits < 4096:
                    fields.append([bits, self.chance.random.getrandbits(bits) if bits else 0])
                case ir.Invoke(routine=ir.Routine(kind="parser") as inner):
                    self.walk(inner, fields, places, steps - 1)
                case ir.Assign(target=ir.ReadVariable() as kept):
                    read = [node for node in nodes([statement.value]) if isinstance(node, ir.FieldOf)]
                    if read and read[0].field in places:
                        places[kept.variable.name] = places[read[0].field]
                case ir.If(cases=[(condition, [ir.GoTo() | ir.Return() as way])]):
                    ways.append((getattr(way, "state", None), list(nodes([condition]))))
                case ir.GoTo():
                    ways.append((statement.state, []))
        state, conditions = self.chance.random.choice(ways) if ways else (None, [])
        self.follow(conditions, fields, places)
        return state

    @staticmethod
    def follow(conditions: Iterable[Node], fields: list[list[int]], places: dict[str, int]) -> None:
        """Sets the fields that a state is selected by."""
        for node in conditions:
            match node:
                case ir.Binary(operator="==", left=ir.ReadVariable() as key, right=ir.Const(value=int(wanted))):
                    if key.variable.name in places:
                        fields[places[key.variable.name]][1] = wanted

    def extract(self, target: ir.Expression, kind: ir.Record, fields: list[list[int]], places: dict[str, int]) -> None:
        for name, field in kind.fields:
            width = width_of(field)
            if isinstance(field, ir.Varbits):
                width = 8 * self.chance.some(min(field.width, 64) // 8)
            places[name] = len(fields)
            fields.append([width, self.chance.value(ir.Bits(width))])
            self.chance.remember(width, fields[-1][1])


class Twins:
    """Both engines, told the same. seed: for the message."""

    def __init__(self, first: Engine, second: Engine, seed: int) -> None:
        self.engines = (first, second)
        self.seed = seed
        self.steps = 0

    def same(self, what: str, method: str, *arguments: object) -> None:
        """Calls both; what they give back must be equal."""
        first, second = (getattr(engine, method)(*arguments) for engine in self.engines)
        if first != second:
            raise Different(
                f"{self.engines[0].program.file}, seed {self.seed}, step {self.steps}: {what}\n"
                f"  {method}{arguments}\n  {self.engines[0].backend}: {first}\n  {self.engines[1].backend}: {second}"
            )


def random_call(chance: Chance, actions: Sequence[ir.TableAction], *, default: bool) -> ActionCall | None:
    fitting = [at for at, action in enumerate(actions) if not (action.table_only if default else action.default_only)]
    if not fitting:
        return None
    chosen = chance.random.choice(fitting)
    data = actions[chosen].data
    return ActionCall(chosen, tuple(signed(chance.value(p.variable.type), p.variable.type) for p in data))


def signed(value: int, kind: ir.Type) -> int:
    """Unsigned bits as a value of the type."""
    if is_signed(kind) and value >> kind.width - 1 & 1:
        return value - (1 << kind.width)
    return value


def random_part(chance: Chance, match: str, kind: ir.Type) -> tuple[int, int | None]:
    width = width_of(kind)
    full = (1 << width) - 1
    value = chance.value(kind)
    if match == "lpm":
        length = chance.random.choice((0, width, chance.some(width)))
        return value & ~(full >> length) & full, length
    if match == "ternary":
        mask = chance.random.choice((0, full, chance.random.getrandbits(width) if width else 0))
        return value & mask, mask
    if match == "optional":
        mask = chance.random.choice((0, full))
        return value & mask, mask
    if match == "range":
        low, high = sorted((signed(value, kind), signed(chance.value(kind), kind)))
        return low, high
    return value, None


def set_tables(twins: Twins, program: ir.ProgramIr, chance: Chance) -> None:
    for table in program.tables:
        members: list[int] = []
        groups: list[int] = []
        profile = table.implementation
        if profile is not None:
            calls = {handle: random_call(chance, table.actions, default=False) for handle in range(chance.some(5))}
            given = {handle: call for handle, call in calls.items() if call is not None}
            members = [*given, 99]
            sets = {at: tuple(chance.random.sample(sorted(given), chance.some(len(given)))) for at in range(3)}
            groups = [*sets, 99]
            twins.same("profile", "set_profile", profile.name, given, sets)
        default = random_call(chance, table.actions, default=True)
        if table.default_const or default is None or chance.some(3) == 0:
            default = ActionCall(table.default, table.default_arguments)
        keys = [key for key in table.keys if key.match != "selector"]
        entries = []
        for handle in range(chance.some(6) if keys and not table.entries_const else 0):
            action: ActionCall | MemberRef | GroupRef | None = random_call(chance, table.actions, default=False)
            if profile is not None:
                selects = profile.kind == "action_selector" and chance.some(1)
                action = GroupRef(chance.random.choice(groups)) if selects else MemberRef(chance.random.choice(members))
            if action is not None:
                parts = tuple(random_part(chance, key.match, key.expression.type) for key in keys)
                entries.append(TableEntry(parts, action, chance.some(3), handle + 1))
        if not table.entries_const:
            twins.same("table", "set_table", table.name, entries, default)


def set_state(twins: Twins, program: ir.ProgramIr, chance: Chance) -> None:
    """Groups, sessions, value sets, registers, meters."""
    for group in (1, 2, 3, *chance.random.sample(chance.pool.get(16, [4]), 1)):
        replicas = [PacketReplica(chance.some(511), chance.some(70000)) for _ in range(chance.some(3))]
        twins.same("group", "set_group", group & 0xFFFF, replicas)
    for session in (1, 5, *chance.random.sample(chance.pool.get(32, [7]), 1)):
        replicas = [PacketReplica(chance.some(600), chance.some(9)) for _ in range(chance.some(2))]
        keep = chance.random.choice((0, 0, 20))
        twins.same("session", "set_mirror", session & 0x7FFF, replicas, chance.some(2), keep)
    for value_set in program.value_sets:
        kinds = value_set.matches or ("exact",) * len(value_set.types)
        rows = [
            tuple(random_part(chance, kind, of) for kind, of in zip(kinds, value_set.types, strict=True))
            for _ in range(chance.some(3))
        ]
        twins.same("value set", "set_value_set", value_set.name, rows)
    twins.same("queues", "set_queue_depths", {chance.some(9): chance.some(1 << 20)})
    for instance in program.externs:
        index = chance.some(CELLS_SEEN - 1)
        size = instance.arguments[0] if instance.arguments else 0
        if instance.kind in ("register", "meter") and isinstance(size, int) and index >= size:
            continue
        if instance.kind == "register":
            kind = instance.type_arguments[0]
            twins.same("register", "register_write", instance.name, index, signed(chance.value(kind), kind))
        elif instance.kind in ("meter", "direct_meter"):
            slow = chance.random.random() / 50
            rates = [MeterRate(slow, chance.some(200)), MeterRate(slow * 2, chance.some(300))]
            twins.same("meter", "meter_set_rates", instance.name, index, rates[: chance.random.choice((0, 2))])


def look_at_state(twins: Twins, program: ir.ProgramIr) -> None:
    for instance in program.externs:
        size = instance.arguments[0] if instance.arguments else 0
        cells = min(size, CELLS_SEEN) if isinstance(size, int) else CELLS_SEEN
        if instance.kind == "register":
            for index in range(cells):
                twins.same("register", "register_read", instance.name, index)
        elif instance.kind in ("counter", "direct_counter"):
            for index in range(cells if instance.kind == "counter" else 8):
                twins.same("counter", "counter_read", instance.name, index)
    twins.same("digests", "take_digests")
    twins.same("log", "take_log")
    first, second = (asdict(engine.counters) for engine in twins.engines)
    if first != second:
        raise Different(f"{program.file}, seed {twins.seed}, step {twins.steps}: counters\n  {first}\n  {second}")


def compare(first: Engine, second: Engine, *, seed: int = 0, packets: int = 200, samples: Sequence[bytes] = ()) -> int:
    """Runs both, which must be fresh; gives how many packets came out. Raises Different."""
    program = first.program
    chance = Chance(program, seed)
    makes = Packets(program, chance)
    twins = Twins(first, second, seed)
    now = 0
    for step in range(packets):
        twins.steps = step
        if step % 20 == 10:
            set_tables(twins, program, chance)
        if step % 30 == 10:
            set_state(twins, program, chance)
        now += chance.random.choice((0, 1, 50, 1_000, 5_000_000))
        port = chance.random.choice((0, 1, 2, 3, 510, 511))
        twins.same("packet", "process", port, makes.one(samples), now)
        if step % 10 == 9:
            look_at_state(twins, program)
        if step == packets * 3 // 4:
            twins.same("reset", "reset")
    look_at_state(twins, program)
    return first.counters.transmitted


def main() -> None:
    from p4vm.compile import compile_program

    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    for seed in range(seeds):
        engines = [compile_program(sys.argv[1], backend=backend) for backend in ("python", "native")]
        print(f"seed {seed}: {compare(*engines, seed=seed)} packets sent alike")


if __name__ == "__main__":
    main()
