"""A TNA control with all it calls, as the logical tables that a compiler would make of it, in order of running.

Sub-controls are taken apart where they are applied, with their own memories; a field is known by its path from the
top control's parameters ("hdr.agg.chunk"), a local variable by its instance's ("Ingress.held.fresh").
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from p4vm.bit_arithmetic import compute
from p4vm.fit.chip_model import Access, Effects, Fault, Limits, Memory, Unit, meet, overlap
from p4vm.fit.registers import UNABLE, ActionBody, flat_widths, is_shift, value_faults
from p4vm.node import children, nodes
from p4vm.source import P4Error, Position
from p4vm.tree import tree_nodes as tree
from p4vm.tree.checked import CallNote, Checked

DEPTH_MAX = 32
"""Controls within controls, actions within actions."""

STATEFUL = {"Register": True, "Meter": True, "Lpf": True, "Wred": True, "Counter": False}
"""Extern -> whether it takes one of a stage's stateful ALUs; counters have units of their own."""
DIRECT = {"DirectRegister": True, "DirectMeter": True, "DirectCounter": False}
METER_BITS, COUNTER_BITS = 128, 64
ALPM_PARTITIONS = 1024
"""Rows in TCAM of a table that keeps the rest of its prefixes in SRAM, if the program doesn't say otherwise."""
COPIED, HASHED, ANSWERED, COMPUTED, ADDED = range(5)
"""How a value comes about within an action: of copies alone; by a hash or at random; from a memory; by an ALU; by one
that adds or subtracts two fields. ALUs of one stage can't use each other's results."""
EXACT_WAYS_BITS = 128
"""Width of a match block's row: key and action data together take as many rows as they need."""
ROWS = 1024
CARRYING = ("+", "-", "|+|", "|-|")


@dataclass(slots=True)
class ElaborationScope:
    """The meaning of declarations in an instance of a control. paths: parameters and variables -> paths of fields;
    values: constructor parameters -> their arguments; actions: register actions -> their registers."""

    name: str
    control: tree.ControlDeclaration
    paths: dict[tree.Node, str] = field(default_factory=dict)
    values: dict[tree.Node, tree.ExpressionNode] = field(default_factory=dict)
    memories: dict[tree.Node, Memory] = field(default_factory=dict)
    actions: dict[tree.Node, Memory] = field(default_factory=dict)
    instances: "dict[tree.Node, ElaborationScope]" = field(default_factory=dict)


class Elaboration:
    """The logical tables, memories and faults of one direction (ingress, egress) of a pipeline."""

    def __init__(self, checked: Checked, direction: str, limits: Limits) -> None:
        self.checked = checked
        self.direction = direction
        self.limits = limits
        self.units: list[Unit] = []
        self.faults: list[Fault] = []
        self.memories: list[Memory] = []
        self.locals_bits = 0
        self._branches = 0
        self._branch: tuple[tuple[int, int], ...] = ()
        self._conditions: tuple[tuple[int, frozenset[str]], ...] = ()
        self._ended: list[tuple[tuple[int, int], ...]] = []

    def run(self, control: tree.ControlDeclaration) -> None:
        scope = ElaborationScope(control.name, control, {p: p.name for p in control.parameters})
        self._declare(scope)
        self._block(scope, control.body.items)

    def _fault(self, message: str, position: Position, certain: bool = True) -> None:
        self.faults.append(Fault(message, position, certain))

    # ---- declarations

    def _declare(self, scope: ElaborationScope) -> None:
        if scope.name.count(".") >= DEPTH_MAX:
            raise P4Error(f"controls within controls, {DEPTH_MAX} deep", scope.control.position)
        for declaration in scope.control.locals:
            if isinstance(declaration, tree.VariableDeclaration):
                self._variable(scope, declaration, f"{scope.name}.{declaration.name}")
            elif isinstance(declaration, tree.Instance):
                self._instance(scope, declaration)

    def _variable(self, scope: ElaborationScope, node: tree.VariableDeclaration, path: str) -> None:
        scope.paths[node] = path
        self.locals_bits += sum(flat_widths(self.checked.type_of[node.type]))

    def _instance(self, scope: ElaborationScope, node: tree.Instance) -> None:
        note = self.checked.instances[node]
        declared = note.declaration
        name = f"{scope.name}.{node.name}"
        if isinstance(declared, tree.ControlDeclaration):
            inner = scope.instances[node] = ElaborationScope(name, declared, values=dict(scope.values))
            for parameter, argument in zip(declared.constructor_parameters, note.arguments, strict=True):
                if (value := parameter.default if argument is None else argument) is not None:
                    inner.values[parameter] = value
            inner.memories |= scope.memories
            self._declare(inner)
        elif note.name in STATEFUL or note.name in DIRECT:
            scope.memories[node] = self._memory(scope, node, note, name)
        elif note.name in ("RegisterAction", "DirectRegisterAction"):
            scope.actions[node] = self._register_action(scope, node, note)

    def _memory(self, scope: ElaborationScope, node: tree.Instance, note: CallNote, name: str) -> Memory:
        kind = note.name
        entries = 0 if kind in DIRECT else self._number(scope, note.arguments[0])
        width = METER_BITS if "Counter" not in kind else COUNTER_BITS
        if "Register" in kind:
            cell = note.type_arguments[0]
            width = max(sum(flat_widths(cell)), 1)
            self.faults += value_faults(node.name, cell, node, self.limits)
        alu = STATEFUL.get(kind, DIRECT.get(kind, False))
        memory = Memory(name, kind.removeprefix("Direct").lower(), entries, width, node.position, alu, kind in DIRECT)
        most = self.limits.register_blocks * self.limits.sram_block_bits
        if memory.bits > most:
            self._fault(
                f"{memory.kind} {node.name} has {entries} cells of {width} bits; one stage holds "
                f"{most // width} of them",
                node.position,
            )
        self.memories.append(memory)
        return memory

    def _register_action(self, scope: ElaborationScope, node: tree.Instance, note: CallNote) -> Memory:
        memory = self._memory_of(scope, note.arguments[0])
        if memory is None:
            raise P4Error(f"register action {node.name}: its register isn't one of this control's", node.position)
        for member in node.members or []:
            if isinstance(member, tree.Function):
                self.faults += ActionBody(node.name, member, self.checked, self.limits).faults()
        return memory

    def _declared(self, node: tree.ExpressionNode | None) -> tree.Node:
        """The declaration of a name; other expressions stand for themselves."""
        return self.checked.declared.get(node, node) if node is not None else self.checked.program

    def _resolve(self, scope: ElaborationScope, node: tree.ExpressionNode | None) -> tree.ExpressionNode | None:
        """The argument of a constructor parameter; other expressions are returned as they are."""
        while (declared := self._declared(node)) in scope.values:
            node = scope.values[declared]
        return node

    def _memory_of(self, scope: ElaborationScope, node: tree.ExpressionNode | None) -> Memory | None:
        """The memory that a name means."""
        return scope.memories.get(self._declared(self._resolve(scope, node)))

    def _number(self, scope: ElaborationScope, node: tree.ExpressionNode | None) -> int:
        node = self._resolve(scope, node)
        value = self.checked.constants.get(node) if node is not None else None
        if isinstance(node, tree.CastExpression):
            return self._number(scope, node.operand)
        if value is None and isinstance(node, tree.BinaryExpression):
            return compute(node.operator, self._number(scope, node.left), self._number(scope, node.right), None)
        if not isinstance(value, int):
            position = node.position if node is not None else scope.control.position
            raise P4Error("a size must be known when the program is compiled", position)
        return value

    # ---- expressions

    def path(self, scope: ElaborationScope, node: tree.ExpressionNode) -> str:
        """The field that an expression names; "" if it names none."""
        match node:
            case tree.Name():
                return scope.paths.get(self._declared(node), "")
            case tree.MemberExpression():
                base = self.path(scope, node.base)
                return f"{base}.{node.name}" if base else ""
            case tree.IndexExpression():
                base = self.path(scope, node.base)
                value = self.checked.constants.get(node.index)
                return f"{base}[{value}]" if base and value is not None else base
            case tree.SliceExpression():
                return self.path(scope, node.base)
            case _:
                return ""

    def effects(self, scope: ElaborationScope, node: object) -> Effects:
        """The fields that evaluating an expression reads, and the memories that it accesses."""
        effects = Effects()
        if isinstance(node, tree.Name | tree.MemberExpression | tree.IndexExpression | tree.SliceExpression) and (
            path := self.path(scope, node)
        ):
            effects.reads.add(path)
        elif isinstance(node, tree.CallExpression):
            effects.add(self._call(scope, node))
        elif isinstance(node, tree.Node) and node not in self.checked.constants:
            if isinstance(node, tree.BinaryExpression) and node.operator in UNABLE:
                self._fault(
                    f"Tofino's ALUs can't {UNABLE[node.operator]}", node.position, not is_shift(node, self.checked)
                )
            for child in children(node):
                effects.add(self.effects(scope, child))
        return effects

    def _how(self, node: object, effects: Effects, origins: dict[str, int]) -> int:
        """How an expression's value comes about, one of COPIED … ADDED; origins: the same of what it may read."""
        how = ANSWERED if effects.accesses else COPIED
        for part in nodes([node]) if isinstance(node, tree.Node) else ():
            if isinstance(part, tree.CallExpression):
                how = max(how, HASHED)
            elif isinstance(part, tree.UnaryExpression):
                how = max(how, COMPUTED)
            elif (
                isinstance(part, tree.BinaryExpression) and part.operator != "++" and part not in self.checked.constants
            ):
                constant = part.left in self.checked.constants or part.right in self.checked.constants
                how = max(how, ADDED if part.operator in CARRYING and not constant else COMPUTED)
        return max([how, *(origins[path] for path in effects.reads if path in origins)])

    def _call(self, scope: ElaborationScope, node: tree.CallExpression) -> Effects:
        effects = Effects()
        note = self.checked.calls[node]
        for parameter, argument in zip(note.parameters, note.arguments, strict=False):
            if argument is None:
                continue
            if parameter.direction in ("out", "inout") and (path := self.path(scope, argument)):
                effects.writes.add(path)
            if parameter.direction != "out":
                effects.add(self.effects(scope, argument))
        receiver, instance = note.receiver, self._declared(note.receiver)
        if isinstance(instance, tree.Instance) and instance in scope.actions:
            effects.accesses.append(Access(scope.actions[instance], node.position))
            effects.matched |= effects.reads  # the index is needed when the stage begins
            effects.reads |= self._packet_reads(scope, instance)
        elif (reached := self._memory_of(scope, receiver)) is not None:
            effects.accesses.append(Access(reached, node.position))
            effects.matched |= effects.reads
        elif note.name in ("setValid", "setInvalid", "isValid") and receiver and (path := self.path(scope, receiver)):
            (effects.reads if note.name == "isValid" else effects.writes).add(f"{path}.$valid")
        return effects

    def _packet_reads(self, scope: ElaborationScope, action: tree.Instance) -> set[str]:
        """Fields that a register action's body takes from the packet: needed when the stage begins."""
        bodies = [member.body for member in action.members or [] if isinstance(member, tree.Function)]
        return {path for body in bodies for path in self.effects(scope, body).reads}

    # ---- statements

    def _block(self, scope: ElaborationScope, items: Sequence[tree.StatementNode]) -> None:
        for item in items:
            self._statement(scope, item)

    def _statement(self, scope: ElaborationScope, item: tree.StatementNode) -> None:
        match item:
            case tree.BlockStatement():
                self._block(scope, item.items)
            case tree.IfStatement():
                self._if(scope, item)
            case tree.SwitchStatement():
                self._switch(scope, item)
            case tree.CallStatement():
                self._call_statement(scope, item.call)
            case tree.VariableDeclaration():
                self._variable(scope, item, f"{scope.name}.{item.name}")
                if item.value is not None:
                    self._unit("", item, self._assignment(scope, item))
            case tree.AssignmentStatement():
                self._unit("", item, self._assignment(scope, item))
            case tree.ForStatement() | tree.ForInStatement():
                raise P4Error("a Tofino pipeline has no loops; unroll it", item.position)
            case tree.ExitStatement() | tree.ReturnStatement():
                self._ended.append(self._branch)
            case tree.EmptyStatement() | tree.ConstantDeclaration():
                pass
            case _:
                raise P4Error(f"{tree.class_word(item)} has no place in a Tofino control", item.position)

    @contextmanager
    def _within(self, node: int, way: int, known: set[str]) -> Iterator[None]:
        """Statements run only where branch `node` goes this way, which these fields decide."""
        outer = self._branch, self._conditions
        self._branch = (*self._branch, (node, way))
        if known:
            self._conditions = (*self._conditions, (len(self.units), frozenset(known)))
        yield
        self._branch, self._conditions = outer

    def _assignment(
        self,
        scope: ElaborationScope,
        item: tree.AssignmentStatement | tree.VariableDeclaration,
        origins: dict[str, int] | None = None,
    ) -> Effects:
        """Effects of an assignment, or of a variable's declaration. origins: how the fields of an action came about
        so far, to which this one is added."""
        effects = self.effects(scope, item.value)
        how = self._how(item.value, effects, origins or {})
        target = self.path(scope, item.target) if isinstance(item, tree.AssignmentStatement) else scope.paths[item]
        if item.value is not None and target:
            effects.writes.add(target)
            if isinstance(item, tree.AssignmentStatement) and item.operator:
                effects.reads.add(target)
                how = max(how, COMPUTED)
            if how != COPIED:
                effects.computed.add(target)
            if origins is not None:
                origins[target] = how
        return effects

    def _if(self, scope: ElaborationScope, item: tree.IfStatement) -> None:
        node, known = self._decide(scope, item, item.condition)
        with self._within(node, 1, known):
            self._statement(scope, item.yes)
        if item.no is not None:
            with self._within(node, 0, known):
                self._statement(scope, item.no)

    def _decide(
        self, scope: ElaborationScope, item: tree.IfStatement | tree.SwitchStatement, subject: tree.ExpressionNode
    ) -> tuple[int, set[str]]:
        """A new branch's number, and the fields that decide it; a table that does is applied."""
        applied = self._applied(subject)
        self._branches += 1
        if applied is not None:
            self._apply(scope, applied)
            self.units[-1].decides.add(self._branches)
            return self._branches, set()
        self._compared(subject)
        effects = self.effects(scope, subject)
        known = effects.reads | effects.matched
        if effects.accesses:  # a table without key looks there; the memory's answer decides
            known = effects.writes = effects.computed = {f"{scope.name}.$condition{self._branches}"}
            self._unit("", item, effects)
        return self._branches, known

    def _compared(self, condition: tree.Node) -> None:
        """A gateway tells equal from unequal, and compares with constants; it doesn't order two fields."""
        if isinstance(condition, tree.BinaryExpression) and condition.operator in ("<", "<=", ">", ">="):
            if condition.left not in self.checked.constants and condition.right not in self.checked.constants:
                self._fault(
                    f"a condition can't order two fields ({condition.operator}); subtract them and look at the "
                    f"top bit, or compare in a register action",
                    condition.position,
                )
        else:
            for child in children(condition):
                self._compared(child)

    def _switch(self, scope: ElaborationScope, item: tree.SwitchStatement) -> None:
        node, known = self._decide(scope, item, item.subject)
        for way, case in enumerate(item.cases):
            if case.body is not None:
                with self._within(node, way, known):
                    self._block(scope, case.body.items)

    def _applied(self, node: tree.ExpressionNode) -> tree.TableDeclaration | None:
        """The table t in t.apply(), t.apply().hit, !t.apply().hit, t.apply().action_run."""
        while isinstance(node, tree.UnaryExpression) or (
            isinstance(node, tree.MemberExpression) and node.name in ("hit", "miss", "action_run")
        ):
            node = node.operand if isinstance(node, tree.UnaryExpression) else node.base
        applied = self.checked.calls[node].declaration if isinstance(node, tree.CallExpression) else None
        return applied if isinstance(applied, tree.TableDeclaration) else None

    def _call_statement(self, scope: ElaborationScope, call: tree.CallExpression) -> None:
        note = self.checked.calls[call]
        if (inner := scope.instances.get(self._declared(note.receiver))) is not None:
            self._enter(scope, inner, note)
        elif isinstance(note.declaration, tree.TableDeclaration):
            self._apply(scope, note.declaration)
        elif isinstance(note.declaration, tree.Action):
            effects = self._action_effects(scope, note.declaration, note.arguments)
            self._unit(f"{scope.name}.{note.name}", call, effects)
        else:
            self._unit("", call, self._call(scope, call))

    def _enter(self, scope: ElaborationScope, inner: ElaborationScope, note: CallNote) -> None:
        for parameter, argument in zip(inner.control.parameters, note.arguments, strict=True):
            path = self.path(scope, argument) if argument is not None else ""
            inner.paths[parameter] = path or f"{inner.name}.{parameter.name}"
            if (memory := self._memory_of(scope, argument)) is not None:
                inner.memories[parameter] = memory
        ended = len(self._ended)
        self._block(inner, inner.control.body.items)
        if not any(isinstance(node, tree.ExitStatement) for node in nodes(inner.control.body.items)):
            del self._ended[ended:]  # a `return` ends the inner control alone

    # ---- tables and actions

    def _action_effects(
        self,
        scope: ElaborationScope,
        action: tree.Action,
        arguments: Sequence[tree.ExpressionNode | None] = (),
        origins: dict[str, int] | None = None,
    ) -> Effects:
        """Statements of an action run at the same time. A value that one of them copies, the next ones copy themselves;
        a value that one of them computes, none of them can use for more."""
        origins = {} if origins is None else origins
        total = Effects()
        by_parameter = dict(zip(action.parameters, arguments, strict=False))
        for parameter in action.parameters:
            argument = by_parameter.get(parameter)
            path = self.path(scope, argument) if argument is not None else ""
            scope.paths[parameter] = path or f"{scope.name}.{action.name}.{parameter.name}"
            if argument is not None and not path:
                passed = self.effects(scope, argument)
                origins[scope.paths[parameter]] = self._how(argument, passed, origins)
                total.add(passed)
        data = {scope.paths[p] for p in action.parameters if by_parameter.get(p) is None and not p.direction}
        self._action_block(scope, action, action.body.items, origins, total, data)
        return total

    def _action_block(
        self,
        scope: ElaborationScope,
        action: tree.Action,
        items: Sequence[tree.StatementNode],
        origins: dict[str, int],
        total: Effects,
        data: set[str],
    ) -> None:
        """Adds the effects of an action's statements to total. data: its parameters that the control plane gives."""
        for item in items:
            if isinstance(item, tree.BlockStatement):
                self._action_block(scope, action, item.items, origins, total, data)
                continue
            if isinstance(item, tree.IfStatement):
                self._action_if(scope, action, item, data)
                value = self.checked.constants.get(item.condition)
                for way, body in ((True, item.yes), (False, item.no)):
                    if body is not None and value in (None, way):
                        self._action_block(scope, action, [body], origins, total, data)
                continue
            before = dict(origins)
            effects = self._action_statement(scope, action, item, origins)
            if not (isinstance(item, tree.CallStatement) and self.checked.calls[item.call].kind == "action"):
                self._used(action, item, effects, before)
            touched = {access.memory for access in total.accesses}
            for access in effects.accesses:
                if access.memory in touched and access.memory.alu:
                    self._fault(
                        f"{access.memory.kind} {access.memory.name} is accessed a second time in one pass, within "
                        f"action {action.name}; a pass may touch each register once",
                        access.position,
                    )
            effects.reads -= set(before)
            total.add(effects)

    def _action_if(self, scope: ElaborationScope, action: tree.Action, item: tree.IfStatement, data: set[str]) -> None:
        """An instruction is carried out or not by a parameter that the control plane gives; by nothing else."""
        fields = self.effects(scope, item.condition).reads - data
        if fields and item.condition not in self.checked.constants:
            self._fault(
                f"action {action.name}: an action of Tofino has no conditions but on what the control plane gives "
                f"it, not on {min(fields)}; use a table",
                item.position,
            )

    def _used(self, action: tree.Action, item: tree.StatementNode, effects: Effects, origins: dict[str, int]) -> None:
        """A statement of an action uses what others before it made; origins: how."""
        value = item.value if isinstance(item, tree.AssignmentStatement | tree.VariableDeclaration) else item
        calls = any(isinstance(node, tree.CallExpression) for node in nodes([value] if value is not None else []))
        origin = COPIED if calls else self._how(value, Effects(), {})
        if isinstance(item, tree.AssignmentStatement) and item.operator:
            origin = COMPUTED
        for path in sorted(effects.reads | effects.matched) if calls or origin >= COMPUTED else ():
            how = next((h for earlier_path, h in origins.items() if overlap(path, earlier_path)), COPIED)
            if how >= (ANSWERED if calls else COMPUTED):
                self._fault(
                    f"action {action.name} reads {path}, which it computes before: statements of an action run at "
                    f"once; move this one to a later table",
                    item.position,
                    how != COMPUTED,
                )

    def _action_statement(
        self, scope: ElaborationScope, action: tree.Action, item: tree.StatementNode, origins: dict[str, int]
    ) -> Effects:
        match item:
            case tree.AssignmentStatement():
                return self._assignment(scope, item, origins)
            case tree.CallStatement():
                note = self.checked.calls[item.call]
                if isinstance(note.declaration, tree.Action):
                    return self._action_effects(scope, note.declaration, note.arguments, origins)
                effects = self._call(scope, item.call)
                origins.update(dict.fromkeys(effects.writes, COPIED))
                return effects
            case tree.VariableDeclaration():
                scope.paths[item] = f"{scope.name}.{action.name}.{item.name}"
                return self._assignment(scope, item, origins)
            case tree.SwitchStatement():
                raise P4Error(f"action {action.name}: an action of Tofino has no switch; use a table", item.position)
            case _:
                return Effects()

    def _apply(self, scope: ElaborationScope, table: tree.TableDeclaration) -> None:
        effects = Effects()
        accesses: dict[Memory, Access] = {}
        data_bits = 0
        for reference in table.actions:
            action = self.checked.declared[reference]
            assert isinstance(action, tree.Action)
            done = self._action_effects(scope, action, self.checked.bound[reference].arguments)
            accesses.update({access.memory: access for access in done.accesses})  # one action runs: one access
            effects.add(done)
            widths = [sum(flat_widths(self.checked.type_of[p.type])) for p in action.parameters]
            data_bits = max(data_bits, sum(widths))
        effects.accesses = list(accesses.values())
        effects.computed |= effects.writes  # which action runs is known in the stage alone
        unit = self._unit(f"{scope.name}.{table.name}", table, effects)
        unit.unordered = any(a.name == "ignore_table_dependency" for a in table.annotations)
        for key in table.keys:
            unit.matched |= self.effects(scope, key.expression).reads
        self._match_memory(scope, table, unit, data_bits)

    def _match_memory(self, scope: ElaborationScope, table: tree.TableDeclaration, unit: Unit, data_bits: int) -> None:
        key_bits = sum(sum(flat_widths(self.checked.type_of[key.expression])) for key in table.keys)
        size = next((self._number(scope, p.value) for p in table.properties if p.name == "size"), 0)
        size = max(size, len(table.entries or ()), 1 if not table.keys else 512 if not table.entries else 1)
        exact_blocks = -(-size // ROWS) * -(-(key_bits + data_bits + 8) // EXACT_WAYS_BITS)
        if any(p.name in ("alpm", "atcam") for p in table.properties) or any(
            a.name == "alpm" for a in table.annotations
        ):
            rows = -(-min(size, ALPM_PARTITIONS) // self.limits.tcam_entries)
            unit.tcam_blocks = rows * -(-key_bits // self.limits.tcam_bits)
            unit.sram_blocks = exact_blocks
        elif any(key.match_kind in ("ternary", "lpm", "range") for key in table.keys):
            rows = -(-size // self.limits.tcam_entries)
            unit.tcam_blocks = rows * -(-key_bits // self.limits.tcam_bits)
            unit.sram_blocks = -(-size * max(data_bits, 8) // self.limits.sram_block_bits)
        elif table.keys:
            unit.sram_blocks = exact_blocks
        for memory in (m for m in (a.memory for a in unit.accesses) if not m.entries):
            memory.entries = size  # a direct one has a cell for each entry

    def _unit(self, name: str, node: tree.Node, effects: Effects) -> Unit:
        unit = Unit(
            name=name or f"{node.position.file.rpartition('/')[2]}:{node.position.line}",
            direction=self.direction,
            position=node.position,
            branch=self._branch,
            number=len(self.units),
            conditions=self._conditions,
            ended=tuple(self._ended),
            bare=not name,
        )
        unit.add(effects)
        joined = self._joins(unit)
        if joined is not None:
            return joined
        self.units.append(unit)
        return unit

    def _joins(self, unit: Unit) -> Unit | None:
        """Neighbouring statements that run under one condition, and need nothing of each other, are one table; those
        that touch registers are free to lie apart."""
        last = self.units[-1] if self.units else None
        if last is None or not unit.bare or not last.bare or unit.accesses or last.accesses:
            return None
        touches = unit.matched | unit.reads | unit.writes
        if (
            last.branch != unit.branch
            or last.ended != unit.ended
            or meet(last.writes, touches)
            or meet(last.reads, unit.writes)
        ):
            return None
        last.add(unit)
        return last
