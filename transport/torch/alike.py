"""What all ranks of a process group must have set alike, and how they are told where they haven't.

Ranks with unlike settings may wait for each other in different places: an elastic one for its job's first generation,
another for the group's start. So each compares its settings with those of the rank that came first, before it waits for
anybody, and leaves a word in the store for those that wait already.
"""

import json
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

METHOD_VARIABLE = "SWITCHAGG_METHOD"
CODEC_VARIABLE = "SWITCHAGG_CODEC"

_SETTINGS, _UNLIKE = "switchagg settings", "switchagg unlike settings"


def difference(first: int, settings: Mapping[str, Any], rank: int, other: Mapping[str, Any], workers: int) -> str:
    """How the settings of two ranks differ, by name of variable, as a line that names both; "" if they don't."""
    if settings[METHOD_VARIABLE] != other[METHOD_VARIABLE]:
        return (
            f"switchagg: rank {first} uses method {settings[METHOD_VARIABLE]}, rank {rank} of {workers} uses "
            f"{other[METHOD_VARIABLE]}: set {METHOD_VARIABLE}, SWITCHAGG_LINK, {CODEC_VARIABLE} and "
            "SWITCHAGG_SECRET alike for every rank"
        )
    for variable, value in settings.items():
        if value != other[variable]:
            return (
                f"switchagg: rank {first} has {variable}={_plain(value)}, rank {rank} of {workers} has "
                f"{_plain(other[variable])}: set it alike for every rank"
            )
    return ""


def compare_with_first(store: Store, rank: int, workers: int, settings: Mapping[str, Any]) -> None:
    """Raise DistBackendError if the first rank that came to this store has other settings; those that wait are told."""
    text = json.dumps([rank, settings])
    first, expected = json.loads(store.compare_set(_SETTINGS, "", text))
    (low, settings_of_low), (high, settings_of_high) = sorted(
        [(first, expected), (rank, json.loads(text)[1])], key=itemgetter(0)
    )
    if words := difference(low, settings_of_low, high, settings_of_high, workers):
        raise dist.DistBackendError(store.compare_set(_UNLIKE, "", words).decode())  # on all ranks the same


def raise_unlike(store: Store) -> None:
    """Raise DistBackendError if a rank that came to this store has found that settings differ."""
    if store.check([_UNLIKE]):
        raise dist.DistBackendError(store.get(_UNLIKE).decode())


def _plain(value: Any) -> str:
    """The value as a variable has it."""
    if isinstance(value, bool):
        return "a value" if value else "none"
    return ",".join(map(str, value)) if isinstance(value, list) else repr(value)
