"""Arrays of which only the length is simulated: for times and bytes, where nobody asks for values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray


@dataclass(frozen=True)
class SizeOnlyArray:
    """`size` elements of dtype, as a flat array has them, and no memory. ValueError for a negative size."""

    size: int
    dtype: "np.dtype[Any]"

    def __init__(self, size: int, dtype: DTypeLike) -> None:
        if size < 0:
            raise ValueError(f"size must be 0 or more, not {size}")
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "dtype", np.dtype(dtype))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> "SizeOnlyArray":
        return SizeOnlyArray(len(range(*part.indices(self.size))), self.dtype)

    def __setitem__(self, part: slice, values: object) -> None:
        """There are no values to set."""

    def __itruediv__(self, divisor: float) -> "SizeOnlyArray":
        return self

    def zeros(self) -> NDArray[Any]:
        """An array like it, for what needs values."""
        return np.zeros(self.size, self.dtype)


Array = TypeVar("Array", NDArray[np.float32], SizeOnlyArray)


def joined(parts: Sequence[Array]) -> Array:
    """An array that joins several, all size-only or none; a single array is returned as it is."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, SizeOnlyArray):
        return SizeOnlyArray(sum(len(part) for part in parts), first.dtype)
    return np.concatenate(parts)
