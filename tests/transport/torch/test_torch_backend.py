"""The backend end to end: ranks are processes, the switch is a daemon on the loopback."""

import contextlib
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch_forks import Forked

from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions

pytestmark = pytest.mark.long

HELPERS = Path(__file__).parents[2] / "shared"
PROGRAMS = HELPERS / "torch_programs.py"
RUN_S = 100
# What a process says that didn't end as it should.
CRASHES = ("terminate called", "Fatal Python error", "Segmentation fault", "core dumped", "Exception ignored")


@pytest.fixture
def switch() -> Iterator[SwitchDaemon]:
    daemon = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=8192, lease_s=4.0))
    daemon.start()
    yield daemon
    daemon.stop()


@dataclass
class Rank:
    process: "subprocess.Popen[str]"
    output: str = ""

    @property
    def code(self) -> int:
        return int(self.process.returncode)


class Launch:
    """Starts the ranks of a program and ends those that outlive it. programs: the file that has it."""

    def __init__(self, programs: Path = PROGRAMS) -> None:
        self._programs = programs
        self.of_rank: dict[int, dict[str, str]] = {}  # variables of single ranks
        self.ranks: list[Rank] = []

    def __call__(self, program: str, workers: int, endpoint: str | None, **variables: str) -> list[Rank]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SWITCHAGG_SWITCH", "SWITCHAGG_METHOD"))
        }
        environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(workers))
        environment.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", PYTHONUNBUFFERED="1", **variables)
        if endpoint is not None:
            environment["SWITCHAGG_SWITCH"] = endpoint
        self.ranks = [
            Rank(
                Forked(
                    [sys.executable, str(self._programs), program],
                    env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), **self.of_rank.get(rank, {})},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for rank in range(workers)
        ]
        return self.ranks

    def finish(self) -> list[Rank]:
        """Wait for all; their output and exit codes. Fails if one takes too long or crashes."""
        deadline = time.monotonic() + RUN_S
        for rank in self.ranks:
            text, _ = rank.process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            rank.output += text
        for number, rank in enumerate(self.ranks):
            assert not [crash for crash in CRASHES if crash in rank.output], f"rank {number}: {rank.output}"
            assert rank.code >= 0, f"rank {number} ended by signal {-rank.code}: {rank.output}"
        return self.ranks

    def done(self) -> list[Rank]:
        """As finish, and every rank must have succeeded."""
        for number, rank in enumerate(self.finish()):
            assert (rank.code, "DONE" in rank.output) == (0, True), f"rank {number}:\n{rank.output}"
        return self.ranks

    def stop(self) -> None:
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.communicate(timeout=20)


def free_port() -> int:
    """Below those that the kernel gives to connections of anyone, which might take it before it is used."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port := random.randrange(20_000, 32_000)))
            return port


@pytest.fixture
def launch() -> Iterator[Launch]:
    launched = Launch()
    yield launched
    launched.stop()


def read_until(rank: Rank, word: str) -> None:
    assert rank.process.stdout is not None
    for line in rank.process.stdout:
        rank.output += line
        if word in line:
            return
    raise AssertionError(f"no {word}: {rank.output}")


@pytest.mark.parametrize("method", ["switch", "ring"])
def test_every_collective(switch: SwitchDaemon, method: str) -> None:
    launch = Launch(PROGRAMS.with_name("torch_collective_programs.py"))
    launch("collectives", 3, switch.control_endpoint, SWITCHAGG_METHOD=method)
    launch.done()


def test_ddp_its_modes_and_hooks(launch: Launch, switch: SwitchDaemon) -> None:
    launch("ddp", 2, switch.control_endpoint)
    launch.done()


def test_hook_on_another_backend(launch: Launch, switch: SwitchDaemon) -> None:
    launch("hook_on_gloo", 2, switch.control_endpoint)
    launch.done()


def test_fsdp2_zero_and_tensor_parallel(launch: Launch, switch: SwitchDaemon) -> None:
    launch("sharded", 2, switch.control_endpoint)
    launch.done()


def test_debug_detail(launch: Launch, switch: SwitchDaemon) -> None:
    launch("debug_detail", 2, switch.control_endpoint, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    launch.done()


def test_a_group_can_be_made_again(launch: Launch, switch: SwitchDaemon) -> None:
    launch("again", 2, switch.control_endpoint, SECOND_PORT=str(free_port()))
    launch.done()


@pytest.mark.parametrize("end", ["destroy", "exit"])
def test_a_dead_worker_ends_in_exceptions(launch: Launch, switch: SwitchDaemon, end: str) -> None:
    launch("worker_dies", 3, switch.control_endpoint, END=end)
    ranks = launch.finish()
    assert ranks[1].code == 17
    for rank in (ranks[0], ranks[2]):
        assert rank.code == 0, rank.output
        assert rank.output.count("FAILED RuntimeError") == 3, rank.output


@pytest.mark.parametrize("end", ["destroy", "exit"])
def test_a_stopped_switch_ends_in_exceptions(launch: Launch, switch: SwitchDaemon, end: str) -> None:
    ranks = launch("switch_stops", 2, switch.control_endpoint, END=end)
    read_until(ranks[0], "TRAINING")
    switch.stop("maintenance")
    for rank in launch.finish():
        assert rank.code == 1, rank.output
        assert re.search("FAILED .*maintenance", rank.output), rank.output


def test_a_program_may_exit_with_calls_in_flight(launch: Launch, switch: SwitchDaemon) -> None:
    launch("exit_while_pending", 2, switch.control_endpoint)
    assert [rank.code for rank in launch.finish()] == [3, 3]


@pytest.mark.parametrize("method", ["switch", "ring"])
def test_ctrl_c_ends_a_program(launch: Launch, switch: SwitchDaemon, method: str) -> None:
    launch("interrupted", 2, switch.control_endpoint, SWITCHAGG_METHOD=method)
    ranks = launch.finish()
    assert "INTERRUPTED" in ranks[0].output
    assert ranks[0].code == 130
    assert ranks[1].code == 1, ranks[1].output
    assert "rank 0" in ranks[1].output


def test_no_room_on_the_switch_means_gloo_for_all(launch: Launch) -> None:
    small = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=64))
    small.start()
    try:
        launch("falls_back", 2, small.control_endpoint, SWITCHAGG_SLOTS_LEAST="0")
        ranks = launch.done()
    finally:
        small.stop()
    assert ranks[0].output.count("using Gloo instead of switch") == 1, ranks[0].output
    assert "using Gloo" not in ranks[1].output


def test_one_worker_needs_no_switch(launch: Launch) -> None:
    launch("init_only", 1, None)
    (rank,) = launch.done()
    assert "uses Gloo instead of the switch: it has one worker" in rank.output
    assert rank.output.count("uses Gloo") == 1


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        (None, "SWITCHAGG_SWITCH is not set: start a switch on a host that all workers reach"),
        ("tcp://127.0.0.1:9", r"could not join switch tcp://127\.0\.0\.1:9: .*127\.0\.0\.1:9"),
        ("127.0.0.1", r"could not join switch 127\.0\.0\.1: "),
    ],
)
def test_a_missing_switch_is_an_error_in_init_process_group(launch: Launch, endpoint: str | None, message: str) -> None:
    launch("init_only", 2, endpoint, SWITCHAGG_JOIN_TIMEOUT_S="2")
    for rank in launch.finish():
        assert rank.code == 1
        assert re.search(message, rank.output), rank.output
        assert "start(" in rank.output  # where it was raised


def test_an_option_that_is_no_number_is_refused(launch: Launch, switch: SwitchDaemon) -> None:
    launch("init_only", 1, switch.control_endpoint, SWITCHAGG_ELEMENTS="many")
    (rank,) = launch.finish()
    assert rank.code == 1
    assert "SWITCHAGG_ELEMENTS='many': not a number (int)" in rank.output
