"""Overlap across iterations: the next forward pass begins when its first layers' sums are back.

Imported by users and emulation: `from transport.torch import priority`, `priority.attach(...)`.
Start at handle.py.
"""

from typing import Any

__all__ = ["AttachOptions", "PriorityHandle", "attach"]


def __getattr__(name: str) -> Any:
    """The user's names, loaded when first used."""
    if name in __all__:
        from transport.torch.priority import handle

        return vars(handle)[name]
    raise AttributeError(f"module 'transport.torch.priority' has no attribute '{name}'")
