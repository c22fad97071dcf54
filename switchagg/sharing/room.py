"""Which slots are free."""

from collections.abc import Iterable


def first_fit(count: int, slots: int, taken: Iterable[tuple[int, int]]) -> int | None:
    """First slot of the lowest free range of `count` of `slots`, or None. taken: (first, behind the last) of each."""
    first = 0
    for start, end in sorted(taken):
        if start - first >= count:
            return first
        first = max(first, end)
    return first if slots - first >= count else None
