"""Time-outs nest: by default, at the ends of what options allow, and where another's numbers are known only late."""

import configparser
import importlib
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from switchagg.controller.admission import ROOM_LEASES
from switchagg.controller.rebalancing_controller import KEPT_LEASES
from switchagg.errors import JobError, SwitchaggError
from transport.contracts.timeouts import (
    CLAIMS_PER_LEASE,
    LEASE_LEAST_S,
    RECOVERY_S,
    TIME_OUTS,
    TimeOut,
    long_lease,
)
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

ROOT = Path(__file__).resolve().parents[3]
LEASE_S = TIME_OUTS["lease"].seconds
COMPUTED = {  # of what no constant holds
    "claim": LEASE_S / CLAIMS_PER_LEASE,
    "patience": LEASE_S,
    "room": ROOM_LEASES * LEASE_S,
    "kept": KEPT_LEASES * LEASE_S,
    "sleeper": JoinOptions(can_fall_back=True).sleeper_limit_s,
}


def value_at(where: str) -> Any:
    module, _, name = where.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        module, _, cls = module.rpartition(".")
        return getattr(getattr(importlib.import_module(module), cls), name)


def seconds(value: Any, where: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return float(value) / (1e9 if where.endswith("_NS") else 1e3 if where.endswith("_MS") else 1.0)


@pytest.mark.parametrize("entry", TIME_OUTS.values(), ids=lambda entry: entry.name)
def test_the_table_has_the_numbers_that_are_used(entry: TimeOut) -> None:
    if entry.name == "unit":
        unit = configparser.RawConfigParser(strict=False)
        unit.read(ROOT / "examples/deploy/switchagg-switch.service")
        assert float(unit["Service"]["TimeoutStopSec"]) == entry.seconds
    elif entry.where:
        assert seconds(value_at(entry.where), entry.where) == pytest.approx(entry.seconds)
    else:
        assert COMPUTED[entry.name] == entry.seconds


def inversions(time_outs: dict[str, TimeOut]) -> list[str]:
    """What is wrong in a table: time-outs that aren't longer than those that must end first."""
    faults = []
    for time_out in time_outs.values():
        inner_s = sum(time_outs[name].seconds for name in time_out.exceeds)
        if time_out.exceeds and time_out.seconds <= inner_s:
            faults.append(f"{time_out.name} {time_out.seconds:g} s: {' + '.join(time_out.exceeds)} last {inner_s:g} s")
    return faults


def test_no_time_out_ends_before_those_inside_it() -> None:
    assert inversions(TIME_OUTS) == []
    shorter = TIME_OUTS | {"stop": replace(TIME_OUTS["stop"], seconds=10.0)}
    assert (
        inversions(shorter)
        == [
            "stop 10 s: farewell + withdrawal + command last 15.7 s",
            "unit 30 s: drain + stop last 15 s",
        ][:1]
    )


def test_the_shortest_lease_is_longer_than_what_it_must_outlast() -> None:
    least = {"lease": LEASE_LEAST_S, "claim": LEASE_LEAST_S / CLAIMS_PER_LEASE, "patience": LEASE_LEAST_S}
    at_least = {name: replace(entry, seconds=least.get(name, entry.seconds)) for name, entry in TIME_OUTS.items()}
    assert inversions(at_least) == []
    with pytest.raises(SwitchaggError, match=r"lease 0.9 s: 1 to 3600"):
        DaemonOptions(lease_s=0.9)
    with pytest.raises(SwitchaggError, match=r"drain -1 s: 0 to 3600"):
        DaemonOptions(drain_s=-1)


def test_a_lease_that_outlasts_joins_is_reported() -> None:
    assert long_lease(LEASE_S) == long_lease(14.0) == ""
    assert "may wait for 40 s; give joins more (SWITCHAGG_JOIN_TIMEOUT_S, timeout_s)" in long_lease(20.0)


def test_a_job_with_a_fallback_leaves_a_silent_switch_before_its_calls_end() -> None:
    with pytest.raises(JobError, match=r"a time-out of 1\.5 s ends calls before .*: give 2 s or more, or no fallback"):
        JoinOptions(can_fall_back=True, group_timeout_s=1.5)
    with pytest.raises(JobError, match=r"a time-out of 1 s"):
        JoinOptions(can_fall_back=True, call_timeout_s=1)
    assert JoinOptions(group_timeout_s=0.5).switch_patience_s == float("inf")  # its calls end then, and say for whom
    for limit_s in (2.0, 3.0, 8.0, 1800.0):
        patience_s = min(LEASE_S, JoinOptions(can_fall_back=True, group_timeout_s=limit_s).switch_patience_s)
        assert LEASE_LEAST_S <= patience_s <= limit_s - RECOVERY_S


def test_a_rank_with_a_fallback_waits_no_longer_than_it_can_though_the_lease_is_long() -> None:
    options = JoinOptions(can_fall_back=True, group_timeout_s=2, timeout_s=10, window_slots=8)
    with (
        SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), lease_s=60)) as daemon,
        SwitchSession.join(daemon.control_endpoint, "impatient", 0, 1, options) as session,
    ):
        daemon._server.run_once = time.sleep  # type: ignore[method-assign]
        until(lambda: session.failure is not None)
        assert "has not answered for 1." in str(session.failure)
