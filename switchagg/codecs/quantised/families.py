"""The families, and which of their codecs so many workers use."""

from typing import Any

import numpy as np

from switchagg.codecs.codec import CallShape, Codec, Coding
from switchagg.codecs.lanes import Lanes, LaneScales
from switchagg.codecs.quantised.codings import BrainHalves, Clipped, Halves, Signs, ThresholdCoding, Vote


class Ternary(Lanes):
    """TernGrad: -s, 0 or s at random, so that the mean is the value."""

    family, widths, levels, random = "ternary", (8, 6, 5, 4), 1, True
    coding = Clipped


class TwoBit(Lanes):
    """MXNet's 2 bits: -t, 0 or t, with a t that follows the gradient's scale."""

    family, widths, levels, random = "twobit", (8, 6, 5, 4), 1, False
    needs_feedback = True
    coding = ThresholdCoding


class OneBit(Lanes):
    """1-bit SGD with a scale that ranks share; 0 stays 0."""

    family, widths, levels, random = "onebit", (8, 6, 5, 4), 1, False
    needs_feedback = True
    coding = Signs


class Sign(Lanes):
    """signSGD with majority vote."""

    family, widths, levels, random = "sign", (8, 6, 5, 4), 1, False
    feeds_back = False
    coding = Vote


class Qsgd(Lanes):
    """QSGD with 127 levels and the shared maximum, rounded at random."""

    family, widths, levels, random = "qsgd", (16, 10), 127, True


class Fp16(Lanes):
    """Lanes that lose as much as 16-bit floats, for comparison with them."""

    family, widths, random = "fp", (16,), False
    coding: type[LaneScales] = Halves


class Bf16(Fp16):
    """The same of bfloat16."""

    family = "bf"
    coding = BrainHalves


class ByWorkers(Codec):
    """A family by its name alone: `for_workers` gives the codec with the narrowest lanes that sum all of them."""

    def __init__(self, family: type[Lanes]) -> None:
        self.name = family.family
        self.variants = tuple(family(bits) for bits in sorted(family.widths))
        self.rounds, self.dtypes = family.rounds, family.dtypes
        self.lossy, self.feeds_back, self.needs_feedback = family.lossy, family.feeds_back, family.needs_feedback

    def values_per_word(self, dtype: "np.dtype[Any]") -> int:
        raise TypeError(f"codec {self.name}: how many values a word carries follows from the workers: for_workers")

    def fault(self, workers: int) -> str:
        widest = self.variants[-1]
        return widest.fault(workers).replace(widest.name, self.name, 1)

    def for_workers(self, workers: int) -> Codec:
        super().for_workers(workers)  # or it raises
        return next(variant for variant in self.variants if not variant.fault(workers))

    def begin(self, shape: CallShape) -> Coding:
        return self.for_workers(shape.workers).begin(shape)


FAMILIES: tuple[type[Lanes], ...] = (Ternary, TwoBit, OneBit, Sign, Qsgd)
"""The families that users name without a width."""
