"""Groups: what every method offers to a program, over host methods or the switch.

Imported by users, torch and emulation.
Start at contract.py, then opening.py (`open_group`); method_name.py: how a method is written.
"""

from importlib import import_module
from typing import Any

_HOMES = {"Group": "contract", "GroupOptions": "group_opening", "open_group": "group_opening", "own_shard": "contract"}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """The user's names, loaded when first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return vars(import_module(f"{__name__}.{_HOMES[name]}"))[name]
