"""Arrays of which only the length is simulated: for times and bytes, where nobody asks for values."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


@dataclass(frozen=True)
class Hollow:
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

    def zeros(self) -> NDArray[Any]:
        """An array like it, for what needs values."""
        return np.zeros(self.size, self.dtype)
