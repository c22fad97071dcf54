"""Makes PyTorch know the backend's name; imports nothing heavy, since every `import torch` may run it."""

import re
import warnings
from typing import Any

NAME = "switchagg"

LEAST = (2, 11)
"""The oldest PyTorch that has what is used here; pyproject.toml and docs/pytorch.md say the same."""


def too_old(version: str) -> str:
    """The remedy for a PyTorch of this version, like "2.13.0+cpu", in a line; "" if it is new enough."""
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    least = ".".join(map(str, LEAST))
    return "" if numbers >= LEAST else f"older than {least}, which switchagg needs; run: pip install 'torch>={least}'"


def register() -> None:
    """Register the backend "switchagg" for CPU and CUDA tensors. Idempotent; does nothing in a PyTorch without c10d.

    Entry point of the group torch.backends: PyTorch calls it at the end of `import torch`, which an exception from
    here would break for every program; so it warns.
    """
    import torch.distributed as dist

    try:
        if dist.is_available() and not hasattr(dist.Backend, NAME.upper()):
            dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    except Exception as error:
        warnings.warn(f"PyTorch did not take the backend {NAME}: {type(error).__name__}: {error}", stacklevel=2)


def _create(options: Any, backend_options: Any) -> Any:
    import torch

    if fault := too_old(torch.__version__):
        raise RuntimeError(f"backend {NAME}: PyTorch {torch.__version__} is {fault}")

    from transport.torch.backend import create

    return create(options, backend_options)
