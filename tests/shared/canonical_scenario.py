"""A scenario built again from what results hold of it: so tests see that nothing of it is lost."""

from typing import Any

from emulation.scenario.scenario import Scenario, _build


def from_canonical(values: dict[str, Any]) -> Scenario:
    """The scenario that `canonical` gave as plain values; also as JSON has them."""
    tables = {
        name: {
            key: list(value) if isinstance(value, tuple) else value for key, value in table.items() if value is not None
        }
        for name, table in values.items()
        if isinstance(table, dict)
    }
    return _build({**values, **tables}, "scenario")
