"""Training that outlives its ranks: a rank that dies costs a step, and one that comes (back) joins between two steps.

SWITCHAGG_ELASTIC=1 (or `SwitchOptions(elastic=1)`), alike on all ranks, makes the default group elastic: 1 is the least
number of ranks with which training goes on. `ElasticTraining` is the loop's side of it; start at
`elastic_training.py`. `membership_rounds.py` decides, over PyTorch's store, who the ranks of the next generation are;
`torchft_group.py` is the same backend as a process group of torchft, imported only by who has that.

The store must outlive the ranks: a TCPStore of the launcher (`host_store`), or of an agent that doesn't end all ranks
when one dies, not that of rank 0.
"""

from typing import Any

__all__ = ["ElasticTraining", "host_store"]

_HOMES = {"ElasticTraining": "elastic_training", "host_store": "launch_store"}


def __getattr__(name: str) -> Any:
    """Imported on first use: the process group needs only who the members are."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
