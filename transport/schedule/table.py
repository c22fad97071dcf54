"""The table of all schedules; reading one as it is written, and planning by it."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from transport.schedule.by_arrival import Bsp, Fusion, MgWfbp, Wfbp
from transport.schedule.by_urgency import P3, ByteScheduler, TicTac
from transport.schedule.plan import Transfer
from transport.schedule.policy import Policy
from transport.schedule.profile import LinearCost, Profile

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Bsp,
        Wfbp,
        MgWfbp,
        Fusion,
        P3,
        TicTac,
        ByteScheduler,
    )
}
"""All schedules, by name."""

_WORD_MAX = 60


def parse_policy(text: str) -> Policy:
    """The policy that `text` names, with its options. Raises ValueError, one line that lists what is allowed."""
    name, colon, rest = text.partition(":")
    if name not in POLICIES:
        raise ValueError(f"schedule '{_shown(name)}' is unknown; allowed: {', '.join(POLICIES)}")
    make: Callable[..., Policy] = POLICIES[name]
    options = {one.metadata["word"]: one for one in fields(POLICIES[name])}
    values: dict[str, Any] = {}
    for word in rest.split(",") if colon else ():
        key, equals, value = word.partition("=")
        if key not in options or not equals:
            allowed = f"allowed: {', '.join(f'{option}=…' for option in options)}" if options else "it has none"
            raise ValueError(f"schedule {name}: option '{_shown(word)}' is unknown; {allowed}")
        option = options[key]
        if option.name in values:
            raise ValueError(f"schedule {name}: {key} is given twice")
        try:
            values[option.name] = option.metadata["read"](value)
        except ValueError as error:
            raise ValueError(f"schedule {name}: {key}={_shown(value)}: must be {error}") from None
    return make(**values)


def plan_transfers(policy: Policy | str, profile: Profile, cost: LinearCost | None = None) -> tuple[Transfer, ...]:
    """The plan of a policy, as it is or as it is written: see `Policy.plan`."""
    return (parse_policy(policy) if isinstance(policy, str) else policy).plan(profile, cost)


def _shown(text: str) -> str:
    return text if len(text) <= _WORD_MAX else text[:_WORD_MAX] + "…"
