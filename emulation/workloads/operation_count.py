"""Counts operations of a forward and a backward pass, by PyTorch's own formulas.

`torch.utils.flop_counter.FlopCounterMode` counts the same, but importing what it calls takes longer than a small run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class OperationCount(TorchDispatchMode):
    """Within it, `total` grows by the floating-point operations that PyTorch executes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports PyTorch's compiler, to tell it that it isn't needed here

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Execute an operation, or those that it consists of where there is no formula for it."""
        options = kwargs or {}
        formula = flop_registry.get(operation._overloadpacket)
        if formula is None:
            with self:
                parts = operation.decompose(*args, **options)
            if parts is not NotImplemented:
                return parts
        result = operation(*args, **options)
        if formula is not None:
            self.total += formula(*args, **options, out_val=result)
        return result
