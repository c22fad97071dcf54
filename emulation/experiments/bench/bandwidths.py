"""The benchmark's arithmetic: bandwidths, sizes, spread. Pure; definitions in README.md here, limits in bounds.

Sizes are bytes of one rank's array, rates bits per second of whole Ethernet frames without FCS, bandwidths bytes per
second, times nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from emulation.results.results import percentile
from transport.group.method_name import MethodName, traffic

ITEM_BYTES = 4  # float32 and int32
LINK_SHARE = 0.97  # of the line rate on the wire: more means that the link was the bottleneck
CPU_IDLE_SHARE = 0.10  # of all CPUs: less means that they were the bottleneck
MEGABYTE = 1_000_000

MATRIX_SIZES = (4096, 65_536, 1_048_576, 25 * MEGABYTE, 67_108_864)
"""4 KB to 64 MB by a factor of 16, but DDP's 25 MB in place of 16 MB."""


@dataclass(frozen=True)
class Spread:
    """Middle and width of one measure. Quartiles are interpolated linearly."""

    count: int
    median: float
    p25: float
    p75: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    """`values` must not be empty."""
    return Spread(
        len(values),
        percentile(values, 0.5),
        percentile(values, 0.25),
        percentile(values, 0.75),
        min(values),
        max(values),
    )


def algbw(size_bytes: int, time_ns: float) -> float:
    """Size over time: S/t of nccl-tests."""
    return size_bytes * 1e9 / time_ns


def busbw(method: MethodName, size_bytes: int, time_ns: float, workers: int) -> float | None:
    """algbw × 2(n-1)/n for host methods, comparable with the link's rate; None for the switch, which sends once."""
    return None if method.is_switch else algbw(size_bytes, time_ns) * traffic(method.method, workers)


def sizes(least_bytes: int, most_bytes: int, factor: float) -> list[int]:
    """From -b to -e by -f, as whole elements; both ends are in if a power of the factor lies there.

    Raises ValueError for a range or factor that gives no list.
    """
    if least_bytes < ITEM_BYTES:
        raise ValueError(f"{least_bytes} bytes: at least {ITEM_BYTES}, one element")
    if most_bytes < least_bytes:
        raise ValueError(f"{most_bytes} bytes: less than the smallest, {least_bytes}")
    if factor <= 1:
        raise ValueError(f"factor {factor:g}: more than 1")
    sizes_bytes: list[int] = []
    size = float(least_bytes)
    while size <= most_bytes:
        size_bytes = int(size) - int(size) % ITEM_BYTES
        if not sizes_bytes or size_bytes > sizes_bytes[-1]:
            sizes_bytes.append(size_bytes)
        size *= factor
    return sizes_bytes


def parse_size(text: str) -> int:
    """Bytes of `4096`, `4K`, `25MB`, `64M`, `1G`: K, M and G are powers of 1024 as in nccl-tests, KB and MB of 1000.

    Raises ValueError.
    """
    units = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "B": 1}
    units |= {"KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}
    digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ").strip()
    unit = text.strip()[len(digits) :].strip().upper()
    try:
        value = float(digits) * units[unit]
    except (ValueError, KeyError):
        value = math.nan
    if not value >= ITEM_BYTES or math.isinf(value):
        raise ValueError(f"{text}: not a size; allowed: bytes, or with K, M, G (1024) or KB, MB, GB (1000), like 25MB")
    return int(value) - int(value) % ITEM_BYTES


def parse_rate(text: str) -> int:
    """Bits per second of `100e6`, `200M`, `1G`; 0 for `unshaped`. Raises ValueError."""
    if text.strip().lower() == "unshaped":
        return 0
    units = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
    word = text.strip().removesuffix("bit").removesuffix("b/s").removesuffix("bps").strip()
    unit = word[-1:].upper() if word[-1:].isalpha() else ""
    try:
        value = float(word[: len(word) - len(unit)]) * units[unit]
    except (ValueError, KeyError):
        value = math.nan
    if not 1e6 <= value <= 1e11:
        raise ValueError(f"{text}: not a rate; allowed: 1M to 100G (bits/s), like 200M, or unshaped")
    return round(value)


def limited_by(wire_share: float | None, idle_share: float | None) -> str:
    """The limit of a method: `link`, `cpu`, or `latency` where neither was busy; `unknown` without measurements.

    wire_share: bytes on the busier direction of a worker's link over what the rate allows; None: unshaped.
    """
    if wire_share is not None and wire_share >= LINK_SHARE:
        return "link"
    if idle_share is None:
        return "unknown"
    return "cpu" if idle_share < CPU_IDLE_SHARE else "latency"


def operations_for(budget_s: float, operation_s: float, least: int, most: int) -> int:
    """How many operations fit a time budget."""
    return max(least, min(most, int(budget_s / max(operation_s, 1e-9))))
