"""Arithmetic of a server on slices: in C where the compiled core is there, else in NumPy, with the same bits.

Values are memory of single bytes, of any alignment, that hold `dtype`. float32 and float64 are computed in their own
precision, one rounding per operation in the order written here, never fused; integers wrap.
"""

import ctypes
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from switchagg.native import headers, library
from switchagg.native.native_codec import DTYPES
from transport.meshes.mesh import Buffer

Array = NDArray[Any]

NATIVE_DTYPES = DTYPES[:4]

Step = headers.struct("sa_ps_step")
"""The servers' SGD: learning_rate, momentum, weight_decay, compensation. velocity is used if momentum isn't 0."""


class Arithmetic(Protocol):
    """The operations; `name` is "native" or "numpy"."""

    name: str

    def add(self, total: Buffer, values: Buffer, dtype: np.dtype[Any]) -> None:
        """total += values."""

    def divide(self, values: Buffer, divisor: int, dtype: np.dtype[Any]) -> None:
        """values /= divisor; of floats."""

    def step(self, step: Any, weights: Array, velocity: Array | None, backup: Array | None, gradient: Array) -> None:
        """A step of SGD, all arrays of one float type and length.

        backup given: g += λ·g·g·(w - backup), products from the left, and at the end backup = w. Then, where the
        factor isn't 0: g += decay·w; v = momentum·v + g, g = v. Last: w -= learning_rate·g. The gradient is kept.
        """


class NumpyArithmetic:
    """In NumPy: always there."""

    name = "numpy"

    def add(self, total: Buffer, values: Buffer, dtype: np.dtype[Any]) -> None:
        into = np.frombuffer(total, dtype)
        with np.errstate(all="ignore"):
            np.add(into, np.frombuffer(values, dtype), out=into)

    def divide(self, values: Buffer, divisor: int, dtype: np.dtype[Any]) -> None:
        into = np.frombuffer(values, dtype)
        with np.errstate(all="ignore"):
            np.divide(into, dtype.type(divisor), out=into)

    def step(self, step: Any, weights: Array, velocity: Array | None, backup: Array | None, gradient: Array) -> None:
        kind = weights.dtype.type
        with np.errstate(all="ignore"):
            if backup is not None:
                gradient = gradient + kind(step.compensation) * gradient * gradient * (weights - backup)
            if step.weight_decay:
                gradient = gradient + kind(step.weight_decay) * weights
            if velocity is not None:
                np.multiply(velocity, kind(step.momentum), out=velocity)
                np.add(velocity, gradient, out=velocity)
                gradient = velocity
            np.subtract(weights, kind(step.learning_rate) * gradient, out=weights)
        if backup is not None:
            backup[:] = weights


class NativeArithmetic:
    """In C, without the GIL. Raises library.CoreMissing."""

    name = "native"

    def __init__(self) -> None:
        loaded = library.load()
        self._add, self._divide, self._step = loaded.sa_ps_add, loaded.sa_ps_divide, loaded.sa_ps_step

    def add(self, total: Buffer, values: Buffer, dtype: np.dtype[Any]) -> None:
        into, other = np.frombuffer(total, np.uint8), np.frombuffer(values, np.uint8)
        assert into.size == other.size
        assert into.flags.writeable
        self._add(NATIVE_DTYPES.index(dtype), _address(into), _address(other), into.size // dtype.itemsize)

    def divide(self, values: Buffer, divisor: int, dtype: np.dtype[Any]) -> None:
        into = np.frombuffer(values, np.uint8)
        assert into.flags.writeable
        self._divide(NATIVE_DTYPES.index(dtype), _address(into), into.size // dtype.itemsize, divisor)

    def step(self, step: Any, weights: Array, velocity: Array | None, backup: Array | None, gradient: Array) -> None:
        for array in (weights, velocity, backup, gradient):
            assert array is None or (array.dtype == weights.dtype and array.size == weights.size)
        self._step(
            NATIVE_DTYPES.index(weights.dtype),
            ctypes.byref(step),
            _address(weights),
            None if velocity is None else _address(velocity),
            None if backup is None else _address(backup),
            _address(gradient),
            weights.size,
        )


def maximum(total: Buffer, values: Buffer, dtype: np.dtype[Any]) -> None:
    """total = max of total and values; NaN wins."""
    into = np.frombuffer(total, dtype)
    np.maximum(into, np.frombuffer(values, dtype), out=into)


@lru_cache(maxsize=1)
def fastest() -> Arithmetic:
    """C if it was built, else NumPy."""
    try:
        return NativeArithmetic()
    except library.CoreMissing:
        return NumpyArithmetic()


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
