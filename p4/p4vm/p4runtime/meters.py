"""Meters' rates: units a second here, units a microsecond in the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.engine import MeterRate
from p4vm.p4runtime.refusal import refusing

US = 1e6


def set_meter(switch: ControlledSwitch, name: str, index: int, config: Any) -> None:
    """An unset (empty) configuration: the meter says green again. Raises RuntimeRefusal."""
    rates = [MeterRate(config.cir / US, config.cburst), MeterRate(config.pir / US, config.pburst)]
    with refusing():
        if config.ByteSize():
            switch.meter_set_rates(name, index, rates)
        else:
            switch.meter_clear_rates(name, index)


def fill_meter(message: Any, field: str, rates: Sequence[MeterRate]) -> None:
    """Leaves the field unset where the meter never got rates."""
    if rates:
        committed, peak = rates
        getattr(message, field).CopyFrom(
            type(getattr(message, field))(
                cir=round(committed.rate * US), cburst=committed.burst, pir=round(peak.rate * US), pburst=peak.burst
            )
        )
