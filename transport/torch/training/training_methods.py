"""The table of all training methods; reading one as it is written, and attaching it."""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from switchagg.option_syntax import parse
from transport.torch.training.cd_sgd import CdSgd
from transport.torch.training.diloco import DiLoCo
from transport.torch.training.dpsgd import DPsgd
from transport.torch.training.easgd import Easgd
from transport.torch.training.local_sgd import LocalSgd, PostLocalSgd
from transport.torch.training.od_sgd import OdSgd
from transport.torch.training.replica import Replica
from transport.torch.training.streaming_diloco import StreamingDiLoCo
from transport.torch.training.training_method import AttachedMethod, TrainingMethod

METHODS: dict[str, type[TrainingMethod]] = {
    method.name: method for method in (LocalSgd, PostLocalSgd, DiLoCo, StreamingDiLoCo, Easgd, DPsgd, OdSgd, CdSgd)
}
"""All training methods, by name."""


def parse_method(text: str) -> TrainingMethod:
    """The method that `text` names, with its options and perhaps a codec: `cd_sgd:period=5~ternary`. Raises ValueError,
    one line that lists what is allowed."""
    options, tilde, codec = text.partition("~")
    method = parse("training method", options, METHODS)
    if tilde and not codec:
        raise ValueError(f"training method {method.name}: a codec follows '~'")
    return replace(method, codec=codec)


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    method: TrainingMethod | str,
    group: dist.ProcessGroup | None = None,
) -> AttachedMethod:
    """Let `optimizer.step()` synchronise by this method from now on, in place of DDP. All ranks must call it.

    model: as it is, or in DDP, which then sums gradients in the synchronous steps alone. It gets rank 0's parameters
    and buffers, so checkpoints are loaded afterwards. group: default DDP's, or torch's default one. Raises ValueError
    for a model that can't be trained so and for ranks that differ, DistBackendError where a collective fails.
    """
    chosen = parse_method(method) if isinstance(method, str) else method
    replica = Replica(model, optimizer, group, chosen.name)
    if chosen.spec is not None:
        replica.use_codec(chosen.spec)
    replica.agree(str(chosen))
    replica.check_group(chosen.exactly)
    replica.share()
    attached = chosen.begin(replica)
    attached.start()
    return attached
