"""Statements: what may stand where, what they assign, and whether every path returns."""

from collections.abc import Callable
from typing import Any

from p4vm.check import check_expressions, convert, operators, resolve
from p4vm.check.scope import CheckState, EnclosingScope, ScopeSymbol, article, fail, nearest, show
from p4vm.source import engine_faults
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types

OPERATORS = frozenset({"+", "-", "*", "/", "%", "|+|", "|-|", "<<", ">>", "&", "|", "^", "++"})
BODIES = frozenset({"parser state", "apply block", "action", "function", "abstract method"})
IN_PARSERS = (
    tree.VariableDeclaration,
    tree.ConstantDeclaration,
    tree.AssignmentStatement,
    tree.CallStatement,
    tree.BlockStatement,
    tree.IfStatement,
    tree.EmptyStatement,
)


def block(state: CheckState, node: tree.BlockStatement) -> None:
    with state.inner():
        statements(state, node.items)


def statements(state: CheckState, nodes: list[tree.StatementNode]) -> None:
    for node in nodes:
        statement(state, node)


def statement(state: CheckState, node: tree.StatementNode) -> None:
    """Checks one statement in the present place. Raises P4Error."""
    handler = HANDLERS.get(node.__class__)
    if handler is None:
        fail(node, f"unsupported statement ({type(node).__name__})")
    if state.place.kind == "parser state" and not isinstance(node, IN_PARSERS):
        fail(node, f"{tree.class_word(node)} is not allowed in parser states")
    state.deeper(node)
    with engine_faults(lambda _: node.position):
        handler(state, node)
    state.depth -= 1


def scoped(state: CheckState, node: tree.StatementNode) -> None:
    """A statement that is a branch or a loop's body, in a scope of its own."""
    with state.inner():
        statement(state, node)


# ---- declarations within bodies


def variable(state: CheckState, node: tree.VariableDeclaration) -> None:
    kind = resolve.resolve(state, node.type)
    state.note(node, kind)
    if not types.is_data(kind):
        hint = "; give it a width, or declare it const" if isinstance(kind, types.IntegerType) else ""
        if isinstance(kind, types.ExternType | types.CallableType):
            hint = f"; an instance is declared with arguments: {kind.name}(…) {node.name};"
        fail(node, f"variable {node.name!r} cannot be of type {kind}{hint}")
    if node.value is not None:
        state.value_type(node.value, kind)
        convert.convert(state, node.value, kind)
    check_shadowing(state, node, node.name)
    state.declare(ScopeSymbol(node.name, "variable", node, kind, writable=True))


def constant(state: CheckState, node: tree.ConstantDeclaration) -> None:
    kind = resolve.resolve(state, node.type)
    state.note(node, kind)
    inner = types.bare(kind)
    text_or_list = kind == types.STRING or (isinstance(kind, types.TupleType) and kind.is_list)
    if not types.is_data(kind) and not isinstance(inner, types.IntegerType) and not text_or_list:
        fail(node, f"constant {node.name!r} cannot be of type {kind}")
    state.value_type(node.value, kind)
    convert.convert(state, node.value, kind)
    if not state.is_known(node.value):
        fail(node.value, f"the value of constant {node.name!r} must be known at compile time")
    value = state.checked.constants.get(node.value)
    check_shadowing(state, node, node.name)
    state.declare(ScopeSymbol(node.name, "constant", node, kind, value=value, known=True))


def check_shadowing(state: CheckState, node: tree.Node, name: str) -> None:
    """Raises P4Error: a name declared in a body hides a parameter."""
    before = state.scope.find(name)
    if before is not None and isinstance(before.declaration, tree.ParameterDeclaration) and state.place.kind in BODIES:
        fail(node, f"{name!r} hides the parameter of this name in line {before.declaration.position.line}; rename one")


def instance(state: CheckState, node: tree.Instance) -> None:
    fail(
        node,
        f"an instance cannot be declared in {article(state.place.kind)}; declare it in the control or parser around",
    )


# ---- simple statements


def assignment(state: CheckState, node: tree.AssignmentStatement) -> None:
    target = node.target
    kind = state.infer(target)
    check_expressions.require_writable(state, target, "cannot assign")
    if not node.operator:
        state.value_type(node.value, kind)
        convert.convert(state, node.value, kind)
        return
    if node.operator not in OPERATORS:
        fail(node, f"unsupported operator {node.operator}= in an assignment")
    check_compound(state, node, kind)


def check_compound(state: CheckState, node: tree.AssignmentStatement, kind: types.Type) -> None:
    """target op= value: as target = target op value."""
    expression = tree.BinaryExpression(node.operator, node.target, node.value, position=node.position)
    result = operators.binary(state, expression, None)
    if result != kind:
        hint = "; the result has another width" if node.operator == "++" else ""
        fail(node, f"cannot assign {result} to {kind}{hint}")


def call_(state: CheckState, node: tree.CallStatement) -> None:
    state.infer(node.call)


def if_(state: CheckState, node: tree.IfStatement) -> None:
    kind = state.value_type(node.condition)
    if kind != types.BOOL:
        hint = "; compare it, as in x != 0" if isinstance(kind, types.BitsType | types.IntegerType) else ""
        fail(node.condition, f"the condition of if is {kind}; bool is expected{hint}")
    scoped(state, node.yes)
    otherwise = node.no
    if otherwise is not None:
        scoped(state, otherwise)


def return_(state: CheckState, node: tree.ReturnStatement) -> None:
    wanted = state.place.returns
    if state.place.kind not in ("function", "action", "apply block", "abstract method"):
        fail(node, f"return is not allowed in {article(state.place.kind)}")
    if node.value is None:
        if wanted != types.VOID:
            fail(node, f"return needs a value of type {wanted}")
        return
    if wanted == types.VOID:
        fail(node, f"return with a value; this {state.place.kind} returns nothing")
    state.value_type(node.value, wanted)
    convert.convert(state, node.value, wanted, "cannot return {found}; {to} is expected")


def exit_(state: CheckState, node: tree.ExitStatement) -> None:
    if state.place.kind not in ("apply block", "action"):
        fail(node, f"exit is not allowed in {article(state.place.kind)}; only in controls and their actions")


def empty(state: CheckState, node: tree.EmptyStatement) -> None:
    pass


# ---- loops


def loop_jump(state: CheckState, node: tree.BreakStatement | tree.ContinueStatement) -> None:
    if not state.place.loops:
        fail(node, f"{tree.class_word(node)} outside a loop")


def in_loop(state: CheckState) -> EnclosingScope:
    return EnclosingScope(state.place.kind, state.place.returns, state.place.loops + 1)


def for_(state: CheckState, node: tree.ForStatement) -> None:
    with state.inner():
        statements(state, node.init)
        if state.value_type(node.condition) != types.BOOL:
            fail(node.condition, f"the condition of for is {state.checked.type_of[node.condition]}; bool is expected")
        statements(state, node.step)
        with state.inner(in_loop(state)):
            statement(state, node.body)


def for_in(state: CheckState, node: tree.ForInStatement) -> None:
    with state.inner():
        if node.type is not None:
            kind = resolve.resolve(state, node.type)
            symbol = ScopeSymbol(node.name, "variable", node, kind, writable=True)
        else:
            symbol = state.lookup(node, node.name, False)
            kind = symbol.type
            state.checked.declared[node] = symbol.declaration
            if not symbol.writable:
                fail(node, f"{node.name!r} cannot be a loop's variable; it cannot be assigned to")
        state.note(node, kind)
        check_collection(state, node, kind)
        with state.inner(in_loop(state)):
            if node.type is not None:
                state.declare(symbol)
            statement(state, node.body)


def check_collection(state: CheckState, node: tree.ForInStatement, kind: types.Type) -> None:
    collection = node.collection
    template = "the loop's variable is {to}, and what it goes through {found}"
    if isinstance(collection, tree.Range):
        inner = kind.base if isinstance(kind, types.EnumType) else types.bare(kind)
        if not isinstance(inner, types.BitsType):
            fail(node, f"a loop through a range needs a variable of bit<W> or int<W>, not {kind}")
        for bound in (collection.low, collection.high):
            state.value_type(bound, kind)
            convert.convert(state, bound, kind, template)
        state.note(collection, types.SetType(kind))
        return
    collection_type = state.value_type(collection)
    if isinstance(collection, tree.ListExpression):
        convert.convert(state, collection, types.TupleType((kind,), is_list=True), template)
    elif isinstance(collection_type, types.StackType) or (
        isinstance(collection_type, types.TupleType) and collection_type.is_list
    ):
        element = collection_type.element if isinstance(collection_type, types.StackType) else collection_type.items[0]
        if element != kind:
            fail(collection, template.replace("{to}", str(kind)).replace("{found}", str(element)))
    else:
        fail(collection, f"cannot loop through {collection_type}; a range, a list or a header stack is expected")


# ---- switch


def switch_(state: CheckState, node: tree.SwitchStatement) -> None:
    if state.place.kind == "action":
        fail(node, "a switch cannot stand in an action; only the apply block of a control has them")
    kind = state.infer(node.subject)
    seen: dict[object, int] = {}
    if not isinstance(kind, types.TableType):
        check_subject(node, kind)
    elif isinstance(node.subject, tree.Name):
        fail(node.subject, f"write switch ({node.subject.name}.apply().action_run)")
    for number, case in enumerate(node.cases):
        label = case.label
        if isinstance(label, tree.Default):
            if number != len(node.cases) - 1:
                fail(label, "the label default must be the last one of a switch")
        else:
            value = (
                action_label(state, label, kind)
                if isinstance(kind, types.TableType)
                else value_label(state, label, kind)
            )
            if value in seen:
                fail(label, f"label {show(str(value))} is in this switch twice")
            seen[value] = number
        if case.body is not None:
            block(state, case.body)


def check_subject(node: tree.SwitchStatement, kind: types.Type) -> None:
    bare = types.bare(kind)
    if not isinstance(bare, types.BitsType | types.EnumType) and bare != types.ERROR:
        if isinstance(bare, types.IntegerType):
            fail(node.subject, "switch needs a value of a known width")
        fail(node.subject, f"cannot switch on {kind}; bits, an enum, or .action_run of a table is expected")


def action_label(state: CheckState, label: tree.ExpressionNode, table: types.TableType) -> str:
    if not isinstance(label, tree.Name):
        fail(label, f"a label of a switch on {table} must be one of its actions")
    if label.name not in table.actions:
        fail(label, f"{label.name!r} is no action of {table}" + nearest(label.name, list(table.actions)))
    symbol = state.lookup(label, label.name, label.dot)
    state.checked.declared[label] = symbol.declaration
    state.note(label, symbol.type)
    return label.name


def value_label(state: CheckState, label: tree.ExpressionNode, kind: types.Type) -> object:
    if isinstance(label, tree.Mask | tree.Range):
        fail(label, "a label of a switch must be one value; use if for masks and ranges")
    state.value_type(label, kind)
    convert.convert(state, label, kind, "a label of this switch is {found}; {to} is expected")
    if not state.is_known(label):
        fail(label, "a label of a switch must be known at compile time")
    return state.checked.constants.get(label, label)


# ---- paths


def returns(node: tree.StatementNode) -> bool:
    """Whether every path through a statement ends in return (or exit)."""
    if isinstance(node, tree.ReturnStatement | tree.ExitStatement):
        return True
    if isinstance(node, tree.BlockStatement):
        return any(returns(item) for item in node.items)
    if isinstance(node, tree.IfStatement):
        return node.no is not None and returns(node.yes) and returns(node.no)
    if isinstance(node, tree.SwitchStatement):
        exhaustive = bool(node.cases) and isinstance(node.cases[-1].label, tree.Default)
        return exhaustive and all(returns(case.body) for case in node.cases if case.body is not None)
    return False


HANDLERS: dict[type, Callable[[CheckState, Any], None]] = {
    tree.VariableDeclaration: variable,
    tree.ConstantDeclaration: constant,
    tree.Instance: instance,
    tree.AssignmentStatement: assignment,
    tree.CallStatement: call_,
    tree.BlockStatement: block,
    tree.IfStatement: if_,
    tree.SwitchStatement: switch_,
    tree.ForStatement: for_,
    tree.ForInStatement: for_in,
    tree.ReturnStatement: return_,
    tree.ExitStatement: exit_,
    tree.BreakStatement: loop_jump,
    tree.ContinueStatement: loop_jump,
    tree.EmptyStatement: empty,
}
