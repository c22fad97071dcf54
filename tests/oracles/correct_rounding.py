"""Correctly rounded sums and means, in fractions: what codec `exact` must give (F21)."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

KINDS = {"float32": (24, -149, 128), "float64": (53, -1074, 1024), "float16": (11, -24, 16), "bfloat16": (8, -133, 128)}
"""Significant bits, exponent of the least number, exponent that no number reaches."""


def nearest(total: Fraction, kind: str) -> float:
    """To the nearest number of that type, ties to even."""
    precision, least, greatest = KINDS[kind]
    if not total:
        return 0.0
    size = abs(total)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - precision + 1, least)
    rounded = round(size / unit) * unit  # Python rounds ties to even
    if rounded >= Fraction(2) ** greatest:
        return math.copysign(math.inf, total)
    return math.copysign(float(rounded), total)


def combined(arrays: Sequence[Any], kind: str = "", divisor: int = 1) -> Any:
    """The correctly rounded sum / divisor of arrays of floats, of their type. kind: the type that it is rounded to."""
    dtype = arrays[0].dtype
    results = []
    for addends in zip(*(array.tolist() for array in arrays), strict=True):
        special = [addend for addend in addends if not math.isfinite(addend)]
        if special:
            results.append(special[0] if len(set(map(str, special))) == 1 else math.nan)
        else:
            results.append(nearest(sum(map(Fraction, addends), Fraction(0)) / divisor, kind or dtype.name))
    return np.array(results, dtype)
