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


def options_in(text: str) -> dict[str, Any]:
    """Options as a line of text has them, "tolerance=0.02,priorities=0". Raises ValueError for what is none."""
    values: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not name or not value:
            raise ValueError(f"'{part.strip()}': as in tolerance=0.02,priorities=0")
        try:
            values[name] = float(value) if "." in value else int(value)
        except ValueError:
            values[name] = value
    return values
