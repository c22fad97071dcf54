"""Groups: what every method offers to a program, over host methods or the switch.

Imported by users, torch and emulation; imports every room of transport but switch, testing and torch.
Start at group_opening.py (`open_group`), then host_group.py, switch_group.py, ps_group.py; method_name.py: how a method
is written. The contract that all keep: transport/contracts/group_contract.py.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Group": "transport.contracts.group_contract",
    "GroupOptions": "transport.group.group_opening",
    "open_group": "transport.group.group_opening",
    "own_shard": "transport.contracts.group_contract",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """The user's names, loaded when first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return vars(import_module(_HOMES[name]))[name]
