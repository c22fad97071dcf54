"""Commands for registers, counters, meters and parser value sets."""

from p4vm.commands.words import Command, table
from p4vm.control.control_values import Pair, show_key
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.engine import Crc, MeterRate


def _register_read(switch: ControlledSwitch, name: str, cells: int | range | None = None) -> str:
    if cells is None:
        return f"{name}= {', '.join(map(str, switch.register_read_all(name)))}"
    if isinstance(cells, int):
        return f"{name}[{cells}]= {switch.register_read(name, cells)}"
    switch.register_read(name, cells.stop - 1)
    values = [switch.register_read(name, index) for index in cells]
    return f"{name}[{cells.start}-{cells.stop - 1}]= {', '.join(map(str, values))}"


def _register_write(switch: ControlledSwitch, name: str, cells: int | range, value: str) -> None:
    if isinstance(cells, int):
        switch.register_write(name, cells, value)
    else:
        switch.register_write_range(name, cells.start, cells.stop - 1, value)


def _direct(switch: ControlledSwitch, name: str, what: str) -> list[str]:
    table = switch.table_of(switch.counters[name])
    return [] if table is None else [f"{what} direct counter for table {table}"]


def _counter_text(switch: ControlledSwitch, counts: tuple[int, int], name: str, index: int) -> str:
    packets, size_bytes = counts
    line = f"{name}[{index}]= ({size_bytes} bytes, {packets} packets)"
    return "\n".join([*_direct(switch, name, "this is the"), line])


def _counter_written(switch: ControlledSwitch, _: None, name: str, index: int, packets: int, size_bytes: int) -> str:
    return "\n".join([*_direct(switch, name, "writing to"), f"{name}[{index}] has been updated"])


def _rates_text(switch: ControlledSwitch, rates: tuple[MeterRate, ...], name: str, index: int) -> str:
    if not rates:
        return "WARNING: expected 2 rates but only received 0"
    return "\n".join(f"{place}: info rate = {rate.rate}, burst size = {rate.burst}" for place, rate in enumerate(rates))


def _members_text(switch: ControlledSwitch, members: list[tuple[Pair, ...]], name: str) -> str:
    chosen = switch.value_sets[name]
    matches = chosen.matches or ("exact",) * len(chosen.types)
    return "\n".join(
        " ".join(show_key(pair, kind, match) for pair, kind, match in zip(member, chosen.types, matches, strict=True))
        for member in members
    )


CRC_SAYS = (
    "What crc{0}_custom computes; one setting holds for all of a program, whatever NAME is.\n"
    "Example, CRC-{1}: set_crc{0}_parameters calc {2}"
)

COMMANDS = table(
    (
        Command("register_read REGISTER [INDEX | FIRST-LAST]", "One cell, some, or all.", _register_read),
        Command(
            "register_write REGISTER INDEX|FIRST-LAST VALUE",
            "Write a cell, or the same value to some.\nExample: register_write MyIngress.seen 5 0xff",
            _register_write,
        ),
        Command("register_reset REGISTER", "All cells 0."),
        Command(
            "counter_read COUNTER INDEX",
            "Packets and bytes; a direct counter's index is an entry's handle.",
            prints=_counter_text,
        ),
        Command("counter_write COUNTER INDEX PACKETS BYTES", "Set a counter.", prints=_counter_written),
        Command(
            "counter_reset COUNTER",
            "All cells 0.",
            prints=lambda switch, _, name: "\n".join(_direct(switch, name, "this is the")),
        ),
        Command(
            "meter_set_rates METER INDEX RATE:BURST RATE:BURST",
            "Committed, then peak rate, in packets or bytes per microsecond; bursts in packets or bytes.\n"
            "Example: meter_set_rates MyIngress.m 0 0.001:10 0.002:20",
        ),
        Command("meter_array_set_rates METER RATE:BURST RATE:BURST", "The same for all meters of an array."),
        Command("meter_get_rates METER INDEX", "As set.", prints=_rates_text),
        Command(
            "set_crc16_parameters NAME POLYNOMIAL INITIAL FINAL_XOR REFLECT_DATA REFLECT_REMAINDER",
            CRC_SAYS.format(16, "16/CCITT-FALSE", "0x1021 0xffff 0x0000 false false"),
            lambda switch, _, *parameters: switch.set_crc_parameters(Crc(16, *parameters)),
        ),
        Command(
            "set_crc32_parameters NAME POLYNOMIAL INITIAL FINAL_XOR REFLECT_DATA REFLECT_REMAINDER",
            CRC_SAYS.format(32, "32C", "0x1edc6f41 0xffffffff 0xffffffff true true"),
            lambda switch, _, *parameters: switch.set_crc_parameters(Crc(32, *parameters)),
        ),
        Command(
            "pvs_add VALUE_SET VALUE",
            "Add a value; a word for each field.",
            lambda switch, name, words: switch.pvs_add(name, *words),
        ),
        Command(
            "pvs_remove VALUE_SET VALUE", "Remove a value.", lambda switch, name, words: switch.pvs_remove(name, *words)
        ),
        Command("pvs_clear VALUE_SET", "Remove all values."),
        Command("pvs_get VALUE_SET", "All values, one per line.", prints=_members_text),
    )
)
