"""Makes PyTorch know the backend's name; imports nothing heavy, since every `import torch` may run it."""

from typing import Any

NAME = "switchagg"


def register() -> None:
    """Register the backend "switchagg" for CPU and CUDA tensors. Idempotent; does nothing in a PyTorch without c10d.

    Entry point of the group torch.backends: PyTorch calls it at the end of `import torch`.
    """
    import torch.distributed as dist

    if dist.is_available() and NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, backend_options: Any) -> Any:
    from transport.torch.backend import create

    return create(options, backend_options)
