"""Limits of the backend: how long calls take, how many groups a switch has room for, what memory calls leave in use."""

from collections.abc import Iterator

import pytest
from test_torch_backend import HELPERS, Launch, read_until

from transport.control.control_client import query_status
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions


@pytest.fixture
def launch() -> Iterator[Launch]:
    launched = Launch(HELPERS / "torch_limit_programs.py")
    yield launched
    launched.stop()


@pytest.fixture
def switch() -> Iterator[SwitchDaemon]:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0))) as daemon:
        yield daemon


@pytest.mark.parametrize("method", ["switch", "ring", "ps"])
def test_calls_end_after_the_limit_that_was_set_for_them(launch: Launch, switch: SwitchDaemon, method: str) -> None:
    launch("time_limits", 2, switch.control_endpoint, SWITCHAGG_METHOD=method)
    launch.done()


def test_data_loaders_fork_and_groups_end_in_mid_call(launch: Launch, switch: SwitchDaemon) -> None:
    launch("loaders_and_an_early_end", 2, switch.control_endpoint)
    launch.done()
    assert not query_status(switch.control_endpoint).jobs


def test_64_groups_find_room_on_one_switch(launch: Launch) -> None:
    # Its lease outlasts what a busy machine needs for the beats of 128 sessions.
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=8192, lease_s=30.0)) as switch:
        ranks = launch("many_groups", 2, switch.control_endpoint, STAY_S="2")
        read_until(ranks[0], "LOADED")
        jobs = query_status(switch.control_endpoint).jobs
        launch.done()
    assert len(jobs) == 64
    held = [job.terms.requested_slots for job in jobs]
    assert held[0] == 512
    assert min(held) >= 8
    assert {(job.requested_slots, job.terms.slots_least) for job in jobs} == {(512, 8)}


def test_calls_leave_no_memory_in_use(launch: Launch, switch: SwitchDaemon) -> None:
    launch("growth", 2, switch.control_endpoint)
    launch.done()
