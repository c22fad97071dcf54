"""Calls and bytes of every kind of collective, by the path they took."""

import threading

GLOO = "gloo"
"""The path of calls that Gloo carries out."""


class TrafficCounts:
    """Counts of calls and bytes by kind and path. It is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, dict[str, int]]] = {}

    def count(self, kind: str, path: str, size_bytes: int) -> None:
        """Another call. kind: as in switchagg.description, or "send" and the like. path: a method's name, or "gloo"."""
        with self._lock:
            count = self._counts.setdefault(kind, {}).setdefault(path, {"calls": 0, "bytes": 0})
            count["calls"] += 1
            count["bytes"] += size_bytes

    def counts(self) -> dict[str, dict[str, dict[str, int]]]:
        """kind -> path -> "calls" and "bytes" (of whole arrays: what a reduce-scatter takes, an all-gather gives)."""
        with self._lock:
            return {kind: {path: dict(count) for path, count in paths.items()} for kind, paths in self._counts.items()}
