"""The memory of a rank of each parameter between sums: error feedback, EF21, momentum correction.

Kept by the tensor's name, not by the array it came in: PyTorch rebuilds its buckets after the first step. Each of these
changes an array before it is summed, and what is kept after it; `residual` is what the codec writes in between: what
its codes don't hold. A NaN or an infinity goes through to the result and is forgotten, with what was kept beside it:
loops that skip such a step go on.
"""

import math
from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np

from switchagg.codecs.array_codec import ArrayCodec, Tensor
from switchagg.codecs.codec import Array
from switchagg.codecs.spec import CodecSpec

Parts = tuple[Tensor, ...]
"""The tensors of an array."""


class TensorMemory:
    """float32 values of each tensor, zeros at first, in memory as the arrays have it that they belong to."""

    def __init__(self) -> None:
        self._of: dict[str, Array] = {}
        self._arrays: dict[Parts, Array] = {}

    def values_of(self, tensors: Parts) -> Array:
        """The values of these tensors, one behind the other; valid until a call that has them in another order."""
        if (array := self._arrays.get(tensors)) is not None:
            return array
        sizes = [math.prod(tensor.shape) for tensor in tensors]
        together, low = np.zeros(sum(sizes), np.float32), 0
        for tensor, size in zip(tensors, sizes, strict=True):
            part = together[low : low + size]
            if (old_values := self._of.get(tensor.name)) is not None:
                part[:] = old_values
            self._of[tensor.name] = part
            low += size
        names = {tensor.name for tensor in tensors}
        stale = [parts for parts in self._arrays if any(tensor.name in names for tensor in parts)]
        for parts in stale:
            del self._arrays[parts]
        self._arrays[tensors] = together
        return together

    def scale(self, factor: float, names: Collection[str] | None) -> None:
        for name, part in self._of.items():
            if is_of(name, names):
                part *= np.float32(factor)

    def state(self) -> dict[str, Array]:
        """A copy, by name."""
        return {name: part.copy() for name, part in self._of.items()}

    def load(self, state: Mapping[str, Array]) -> None:
        self._arrays.clear()
        self._of = {name: np.array(part, np.float32).reshape(-1) for name, part in state.items()}


def is_of(name: str, names: Collection[str] | None) -> bool:
    """Whether a tensor is one of these parameters, or a slice of one; None: of any."""
    return names is None or name in names or name.rpartition("[")[0] in names


class Feedback(Protocol):
    """Around a sum. memories: by their names in a saved state."""

    memories: dict[str, TensorMemory]

    def before(self, array: Array, tensors: Parts, exact: bool) -> Array | None:
        """Turn the array into what is to be summed, in place; where its residual goes. exact: nothing will be lost."""

    def after(self, array: Array, tensors: Parts, exact: bool) -> None:
        """Turn the sum into the result, in place."""

    def rescale(self, factor: float, names: Collection[str] | None) -> None:
        """Rescale memories in units of a learning rate that was `factor` times the one from now on.
        names: of parameters; None: all."""


def _forget(where: Array, *arrays: Array) -> None:
    """Set what is kept to 0 where this is no finite number."""
    with np.errstate(all="ignore"):
        finite = np.isfinite(np.add.reduce(where))  # one cheap pass; it may overflow, then the next one tells
    if not finite:
        bad = ~np.isfinite(where)
        for array in arrays:
            array[bad] = 0


def clip(array: Array, tensors: Parts, norm: float) -> None:
    """Shorten each tensor that is longer than this, in place."""
    low = 0
    for tensor in tensors:
        part = array[low : low + math.prod(tensor.shape)]
        low += len(part)
        length = math.sqrt(np.square(part, dtype=np.float64).sum())
        if length > norm:
            part *= np.float32(norm / length)


class ErrorFeedback:
    """v = g + e is summed; e <- what was lost of v (EF). checked: the codec leaves no NaN in it."""

    def __init__(self, checked: bool) -> None:
        self._residual, self._checked = TensorMemory(), checked
        self.memories = {"residual": self._residual}

    def before(self, array: Array, tensors: Parts, exact: bool) -> Array | None:
        if exact:
            return None
        residual = self._residual.values_of(tensors)
        array += residual
        return residual

    def after(self, array: Array, tensors: Parts, exact: bool) -> None:
        if not exact and not self._checked:
            residual = self._residual.values_of(tensors)
            _forget(residual, residual)

    def rescale(self, factor: float, names: Collection[str] | None) -> None:
        self._residual.scale(factor, names)


class MomentumCorrection:
    """u <- m u + g, v <- v + u; v is summed, and what was lost of it stays (DGC). masks: u of what was sent is
    forgotten. nesterov: u <- m (u + g), v <- v + u + g."""

    def __init__(self, momentum: float, masks: bool, nesterov: bool = False) -> None:
        self._momentum, self._masks, self._nesterov = np.float32(momentum), masks, nesterov
        self._velocity, self._residual = TensorMemory(), TensorMemory()
        self.memories = {"velocity": self._velocity, "residual": self._residual}

    def before(self, array: Array, tensors: Parts, exact: bool) -> Array | None:
        velocity, residual = self._velocity.values_of(tensors), self._residual.values_of(tensors)
        if self._nesterov:
            velocity += array
            velocity *= self._momentum
            residual += array
        else:
            velocity *= self._momentum
            velocity += array
        residual += velocity
        array[:] = residual
        if exact:
            residual[:] = 0
        return residual

    def after(self, array: Array, tensors: Parts, exact: bool) -> None:
        velocity, residual = self._velocity.values_of(tensors), self._residual.values_of(tensors)
        if self._masks and not exact:
            velocity[residual == 0] = 0
        _forget(velocity, velocity, residual)
        _forget(residual, velocity, residual)

    def rescale(self, factor: float, names: Collection[str] | None) -> None:
        self._residual.scale(factor, names)


class Difference:
    """d = g - h is summed; h <- h + what was sent of d, H <- H + the sum, and H is the result (EF21). Where nothing is
    lost, h = g."""

    def __init__(self) -> None:
        self._estimate, self._total, self._lost = TensorMemory(), TensorMemory(), TensorMemory()
        self.memories = {"own": self._estimate, "total": self._total}

    def before(self, array: Array, tensors: Parts, exact: bool) -> Array | None:
        estimate = self._estimate.values_of(tensors)
        if exact:
            estimate[:] = array
            return None
        array -= estimate
        estimate += array
        return self._lost.values_of(tensors)

    def after(self, array: Array, tensors: Parts, exact: bool) -> None:
        estimate, total = self._estimate.values_of(tensors), self._total.values_of(tensors)
        if exact:
            total[:] = array
        else:
            estimate -= self._lost.values_of(tensors)
            total += array
            array[:] = total
        _forget(array, estimate, total)  # the same on all ranks, so that H stays the sum of all h

    def rescale(self, factor: float, names: Collection[str] | None) -> None:
        """They are estimates of gradients, in no unit of a rate."""


def feedback_of(spec: CodecSpec) -> Feedback | None:
    """A new one; None: the spec has none."""
    codec = spec.codec
    if spec.momentum:
        flags = (codec.masks, codec.nesterov > 0) if isinstance(codec, ArrayCodec) else (False, False)
        return MomentumCorrection(spec.momentum, *flags)
    if spec.feedback == "ef":
        return ErrorFeedback(not isinstance(codec, ArrayCodec))
    return Difference() if spec.feedback == "ef21" else None
