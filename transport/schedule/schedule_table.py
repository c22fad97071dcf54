"""The table of all schedules; reading one as it is written, and planning by it."""

from switchagg.option_syntax import parse
from transport.schedule.by_arrival import Bsp, Fusion, MgWfbp, Wfbp
from transport.schedule.by_urgency import P3, ByteScheduler, TicTac
from transport.schedule.policy import Policy
from transport.schedule.profile import LinearCost, Profile
from transport.schedule.schedule_plan import Transfer

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


def parse_policy(text: str) -> Policy:
    """The policy that `text` names, with its options. Raises ValueError, one line that lists what is allowed."""
    return parse("schedule", text, POLICIES)


def plan_transfers(policy: Policy | str, profile: Profile, cost: LinearCost | None = None) -> tuple[Transfer, ...]:
    """The plan of a policy, as it is or as it is written: see `Policy.plan`."""
    return (parse_policy(policy) if isinstance(policy, str) else policy).plan(profile, cost)
