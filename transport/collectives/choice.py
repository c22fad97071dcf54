"""`auto`: which algorithm an allreduce should take, by its size, the number of workers, and α and β as measured.

All ranks must choose alike: rank 0 measures, fits and sends α and β; every rank then makes the same `Choice` of them,
which is a function of nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from transport.collectives.collective import LinkCost
from transport.collectives.collective_table import COLLECTIVES
from transport.collectives.cost import predict
from transport.collectives.programs import SEGMENT_BYTES

CANDIDATES = tuple(name for name, collective in COLLECTIVES.items() if collective.in_auto)
"""In order of preference among equals. Trees and naive rings never win; a torus or groups win only where links differ,
which two numbers can't express; parameter servers are used only when they are named."""

SIZES_BYTES = (0, 1_024, 8_192, 65_536, 262_144, 1_048_576)
"""Messages to measure with: the small ones show the latency, the large ones the rate."""

PREFERENCE = 1.02
"""An earlier candidate is kept unless a later one is faster by more than this: no fit is better."""


def fit(measured: Sequence[tuple[int, float]]) -> LinkCost:
    """α and β of (bytes, seconds one way), repeated or not, by least squares on relative errors.

    The median of each size counts, so that a few late measurements don't. Raises ValueError without two sizes.
    """
    by_size: dict[int, list[float]] = {}
    for size_bytes, seconds in measured:
        if size_bytes < 0 or not (seconds > 0 and math.isfinite(seconds)):
            raise ValueError(f"{size_bytes} bytes in {seconds} s is no measurement")
        by_size.setdefault(size_bytes, []).append(seconds)
    if len(by_size) < 2:
        raise ValueError("measurements of two sizes at least")
    points = [(size, sorted(times)[len(times) // 2]) for size, times in sorted(by_size.items())]
    # Weights 1/t²: otherwise the largest message alone would decide, and α is seen only in the small ones.
    weight = sum(1 / t**2 for _, t in points)
    mean_size = sum(size / t**2 for size, t in points) / weight
    mean_time = sum(1 / t for _, t in points) / weight
    spread = sum((size - mean_size) ** 2 / t**2 for size, t in points)
    beta = sum((size - mean_size) * (t - mean_time) / t**2 for size, t in points) / spread
    beta = max(beta, 1e-15)
    return LinkCost(max(mean_time - beta * mean_size, 0.0), beta)


def to_words(link: LinkCost) -> tuple[int, int]:
    """α in ns and β in 10⁻¹⁵ s per byte, as rank 0 sends them: whole numbers, so that all ranks compute the same."""
    return round(link.alpha_s * 1e9), round(link.beta_s * 1e15)


@dataclass(frozen=True)
class AlgorithmChoice:
    """The choice for a number of workers. alpha_ns, beta_fs_per_byte: as `to_words` gives them."""

    workers: int
    alpha_ns: int
    beta_fs_per_byte: int
    segment_bytes: int = SEGMENT_BYTES

    @property
    def link(self) -> LinkCost:
        return LinkCost(self.alpha_ns / 1e9, self.beta_fs_per_byte / 1e15)

    def algorithm(self, size_bytes: int) -> str:
        """The fastest by the model, for an allreduce of so many bytes."""
        return _choose(self, size_bytes)[0]

    def words(self, size_bytes: int) -> str:
        """The collective chosen for a size and the reason, in one line."""
        chosen, predictions = _choose(self, size_bytes)
        slower = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in predictions.items() if name != chosen)
        return (
            f"auto: {chosen} for {size_bytes} bytes on {self.workers} workers: {1e3 * predictions[chosen]:.3g} ms by "
            f"the model with a latency of {self.alpha_ns / 1e3:.4g} us and {8e-9 / self.link.beta_s:.3g} Gb/s"
            + (f" ({slower})" if slower else "")
        )


@lru_cache(4096)
def _choose(choice: AlgorithmChoice, size_bytes: int) -> tuple[str, dict[str, float]]:
    link = choice.link
    predictions = {
        name: predict(name, choice.workers, size_bytes, link, segment_bytes=choice.segment_bytes) for name in CANDIDATES
    }
    chosen = CANDIDATES[0]
    for name in CANDIDATES[1:]:
        if predictions[name] * PREFERENCE < predictions[chosen]:
            chosen = name
    return chosen, predictions
