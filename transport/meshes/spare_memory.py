"""SpareMemory: memory for messages, reused once nothing refers to it.

Fresh memory costs a page fault for every 4 KB, as much as receiving into it. A user just drops its reference:
before it is given out again, the interpreter is asked whether anything still refers to it.
"""

import sys

import numpy as np
from numpy.typing import NDArray

SPARES_MAX = 32
SPARE_BYTES_MAX = 16 << 20


class SpareMemory:
    """Only letting go is thread-safe. At most SPARES_MAX pieces of together SPARE_BYTES_MAX are kept."""

    def __init__(self) -> None:
        self._spares: list[NDArray[np.uint8]] = [np.empty(1, np.uint8)]
        for _, spare in enumerate(self._spares):
            self._unused = sys.getrefcount(spare)  # what the interpreter counts for one without users, in such a loop
        del spare
        self._spares.clear()
        self._bytes = 0

    def take(self, size_bytes: int) -> memoryview:
        """Writable memory of this size, with anything in it."""
        spares, unused, references = self._spares, self._unused, sys.getrefcount
        short = -1  # one that is free and too short
        for place, spare in enumerate(spares):  # always from the first on: it is the likeliest to be in the cache
            if references(spare) <= unused:
                if len(spare) >= size_bytes:
                    return spare.data[:size_bytes]
                short = place
        array = np.empty(size_bytes, np.uint8)
        if short >= 0:
            self._bytes -= len(spares.pop(short))
        if len(spares) < SPARES_MAX and self._bytes + size_bytes <= SPARE_BYTES_MAX:
            self._bytes += size_bytes
            spares.append(array)
        return array.data
