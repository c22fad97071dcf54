"""A lowered program as text: for tests, for looking at what a program has become, for reports of errors."""

from collections.abc import Iterable

from p4vm.ir import ir_nodes as ir

STEP = "    "


def program(lowered: ir.ProgramIr) -> str:
    """All of it: types, instances, tables, routines."""
    blocks = [f"// {lowered.file}"]
    blocks += [record(node) for node in lowered.records]
    blocks += [extern(node) for node in lowered.externs]
    blocks += [value_set(node) for node in lowered.value_sets]
    blocks += [table(node) for node in lowered.tables]
    blocks += [routine(node) for node in lowered.routines]
    blocks.append("\n".join(f"{role}: {routine.name}" for role, routine in lowered.blocks.items()))
    for number, paths in sorted(lowered.field_lists.items()):
        blocks.append(f"field list {number}: {', '.join('.'.join(path) for path in paths)}")
    return "\n\n".join(blocks) + "\n"


def kind(of: ir.Type) -> str:
    match of:
        case ir.Bits():
            return f"{'int' if of.signed else 'bit'}<{of.width}>"
        case ir.Bool():
            return "bool"
        case ir.Varbits():
            return f"varbit<{of.width}>"
        case ir.Array():
            return f"{of.element.name}[{of.size}]"
        case ir.Text():
            return "string"
    return of.name


def record(of: ir.Record) -> str:
    fields = "".join(f"\n{STEP}{name}: {kind(inner)}" for name, inner in of.fields)
    return f"{of.kind} {of.name}{fields}"


def extern(of: ir.ExternInstance) -> str:
    types = f"<{', '.join(map(kind, of.type_arguments))}>" if of.type_arguments else ""
    return f"{of.kind}{types}({', '.join(map(str, of.arguments))}) {of.name}"


def value_set(of: ir.ValueSet) -> str:
    return f"value_set<{', '.join(map(kind, of.types))}>({of.size}) {of.name} {' '.join(of.matches)}".rstrip()


# ---- nodes: a row for each that is shown by its fields alone

ROWS: dict[type, str] = {
    ir.ReadVariable: "{variable.name}",
    ir.FieldOf: "{base}.{field}",
    ir.Index: "{base}[{index}]",
    ir.NextIndex: "{base}.nextIndex",
    ir.RegisterCell: "{instance.name}[{index}]",
    ir.Not: "!{operand}",
    ir.Binary: "({left} {operator} {right})",
    ir.BitSlice: "{base}[{high}:{low}]",
    ir.Cast: "({type}){operand}",
    ir.Mux: "({condition} ? {yes} : {no})",
    ir.Valid: "{base}.isValid()",
    ir.Build: "{type}{{{items}}}",
    ir.Invalid: "{type}{{#}}",
    ir.Assign: "{target} = {value}",
    ir.Reset: "reset {target}",
    ir.Invoke: "{result}{routine.name}({arguments})",
    ir.SetValid: "{target}.valid = {valid}",
    ir.ShiftStack: "{target}.push({count})",
    ir.Extract: "extract({target}{varbits})",
    ir.Return: "return {value}",
    ir.Lookahead: "{target} = lookahead()",
    ir.Emit: "emit({value})",
    ir.Break: "break",
    ir.Continue: "continue",
    ir.Exit: "exit",
    ir.GoTo: "-> {state}",
    ir.InValueSet: "({keys}) in {value_set.name}",
    ir.Guarded: "{condition} -> {value}",
}


class _RowFields(dict[str, object]):
    """Fields of a node as they stand in its row: expressions, lists of them and types as text."""

    def __init__(self, node: object) -> None:
        self.node = node

    def __missing__(self, name: str) -> object:
        value = getattr(self.node, name)
        if name == "result":
            return f"{expression(value)} = " if value is not None else ""
        if value is None:
            return ""
        if name == "varbits":
            return f", {expression(value)}"
        if name == "type":
            return kind(value)
        if isinstance(value, list):
            return listed(value)
        return expression(value) if type(value) in ROWS or isinstance(value, ir.Const) else value


def expression(of: ir.Expression | ir.Statement) -> str:
    """The text of an expression or a statement that holds no other statements."""
    return constant(of) if isinstance(of, ir.Const) else ROWS[type(of)].format_map(_RowFields(of))


def constant(of: ir.Const) -> str:
    match of.type:
        case ir.Bits():
            return f"{of.type.width}{'s' if of.type.signed else 'w'}{of.value}"
        case ir.Bool():
            return "true" if of.value else "false"
        case ir.EnumMember() if isinstance(of.value, int) and of.value < len(of.type.members):
            return f"{of.type.name}.{of.type.members[of.value]}"
    return f'"{of.value}"'


def listed(of: Iterable[ir.Expression]) -> str:
    return ", ".join(map(expression, of))


# ---- statements


def statement(of: ir.Statement, indent: str = "") -> list[str]:
    inner = indent + STEP
    match of:
        case ir.If():
            lines, word = [], "if"
            for condition, body in of.cases:
                lines += [f"{indent}{word} {expression(condition)}", *_nested(body, inner)]
                word = "else if"
            return lines + ([f"{indent}else", *_nested(of.otherwise, inner)] if of.otherwise else [])
        case ir.Loop():
            return [f"{indent}loop", *_nested(of.body, inner)]
    return [indent + _simple(of)]


def _nested(of: list[ir.Statement], indent: str) -> list[str]:
    return [line for inner in of for line in statement(inner, indent)]


def _simple(of: ir.Statement) -> str:
    match of:
        case ir.CallExtern():
            name = of.name if of.instance is None else f"{of.instance.name}.{of.name.split('.')[-1]}"
            return f"{name}({listed(of.arguments)})"
        case ir.Hash():
            return f"{expression(of.target)} = {of.algorithm}({listed(of.data)}{', payload' if of.payload else ''})"
        case ir.ApplyTable():
            noted = [
                f"{name} -> {expression(p)}" for name, p in (("hit", of.hit), ("action", of.action)) if p is not None
            ]
            return f"apply {of.table.name}" + (f" ({', '.join(noted)})" if noted else "")
    return expression(of).rstrip()


# ---- routines and tables


def routine(of: ir.Routine) -> str:
    parameters = ", ".join(f"{p.direction} {kind(p.variable.type)} {p.variable.name}" for p in of.parameters)
    returns = f" -> {kind(of.returns)}" if of.returns is not None else ""
    lines = [f"{of.kind} {of.name}({parameters}){returns}"]
    lines += [f"{STEP}{kind(variable.type)} {variable.name}" for variable in of.locals]
    lines += _nested(of.body, STEP)
    for name, body in of.states.items():
        lines += [f"{STEP}state {name}", *_nested(body, STEP * 2)]
    return "\n".join(lines)


def table(of: ir.Table) -> str:
    lines = [f"table {of.name} size {of.size}", *_nested(of.setup, STEP)]
    lines += [f"{STEP}key {key.name}: {key.match} {expression(key.expression)}" for key in of.keys]
    for number, action in enumerate(of.actions):
        bound = f"({listed(action.bound)})" if action.bound else ""
        lines.append(f"{STEP}action {number}: {action.name}{bound}")
    default_arguments = f"({', '.join(map(str, of.default_arguments))})" if of.default_arguments else ""
    lines.append(
        f"{STEP}default{' const' if of.default_const else ''}: {of.actions[of.default].name}{default_arguments}"
    )
    for entry in of.entries:
        keys = ", ".join(str(value) if more is None else f"{value}/{more}" for value, more in entry.keys)
        priority = f" priority {entry.priority}" if entry.priority is not None else ""
        arguments = ", ".join(map(str, entry.arguments))
        lines.append(f"{STEP}entry {keys}: {of.actions[entry.action].name}({arguments}){priority}")
    for name in ("implementation", "counter", "meter"):
        attached = getattr(of, name)
        if attached is not None:
            lines.append(f"{STEP}{name}: {attached.name}")
    return "\n".join(lines)
