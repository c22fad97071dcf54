"""From what the grammar (p4.lark) recognises to the syntax tree: expressions."""

from __future__ import annotations

from typing import Any

from p4vm.front import lexer
from p4vm.front.lexer import Token
from p4vm.front.preprocess import Preprocessed
from p4vm.source import Position
from p4vm.tree import nodes as tree

Parts = list[Any]

PRECEDENCE = {
    operator: level
    for level, operators in enumerate(
        ("||", "&&", "== !=", "< > <= >=", "|", "^", "&", "<< >>", "++ + - |+| |-|", "* / %"), 1
    )
    for operator in operators.split()
}
"""How strongly binary operators bind; all of them group to the left."""


class ExpressionBuilder:
    """One method for each rule or alternative of the grammar, with its parts in order; parts left out are None."""

    def __init__(self, source: Preprocessed) -> None:
        super().__init__()
        self.source = source

    def at(self, token: Token) -> Position:
        return self.source.position(token.at)

    def pair(self, c: Parts) -> tuple[str, tree.Expression]:
        return c[0].value, c[1]

    def argument(self, c: Parts) -> tree.Argument:
        if isinstance(c[0], Token):
            return tree.Argument(None, position=self.at(c[0]))
        return tree.Argument(c[0], position=c[0].position)

    def named_argument(self, c: Parts) -> tree.Argument:
        value = None if isinstance(c[1], Token) else c[1]
        return tree.Argument(value, c[0].value, position=self.at(c[0]))

    # ---- operators

    def binary(self, c: Parts) -> tree.Expression:
        """Operands and operators in turn, as written, to a tree in order of precedence."""
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
        expression: tree.Expression = operands[0]
        return expression

    def combine(self, operands: Parts, operators: list[Token]) -> None:
        operator, right, left = operators.pop(), operands.pop(), operands.pop()
        operands.append(tree.Binary(operator.value, left, right, position=self.at(operator)))

    # ---- operands

    def number(self, c: Parts) -> tree.Number:
        value, width, signed = lexer.number(self.source, c[0])
        return tree.Number(value, width, signed, position=self.at(c[0]))

    def string(self, c: Parts) -> tree.String:
        return tree.String(lexer.string(c[0]), position=self.at(c[0]))

    def bool(self, c: Parts) -> tree.Bool:
        return tree.Bool(c[0].value == "true", position=self.at(c[0]))

    def name(self, c: Parts) -> tree.Name:
        return tree.Name(c[-1].value, len(c) == 2, position=self.at(c[-1]))

    target = name

    def list(self, c: Parts) -> tree.ListExpression:
        items = c[1] or []
        rest = bool(items) and isinstance(items[-1], tree.DefaultRest)
        return tree.ListExpression(items[:-1] if rest else items, rest, position=self.at(c[0]))

    def member_of_type(self, c: Parts) -> tree.Member:
        base = tree.TypeExpression(c[0], position=c[0].position)
        return tree.Member(base, c[1].value, position=self.at(c[1]))

    def error_member(self, c: Parts) -> tree.Member:
        where = self.at(c[0])
        base = tree.TypeExpression(tree.BaseType("error", position=where), position=where)
        return tree.Member(base, c[1].value, position=self.at(c[1]))

    def construct(self, c: Parts) -> tree.Call:
        callee = tree.TypeExpression(c[0], position=c[0].position)
        return tree.Call(callee, [], c[1] or [], position=c[0].position)
