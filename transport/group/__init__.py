"""Groups: what every method offers to a program, over host methods or the switch.

Imported by users, torch and emulation.
Start at host_group.py (the contract, `open_group`); method_name.py: how a method is written.
"""

from typing import Any

__all__ = ["Group", "HostGroup", "open_group", "own_shard"]


def __getattr__(name: str) -> Any:
    """The user's names, loaded when first used."""
    if name in __all__:
        from transport.group import host_group

        return getattr(host_group, name)
    raise AttributeError(f"module 'transport.group' has no attribute '{name}'")
