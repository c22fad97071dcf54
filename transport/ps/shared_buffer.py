"""Pool: memory for slices, used again, so that a server doesn't ask the kernel for fresh pages at every push."""

from collections import defaultdict

import numpy as np

POOL_BYTES_MAX = 64 << 20
"""Free memory that is kept; more goes back to the system."""


class SharedBuffer:
    """Memory with a number of users; free for others when the last one has released it."""

    __slots__ = ("users", "view")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.users = 1


class Pool:
    """Hands out memory of single bytes, with undefined content."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[memoryview]] = defaultdict(list)
        self._free_bytes = 0
        self.used_bytes = 0

    def take(self, size_bytes: int) -> SharedBuffer:
        """Memory with one user."""
        self.used_bytes += size_bytes
        free = self._free.get(size_bytes)
        if free:
            self._free_bytes -= size_bytes
            return SharedBuffer(free.pop())
        return SharedBuffer(np.empty(size_bytes, np.uint8).data)

    def release(self, shared: SharedBuffer) -> None:
        """Remove a user."""
        shared.users -= 1
        assert shared.users >= 0
        if shared.users:
            return
        size_bytes = len(shared.view)
        self.used_bytes -= size_bytes
        if size_bytes and self._free_bytes + size_bytes <= POOL_BYTES_MAX:
            self._free[size_bytes].append(shared.view)
            self._free_bytes += size_bytes
