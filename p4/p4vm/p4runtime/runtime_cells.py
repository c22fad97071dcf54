"""Counters, meters and registers as P4Runtime has them: cells of arrays, and direct ones of table entries."""

from typing import Any

from p4vm.control.control_values import width_of
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.control.p4info import shortest
from p4vm.engine import MeterRate
from p4vm.p4runtime.refusal import refusing
from p4vm.p4runtime.runtime_pipeline import number

US = 1e6
"""Meters' rates are units a second here, units a microsecond in the engine."""


def write_counter(switch: ControlledSwitch, name: str, index: int, data: Any) -> None:
    """data: a p4.v1.CounterData."""
    with refusing():
        switch.counter_write(name, index, data.packet_count, data.byte_count)


def fill_counter(switch: ControlledSwitch, name: str, index: int, data: Any) -> None:
    data.packet_count, data.byte_count = switch.counter_read(name, index)


def write_meter(switch: ControlledSwitch, name: str, index: int, config: Any) -> None:
    """config: a p4.v1.MeterConfig; unset (empty): the meter says green again."""
    rates = [MeterRate(config.cir / US, config.cburst), MeterRate(config.pir / US, config.pburst)]
    with refusing():
        if config.ByteSize():
            switch.meter_set_rates(name, index, rates)
        else:
            switch.meter_clear_rates(name, index)


def fill_meter(switch: ControlledSwitch, name: str, index: int, config: Any) -> None:
    """Leaves it unset where the meter never got rates."""
    if rates := switch.meter_get_rates(name, index):
        committed, peak = rates
        config.cir, config.cburst = round(committed.rate * US), committed.burst
        config.pir, config.pburst = round(peak.rate * US), peak.burst


def write_register(switch: ControlledSwitch, name: str, index: int, data: Any) -> None:
    """data: a p4.v1.P4Data."""
    with refusing():
        value = number(data.bitstring, width_of(switch.registers.parts[name].cell), name)
        switch.register_write(name, index, value)


def fill_register(switch: ControlledSwitch, name: str, index: int, data: Any) -> None:
    data.bitstring = shortest(switch.register_read(name, index), switch.registers.parts[name].cell)


CELLS = {
    "counter": ("data", write_counter, fill_counter),
    "meter": ("config", write_meter, fill_meter),
    "register": ("data", write_register, fill_register),
}
"""Kind -> the field of its messages with what a cell holds; what sets a cell of that name and index (of a direct one,
the handle of a table's entry) as the field has it; what fills the field from a cell."""
