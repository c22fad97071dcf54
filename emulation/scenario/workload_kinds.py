"""The workloads, an entry each. Importing the table loads none of them, and no PyTorch: scenarios are checked by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DDP, FSDP, TP = "ddp", "fsdp", "tp"
"""How ranks share a model: each has all of it; each has a shard of every parameter, gathered when it is needed; each
computes with some columns and rows of every layer."""


@dataclass(frozen=True)
class WorkloadKind:
    """A workload, as other modules know it. parallel: DDP, FSDP or TP. workers: allowed numbers; (): any number.

    make: returns its LearningTask, or is "module:attribute", which `workloads/workload.py` imports. samples: size of
    its training data, if that is the same on every machine, so that too large a batch is refused at once; None: it
    isn't.
    """

    name: str
    make: str | Callable[[], Any]
    samples: int | None = None
    unit: str = "samples"
    parallel: str = DDP
    workers: tuple[int, ...] = ()


WORKLOADS: dict[str, WorkloadKind] = {
    kind.name: kind
    for kind in (
        WorkloadKind("digits", "emulation.workloads.tasks.digits:DigitsTask", samples=1437, unit="images"),
        WorkloadKind("images", "emulation.workloads.tasks.images:ImagesTask", samples=8192, unit="images"),
        WorkloadKind("text", "emulation.workloads.tasks.text:TextTask"),
        WorkloadKind("small_text", "emulation.workloads.tasks.text:SmallTextTask"),
        WorkloadKind("fsdp", "emulation.workloads.tasks.text:TextTask", parallel=FSDP),
        WorkloadKind("tp", "emulation.workloads.tasks.text_tensor:TensorTextTask", parallel=TP, workers=(2, 4, 8)),
    )
}


def workload_names() -> tuple[str, ...]:
    return tuple(WORKLOADS)
