"""Limits on waiting for processes: the starved are waited for, the hung are not, and every wait ends."""

import subprocess
import sys
import time

import pytest

from emulation.testbed import patience
from emulation.testbed.patience import run
from tests.shared.starved import STARVED, busy

PYTHON = (sys.executable, "-S", "-c")


def test_a_starved_process_is_waited_for_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(patience, "SAY_S", 0.1)
    with busy():
        begun = time.monotonic()
        done = run([*PYTHON, f"{STARVED}\nprint(input())"], 1.0, input="given", check=True)
    assert time.monotonic() - begun > 1.0, "it was not starved, so that nothing was tried"
    assert done.stdout == "given\n"
    said = capsys.readouterr().err.splitlines()
    assert said
    assert all("s of which processors or disks were busy; still waiting, 20 s at most" in line for line in said)


@pytest.mark.alone
def test_children_of_a_process_that_sleeps_are_waited_for() -> None:
    starves = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {STARVED!r}])"
    with busy():
        assert run([*PYTHON, starves], 1.0).returncode == 0


@pytest.mark.parametrize("hangs", ["import time; time.sleep(600)", "while True: pass"])
def test_a_process_that_hangs_is_not(hangs: str) -> None:
    begun = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired, match=r"timed out after 1\.0 seconds"):
        run([*PYTHON, hangs], 1.0)
    assert time.monotonic() - begun < 21.0


def test_a_starved_process_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "STARVED_MOST", 3.0)
    with busy(), pytest.raises(subprocess.TimeoutExpired):
        run([*PYTHON, STARVED.replace("0.25", "600")], 0.5)


def test_a_command_that_fails_says_what_it_wrote() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run(["sh", "-c", "echo no >&2; exit 3"], 20.0, check=True)
    assert (caught.value.returncode, caught.value.stderr) == (3, "no\n")
