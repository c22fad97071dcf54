"""Commands for registers, counters, meters and parser value sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4vm.commands.words import Command, number, table
from p4vm.control.values import show_key
from p4vm.engine import Crc, MeterRate
from p4vm.source import P4Error

if TYPE_CHECKING:
    from p4vm.control.switch import Switch


# ---- registers


def _range(word: str) -> tuple[int, int] | None:
    """The ends of `first-last`; None: a single index."""
    first, dash, last = word.partition("-")
    return (number(first, "index"), number(last, "index")) if dash and first else None


def _register_read(switch: Switch, words: list[str]) -> str:
    name = words[0]
    if len(words) == 1:
        return f"{name}= {', '.join(map(str, switch.register_read_all(name)))}"
    ends = _range(words[1])
    if ends is None:
        index = number(words[1], "index")
        return f"{name}[{index}]= {switch.register_read(name, index)}"
    switch.register_read(name, ends[1])
    values = [switch.register_read(name, index) for index in range(ends[0], ends[1] + 1)]
    return f"{name}[{words[1]}]= {', '.join(map(str, values))}"


def _register_write(switch: Switch, words: list[str]) -> str:
    ends = _range(words[1])
    if ends is None:
        switch.register_write(words[0], number(words[1], "index"), words[2])
    else:
        switch.register_write_range(words[0], *ends, words[2])
    return ""


# ---- counters


def _direct(switch: Switch, name: str, what: str) -> list[str]:
    table = switch.table_of(switch.counters[name])
    return [] if table is None else [f"{what} direct counter for table {table}"]


def _counter_read(switch: Switch, words: list[str]) -> str:
    name, index = words[0], number(words[1], "index")
    packets, size_bytes = switch.counter_read(name, index)
    line = f"{name}[{index}]= ({size_bytes} bytes, {packets} packets)"
    return "\n".join([*_direct(switch, name, "this is the"), line])


def _counter_write(switch: Switch, words: list[str]) -> str:
    name, index = words[0], number(words[1], "index")
    switch.counter_write(name, index, number(words[2], "packets"), number(words[3], "bytes"))
    return "\n".join([*_direct(switch, name, "writing to"), f"{name}[{index}] has been updated"])


def _counter_reset(switch: Switch, words: list[str]) -> str:
    switch.counter_reset(words[0])
    return "\n".join(_direct(switch, words[0], "this is the"))


# ---- meters


def _parse_rates(words: list[str]) -> list[MeterRate]:
    rates = []
    for word in words:
        rate, colon, burst = word.partition(":")
        try:
            if not colon:
                raise ValueError
            rates.append(MeterRate(float(rate), int(burst, 0)))
        except ValueError:
            raise P4Error(f"Error while parsing rates: '{word[:80]}'; expected RATE:BURST like 0.001:10") from None
    return rates


def _meter_set_rates(switch: Switch, words: list[str]) -> str:
    switch.meter_set_rates(words[0], number(words[1], "index"), _parse_rates(words[2:]))
    return ""


def _meter_array_set_rates(switch: Switch, words: list[str]) -> str:
    switch.meter_array_set_rates(words[0], _parse_rates(words[1:]))
    return ""


def _meter_get_rates(switch: Switch, words: list[str]) -> str:
    rates = switch.meter_get_rates(words[0], number(words[1], "index"))
    if not rates:
        return "WARNING: expected 2 rates but only received 0"
    return "\n".join(f"{place}: info rate = {rate.rate}, burst size = {rate.burst}" for place, rate in enumerate(rates))


# ---- parser value sets


def _pvs_get(switch: Switch, words: list[str]) -> str:
    chosen = switch.value_sets[words[0]]
    matches = chosen.matches or ("exact",) * len(chosen.types)
    return "\n".join(
        " ".join(show_key(pair, kind, match) for pair, kind, match in zip(member, chosen.types, matches, strict=True))
        for member in switch.pvs_get(words[0])
    )


# ---- custom hashes


def _truth(word: str) -> bool:
    if word in ("true", "True", "false", "False"):
        return word.lower() == "true"
    return bool(number(word, "bool parameter"))


def _set_crc(switch: Switch, words: list[str], width: int) -> str:
    polynomial, initial, final_xor = (number(word, "CRC parameter") for word in words[1:4])
    switch.set_crc_parameters(Crc(width, polynomial, initial, final_xor, _truth(words[4]), _truth(words[5])))
    return ""


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
            _counter_read,
        ),
        Command("counter_write COUNTER INDEX PACKETS BYTES", "Set a counter.", _counter_write),
        Command("counter_reset COUNTER", "All cells 0.", _counter_reset),
        Command(
            "meter_set_rates METER INDEX RATE:BURST RATE:BURST",
            "Committed, then peak rate, in packets or bytes per microsecond; bursts in packets or bytes.\n"
            "Example: meter_set_rates MyIngress.m 0 0.001:10 0.002:20",
            _meter_set_rates,
            counted="meter METER INDEX RATES…",
        ),
        Command(
            "meter_array_set_rates METER RATE:BURST RATE:BURST",
            "The same for all meters of an array.",
            _meter_array_set_rates,
            counted="meter METER RATES…",
        ),
        Command("meter_get_rates METER INDEX", "As set.", _meter_get_rates),
        Command(
            "set_crc16_parameters NAME POLYNOMIAL INITIAL FINAL_XOR REFLECT_DATA REFLECT_REMAINDER",
            CRC_SAYS.format(16, "16/CCITT-FALSE", "0x1021 0xffff 0x0000 false false"),
            lambda switch, words: _set_crc(switch, words, 16),
        ),
        Command(
            "set_crc32_parameters NAME POLYNOMIAL INITIAL FINAL_XOR REFLECT_DATA REFLECT_REMAINDER",
            CRC_SAYS.format(32, "32C", "0x1edc6f41 0xffffffff 0xffffffff true true"),
            lambda switch, words: _set_crc(switch, words, 32),
        ),
        Command("pvs_add VALUE_SET VALUE", "Add a value; a word for each field.", counted="pvs VALUE_SET VALUE MORE…"),
        Command("pvs_remove VALUE_SET VALUE", "Remove a value.", counted="pvs VALUE_SET VALUE MORE…"),
        Command("pvs_clear VALUE_SET", "Remove all values."),
        Command("pvs_get VALUE_SET", "All values, one per line.", _pvs_get),
    )
)
