"""Correctly rounded sums and means, in fractions: what codec `exact` must give (F21)."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

KINDS = {"float32": (24, -149, 128), "float64": (53, -1074, 1024), "float16": (11, -24, 16), "bfloat16": (8, -133, 128)}
"""Significant bits, exponent of the least number, exponent that no number reaches."""

UNIT = 1074


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
    return (1 if total > 0 else -1) * (math.inf if rounded >= Fraction(2) ** greatest else float(rounded))


def integer(value: float) -> int:
    """A finite value in units of the least number of all types."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << UNIT) // denominator


def combined(arrays: Sequence[Any], kind: str = "", divisor: int = 1) -> Any:
    """The correctly rounded sum / divisor of arrays of floats, of their type. kind: the type that it is rounded to."""
    dtype = arrays[0].dtype
    results = []
    for addends in zip(*(array.tolist() for array in arrays), strict=True):
        special = [addend for addend in addends if not math.isfinite(addend)]
        if special:
            results.append(special[0] if len(set(special)) == 1 and not math.isnan(special[0]) else math.nan)
        else:
            total = Fraction(sum(map(integer, addends)), divisor << UNIT)
            results.append(nearest(total, kind or dtype.name))
    return np.array(results, dtype)
