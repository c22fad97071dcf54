"""Processes that a nursery forks: their words, ends and signals, and that none outlives it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulation.scenario.errors import RunFailed
from emulation.testbed.nursery import Nursery

MODULE = """
import os, signal, sys, time

prepared = []

def prepare():
    prepared.append(os.getpid())

def answer(words):
    assert os.getppid() == prepared[0]
    print(words, os.environ["GREETING"], sys.stdin.read(), flush=True)
    return 3

def wait(words):
    print(os.getpid(), flush=True)
    signal.pause()
"""


@pytest.fixture
def nursery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    (tmp_path / "nursed.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Nursery(["nursed:prepare"]) as nursery:
        yield nursery


def test_a_process_has_its_argument_environment_and_pipes_and_gives_its_status(nursery: Nursery) -> None:
    with tempfile.TemporaryFile() as log:
        process = nursery.start("nursed:answer", "hello", {"GREETING": "there"}, log)
        assert process.poll() is None
        process.stdin.write(b"words")
        process.stdin.close()
        assert process.stdout.readline() == b"hello there words\n"
        assert process.wait(10.0) == process.poll() == 3
        process.send_signal(signal.SIGKILL)  # to nobody
        process.close_pipes()


def test_a_killed_process_has_the_status_of_its_signal(nursery: Nursery) -> None:
    with tempfile.TemporaryFile() as log:
        process = nursery.start("nursed:wait", "", {}, log)
        assert int(process.stdout.readline()) == process.pid
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        process.send_signal(signal.SIGSTOP)
        process.close()
        assert process.returncode == -signal.SIGKILL


def test_the_end_of_a_nursery_is_the_end_of_all(nursery: Nursery) -> None:
    with tempfile.TemporaryFile() as log:
        processes = [nursery.start("nursed:wait", "", {}, log) for _ in range(3)]
        for process in processes:
            process.stdout.readline()
        processes[1].send_signal(signal.SIGSTOP)
        nursery.close()
        assert not any(Path(f"/proc/{process.pid}").exists() for process in processes)


def test_a_nursery_loads_more_when_it_is_told_and_ends_in_the_midst_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "later.py").write_text(MODULE)
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with tempfile.TemporaryFile() as log, Nursery(["a_module_that_is_not_installed"]) as nursery:
        nursery.load(["later:prepare"])
        process = nursery.start("later:answer", "hello", {"GREETING": "there"}, log)
        process.stdin.close()
        assert process.stdout.read() == b"hello there \n"
        assert process.wait() == 3
        nursery.load(["slow"])
    assert not Path(f"/proc/{nursery.pid}").exists()


def test_processes_end_with_a_nursery_that_is_killed(nursery: Nursery) -> None:
    with tempfile.TemporaryFile() as log:
        process = nursery.start("nursed:wait", "", {}, log)
        process.stdout.readline()
        os.kill(nursery.pid, signal.SIGKILL)
        assert process.stdout.read() == b""  # the kernel has closed its end
        with pytest.raises(RunFailed, match="the process that starts others has ended: status -9"):
            process.wait(10.0)


def test_a_nursery_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from emulation.testbed.nursery import Nursery; "
        "nursery = Nursery([]); print(nursery.pid, flush=True); os._exit(0)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    end_s = time.monotonic() + 20.0
    while (status := Path(f"/proc/{int(printed.stdout)}/stat")).exists():
        if " Z " in status.read_text():
            break
        assert time.monotonic() < end_s
        time.sleep(0.02)
