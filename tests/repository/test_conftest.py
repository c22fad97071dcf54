"""The run's own rules, tried on small runs of pytest: seeds, skips, things left behind, and ending on TERM."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
SETTINGS = "[pytest]\nmarkers =\n  system: needs root\n  long: begun first\n  alone: as it says\n"
NOT_INHERITED = ("SWITCHAGG_SEEDS", "SWITCHAGG_TEST_RUN", "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST")
NOT_INHERITED += ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID")


def start(
    folder: Path, body: str, *arguments: str, within: tuple[str, ...] = (), **environment: str
) -> subprocess.Popen[str]:
    """A run of pytest on one test file, under our conftest; `within` is a command that runs it elsewhere."""
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "test_it.py").write_text(body)
    command = [*within, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    kept = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    return subprocess.Popen(
        command, cwd=folder, env=kept | environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def run(folder: Path, body: str, *arguments: str, within: tuple[str, ...] = (), **environment: str) -> tuple[int, str]:
    """Exit status and output of such a run."""
    process = start(folder, body, *arguments, within=within, **environment)
    try:
        output, _ = process.communicate()
    finally:
        process.kill()
    return process.returncode, output


SEEDED = "def test_it(seed): print(f'seed={seed}.')\n"


def test_one_seed_is_replayed_alone_but_for_tests_that_name_theirs(tmp_path: Path) -> None:
    mark = "import pytest\n@pytest.mark.parametrize('size, seed', [(1, 7), (2, 8)])\n"
    body = SEEDED + mark + SEEDED.replace("test_it(seed)", "test_own(size, seed)")
    status, output = run(tmp_path, body, "-s", "--seed", "12345")
    assert status == 0
    assert all(f"seed={seed}." in output for seed in (12345, 7, 8))
    assert "3 passed" in output


def test_the_environment_gives_the_number_of_seeds_and_skips_are_listed_once_per_reason(tmp_path: Path) -> None:
    body = (
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(3))\n"
        "def test_rare(n): pytest.skip('needs bmv2')\n"
        "@pytest.mark.skipif(True, reason='needs a NIC')\n"
        "def test_other(): pass\n"
    )
    status, output = run(tmp_path, body + SEEDED, "-s", SWITCHAGG_SEEDS="2")
    assert status == 0
    assert all(f"seed={seed}." in output for seed in range(2))
    assert "2 passed, 4 skipped" in output
    assert "    3 x needs bmv2\n    1 x needs a NIC\n" in output


SOON = {"SWITCHAGG_LEFTOVER_GRACE_S": "0.3"}
# Popen returns while the kernel still sets the program up: for milliseconds it has no environment to be known by.
LEAK = """import pathlib, subprocess, time
def test_it():
    left = subprocess.Popen(['sleep', '300'], start_new_session={detached})
    while not pathlib.Path(f'/proc/{{left.pid}}/environ').read_bytes(): time.sleep(0.01)
"""


PARALLEL = ("-n", "2")


@pytest.mark.parametrize(("detached", "arguments"), [(False, ()), (True, PARALLEL)])
def test_a_process_left_behind_fails_the_run(tmp_path: Path, detached: bool, arguments: tuple[str, ...]) -> None:
    status, output = run(tmp_path, LEAK.format(detached=detached), *arguments, **SOON)
    left = [line for line in output.splitlines() if line.endswith("sleep 300")]
    for line in left:
        os.kill(int(line.split()[1].rstrip(":")), signal.SIGKILL)
    assert len(left) == 1
    assert status == 1
    assert "1 passed" in output


def test_a_parallel_run_keeps_a_files_tests_and_the_system_tests_together(tmp_path: Path) -> None:
    name = "import os, pytest\ndef note(n):\n    open(f'{n}.worker', 'w').write(os.environ['PYTEST_XDIST_WORKER'])\n"
    count = "@pytest.mark.parametrize('n', range(20))\n"
    (tmp_path / "test_one.py").write_text(f"{name}{count}@pytest.mark.system\ndef test_it(n): note(f'one{{n}}')\n")
    (tmp_path / "test_two.py").write_text(f"{name}{count}@pytest.mark.system\ndef test_it(n): note(f'two{{n}}')\n")
    status, output = run(tmp_path, f"{name}{count}def test_it(n): note(f'it{{n}}')\n", *PARALLEL)
    assert status == 0, output
    assert "60 passed" in output
    workers = {kind: {file.read_text() for file in tmp_path.glob(f"{kind}*.worker")} for kind in ("one", "two", "it")}
    assert all(len(names) == 1 for names in workers.values())
    assert workers["one"] == workers["two"] != workers["it"]


def test_a_parallel_run_begins_with_what_takes_long(tmp_path: Path) -> None:
    note = "import pytest\ndef note(word):\n    with open('order', 'a') as file: file.write(word)\n"
    (tmp_path / "test_x.py").write_text(f"{note}pytestmark = pytest.mark.long\ndef test_it(): note('long ')\n")
    (tmp_path / "test_y.py").write_text(f"{note}@pytest.mark.system\ndef test_it(): note('system ')\n")
    status, output = run(
        tmp_path, f"{note}@pytest.mark.parametrize('n', range(9))\ndef test_it(n): note('.')", "-n", "1"
    )
    assert status == 0, output
    assert (tmp_path / "order").read_text() == "system long ........."


def test_in_a_parallel_run_a_test_that_is_to_be_alone_is(tmp_path: Path) -> None:
    """Each of the others tells for 20 ms that it runs."""
    head = "import os, pathlib, time, pytest\n@pytest.mark.parametrize('n', range({}))\n"
    others = "def test_others(n):\n    file = pathlib.Path(f'running{os.getpid()}')\n    file.touch()\n"
    others += "    time.sleep(0.02)\n    file.unlink()\n"
    for name in ("test_beside.py", "test_once_more.py"):
        (tmp_path / name).write_text(head.format(40) + others)
    body = head.format(5) + "@pytest.mark.alone\ndef test_it(n):\n    for _ in range(20):\n"
    body += "        time.sleep(0.005)\n        assert not list(pathlib.Path().glob('running*'))\n"
    status, output = run(tmp_path, body, "-n", "3")
    assert status == 0, output
    assert "85 passed" in output


@pytest.mark.system
def test_a_link_left_behind_fails_the_run(tmp_path: Path, requires_root_namespaces: None) -> None:
    body = (
        "import pytest, subprocess\n@pytest.mark.system\n"
        "def test_it(): subprocess.run(['ip', 'link', 'add', 'forgotten', 'type', 'bridge'], check=True)\n"
    )
    status, output = run(tmp_path, body, *PARALLEL, within=("unshare", "--net"), **SOON)
    assert status == 1
    assert "link forgotten\n" in output
    assert "1 passed" in output


IGNORING = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"


def test_children_of_a_background_run_receive_ctrl_c(tmp_path: Path) -> None:
    """A script's `make test &` begins with the signal ignored, and so would all that it starts."""
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    body = f"import subprocess, sys\ndef test_it(): subprocess.run([sys.executable, '-c', '{program}'], check=True)\n"
    status, output = run(tmp_path, body, "-s", within=(sys.executable, "-c", IGNORING))
    assert status == 0
    assert "False\n" in output


@pytest.mark.parametrize("arguments", [(), PARALLEL])
def test_term_ends_the_run_through_finally(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    body = (
        "import time, pathlib\n"
        "def test_it():\n"
        "    try:\n"
        "        pathlib.Path('begun').touch()\n"
        "        time.sleep(1000)\n"
        "    finally: pathlib.Path('cleaned').touch()\n"
    )
    process = start(tmp_path, body, *arguments)
    try:
        while not (tmp_path / "begun").exists() and process.poll() is None:
            time.sleep(0.05)
        process.terminate()
        process.communicate()
    finally:
        process.kill()
    assert (tmp_path / "cleaned").exists()
    assert process.returncode == pytest.ExitCode.INTERRUPTED
