"""Progress on stderr: one line for every tenth of the way in a log, bars on a terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from emulation.cli.progress import ERASED, bars, lines, say
from emulation.experiments.progress_text import Passing
from emulation.testbed.host import host_facts


def test_lines_are_few_however_many_iterations(capsys: pytest.CaptureFixture[str]) -> None:
    with lines() as report:
        report("gloo", 0, 150, "building the network")
        report("gloo", 0, 150, "starting 4 workers")
        for done in range(1, 151):
            report("gloo", done, 150, f"{done} s of virtual time")
        report("switch", 0, 150, "")
    out, err = capsys.readouterr()
    assert out == ""
    said = err.splitlines()
    assert said[:2] == ["gloo: 0/150 iterations: building the network", "gloo: 0/150 iterations: starting 4 workers"]
    assert said[-2:] == ["gloo: 150/150 iterations: 150 s of virtual time", "switch: 0/150 iterations"]
    assert len(said) == 2 + 1 + 10 + 1


def test_a_log_is_not_silent_for_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((0.0, 10.0, 31.0, 31.0))
    monkeypatch.setattr("emulation.cli.progress.time.monotonic", lambda: next(seconds))
    with lines() as report:
        for note in ("1 s", "2 s", "3 s"):
            report("ring", 1, 100, note)
    assert capsys.readouterr().err.splitlines() == ["ring: 1/100 iterations: 1 s", "ring: 1/100 iterations: 3 s"]


def test_bars_show_each_method(capsys: pytest.CaptureFixture[str]) -> None:
    with bars() as report:
        report("gloo", 3, 10, "training")
        report("switch", 10, 10, "training")
    out, err = capsys.readouterr()
    assert out == ""
    assert "gloo" in err
    assert "10/10" in err


def test_elsewhere_than_on_a_terminal_every_line_stays(capsys: pytest.CaptureFixture[str]) -> None:
    say(Passing("[1/2] a"))
    say("b: failed")
    assert capsys.readouterr().err == "[1/2] a\nb: failed\n"


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_line_of_progress_rewrites_itself_and_goes_before_anything_else(term: str) -> None:
    program = (
        "import typer\nfrom emulation.cli.progress import say\n"
        "from emulation.experiments.progress_text import Passing\n"
        "say(Passing('1')); say(Passing(50 * '中')); print('row'); say(Passing('3')); typer.echo('error', err=True)\n"
        "say(Passing('4')); say('warning'); say(Passing('5'))"
    )
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))  # 20 columns
    try:
        environment = {**os.environ, "TERM": term}
        subprocess.run([sys.executable, "-c", program], stdout=slave, stderr=slave, env=environment, check=True)
        shown = os.read(master, 4096).decode().replace("\r\n", "\n")
    finally:
        os.close(slave)
        os.close(master)
    if term == "dumb":
        assert shown == f"1\n{50 * '中'}\nrow\n3\nerror\n4\nwarning\n5\n"
    else:
        assert shown == ERASED.join(["1", 9 * "中", "row\n3", "error\n4", "warning\n5", ""])


def test_host_facts_hold_what_results_must_not() -> None:
    facts = host_facts(["switchagg", "compare"])
    assert facts["command"] == ["switchagg", "compare"]
    assert facts["cpus_usable"] >= 1
    assert facts["packages"]["numpy"]
    assert facts["kernel"].startswith("Linux ")
    assert facts["started"].endswith("+00:00")
