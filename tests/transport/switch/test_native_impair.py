"""Faults in C: each packet's fate is a function of seed, port, direction and number, and of nothing else."""

import ctypes
from math import exp, lgamma, log, log1p

import numpy as np
import pytest

from switchagg.native import library

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")

LOST, CORRUPTED, DUPLICATED, HELD_BACK = 1, 2, 4, 8
PACKETS = 20_000
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


class Fate(ctypes.Structure):
    _fields_ = [("mishaps", ctypes.c_uint32), ("copies", ctypes.c_uint32), ("late_ns", ctypes.c_int64 * 2)]


FateOf = tuple[int, int, int, int]
"""mishaps, copies, and how late both are."""


def fates(count: int = PACKETS, seed: int = 1, port: int = 0, direction: int = 0, **faults: float) -> list[FateOf]:
    from transport.switch.impairments import LinkImpairments
    from transport.switch.native_switch_loop import impairment_config

    c = library.load()
    c.sa_impair_key.restype = ctypes.c_uint64
    c.sa_impair_key.argtypes = [ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32]
    c.sa_fate_of.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p]
    config = impairment_config(LinkImpairments(**faults))  # type: ignore[arg-type]
    key, fate, drawn = c.sa_impair_key(seed, port, direction), Fate(), []
    for number in range(count):
        c.sa_fate_of(ctypes.byref(config), key, number, ctypes.byref(fate))
        drawn.append((fate.mishaps, fate.copies, *fate.late_ns))
    return drawn


def mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def model(
    count: int, seed: int, port: int, direction: int, share: float, delay: int, jitter: int, span: int
) -> list[FateOf]:
    """The same by the definition in impair.h, every probability being `share`."""
    key = mix(mix(seed + GOLDEN & MASK) + (port << 1 | direction) & MASK)
    drawn: list[FateOf] = []
    for number in range(count):
        packet = mix(key + number * GOLDEN & MASK)
        draws = [mix(packet + which * GOLDEN & MASK) for which in range(9)]
        loss, corrupt, duplicate, reorder = (d >> 1 < round(share * (1 << 63)) for d in draws[1:5])
        if loss or corrupt:
            drawn.append((LOST if loss else CORRUPTED, 0, 0, 0))
            continue
        first, second = (delay + d % (jitter + 1) for d in draws[7:9])
        first += 1 + draws[6] % span if reorder else 0
        second += draws[5] % span if duplicate else 0
        drawn.append((DUPLICATED * duplicate + HELD_BACK * reorder, 1 + duplicate, first, second))
    return drawn


def binomial_bounds(trials: int, share: float, risk: float = 1e-9) -> tuple[int, int]:
    """The smallest interval of counts outside of which each tail has less than `risk`, by summing the distribution."""
    terms = [
        exp(lgamma(trials + 1) - lgamma(k + 1) - lgamma(trials - k + 1) + k * log(share) + (trials - k) * log1p(-share))
        for k in range(trials + 1)
    ]
    below = np.cumsum(terms)
    above = np.cumsum(terms[::-1])
    return int(np.argmax(below >= risk)), trials - int(np.argmax(above >= risk))


@pytest.mark.parametrize("port", [0, 7])
@pytest.mark.parametrize("direction", [0, 1])
def test_faults_follow_the_definition_on_every_machine(port: int, direction: int) -> None:
    share, delay, jitter, span = 0.1875, 1_000_000, 50_000, 12_345
    faults = {"loss": share, "corrupt": share, "duplicate": share, "reorder": share}
    got = fates(2_000, 42, port, direction, **faults, delay_ns=delay, jitter_ns=jitter, span_ns=span)
    assert got == model(2_000, 42, port, direction, share, delay, jitter, span)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("share", [0.001, 0.05, 0.5])
@pytest.mark.parametrize(
    ("kind", "mishap"),
    [("loss", LOST), ("corrupt", CORRUPTED), ("duplicate", DUPLICATED), ("reorder", HELD_BACK)],
)
def test_faults_are_as_frequent_as_configured(kind: str, mishap: int, share: float, seed: int) -> None:
    happened = sum(fate[0] == mishap for fate in fates(seed=seed, **{kind: share}))
    least, most = binomial_bounds(PACKETS, share)
    assert least <= happened <= most


def test_never_and_always_are_exact() -> None:
    assert {fate[:2] for fate in fates(delay_ns=5)} == {(0, 1)}
    assert {fate[:2] for fate in fates(loss=1.0)} == {(LOST, 0)}
    assert {fate[:2] for fate in fates(corrupt=1.0)} == {(CORRUPTED, 0)}
    assert {fate[:2] for fate in fates(duplicate=1.0, reorder=1.0)} == {(DUPLICATED | HELD_BACK, 2)}


def test_one_more_kind_of_fault_changes_no_other() -> None:
    def numbers(mishap: int, **faults: float) -> set[int]:
        return {n for n, fate in enumerate(fates(**faults)) if fate[0] & mishap}

    lost = numbers(LOST, loss=0.1)
    assert numbers(LOST, loss=0.1, corrupt=0.2, duplicate=0.3, reorder=0.1, jitter_ns=100) == lost
    assert numbers(DUPLICATED, loss=0.1, duplicate=0.3) == numbers(DUPLICATED, duplicate=0.3) - lost


def test_ports_directions_and_seeds_have_independent_faults() -> None:
    drawn = [
        tuple(fate[0] for fate in fates(500, seed, port, direction, loss=0.3))
        for seed in (0, 1)
        for port in (0, 1)
        for direction in (0, 1)
    ]
    assert len(set(drawn)) == 8


def test_delays_cover_their_range() -> None:
    late = [fate[2] for fate in fates(delay_ns=1_000, jitter_ns=9)]
    assert set(late) == set(range(1_000, 1_010))
    held = [fate[2] for fate in fates(reorder=1.0, span_ns=5)]
    assert set(held) == {1, 2, 3, 4, 5}
    copies = [fate[3] for fate in fates(duplicate=1.0, span_ns=5)]
    assert set(copies) == {0, 1, 2, 3, 4}


def test_the_checksum_finds_every_burst_of_up_to_15_bits() -> None:
    """P5: why a corrupted packet is a dropped one. All bursts, at all places in two words, over many contents."""
    words = np.concatenate([np.random.default_rng(5).integers(0, 1 << 32, 60, np.uint64), [0, (1 << 32) - 1, 0xFFFF]])
    bursts = np.arange(1, 1 << 15, 2, dtype=np.uint64)  # the first bit is flipped

    def ones_sum(values: np.ndarray) -> np.ndarray:
        return ((values >> 16) + (values & 0xFFFF)) % 65_535

    for shift in range(32 - 15 + 1):
        flipped = words[:, np.newaxis].astype(np.uint64) ^ (bursts << np.uint64(shift))
        assert (ones_sum(flipped) != ones_sum(words.astype(np.uint64))[:, np.newaxis]).all()
    assert ones_sum(np.array([0xFFFF], np.uint64)) == ones_sum(np.array([0], np.uint64))  # 16 bits can escape
