"""Commands that show what a program has, what a switch counted, and that reset all of it."""

from p4vm.commands import words as command_words
from p4vm.commands.words import Command
from p4vm.control.control_tables import TableState, table_state
from p4vm.control.control_values import BMV2_MATCHES, width_of
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.control.core import parameter_name
from p4vm.ir import ir_nodes as ir


def table_line(state: TableState) -> str:
    """A table as show_tables prints it."""
    profile = state.table.implementation
    keys = ",\t".join(f"{key.name}({BMV2_MATCHES[key.match]}, {width_of(key.expression.type)})" for key in state.keys)
    return f"{state.name:30} [implementation={None if profile is None else profile.name}, mk={keys}]"


def action_line(action: ir.TableAction) -> str:
    """An action as show_actions prints it."""
    data = ",\t".join(f"{parameter_name(p)}({width_of(p.variable.type)})" for p in action.data)
    return f"{action.name:30} [{data}]"


def _show_tables(switch: ControlledSwitch) -> str:
    return "\n".join(table_line(state) for _, state in sorted(switch.tables.parts.items()))


def _show_actions(switch: ControlledSwitch) -> str:
    return "\n".join(action_line(action) for _, action in sorted(switch.actions().items()))


def _table_actions(state: TableState) -> list[str]:
    return [action_line(action) for action in sorted(state.table.actions, key=lambda action: action.name)]


def _table_show_actions(switch: ControlledSwitch, table: str) -> str:
    return "\n".join(_table_actions(switch.tables[table]))


def _table_info(switch: ControlledSwitch, table: str) -> str:
    state = switch.tables[table]
    return "\n".join([table_line(state), "*" * 80, *_table_actions(state)])


def _show_ports(switch: ControlledSwitch) -> str:
    lines = [f"{'port #':^10}{'iface name':^20}{'status':^10}extra info", "=" * 50]
    return "\n".join([*lines, *(f"{port:^10}{name:^20}{'UP':^10}" for port, name in sorted(switch.ports.items()))])


def _show_pvs(switch: ControlledSwitch) -> str:
    return "\n".join(
        f"{name:30} [compressed bitwidth:{sum(width_of(kind) for kind in part.types)}]"
        for name, part in sorted(switch.value_sets.parts.items())
    )


def describe(program: ir.ProgramIr) -> list[str]:
    """All that a control plane may name in a program."""
    lines = []
    for table in program.tables:
        state = table_state(table)
        entries = f", {len(table.entries)} {'const ' if table.entries_const else ''}entries" if table.entries else ""
        lines.append(f"table {table_line(state)} size {table.size}{entries}")
        for index, action in enumerate(table.actions):
            lines.append(f"  {action_line(action)}{' default' if index == table.default else ''}")
    for instance in program.externs:
        size = instance.cells
        lines.append(f"{instance.kind} {instance.name}{f' [{size}]' if size else ''}")
    for part in program.value_sets:
        lines.append(f"value set {part.name} [{part.size}]")
    return lines


def _show_arrays(switch: ControlledSwitch) -> str:
    lines = []
    for kind, names in (("register", switch.registers), ("counter", switch.counters), ("meter", switch.meters)):
        for name, instance in sorted(names.parts.items()):
            table = switch.table_of(instance)
            lines.append(f"{kind:10}{name:30} [{instance.cells if table is None else f'direct, table {table}'}]")
    return "\n".join(lines)


def _switch_info(switch: ControlledSwitch) -> str:
    counted = switch.engine.counters
    rows = {
        "program": switch.program.file,
        "backend": switch.engine.backend,
        "received": counted.received,
        "sent": counted.transmitted,
        "dropped": counted.dropped,
        "parser_rejected": counted.parser_rejected,
        "too_many_passes": counted.too_many_passes,
        "too_many_turns": counted.too_many_turns,
        **counted.names,
    }
    width = 5 + max(len(name) for name in rows)
    return "\n".join(f"{name:{width}}: {value}" for name, value in rows.items())


COMMANDS = command_words.table(
    (
        Command("show_tables", "All tables and their keys.", _show_tables),
        Command("show_actions", "All actions and their parameters.", _show_actions),
        Command("show_ports", "Ports and their interfaces.", _show_ports),
        Command("show_pvs", "Parser value sets.", _show_pvs),
        Command("show_arrays", "Registers, counters and meters.", _show_arrays),
        Command("table_info TABLE", "A table's key and actions.", _table_info),
        Command("table_show_actions TABLE", "A table's actions.", _table_show_actions),
        Command("switch_info", "The program, and what became of packets.", _switch_info),
        Command("reset_state", "All as at the start: entries, groups, sessions, registers, counters, meters."),
    )
)
