"""Training methods: what ranks exchange, and how often. A line takes the place of DDP, or stands behind it:

    from transport.torch import training

    method = training.attach(model, optimizer, "local_sgd:period=8")
    ...                     # the loop as it is: zero_grad, forward, backward, step
    method.finish()         # all ranks have the same parameters: evaluate, save

Imported by users and emulation. They call torch.distributed alone, so they work with every backend. Start at
training_method.py; training_methods.py has all of them.
"""

from typing import Any

__all__ = [
    "METHODS",
    "CdSgd",
    "DPsgd",
    "DiLoCo",
    "Easgd",
    "LocalSgd",
    "OdSgd",
    "PostLocalSgd",
    "StreamingDiLoCo",
    "attach",
    "parse_method",
]


def __getattr__(name: str) -> Any:
    """The user's names, loaded when first used."""
    if name in __all__:
        from transport.torch.training import training_methods

        return vars(training_methods)[name]
    raise AttributeError(f"module 'transport.torch.training' has no attribute '{name}'")
