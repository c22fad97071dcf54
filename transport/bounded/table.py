"""The methods with bounded loss, an entry each: its options, and what makes its rule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transport.bounded.optireduce import OptiReduce, OptiReduceOptions
from transport.bounded.rules import BoundedOptions, Dgt, DgtOptions, Ltp, LtpOptions, Mlt, MltOptions, Rule


@dataclass(frozen=True)
class BoundedKind:
    """make(options, workers): one rank's rule."""

    options: Callable[..., BoundedOptions]
    make: Callable[[Any, int], Rule]


BOUNDED: Mapping[str, BoundedKind] = {
    "mlt": BoundedKind(MltOptions, lambda options, workers: Mlt(options)),
    "dgt": BoundedKind(DgtOptions, lambda options, workers: Dgt(options)),
    "ltp": BoundedKind(LtpOptions, lambda options, workers: Ltp(options)),
    "optireduce": BoundedKind(OptiReduceOptions, OptiReduce),
}
