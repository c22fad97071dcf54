"""From what the grammar (p4.lark) recognises to the syntax tree.

Each rule or alternative of the grammar has a method, with its parts in order; optional parts left out are None. Rules
that become a node by their parts alone are rows of parse_rows.py.
"""

from typing import Any

from lark import Transformer

from p4vm.front import lexer
from p4vm.front.lexer import Token
from p4vm.front.parse_rows import METHODS
from p4vm.front.preprocess import Preprocessed
from p4vm.source import P4Error, Position
from p4vm.tree import tree_nodes as tree

Parts = list[Any]

_NOT_IN_STATES = {
    tree.ReturnStatement: "return",
    tree.ExitStatement: "exit",
    tree.SwitchStatement: "switch",
    tree.BreakStatement: "break",
    tree.ContinueStatement: "continue",
    tree.ForStatement: "for",
    tree.ForInStatement: "for",
}


class TreeBuilder(Transformer[Token, Any]):
    """source: what is parsed, for positions."""

    def __init__(self, source: Preprocessed) -> None:
        super().__init__()
        self.source = source

    def at(self, token: Token) -> Position:
        return self.source.position(token.at)

    def pair(self, c: Parts) -> tuple[str, tree.ExpressionNode]:
        return c[0].value, c[1]

    def argument(self, c: Parts) -> tree.CallArgument:
        if isinstance(c[0], Token):
            return tree.CallArgument(None, position=self.at(c[0]))
        return tree.CallArgument(c[0], position=c[0].position)

    def named_argument(self, c: Parts) -> tree.CallArgument:
        value = None if isinstance(c[1], Token) else c[1]
        return tree.CallArgument(value, c[0].value, position=self.at(c[0]))

    # ---- operators

    def binary(self, c: Parts) -> tree.ExpressionNode:
        """Operands and operators alternate, as written; the result is a tree by precedence."""
        operands: Parts = [c[0]]
        operators: list[Token] = []
        for index in range(1, len(c), 2):
            operator = c[index]
            while operators and PRECEDENCE[operators[-1].value] >= PRECEDENCE[operator.value]:
                self.combine(operands, operators)
            operators.append(operator)
            operands.append(c[index + 1])
        while operators:
            self.combine(operands, operators)
        expression: tree.ExpressionNode = operands[0]
        return expression

    def combine(self, operands: Parts, operators: list[Token]) -> None:
        operator, right, left = operators.pop(), operands.pop(), operands.pop()
        operands.append(tree.BinaryExpression(operator.value, left, right, position=self.at(operator)))

    # ---- operands

    def number(self, c: Parts) -> tree.Number:
        value, width, signed = lexer.number(self.source, c[0])
        return tree.Number(value, width, signed, position=self.at(c[0]))

    def string(self, c: Parts) -> tree.String:
        return tree.String(lexer.string(c[0]), position=self.at(c[0]))

    def bool(self, c: Parts) -> tree.BoolLiteral:
        return tree.BoolLiteral(c[0].value == "true", position=self.at(c[0]))

    def name(self, c: Parts) -> tree.Name:
        return tree.Name(c[-1].value, len(c) == 2, position=self.at(c[-1]))

    target = name

    def list(self, c: Parts) -> tree.ListExpression:
        items = c[1] or []
        rest = bool(items) and isinstance(items[-1], tree.DefaultRest)
        return tree.ListExpression(items[:-1] if rest else items, rest, position=self.at(c[0]))

    def member_of_type(self, c: Parts) -> tree.MemberExpression:
        base = tree.TypeExpression(c[0], position=c[0].position)
        return tree.MemberExpression(base, c[1].value, position=self.at(c[1]))

    def error_member(self, c: Parts) -> tree.MemberExpression:
        where = self.at(c[0])
        base = tree.TypeExpression(tree.BaseType("error", position=where), position=where)
        return tree.MemberExpression(base, c[1].value, position=self.at(c[1]))

    def construct(self, c: Parts) -> tree.CallExpression:
        callee = tree.TypeExpression(c[0], position=c[0].position)
        return tree.CallExpression(callee, [], c[1] or [], position=c[0].position)

    # ---- types, and what is declared with them

    def base_type(self, c: Parts) -> tree.Type:
        token, width = c[0], c[1] if len(c) > 1 else None
        kind = token.value
        if width is not None:
            return tree.BitsTypeName(kind, width, position=self.at(token))
        if kind == "bit":
            return tree.BitsTypeName(kind, tree.Number(1, position=self.at(token)), position=self.at(token))
        return tree.BaseType(kind, position=self.at(token))

    def type_name(self, c: Parts) -> tree.TypeName:
        return tree.TypeName(c[-1].value, len(c) == 2, position=self.at(c[-1]))

    def list_type(self, c: Parts) -> tree.TupleTypeName:
        return tree.TupleTypeName([c[1]], True, position=self.at(c[0]))

    def type_parameters(self, c: Parts) -> Parts:
        return [token.value for token in c]

    def declarator(self, c: Parts) -> tuple[Token, Parts]:
        return (c[0], []) if len(c) == 1 else (c[0][0], [*c[0][1], c[1]])

    def typed(self, kind: tree.Type, declarator: tuple[Token, Parts]) -> tree.Type:
        """The type of `kind name[size]…`."""
        for size in reversed(declarator[1]):
            kind = tree.StackTypeName(kind, size, position=kind.position)
        return kind

    def constant(self, c: Parts) -> tree.ConstantDeclaration:
        name = c[3][0]
        return tree.ConstantDeclaration(c[0] or [], self.typed(c[2], c[3]), name.value, c[4], position=self.at(name))

    def variable(self, c: Parts) -> tree.VariableDeclaration:
        name = c[2][0]
        return tree.VariableDeclaration(c[0] or [], self.typed(c[1], c[2]), name.value, c[3], position=self.at(name))

    def parameter(self, c: Parts) -> tree.ParameterDeclaration:
        name, direction = c[3][0], c[1].value if c[1] else ""
        kind = self.typed(c[2], c[3])
        return tree.ParameterDeclaration(c[0] or [], direction, kind, name.value, c[4], position=self.at(name))

    def field(self, c: Parts) -> tree.Field:
        name = c[2][0]
        return tree.Field(c[0] or [], self.typed(c[1], c[2]), name.value, position=self.at(name))

    def enumeration(self, c: Parts) -> tree.EnumDeclaration:
        notes, base, name, members = c
        for member, value, where in members:
            if base is None and value is not None:
                raise P4Error(f"{member} has a value, so the enum needs a type: enum bit<8> {name.value}", where)
            if base is not None and value is None:
                raise P4Error(f"member {member} of an enum with a type; expected '= value' after it", where)
        return tree.EnumDeclaration(notes or [], base, name.value, members, position=self.at(name))

    def enum_member(self, c: Parts) -> tuple[str, tree.ExpressionNode | None, Any]:
        return c[0].value, c[1], self.at(c[0])

    def errors(self, c: Parts) -> tree.Errors:
        return tree.Errors([(token.value, self.at(token)) for token in c[1]], position=self.at(c[0]))

    def match_kinds(self, c: Parts) -> tree.MatchKinds:
        return tree.MatchKinds([(token.value, self.at(token)) for token in c[1]], position=self.at(c[0]))

    def type_definition(self, c: Parts) -> tree.TypeDef:
        distinct = isinstance(c[1], Token)
        kind, declarator = c[-2], c[-1]
        if not isinstance(kind, tree.StructureDeclaration):
            kind = self.typed(kind, declarator)
        name = declarator[0]
        return tree.TypeDef(c[0] or [], kind, name.value, distinct, position=self.at(name))

    # ---- statements

    def block(self, c: Parts) -> tree.BlockStatement:
        return tree.BlockStatement(c[0] or [], self.items(c[2:]), position=self.at(c[1]))

    def items(self, items: Parts) -> Parts:
        for item in items:
            if isinstance(item, tree.Instance):
                what = f"{item.name} is an instance; declare it in the control or parser itself, before its statements"
                raise P4Error(what, item.position)
        return items

    def if_(self, c: Parts) -> tree.IfStatement:
        (token, condition), yes = c
        return tree.IfStatement(condition, yes, None, position=self.at(token))

    def if_else(self, c: Parts) -> tree.IfStatement:
        (token, condition), yes, no = c
        return tree.IfStatement(condition, yes, no, position=self.at(token))

    def for_head(self, c: Parts) -> tree.ForStatement:
        notes, token, init, condition, step = c
        where = self.at(token)
        body = tree.EmptyStatement(position=where)
        return tree.ForStatement(notes or [], init or [], condition, step or [], body, position=where)

    def for_in_head(self, c: Parts) -> tree.ForInStatement:
        notes, token, annotations, kind, name, _, collection = c
        where = self.at(token)
        both = [*(notes or []), *(annotations or [])]
        return tree.ForInStatement(
            both, kind, name.value, collection, tree.EmptyStatement(position=where), position=where
        )

    def loop(self, c: Parts) -> tree.ForStatement | tree.ForInStatement:
        head: tree.ForStatement | tree.ForInStatement = c[0]
        head.body = c[1]
        return head

    def switch_block(self, c: Parts) -> tree.BlockStatement:
        return tree.BlockStatement([], self.items(c[1:]), position=self.at(c[0]))

    def assignment(self, c: Parts) -> tree.AssignmentStatement:
        operator = c[1].value[:-1] if len(c) == 3 else ""
        return tree.AssignmentStatement(c[0], c[-1], operator, position=c[0].position)

    def call_statement(self, c: Parts) -> tree.CallStatement:
        return tree.CallStatement(METHODS["call"](self, c), position=c[0].position)

    # ---- declarations with bodies, and the program

    def program(self, c: Parts) -> tree.SyntaxTree:
        return tree.SyntaxTree([declaration for declaration in c if declaration is not None])

    def annotations(self, c: Parts) -> Parts:
        return [token.value for token in c]

    def annotation_pairs(self, c: Parts) -> dict[str, tree.ExpressionNode]:
        return dict(c[0])

    def extern_function(self, c: Parts) -> tree.ExternFunction:
        c[1].annotations = c[0] or []
        return tree.ExternFunction(c[1], position=c[1].position)

    def method(self, c: Parts) -> tree.FunctionPrototype:
        prototype: tree.FunctionPrototype = c[2]
        prototype.annotations = c[0] or []
        prototype.abstract = c[1] is not None
        return prototype

    def function(self, c: Parts) -> tree.Function:
        c[1].annotations = c[0] or []
        return tree.Function(c[1], c[2], position=c[1].position)

    def constructor_parameters(self, c: Parts) -> Parts:
        return c[0] or []

    def parser(self, c: Parts) -> tree.ParserDeclaration:
        states = [part for part in c[2:] if isinstance(part, tree.StateDeclaration)]
        declaration: tree.ParserDeclaration = self.with_body(
            tree.ParserDeclaration, c[0], c[1] or [], c[2 : len(c) - len(states)], states
        )
        return declaration

    def with_body(self, kind: Any, head: tree.Applicable, *body: Parts) -> Any:
        where = head.position
        return kind(head.annotations, head.name, head.type_parameters, head.parameters, *body, position=where)

    def state(self, c: Parts) -> tree.StateDeclaration:
        items = self.items(c[2:-1])
        self.refuse_in_states(items)
        return tree.StateDeclaration(c[0] or [], c[1].value, items, c[-1], position=self.at(c[1]))

    def refuse_in_states(self, items: Parts) -> None:
        """Raises P4Error for statements that parser states can't hold."""
        left = list(reversed(items))
        while left:
            item = left.pop()
            if what := _NOT_IN_STATES.get(type(item)):
                raise P4Error(f"a parser state can't hold '{what}'; use transition and states instead", item.position)
            if isinstance(item, tree.BlockStatement):
                left += reversed(item.items)
            elif isinstance(item, tree.IfStatement):
                left += [part for part in (item.no, item.yes) if part is not None]

    def selection(self, c: Parts) -> tree.Transition:
        return tree.Transition("", c[1] or [], c[2:], position=self.at(c[0]))

    def control(self, c: Parts) -> tree.ControlDeclaration:
        declaration: tree.ControlDeclaration = self.with_body(tree.ControlDeclaration, c[0], c[1] or [], c[2:-1], c[-1])
        return declaration

    # ---- tables

    def table(self, c: Parts) -> tree.TableDeclaration:
        table = tree.TableDeclaration(
            c[0] or [], c[1].value, [], [], None, False, None, False, [], position=self.at(c[1])
        )
        seen: set[str] = set()
        for name, where, value, notes, const in c[2:]:
            if name in seen:
                raise P4Error(f"table {table.name} has two properties '{name}'; merge them", where)
            if name == "key" and "entries" in seen:
                raise P4Error(f"the key of table {table.name} must come before its entries", where)
            seen.add(name)
            if name == "key":
                table.keys = value
            elif name == "actions":
                table.actions = value
            elif name == "entries":
                table.entries, table.entries_const = value, const
            elif name == "default_action":
                table.default_action, table.default_const = self.action_named(value), const
            else:
                table.properties.append(tree.Property(notes, name, value, const, position=where))
        return table

    def keys(self, c: Parts) -> Parts:
        return ["key", self.at(c[0]), c[1:], [], False]

    def actions(self, c: Parts) -> Parts:
        return ["actions", self.at(c[0]), c[1:], [], False]

    def entries(self, c: Parts) -> Parts:
        return ["entries", self.at(c[2]), c[3:], c[0] or [], c[1] is not None]

    def property(self, c: Parts) -> Parts:
        return [c[2].value, self.at(c[2]), c[3], c[0] or [], c[1] is not None]

    def listed_action(self, c: Parts) -> tree.ActionRef:
        reference: tree.ActionRef = c[1]
        reference.annotations = c[0] or []
        return reference

    def action_named(self, value: tree.ExpressionNode) -> tree.ActionRef:
        """The action that a default_action's expression names. Raises P4Error."""
        call = value if isinstance(value, tree.CallExpression) else None
        named = call.callee if call else value
        if not isinstance(named, tree.Name):
            raise P4Error("default_action: expected an action, as in NoAction or forward(1)", value.position)
        arguments = call.arguments if call else []
        return tree.ActionRef([], named.name, arguments, named.dot, position=value.position)

    def entry(self, c: Parts) -> tree.EntryDeclaration:
        const, priority, keys, action, notes = c
        if isinstance(priority, Token):
            priority = self.number([priority])
        return tree.EntryDeclaration(notes or [], keys, action, priority, const is not None, position=keys[0].position)


for _rule, _method in METHODS.items():
    setattr(TreeBuilder, _rule, _method)


PRECEDENCE = {
    operator: level
    for level, operators in enumerate(
        ("||", "&&", "== !=", "< > <= >=", "|", "^", "&", "<< >>", "++ + - |+| |-|", "* / %"), 1
    )
    for operator in operators.split()
}
"""How strongly binary operators bind; all of them group to the left."""
