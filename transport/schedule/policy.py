"""Policies: when gradients leave and in which order, with the options of each; how they are written.

A policy is written as in a method's name, `p3` or `bytescheduler:partition=1MB,credit=4MB`; `parse_policy` reads it.
Sizes take B, kB, MB, GB (powers of 1000), KiB, MiB, GiB or nothing (bytes); times take ns, us, ms, s.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([A-Za-zµ]*)")
_SIZES = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZES |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_TIMES = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_WORD_MAX = 60


@dataclass(frozen=True)
class Bsp:
    """Everything fused into one transfer, after the backward pass: no overlap. What the others are compared with."""


@dataclass(frozen=True)
class Wfbp:
    """Wait-free backpropagation (Poseidon): each tensor alone, as soon as its gradient exists, first come first."""


@dataclass(frozen=True)
class MgWfbp:
    """Merged-gradient WFBP (MG-WFBP): tensors are merged where waiting costs less than a start-up.

    alpha_ns, beta_ns_per_byte: cost of a transfer; None: as fitted on this job's group.
    """

    alpha_ns: float | None = None
    beta_ns_per_byte: float | None = None


@dataclass(frozen=True)
class Fusion:
    """Tensor fusion (Horovod): what became ready within a cycle leaves together at its end, up to a threshold.

    The defaults are Horovod's; every transfer waits for the end of a cycle, and so on average for half of one.
    """

    threshold_bytes: int = 128 << 20
    cycle_ns: int = 1_000_000


@dataclass(frozen=True)
class P3:
    """Priority-based parameter propagation: slices, those first that the next forward pass needs first.

    slice_elements: MXNet's default bound; smaller tensors travel whole. credit_bytes: as ByteScheduler's; 4 slices of
    float32, since ps-lite bounds messages instead.
    """

    slice_elements: int = 40_000
    credit_bytes: int = 640_000


@dataclass(frozen=True)
class TicTac:
    """Whole tensors in an order derived from the graph of layers (TicTac).

    order: "tac" weighs the computation that a tensor unlocks against the transfers still outstanding; where times
    aren't known, and with "tic", the number of transfers decides with which a tensor unlocks something.
    """

    order: str = "tac"
    credit_bytes: int = 4_000_000


@dataclass(frozen=True)
class ByteScheduler:
    """Partitions of a size, those first that the next forward pass needs first, within a byte credit.

    The defaults are its own for parameter servers: 1,000,000 and 4,000,000 parameters, of 4 bytes. tune_steps: how many
    pairs of partition and credit the Bayesian optimiser may try while training runs; 0: none.
    """

    partition_bytes: int = 4_000_000
    credit_bytes: int = 16_000_000
    tune_steps: int = 0


Policy = Bsp | Wfbp | MgWfbp | Fusion | P3 | TicTac | ByteScheduler


def _size(text: str) -> int:
    return _scaled(text, _SIZES, "a size of 1 byte or more such as 4MB")


def _time(text: str) -> int:
    return _scaled(text, _TIMES, "a time of 1 ns or more such as 1ms")


def _scaled(text: str, units: dict[str, int], what: str) -> int:
    match = _NUMBER.fullmatch(text)
    if match and match[2] in units and (value := round(float(match[1]) * units[match[2]])) >= 1:
        return value
    raise ValueError(what)


def _per_byte(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError("a time per byte in ns, such as 8")
    return value


def _count(low: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < low:
            raise ValueError(f"a whole number from {low}")
        return int(text)

    return read


def _order(text: str) -> str:
    if text not in ("tic", "tac"):
        raise ValueError("tic or tac")
    return text


POLICIES: dict[str, type[Policy]] = {
    "bsp": Bsp,
    "wfbp": Wfbp,
    "mg_wfbp": MgWfbp,
    "fusion": Fusion,
    "p3": P3,
    "tictac": TicTac,
    "bytescheduler": ByteScheduler,
}
"""By the names of `transport.group.method_name.SCHEDULES`."""

# option as written -> field, reader
OPTIONS: dict[str, dict[str, tuple[str, Callable[[str], Any]]]] = {
    "bsp": {},
    "wfbp": {},
    "mg_wfbp": {"alpha": ("alpha_ns", _time), "beta": ("beta_ns_per_byte", _per_byte)},
    "fusion": {"threshold": ("threshold_bytes", _size), "cycle": ("cycle_ns", _time)},
    "p3": {"slice": ("slice_elements", _count(1)), "credit": ("credit_bytes", _size)},
    "tictac": {"order": ("order", _order), "credit": ("credit_bytes", _size)},
    "bytescheduler": {
        "partition": ("partition_bytes", _size),
        "credit": ("credit_bytes", _size),
        "tune": ("tune_steps", _count(0)),
    },
}


def parse_policy(text: str) -> Policy:
    """The policy that `text` names, with its options. Raises ValueError, one line that lists what is allowed."""
    name, colon, rest = text.partition(":")
    if name not in POLICIES:
        raise ValueError(f"schedule '{_shown(name)}' is unknown; allowed: {', '.join(POLICIES)}")
    options = OPTIONS[name]
    values: dict[str, Any] = {}
    for word in rest.split(",") if colon else ():
        key, equals, value = word.partition("=")
        if key not in options or not equals:
            allowed = f"allowed: {', '.join(f'{option}=…' for option in options)}" if options else "it has none"
            raise ValueError(f"schedule {name}: option '{_shown(word)}' is unknown; {allowed}")
        target, read = options[key]
        if target in values:
            raise ValueError(f"schedule {name}: {key} is given twice")
        try:
            values[target] = read(value)
        except ValueError as error:
            raise ValueError(f"schedule {name}: {key}={_shown(value)}: must be {error}") from None
    return POLICIES[name](**values)


def policy_name(policy: Policy) -> str:
    """The name of a policy, without its options."""
    return next(name for name, made in POLICIES.items() if made is type(policy))


def describe(policy: Policy) -> str:
    """A policy in full, as `parse_policy` reads it: "bytescheduler:partition=4000000,credit=16000000,tune=0"."""
    name = policy_name(policy)
    values = {one.name: getattr(policy, one.name) for one in fields(policy)}
    words = []
    for option, (target, read) in OPTIONS[name].items():
        if values[target] is not None:
            text = f"{values[target]:.9g}" if isinstance(values[target], float) else str(values[target])
            words.append(f"{option}={text}{'ns' if read is _time else ''}")
    return f"{name}:{','.join(words)}" if words else name


def credit_of(policy: Policy) -> int | None:
    """Bytes that may lie below the queue of a policy; None: it bounds nothing."""
    return policy.credit_bytes if isinstance(policy, P3 | TicTac | ByteScheduler) else None


def _shown(text: str) -> str:
    return text if len(text) <= _WORD_MAX else text[:_WORD_MAX] + "…"
