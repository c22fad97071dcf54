"""The parts of training that error feedback needs: parameters' names, changes of learning rates, checkpoints."""

import math
import re
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, cast

import numpy as np
import torch

from switchagg.codecs.array_codec import Tensor
from switchagg.codecs.compression import Compression
from transport.ps.coded import CodedPushes


def tensor_of(name: str, values: torch.Tensor) -> Tensor:
    """The tensor as codecs name it. A complex number is two values."""
    return Tensor(name, (*values.shape, 2) if values.is_complex() else tuple(values.shape))


class RateFollower:
    """Keeps residuals in step with an optimiser's learning rates.

    The residual of a sum stays a gradient, and will be multiplied by the rate of the step that it takes part in; it is
    owed at the rate of the step that lost it. names: of its parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> None:
        self._optimizer = optimizer
        self._names = [
            [names[parameter] for parameter in group["params"] if parameter in names]
            for group in optimizer.param_groups
        ]
        self._rates = self._now()

    def _now(self) -> list[float]:
        return [float(group["lr"]) for group in self._optimizer.param_groups]

    def follow(self, compression: Compression | None) -> None:
        """Call it before an iteration's first sum. A rate of 0 is passed over: the next is compared with the last."""
        if compression is None:
            return
        for number, (old, new) in enumerate(zip(self._rates, self._now(), strict=False)):
            if new not in (0.0, old):
                compression.rescale(old / new, self._names[number])
                self._rates[number] = new


def codec_state(compression: Compression | CodedPushes | None) -> dict[str, Any]:
    """The state of a rank's codec, for a checkpoint of that rank; {} without a codec. It has tensors in place of
    arrays, for `torch.load(weights_only=True)`."""
    return {} if compression is None else cast(dict[str, Any], _saved(compression.state_dict()))


def load_codec_state(compression: Compression | CodedPushes | None, state: Mapping[str, Any]) -> None:
    """Load the state that `codec_state` gave. It raises ValueError for a state of another codec, or another rank."""
    saved_codec = state["codec"] if state else "none"
    if saved_codec != str(compression or "none"):
        raise ValueError(f"a state of codec {saved_codec}; this is {compression or 'none'}")
    if compression is not None:
        compression.load_state_dict(_loaded(state))


def recut(state: Mapping[str, Any], tensors: Sequence[Tensor]) -> dict[str, Any]:
    """A codec's state where parameters are cut into these slices from now on: a value keeps its residual.

    An array codec's own memory of a tensor, as PowerSGD has it, stays only where the tensor is cut as before.
    """
    counts: dict[str, int] = {}
    for name, count in state["sums"].items():
        parameter = _cut(name)[0]
        counts[parameter] = max(counts.get(parameter, 0), count)
    places = [(tensor, *_cut(tensor.name)) for tensor in tensors]
    memories: dict[str, dict[str, Any]] = {}
    for kind, arrays in state["kept"].items():
        parts: dict[str, list[tuple[int, Any]]] = {}
        for name, values in arrays.items():
            parameter, low = _cut(name)
            parts.setdefault(parameter, []).append((low, values))
        joined = {
            parameter: np.concatenate([v for _, v in sorted(pieces, key=itemgetter(0))])
            for parameter, pieces in parts.items()
        }
        memories[kind] = {
            tensor.name: joined[parameter][low : low + math.prod(tensor.shape)]
            for tensor, parameter, low in places
            if parameter in joined
        }
    names = {tensor.name for tensor in tensors}
    sums = {tensor.name: counts[parameter] for tensor, parameter, _ in places if parameter in counts}
    memory = {name: entry for name, entry in state["memory"].items() if name in names}
    return {**state, "sums": sums, "kept": memories, "memory": memory}


def _cut(name: str) -> tuple[str, int]:
    """The parameter that a tensor is of, and where in it it begins (`Tensor.part`)."""
    match = re.fullmatch(r"(.*)\[(\d+):\d+\]", name)
    return (match[1], int(match[2])) if match else (name, 0)


def _saved(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {key: _saved(value) for key, value in state.items()}
    return torch.from_numpy(state.copy()) if isinstance(state, np.ndarray) else state


def _loaded(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {key: _loaded(value) for key, value in state.items()}
    return state.numpy().copy() if isinstance(state, torch.Tensor) else state
