"""The environment variables that are read, and what one that is none of them may have meant."""

import os
from dataclasses import fields

from switchagg.join import JobTerms, LocalOptions, MemberOptions
from switchagg.option_syntax import close_match

PREFIX = "SWITCHAGG_"
OF_GROUPS = ("SWITCH", "JOIN_TIMEOUT_S", "METHOD", "LINK", "INTERFACE", "BOUNDED", "FALLBACK", "ELASTIC")
"""Fields of PyTorch's SwitchOptions that are no terms of a job and no options of a member."""
ELSEWHERE = (
    *("TOKEN_FILE", "VIA", "METRICS", "NATIVE", "RDMA_PROVIDER", "RDMA_SEGMENTS", "P4_PROGRAM", "PYTHON"),
    *("SIM_THREADS", "CHAOS_RUN", "IN_USER_NAMESPACE"),
)
"""Variables that no option of a group is read from."""


def variables() -> list[str]:
    """All, without those of tests."""
    terms = (entry for kind in (JobTerms, MemberOptions, LocalOptions) for entry in fields(kind))
    options = [entry.name.upper() for entry in terms if not entry.metadata.get("derived")]
    return sorted({f"{PREFIX}{name}" for name in (*options, *OF_GROUPS, *ELSEWHERE)})


def fault_of_variables() -> str:
    """A variable that is set, looks like one of these and is none, as it would change nothing silently; else ""."""
    for name in os.environ:
        if name.startswith(PREFIX) and name not in (known := variables()):
            near = close_match(name.removeprefix(PREFIX), [variable.removeprefix(PREFIX) for variable in known])
            if near:
                option = near.split("'")[1]
                return f"{name} is no variable of switchagg; did you mean '{PREFIX}{option}'? If not, unset it"
    return ""
