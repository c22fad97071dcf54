"""What a daemon tells those who watch it: metrics of a real job, and its log as JSON, on streams that are full."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from switchagg.errors import SwitchaggError
from switchagg.membership import Departure, JobFailed, JoinRefused, Member, MemberLeft
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.switch.event_log import EventLog, LogEntry, entries_of
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

SOON_S = 60.0
OPTIONS = JoinOptions(window_slots=16, timeout_s=SOON_S)
HERE = DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=64, metrics=("127.0.0.1", 0))


def scraped(daemon: SwitchDaemon) -> dict[tuple[str, ...], float]:
    pytest.importorskip("prometheus_client", reason="the extra switchagg[metrics] is not installed")
    from prometheus_client.parser import text_string_to_metric_families

    text = urllib.request.urlopen(daemon.metrics_url, timeout=10).read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_of_a_job_without_its_name() -> None:
    with (
        SwitchDaemon(HERE) as daemon,
        closing(SwitchSession.join(daemon.control_endpoint, "secret-name", 0, 1, OPTIONS)) as session,
    ):
        assert session.allreduce(np.ones(4000, np.int32)).result(SOON_S)[0] == 1
        sent = session.counters["sent"] + session.counters["retransmitted"]
        end_s = time.monotonic() + SOON_S
        while not (values := scraped(daemon)).get(("switchagg_member_packets_total", "0", "sent", "0")):
            assert time.monotonic() < end_s
        verdicts = {name[1]: value for name, value in values.items() if name[0] == "switchagg_packets_total"}
        assert sum(verdicts.values()) == sent
        assert values["switchagg_member_packets_total", "0", "sent", "0"] <= sent
        assert values["switchagg_member_wrong_sums_total", "0", "0"] == 0
        assert values["switchagg_job_members", "0", "alive"] == 1
        assert (values["switchagg_slots",], values["switchagg_free_slots",]) == (64, 32)
        assert values["switchagg_members_lost_total",] == 0
        assert not [name for name in values if "secret-name" in name]
        first = values["switchagg_start_time_seconds",]
        assert scraped(daemon)["switchagg_start_time_seconds",] == first


def test_names_of_jobs_are_metrics_where_that_is_told_and_the_port_is_free_again() -> None:
    options = DaemonOptions(HERE.bind_control, HERE.bind_data, slots=64, metrics=HERE.metrics, metrics_names=True)
    with (
        SwitchDaemon(options) as daemon,
        closing(SwitchSession.join(daemon.control_endpoint, "open-name", 0, 1, OPTIONS)),
    ):
        assert [name for name in scraped(daemon) if "open-name" in name and name[0] == "switchagg_job_info"]
        with pytest.raises(SwitchaggError, match=r"--metrics .*: Address already in use"):
            SwitchDaemon(DaemonOptions(HERE.bind_control, HERE.bind_data, metrics=daemon._metrics.address))
    with SwitchDaemon(DaemonOptions(HERE.bind_control, HERE.bind_data, metrics=daemon._metrics.address)):
        pass


def test_metrics_that_others_reach_are_in_the_line_of_what_is_open() -> None:
    assert DaemonOptions(metrics=("127.0.0.1", 9464)).exposure == ""
    seen = DaemonOptions(metrics=("0.0.0.0", 9464), metrics_names=True).exposure
    assert seen == "open to the network: whoever reaches 0.0.0.0:9464 reads counters and names of jobs"


NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
ONE, TWO = Member(1, ("10.0.0.1", 7001), 77), Member(2, ("10.0.0.2", 7002), 78)


@pytest.mark.parametrize(
    ("event", "facts"),
    [
        (
            JobFailed("train", 9, (ONE, TWO), (TWO,), "rank 2: no heartbeat"),
            {"level": "error", "event": "job_failed", "generation": 9, "rank": 2, "address": "10.0.0.2:7002"},
        ),
        (
            JoinRefused("train", (ONE, TWO), "full\n"),
            {
                "level": "warning",
                "event": "join_refused",
                "reason": "full\n",
                "text": "refused rank 1 at 10.0.0.1:7001",
            },
        ),
        (
            MemberLeft("train", Departure(ONE, (3, 4), ""), (TWO,)),
            {
                "level": "info",
                "event": "member_left",
                "rank": 1,
                "text": "job 'train': rank 1 at 10.0.0.1:7001 left af",
            },
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_events_as_json(event: JobFailed, facts: dict[str, object]) -> None:
    (entry,) = entries_of(event)
    line = entry.as_json(NOON)
    assert "\n" not in line
    read = json.loads(line)
    assert (read["time"], read["job"]) == ("2026-11-29T12:00:00.000Z", "train")
    for name, value in facts.items():
        assert str(read[name]).startswith(str(value))
    assert "incarnation" not in line
    assert "77" not in line


def test_levels_and_formats(capsys: pytest.CaptureFixture[str]) -> None:
    for log in (EventLog("switchagg switch", level="warning"), EventLog("switchagg switch", "json", "warning")):
        log.note("nothing")
        log.write(LogEntry("a", "b\x1b", "error"))
    text, line = capsys.readouterr().err.splitlines()
    assert text == "switchagg switch: b\\x1b"
    assert json.loads(line)["text"] == "b\x1b"
    with pytest.raises(SwitchaggError, match=r"--log-level loud: unknown.*warning"):
        EventLog("a", level="loud")


RUN = (
    "import sys; from pathlib import Path; from transport.switch.daemon import run_switch\n"
    "from transport.switch.daemon_options import DaemonOptions; from transport.switch.event_log import EventLog\n"
    "options = DaemonOptions('tcp://127.0.0.1:0', ('127.0.0.1', 0), slots=64)\n"
    "log = EventLog('switchagg switch', sys.argv[2])\n"
    "sys.exit(run_switch(options, ready_file=Path(sys.argv[1]), log=log))\n"
)


def test_full_and_closed_streams_end_no_daemon(tmp_path: Path) -> None:
    python = f'exec "{sys.executable}" -c "$0" '
    streams = {"text": ">/dev/full 2>/dev/full", "json": "<&- >&- 2>&-"}
    with open(os.devnull) as nothing:
        daemons = {
            kind: subprocess.Popen(
                ["/bin/sh", "-c", f"{python} {tmp_path / kind} {kind} {redirections}", RUN], stdin=nothing
            )
            for kind, redirections in streams.items()
        }
    try:
        for kind, process in daemons.items():
            end_s = time.monotonic() + SOON_S
            while not (tmp_path / kind).exists():
                assert process.poll() is None, kind
                assert time.monotonic() < end_s
                time.sleep(0.02)
            control = re.search(r"control (\S+)", (tmp_path / kind).read_text())
            assert control
            with closing(SwitchSession.join(control[1], "train", 0, 1, OPTIONS)) as session:
                assert session.allreduce(np.ones(40, np.int32)).result(SOON_S)[0] == 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(SOON_S) == 0, kind
    finally:
        for process in daemons.values():
            process.kill()
            process.wait(SOON_S)
