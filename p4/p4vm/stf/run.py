"""Runs STF tests on a switch: packets in, tables filled, packets out compared, as p4c's own runner judges.

    add ipv4_lpm hdr.ipv4.dstAddr:0x0a000100/24 forward(dstAddr:0x080000000111, port:1)
    packet 0 ffffffffffff 000000000001 0800 45…
    expect 1 080000000111 ************ 0800 45…

- Per port, packets are compared with the `expect` lines of that port by position, wherever these stand in the file; a
  packet that no line expects fails, also on a port that the file never names (p4c's runner doesn't look there), and so
  does a line without packet. Order between ports isn't judged.
- `*` stands for any nibble. A longer packet matches unless the line ends in `$`. `expect 1` alone: any packet.
- `add` writes values as 0x, 0b (with * for digits that don't matter), decimal, value/prefix, value&&&mask, low->high.
  Keys left out match anything; a greater priority wins, as P4Runtime has it. A label (`= a`) names the entry for
  `remove a` and `check_counter c(a)`; `remove all` clears all tables.
- `no_packet`: up to here nothing has come out but what lines above expect.
- Commands of the switch's command line may stand among them; what they print is kept.
- Time is the test's own: 1 ms a packet, 1 s a `wait`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from p4vm.bit_arithmetic import COMPARISONS
from p4vm.commands.line import error_line, file_lines, run_command
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.source import P4Error, Position
from p4vm.stf.judge import OutputPacket, judge
from p4vm.stf.stf_parse import (
    Add,
    CheckCounter,
    Direct,
    Expect,
    NoPacket,
    Remove,
    Statement,
    StfPacket,
    Wait,
    parse,
)

PACKET_US = 1000
WAIT_US = 1_000_000
PRIORITY_TOP = 1_000_000
"""In STF a greater priority wins; in the engine the smaller: this less it."""


@dataclass(slots=True)
class Result:
    """failures: what is wrong, each beginning with file:line. printed: what commands and the program's log said."""

    path: str
    failures: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    packets_in: int = 0
    packets_out: int = 0

    @property
    def passed(self) -> bool:
        return not self.failures


def run(switch_maker: Callable[[], ControlledSwitch], path: str | Path) -> Result:
    """Run one test file on a new switch. Faults of the file are failures; raises P4Error if it can't be read, or as the
    maker does."""
    text = "\n".join(line for _, line in file_lines(Path(path)))
    try:
        statements = parse(text, str(path))
    except P4Error as error:
        return Result(str(path), [str(error)])
    return run_statements(switch_maker(), statements, str(path))


def run_text(switch: ControlledSwitch, text: str, file: str = "<text>") -> Result:
    """As `run` for a test in a string, on a switch that is there."""
    return run_statements(switch, parse(text, file), file)


def run_statements(switch: ControlledSwitch, statements: list[Statement], path: str = "<text>") -> Result:
    """Carry them out in order, then judge."""
    test = _Test(switch, Result(path))
    for statement in statements:
        try:
            test.step(statement)
        except P4Error as error:
            test.result.failures.append(f"{_place(statement.position)}: {error_line(error)}")
            return test.result
    test.result.failures += judge(test.expected, test.received)
    return test.result


def _place(position: Position) -> str:
    return f"{position.file}:{position.line}"


class _Test:
    """A test while it runs: its time, labels of entries, packets expected and received per port."""

    def __init__(self, switch: ControlledSwitch, result: Result) -> None:
        self.switch = switch
        self.result = result
        self.now_us = 0
        self.labels: dict[str, tuple[str, int]] = {}
        self.expected: dict[int, list[Expect]] = {}
        self.received: dict[int, list[OutputPacket]] = {}

    def step(self, statement: Statement) -> None:
        """Carry out one statement. Raises P4Error."""
        if isinstance(statement, StfPacket):
            self._packet(statement)
        elif isinstance(statement, Expect):
            self.expected.setdefault(statement.port, []).append(statement)
        elif isinstance(statement, Add):
            self._add(statement)
        elif isinstance(statement, CheckCounter):
            self._check_counter(statement)
        elif isinstance(statement, Remove):
            self._remove(statement)
        elif isinstance(statement, NoPacket):
            self._no_packet(statement)
        elif isinstance(statement, Wait):
            self.now_us += WAIT_US
        elif isinstance(statement, Direct):
            self._print(run_command(self.switch, statement.line))

    def _print(self, text: str) -> None:
        if text:
            self.result.printed += text.splitlines()

    def _packet(self, statement: StfPacket) -> None:
        self.now_us += PACKET_US
        outputs = self.switch.process(statement.port, statement.data, self.now_us)
        self.result.packets_in += 1
        self.result.packets_out += len(outputs)
        for port, data in outputs:
            self.received.setdefault(port, []).append(OutputPacket(data, statement.position))
        self.result.printed += self.switch.engine.take_log()

    def _add(self, statement: Add) -> None:
        table, action, arguments = statement.table, statement.action, statement.arguments
        if statement.keys is None:
            self.switch.table_set_default(table, action, arguments)
            return
        state = self.switch.tables[table]
        priority = None
        if state.prioritized:
            if statement.priority is None:
                raise P4Error(f"Table {state.name} is {state.kind}: write a priority after its name (the greater wins)")
            priority = PRIORITY_TOP - statement.priority
        handle = self.switch.table_add(table, action, statement.keys, arguments, priority)
        if statement.label:
            self.labels[statement.label] = (state.name, handle)

    def _label(self, label: str) -> tuple[str, int]:
        if label not in self.labels:
            raise P4Error(f"no entry has the label {label}; give it one: add … = {label}")
        return self.labels[label]

    def _remove(self, statement: Remove) -> None:
        if statement.label:
            self.switch.table_delete(*self._label(statement.label))
            return
        with self.switch.batch():
            for name, state in self.switch.tables.parts.items():
                if not state.table.entries_const:
                    self.switch.table_clear(name)

    def _check_counter(self, statement: CheckCounter) -> None:
        index = int(statement.index) if statement.index.isdecimal() else self._label(statement.index)[1]
        packets, size_bytes = self.switch.counter_read(statement.counter, index)
        if not statement.relation:
            self._print(f"{statement.counter}[{statement.index}]= ({size_bytes} bytes, {packets} packets)")
            return
        value = packets if statement.unit == "packets" else size_bytes
        if not COMPARISONS[statement.relation](value, statement.number):
            self.result.failures.append(
                f"{_place(statement.position)}: {statement.counter}({statement.index}): {value} {statement.unit}; "
                f"expected {statement.relation} {statement.number}"
            )

    def _no_packet(self, statement: NoPacket) -> None:
        for port, packets in sorted(self.received.items()):
            expected = len(self.expected.get(port, ()))
            if len(packets) > expected:
                self.result.failures.append(
                    f"{_place(statement.position)}: no_packet: port {port} sent {len(packets)} so far, {expected} "
                    f"expected above; the last: {packets[-1].data.hex()[:80]}"
                )
