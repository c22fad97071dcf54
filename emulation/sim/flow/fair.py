"""Max–min fair rates of flows that use several links at once, each link by its own share."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SATURATED = 1e-9
"""A link with less left than this of its capacity has nothing left."""


def max_min(use: Floats, most: Floats, left: Floats) -> Floats:
    """Speeds of flows, raised together by water-filling (Bertsekas and Gallager) until a link or a flow's own limit
    stops one; `left` is reduced by what they take.

    use (flows, links): of a link's capacity at speed 1. most: each flow's greatest speed. Flows rise by equal shares of
    the link that each uses most, so that those that meet at one link get equal rates there.
    """
    peak = use.max(axis=1, initial=0.0)
    speeds = np.where(peak > 0, 0.0, most)
    step = np.divide(1.0, peak, out=np.zeros_like(peak), where=peak > 0)
    rising = peak > 0
    while rising.any():
        load = (use * (step * rising)[:, None]).sum(axis=0)
        used = load > 0
        room = np.min(left[used] / load[used]) if used.any() else np.inf
        rise_to_own_limit = np.min((most[rising] - speeds[rising]) / step[rising])
        by = max(0.0, min(room, rise_to_own_limit))
        speeds += by * step * rising
        left -= by * load
        full = used & (left <= SATURATED)
        stopped = (speeds >= most - SATURATED) | use[:, full].any(axis=1)
        rising &= ~stopped
    return speeds


def by_priority(use: Floats, most: Floats, priorities: Sequence[int], links: int) -> Floats:
    """Speeds where more urgent flows, of lower priority numbers, take what they can before others get any."""
    left, speeds, order = np.ones(links), np.zeros(len(most)), np.asarray(priorities)
    for priority in sorted(set(priorities)):
        members = order == priority
        speeds[members] = max_min(use[members], most[members], left)
    return speeds
