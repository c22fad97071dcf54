"""Makes PyTorch know the backend's name; imports nothing heavy, since every `import torch` may run it."""

import warnings
from typing import Any

NAME = "switchagg"


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

    from transport.contracts.torch_version import too_old

    if fault := too_old(torch.__version__):
        raise RuntimeError(f"backend {NAME}: PyTorch {torch.__version__} is {fault}")

    from transport.torch.backend import create

    return create(options, backend_options)
