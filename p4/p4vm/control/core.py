"""The base of all parts of the control plane: the engine, the program's names, and changes put together."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from p4vm.control.control_names import ControlNames
from p4vm.control.control_values import fit, parse_number
from p4vm.engine import ActionCall, Engine
from p4vm.ir import ir_nodes as ir
from p4vm.source import P4Error

Arguments = Sequence[str | int] | Mapping[str, str | int]
"""An action's data, in order or by name."""


def refused(operation: str, code: str, why: str) -> P4Error:
    """An error in the words that bmv2's command line uses, and why."""
    return P4Error(f"Invalid {operation} operation ({code}): {why}")


def refused_table(code: str, why: str) -> P4Error:
    """As `refused`, of an operation on a table or its profile."""
    return refused("table", code, why)


class ControlCore:
    """The engine under control. Not thread-safe: commands and packets take turns."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.program = engine.program
        self._late: set[tuple[str, str]] | None = None

    def _push(self, kind: str, name: str) -> None:
        """Tell the engine about a table ("table") or profile ("profile") that changed; in a batch: at its end."""
        if self._late is None:
            self._tell(kind, name)
        else:
            self._late.add((kind, name))

    def _tell(self, kind: str, name: str) -> None:
        raise NotImplementedError

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Changes of tables inside reach the engine together at the end, also when an error ends it early.

        Adding n entries one by one takes the engine n² steps; in a batch, n. No packets may be processed inside.
        """
        if self._late is not None:
            yield
            return
        self._late = set()
        try:
            yield
        finally:
            self._flush()
            self._late = None

    def _flush(self) -> None:
        """Tell the engine what a batch has put off so far."""
        late, self._late = self._late, None if self._late is None else set()
        for kind, name in sorted(late or ()):  # "profile" before "table": entries refer to members
            self._tell(kind, name)


def action_names(actions: Sequence[ir.TableAction]) -> ControlNames[int]:
    """Action name -> index into `actions`."""
    return ControlNames("action", {action.name: index for index, action in enumerate(actions)})


def parameter_name(parameter: ir.Parameter) -> str:
    return parameter.variable.name


def action_call(action: ir.TableAction, index: int, arguments: Arguments) -> ActionCall:
    """A call with checked arguments. Raises P4Error."""
    data = action.data
    if isinstance(arguments, Mapping):
        arguments = _in_order(action, arguments)
    if len(arguments) != len(data):
        wanted = ", ".join(f"{_type_name(p.variable.type)} {parameter_name(p)}" for p in data)
        raise P4Error(
            f"Action {action.name} needs {len(data)} parameters{f' ({wanted})' if data else ''}, got {len(arguments)}"
        )
    values = []
    for parameter, word in zip(data, arguments, strict=True):
        kind = parameter.variable.type
        try:
            values.append(parse_number(word, kind) if isinstance(word, str) else fit(int(word), kind))
        except P4Error as error:
            raise P4Error(
                f"Invalid runtime data: Error while parsing {parameter_name(parameter)} - {error.message}"
            ) from None
    return ActionCall(index, tuple(values))


def _in_order(action: ir.TableAction, arguments: Mapping[str, str | int]) -> list[str | int]:
    names = [parameter_name(p) for p in action.data]
    strange = [name for name in arguments if name not in names]
    missing = [name for name in names if name not in arguments]
    if strange:
        raise P4Error(f"Action {action.name} has no parameter {strange[0]}; it has: {', '.join(names) or 'none'}")
    if missing:
        raise P4Error(f"Action {action.name} needs a value for parameter {missing[0]}")
    return [arguments[name] for name in names]


def _type_name(kind: ir.Type) -> str:
    if isinstance(kind, ir.Bits):
        return f"{'int' if kind.signed else 'bit'}<{kind.width}>"
    return getattr(kind, "name", type(kind).__name__.lower())
