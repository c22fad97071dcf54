"""The work that the body of a RegisterAction gives its stateful ALU, and whether the ALU can do it."""

from collections.abc import Iterator
from dataclasses import replace

from p4vm.fit.chip_model import Fault, Limits
from p4vm.node import children, nodes
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types
from p4vm.tree.checked import Checked

SMALL = range(-8, 8)
"""Constants that an instruction of the ALU holds; others take a row of its register file."""
ORDERED = {"==", "!=", "<", "<=", ">", ">="}
UNABLE = {"*": "multiply", "/": "divide", "%": "divide"}


def is_shift(node: tree.BinaryExpression, checked: Checked) -> bool:
    """Whether a multiplication or division is one by a constant power of two."""
    values = [checked.constants.get(operand) for operand in (node.left, node.right)]
    return any(isinstance(value, int) and value > 0 and value & (value - 1) == 0 for value in values)


WORD_BITS = 32


def flat_widths(kind: types.Type) -> list[int]:
    """Widths of the fields of a value, through everything nested in it."""
    kind = types.bare(kind)
    if isinstance(kind, types.BitsType):
        return [kind.width]
    if isinstance(kind, types.StructureType):
        return [width for _, field_type in kind.fields for width in flat_widths(field_type)]
    if isinstance(kind, types.StackType):
        return flat_widths(kind.element) * kind.size
    if isinstance(kind, types.EnumType) and kind.base is not None:
        return [kind.base.width]
    return [1]


def value_faults(name: str, kind: types.Type, node: tree.Node, limits: Limits) -> list[Fault]:
    """A register's cell is one word of 1, 8, 16, 32 or 64 bits, or a pair of equal ones of 8, 16 or 32."""
    widths = flat_widths(kind)
    if widths in ([1], [64], *([width] * count for width in (8, 16, 32) for count in (1, 2))):
        return []
    return [
        Fault(
            f"register {name} holds {kind} ({' + '.join(map(str, widths))} bits); a cell is one word of 1, 8, 16, 32 "
            f"or {limits.register_bits} bits, or two equal ones of at most 32",
            node.position,
        )
    ]


class ActionBody:
    """An apply(inout value, out rv) of a RegisterAction."""

    def __init__(self, name: str, function: tree.Function, checked: Checked, limits: Limits) -> None:
        self.name = name
        self.function = function
        self.checked = checked
        self.limits = limits
        self.local_names = {parameter.name for parameter in function.prototype.parameters}
        self.local_names |= {node.name for node in nodes([function.body]) if isinstance(node, tree.VariableDeclaration)}

    def faults(self) -> list[Fault]:
        faults = [*self._operators(), *self._comparisons(), *self._outputs()]
        return faults + self._constants() + self._packet_words()

    def _fault(self, message: str, node: tree.Node) -> Fault:
        return Fault(f"register action {self.name}: {message}", node.position)

    def _operators(self) -> Iterator[Fault]:
        for node in nodes([self.function.body]):
            if isinstance(node, tree.BinaryExpression) and node.operator in UNABLE:
                if node not in self.checked.constants:
                    shift = is_shift(node, self.checked)
                    yield replace(self._fault(f"a stateful ALU can't {UNABLE[node.operator]}", node), certain=not shift)
            elif isinstance(node, tree.ForStatement | tree.ForInStatement):
                yield self._fault("a stateful ALU has no loops", node)

    def _comparisons(self) -> Iterator[Fault]:
        """Equal comparisons, wherever they are written, are one."""
        seen: set[str] = set()
        for node in nodes([self.function.body]):
            if not isinstance(node, tree.BinaryExpression) or node.operator not in ORDERED:
                continue
            seen.add(words_of(node))
            if len(seen) > self.limits.comparisons:
                yield self._fault(f"{len(seen)} comparisons; a stateful ALU makes {self.limits.comparisons}", node)
                return

    def _outputs(self) -> Iterator[Fault]:
        outputs = [p for p in self.function.prototype.parameters if p.direction == "out"]
        for parameter in outputs:
            widths = flat_widths(self.checked.type_of[parameter.type])
            if len(widths) > 1 or widths[0] > WORD_BITS:
                yield self._fault(f"gives back {' + '.join(map(str, widths))} bits; one word of 32 at most", parameter)

    def _constants(self) -> list[Fault]:
        large: dict[int, tree.Node] = {}
        for node in nodes([self.function.body]):
            value = self.checked.constants.get(node)
            if isinstance(value, int) and not isinstance(value, bool) and not self._is_inside(node):
                kind = self.checked.converted.get(node, self.checked.type_of.get(node))
                if isinstance(kind, types.BitsType) and kind.width and value >= 1 << (kind.width - 1):
                    value -= 1 << kind.width
                if value not in SMALL:
                    large.setdefault(value, node)
        if len(large) <= self.limits.large_constants:
            return []
        return [
            self._fault(
                f"{len(large)} constants beyond {SMALL.start} … {SMALL.stop - 1}; a stateful ALU keeps "
                f"{self.limits.large_constants}",
                list(large.values())[-1],
            )
        ]

    def _is_inside(self, node: tree.Node) -> bool:
        """A part of a slice's bounds is no operand."""
        return any(
            node in (part.high, part.low, part.width)
            for part in nodes([self.function.body])
            if isinstance(part, tree.SliceExpression)
        )

    def _packet_words(self) -> list[Fault]:
        """Words that come from the packet: fields and variables that are not the action's own."""
        words: dict[str, tree.ExpressionNode] = {}
        for node in self._outermost(self.function.body):
            words.setdefault(words_of(node), node)
        if len(words) <= self.limits.packet_words:
            return []
        bits = sum(sum(flat_widths(self.checked.type_of[node])) for node in words.values())
        fault = self._fault(
            f"takes {len(words)} words from the packet ({', '.join(words)}); a stateful ALU takes "
            f"{self.limits.packet_words}",
            list(words.values())[self.limits.packet_words],
        )
        return [replace(fault, certain=bits > self.limits.packet_words * WORD_BITS)]  # small ones may lie in one word

    def _outermost(self, root: tree.Node) -> Iterator[tree.ExpressionNode]:
        """Operands: fields, slices of them, and concatenations, which are brought together on their way to the ALU."""
        if isinstance(root, tree.MemberExpression | tree.Name | tree.SliceExpression) or (
            isinstance(root, tree.BinaryExpression) and root.operator == "++"
        ):
            names = {first_name(part) for part in nodes([root]) if isinstance(part, tree.MemberExpression | tree.Name)}
            if root not in self.checked.constants and names - self.local_names - {""}:
                yield root
        else:
            for child in root.arguments if isinstance(root, tree.CallExpression) else children(root):
                yield from self._outermost(child)


def first_name(node: tree.Node) -> str:
    """The variable that a path begins with; "" if it begins with none (a type's member, a call)."""
    while isinstance(node, tree.MemberExpression):
        node = node.base
    return node.name if isinstance(node, tree.Name) else ""


def words_of(node: object) -> str:
    """An expression as one would write it: equal text, equal expression."""
    match node:
        case tree.Name():
            return node.name
        case tree.MemberExpression():
            return f"{words_of(node.base)}.{node.name}"
        case tree.Number():
            return str(node.value)
        case tree.BinaryExpression():
            return f"({words_of(node.left)} {node.operator} {words_of(node.right)})"
        case tree.UnaryExpression():
            return f"{node.operator}{words_of(node.operand)}"
        case tree.CastExpression():
            return words_of(node.operand)
        case tree.SliceExpression():
            return f"{words_of(node.base)}[{words_of(node.high)}:{words_of(node.low)}]"
        case tree.IndexExpression():
            return f"{words_of(node.base)}[{words_of(node.index)}]"
        case _:
            return f"<{type(node).__name__} {id(node)}>"
