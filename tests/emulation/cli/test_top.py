"""`switchagg top`: rates by hand, tables as text, and a terminal that is as before whatever ends it."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from emulation.cli.main import app
from emulation.cli.top.switch_rates import rates_of
from emulation.cli.top.top_tables import table_lines
from switchagg.join import JobTerms
from transport.control import control_messages
from transport.control.control_messages import JobStatus, MemberActivity, RankAddress, StatusAnswer
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

SECOND = 1_000_000_000
SOON_S = 60.0
COMMAND = [sys.executable, "-m", "emulation.cli.main"]


@pytest.fixture
def daemon() -> Iterator[SwitchDaemon]:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=512)) as running:
        yield running


def answer(clock_s: float, results: int, retransmitted: int, absorbed: int, silent_s: float = 0.1) -> StatusAnswer:
    """A job of two ranks, of which rank 1 is below another switch."""
    counters = {"sent": 2 * results, "retransmitted": retransmitted, "results": results, "wrong_sums": 1}
    if results:
        counters |= {"link_received_bytes": 1460 * results, "link_received_datagrams": results, "drop_job": 3}
    places = [RankAddress(rank, "10.0.0.1", 7000 + rank) for rank in range(2)]
    terms = JobTerms(elements=360, streams=2, window_slots=(256, 256), priorities=(7, 7), verify="on", key_check=1)
    activity = [MemberActivity(0, round(silent_s * SECOND), counters)]
    job = JobStatus("a\x1b[2Jb", 3, 99, 2, terms, 0, places, [], [], 512, "", "a tag on each hop", activity)
    return StatusAnswer(
        token=1,
        slots=4096,
        free_slots=3584,
        running=1,
        gathering=1,
        details=True,
        jobs=[job],
        waiting={"later": control_messages.JobGathering([], [0, 1], "")},
        control_counters={"joins": 9, "admitted": 1, "refused": 5, "refused_no_room": 2, "refused_address": 4},
        data_counters={"absorbed": absorbed, "drop_duplicate": 8, "link_sent_bytes": 5},
        switches={"rack1": "10.0.0.9:5556"},
        clock_ns=round(clock_s * SECOND),
        up_ns=90_061 * SECOND,
        data_plane="native",
        link="udp",
    )


def test_rates_are_differences_by_the_switchs_clock() -> None:
    rates = rates_of("tcp://s:1", answer(104, 5000, 30, 900), answer(100, 1000, 10, 100))
    (job,) = rates.jobs
    assert rates.packets == {"absorbed": 200.0, "drop_duplicate": 0.0, "link_sent_bytes": 0.0}
    assert (job.sums, job.packets, job.retransmitted, job.wrong_sums) == (1000.0, 2005.0, 5.0, 1)
    assert job.goodput_bps == 1000 * 360 * 32
    assert [member.state for member in job.members] == ["alive", "unknown"]
    assert (rates.drops, job.drops) == ({"duplicate": 8}, {"job": 3})
    assert rates.refused == {"no_room": 2, "address": 4, "other": 3}


def test_a_members_counters_are_as_old_as_its_heartbeat() -> None:
    late = rates_of("", answer(104, 5000, 30, 900, silent_s=2.1), answer(100, 1000, 10, 100)).jobs[0]
    assert (late.sums, late.members[0].state) == (2000.0, "silent")
    unheard = rates_of("", answer(104, 1000, 10, 900, silent_s=4.1), answer(100, 1000, 10, 100)).jobs[0]
    assert (unheard.sums, unheard.goodput_bps) == (None, None)


@pytest.mark.parametrize("earlier_s", [None, 104.0, 110.0, -90_000.0], ids=["none", "the same", "later", "restarted"])
def test_without_an_earlier_answer_there_are_no_rates(earlier_s: float | None) -> None:
    earlier = None if earlier_s is None else answer(earlier_s, 1000, 10, 100)
    rates = rates_of("", answer(104, 5000, 30, 900), earlier)
    assert set(rates.packets.values()) == {None}
    assert (rates.jobs[0].sums, rates.jobs[0].packets) == (None, None)
    assert "goodput -   packets/s -" in "\n".join(table_lines(rates))


def test_the_table_shows_every_part_and_no_escape_sequence() -> None:
    text = "\n".join(table_lines(rates_of("tcp://s:1", answer(104, 5000, 30, 900), answer(100, 1000, 10, 100))))
    for part in (
        "up 1 d 1:01:01  data plane native over udp",
        "slots: 3584 of 4096 free   jobs: 1 running, 1 waiting   switches below: 'rack1' at 10.0.0.9:5556",
        "packets/s: 200 of workers, absorbed 200, dropped 0",
        "dropped since the start: duplicate 8",
        "joins: 9, refused: address 4, no_room 2, other 3",
        "sums: verified, key: token   packets: a tag on each hop",
        "2 streams in slots 0 to 511: 512\n",
        "goodput 11.5 Mb/s   packets/s 2,005   retransmissions/s 5.0 (0.25 %)   sums/s 1,000   wrong sums 1",
        "packets dropped by members: job 3",
        "0     10.0.0.1:7000  alive    0.1 s ago  11.5 Mb/s      2,005        5.0   1,000           1",
        "job 'later' waits; ranks missing: 0, 1",
    ):
        assert part in text, text
    assert "\x1b" not in text
    stranger = rates_of("s", replace_details(answer(104, 5, 3, 9)), None)
    assert "jobs: 1 running, 1 waiting; more only for holders" in "\n".join(table_lines(stranger))


def replace_details(status: StatusAnswer) -> StatusAnswer:
    return StatusAnswer(
        **{**{name: getattr(status, name) for name in status.__struct_fields__}, "details": False, "jobs": []}
    )


def sums_until(session: SwitchSession, ending: threading.Event) -> bool:
    """Whether all sums of a rank of two were right."""
    right = True
    while True:  # rank 0 says when both end
        more = np.array([not ending.is_set() and session.rank == 0], np.int32)
        if not session.allreduce(more).result(SOON_S)[0]:
            return right
        right = bool((session.allreduce(np.ones(40_000, np.float32)).result(SOON_S) == 2.0).all()) and right


def test_json_of_a_real_job(daemon: SwitchDaemon) -> None:
    options = JoinOptions(window_slots=64, timeout_s=SOON_S)
    with ThreadPoolExecutor(2) as pool:
        joins = [
            pool.submit(SwitchSession.join, daemon.control_endpoint, "train", rank, 2, options) for rank in range(2)
        ]
        zero, one = (join.result(SOON_S) for join in joins)
        with closing(zero), closing(one):
            ending = threading.Event()
            calls = [pool.submit(sums_until, session, ending) for session in (zero, one)]
            try:
                result = CliRunner().invoke(app, ["top", daemon.control_endpoint, "--json", "-i", "0.5", "-n", "2"])
            finally:
                ending.set()
                assert [call.result(SOON_S) for call in calls] == [True, True]
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(lines) == 2
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", lines[1]["time"])
    (job,) = lines[1]["jobs"]
    assert (job["name"], job["workers"], job["streams"]) == ("train", 2, 2)
    assert job["sums"] > 0
    assert job["goodput_bps"] > 0
    assert [member["state"] for member in job["members"]] == ["alive", "alive"]
    assert lines[1]["packets"]["absorbed"] > 0


class Terminal:
    """`switchagg top` on a terminal of its own."""

    def __init__(self, address: str) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 100))
        self.before = termios.tcgetattr(theirs)
        self.errors = b""
        self._process = subprocess.Popen(
            [*COMMAND, "top", address, "-i", "0.5"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE
        )
        self._theirs = theirs
        self.output = ""

    def read_until(self, text: str) -> None:
        end_s = time.monotonic() + SOON_S
        while text not in self.output:
            assert time.monotonic() < end_s, self.output
            if select.select([self._ours], [], [], 0.2)[0]:
                self.output += os.read(self._ours, 65_536).decode()

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        """The exit code; the terminal is as before then."""
        self.read_until("\x1b[?25h\x1b[?1049l")
        _, self.errors = self._process.communicate(timeout=SOON_S)
        assert termios.tcgetattr(self._theirs) == self.before
        os.close(self._ours), os.close(self._theirs)
        return self._process.returncode


def test_on_a_terminal_q_ctrl_c_and_a_lost_switch_end_it() -> None:
    daemon = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=512))
    daemon.start()
    by_key, by_signal, by_loss = (Terminal(daemon.control_endpoint) for _ in range(3))
    for terminal in (by_key, by_signal, by_loss):
        terminal.read_until("slots: 512 of 512 free")
    by_key.press(b"q")
    by_signal.interrupt()
    assert (by_key.ended(), by_key.errors) == (0, b"")
    assert (by_signal.ended(), by_signal.errors) == (0, b"")
    daemon.stop()
    assert by_loss.ended() == 1
    assert re.fullmatch(
        rb"switchagg: no answer from switch tcp://\S+ within 3 s: .*switchagg switch.*\n", by_loss.errors
    )


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["top", "foo"], 2, "SWITCH foo: not understood; allowed: tcp://HOST:PORT"),
        (["top", "--interval", "0"], 2, ""),
        (["top", "tcp://127.0.0.1:9", "--keys", "nowhere"], 1, "nowhere"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], code: int, line: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code
    assert line in result.stderr
    assert "Traceback" not in result.output
