"""The checker's result for a program: the tree as it was written, and notes on its nodes.

`check_program.check` makes it, `lower_program.lower` reads it. Within parsers, controls and functions that are used
with different constructor arguments or type arguments, notes hold for all uses: types may contain the
`types.TypeVariable`s of a generic function, and what depends on a constructor parameter is no constant here;
lowering knows both per use.
"""

from dataclasses import dataclass, field

from p4vm.tree import tree_nodes as tree
from p4vm.tree import types


@dataclass(slots=True)
class CallNote:
    """The declaration and arguments of a `tree.CallExpression`.

    kind: one of
      function      a tree.Function                       action      a tree.Action (called directly)
      extern        a tree.ExternFunction (verify, hash, …)  method    a method of an extern instance
      apply         apply of a parser, control (declaration: tree.Parser, tree.Control) or table (tree.Table)
      constructor   of extern, parser, control or package (nameless instance, or direct application)
      builtin       of a header, header union or stack: isValid setValid setInvalid push_front pop_front minSizeInBits
                    minSizeInBytes maxSizeInBits maxSizeInBytes; static_assert is an extern
    name: function or method name. declaration: what declares it. receiver: the expression before `.name`, if any.
    type_arguments: all resolved. arguments: in the order of parameters, None where left out or `_`.
    """

    kind: str
    name: str
    declaration: tree.Node | None
    parameters: tuple[types.ParameterType, ...]
    arguments: list[tree.ExpressionNode | None]
    type_arguments: tuple[types.Type, ...] = ()
    returns: types.Type = types.VOID
    receiver: tree.ExpressionNode | None = None


@dataclass(slots=True)
class Checked:
    """program: the whole tree, standard library first.

    type_of: of all expressions, of every `tree.Type` as written, and of each declaration that has one (Variable, Field,
      Parameter, Instance, Structure, Parser, …). An expression's is its own type before conversion.
    converted: expressions that are implicitly converted -> the type they become (int literals, serializable enums,
      lists and struct expressions to structs, headers, tuples, stacks).
    constants: expressions known at compile time, whoever uses them -> value, after conversion.
    declared: names in use (Name, TypeName, ActionRef, Member of a package or parser) -> declaration; for an enum's or
      error's member the MemberExpression -> its EnumDeclaration or Errors.
    calls: notes on every tree.Call. instances: declarations of instances -> note of the constructor call.
    bound: actions in a table's list, default action and entries -> arguments in order of the action's parameters;
      None: the control plane gives it.
    errors: names of all errors in order of declaration. main: the instance called main, if the program has one.
    """

    program: tree.SyntaxTree
    type_of: dict[tree.Node, types.Type] = field(default_factory=dict)
    converted: dict[tree.Node, types.Type] = field(default_factory=dict)
    constants: dict[tree.Node, types.Value] = field(default_factory=dict)
    declared: dict[tree.Node, tree.Node] = field(default_factory=dict)
    calls: dict[tree.CallExpression, CallNote] = field(default_factory=dict)
    instances: dict[tree.Instance, CallNote] = field(default_factory=dict)
    bound: dict[tree.ActionRef, CallNote] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    main: tree.Instance | None = None
    warnings: list[str] = field(default_factory=list)
