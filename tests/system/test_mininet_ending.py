"""Nothing is left after an exception, Ctrl-C, TERM or KILL, at any time; use by hand, and as a plain user."""

import importlib
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import comes

from emulation.testbed import netns

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("requires_mininet")]

REPOSITORY = Path(__file__).resolve().parents[2]
NOBODY = 65_534
RUNNER = """
import json, os, subprocess, sys, time
from emulation.testbed.mininet.services import ServiceProcess
from emulation.testbed.mininet.emulated_network import EmulatedNetwork, NetworkSpec
from emulation.testbed.certificate.fidelity import FidelityMonitor
print("importing is done", flush=True)
plane = ServiceProcess(("sh", "-c", "echo it is up; exec sleep 1000"), ready="it is up")
with EmulatedNetwork(NetworkSpec(workers=2)) as net:
    running = net.start_data_plane(plane)
    monitor = FidelityMonitor(net)
    monitor.start()
    worker = net.spawn(0, [sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
    print(json.dumps([net.switch_pid, running.process.pid, worker.pid, monitor._child.process.pid]
                     + [worker.pid for worker in net.workers]), flush=True)
    FATE
    time.sleep(1000)
"""


def network_namespaces() -> set[int]:
    """Of all processes we may look at."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(link.stat().st_ino)
        except OSError:  # ended meanwhile
            continue
    return found


def interfaces() -> set[str]:
    return {entry.name for entry in Path("/sys/class/net").iterdir()}


def nodes() -> set[int]:
    """Shells of Mininet nodes that inherited our environment: other people's networks are none of our business."""
    token = f"SWITCHAGG_TEST_RUN={os.environ['SWITCHAGG_TEST_RUN']}".encode()
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = token in (process / "environ").read_bytes() and b"mininet:" in (process / "cmdline").read_bytes()
        except OSError:
            continue
        if ours:
            found.add(int(process.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No node, no interface; namespaces vanish with the last process in them, a moment later."""
    before = (nodes(), interfaces())
    yield
    assert comes(lambda: (nodes(), interfaces()) == before), (nodes(), interfaces())


def start(fate: str = "pass") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER.replace("FATE", fate)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=REPOSITORY,
    )


def all_gone(pids: list[int]) -> bool:
    return comes(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_killed_runner_leaves_nothing_behind(number: int) -> None:
    runner = start()
    assert runner.stdout is not None
    assert runner.stdout.readline() == "importing is done\n"
    pids = json.loads(runner.stdout.readline())
    assert all(map(is_alive, pids))
    namespaces = {Path(f"/proc/{pid}/ns/net").stat().st_ino for pid in pids}
    assert len(namespaces - {Path("/proc/self/ns/net").stat().st_ino}) == 3
    os.kill(runner.pid, number)
    runner.communicate(timeout=300)
    assert runner.returncode != 0
    assert all_gone(pids)
    assert not network_namespaces() & (namespaces - {Path("/proc/self/ns/net").stat().st_ino})


def test_ctrl_c_to_the_whole_process_group_still_cleans_up_in_order() -> None:
    """As a terminal does it: the signal goes to every process of the runner's group."""
    runner = start()
    assert runner.stdout is not None
    runner.stdout.readline()
    pids = json.loads(runner.stdout.readline())
    os.killpg(runner.pid, signal.SIGINT)
    _, errors = runner.communicate(timeout=300)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert all_gone(pids)


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.1, 0.2, 0.4])
def test_ctrl_c_during_the_build_leaves_nothing_behind(delay_s: float) -> None:
    runner = start()
    assert runner.stdout is not None
    runner.stdout.readline()
    time.sleep(delay_s)
    os.killpg(runner.pid, signal.SIGINT)
    runner.communicate(timeout=300)
    assert runner.returncode != 0


def test_an_exception_inside_leaves_nothing_behind_and_propagates() -> None:
    runner = start("raise ValueError('worker 1 lost its mind')")
    output, errors = runner.communicate(timeout=300)
    assert errors.rstrip().endswith("ValueError: worker 1 lost its mind")
    assert all_gone(json.loads(output.splitlines()[1]))


def test_closing_twice_is_closing_once() -> None:
    from emulation.testbed.mininet.emulated_network import EmulatedNetwork, NetworkSpec

    net = EmulatedNetwork(NetworkSpec(workers=1))
    net.close()
    with net:
        shell = net.workers[0].pid
        net.close()
        net.close()
    assert all_gone([shell])


SETTINGS = """
import mininet.net
def raise_limits(): raise SystemExit("Mininet set limits of the whole machine")
mininet.net.fixLimits = raise_limits
"""


def test_the_machine_s_settings_stay_as_they_were(tmp_path: Path) -> None:
    """Mininet raises limits of the whole machine at its first network, also from its command line."""
    assert "def fixLimits" in inspect.getsource(importlib.import_module("mininet.util"))
    network = "with EmulatedNetwork(NetworkSpec(workers=1)): print('it ran')"
    program = (
        SETTINGS + "from emulation.testbed.mininet.emulated_network import EmulatedNetwork, NetworkSpec\n" + network
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.stderr) == ("it ran\n", "")
    custom = tmp_path / "custom.py"
    custom.write_text(SETTINGS)
    both = f"{custom},{REPOSITORY / 'emulation/mn_custom.py'}"
    output = mn(*BY_HAND, "--switch", "switchagg_bridge", "--test", "none", custom=both)
    assert "limits of the whole machine" not in output
    assert "completed in" in output


# ---- by hand


def mn(*arguments: str, custom: str = "", timeout_s: float = 90) -> str:
    """Mininet's own command line with our custom file, from another folder."""
    program = shutil.which("mn")
    if program is None:
        pytest.skip("needs Mininet's command mn")
    command = [program, "--custom", custom or str(REPOSITORY / "emulation/mn_custom.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd="/", check=False)
    return done.stdout + done.stderr


BY_HAND = ("--topo", "switchagg,3", "--host", "switchagg", "--controller", "none")


def test_by_hand_with_a_bridge() -> None:
    output = mn(*BY_HAND, "--switch", "switchagg_bridge", "--link", "tc,bw=100", "--test", "pingall")
    assert "Results: 0% dropped (6/6 received)" in output
    assert "Error" not in output


def test_by_hand_a_fast_link_is_really_shaped(tmp_path: Path) -> None:
    """Mininet itself ignores more than 1 Gb/s and leaves the link as fast as the machine."""
    script = tmp_path / "script"
    script.write_text("h1 tc class show dev h1-eth0\ns1 tc class show dev s1-eth1\n")
    output = mn(
        *BY_HAND, "--switch", "switchagg_bridge", "--link", "tc,bw=2000", "--pre", str(script), "--test", "none"
    )
    assert output.count("rate 2Gbit ceil 2Gbit") == 2


def test_by_hand_settings_the_kernel_ignored_are_refused_and_others_stay(tmp_path: Path) -> None:
    """After an error `mn` would end every program with certain names, whosever it is."""
    from emulation.testbed.mininet import shaping

    if shaping.netem_missing() is None:
        pytest.skip("this kernel has netem: nothing to refuse")
    other = tmp_path / "ofdatapath"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", other)
    bystander = subprocess.Popen([other, "1000"])
    try:
        output = mn(*BY_HAND, "--switch", "switchagg_bridge", "--link", "tc,bw=100,delay=5ms", "--test", "pingall")
        assert "UnfitError: s1-eth1: delay=5ms was asked for and the kernel did not do it" in output
        assert "Ping:" not in output
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_by_hand_with_the_switch_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker reaches the daemon; it ends with `mn`."""
    monkeypatch.setenv("SWITCHAGG_PYTHON", sys.executable)
    script = tmp_path / "script"
    script.write_text(
        f"h1 PYTHONPATH={REPOSITORY} {sys.executable} -m emulation.cli.main status tcp://10.0.0.254:5555 --json\n"
    )
    output = mn(
        *BY_HAND,
        "--switch",
        "switchagg,dataplane=reference",
        "--link",
        "tc,bw=100",
        "--test",
        "pingall",
        "--post",
        str(script),
    )
    assert "Results: 0% dropped (6/6 received)" in output
    assert '"data_counters"' in output
    assert "Error" not in output


# ---- as a plain user


def as_nobody(program: str, *prefix: str) -> subprocess.CompletedProcess[str]:
    """Runs a program as a user without rights, on a copy of our files that this user can read: not in tmp_path, for
    each run of pytest that begins takes others' rights to its parent away."""
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        package = Path(folder)
        package.chmod(0o755)
        shutil.copytree(REPOSITORY / "emulation", package / "emulation", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("switchagg/errors.py", "switchagg/priority.py", "transport/links/ethernet.py"):
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, package / name)
        (package / "program.py").write_text(program)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": folder, "HOME": "/"}
        return subprocess.run(
            [*user, *prefix, system_python(), "program.py"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=package,
            env=environment | {"SWITCHAGG_TEST_RUN": os.environ["SWITCHAGG_TEST_RUN"]},
            check=False,
        )


def system_python() -> str:
    """An interpreter that every user may run; ours may live in a private folder."""
    candidate = "/usr/bin/python3"
    version = "import sys; sys.exit(sys.version_info < (3, 11))"
    if not os.access(candidate, os.X_OK) or subprocess.run([candidate, "-c", version], check=False).returncode:
        pytest.skip("needs an interpreter that any user can read: /usr/bin/python3, 3.11 or later")
    return candidate


@pytest.fixture
def requires_user_namespaces() -> None:
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    probe = [*user, "unshare", "-Urnm", "mount", "-t", "tmpfs", "none", "/mnt"]
    if subprocess.run(probe, capture_output=True, timeout=300, check=False).returncode:
        pytest.skip("needs user namespaces for plain users: this kernel forbids them")


ROOTLESS = """
import json, os, subprocess, sys
from emulation.testbed import netns
REEXEC
from emulation.testbed.mininet.services import ServiceProcess
from emulation.testbed.mininet.emulated_network import EmulatedNetwork, NetworkSpec
plane = ServiceProcess(("sh", "-c", "echo switchagg switch ready; exec sleep 1000"))
with EmulatedNetwork(NetworkSpec(workers=2, rate_bps=100_000_000)) as net:
    net.start_data_plane(plane)
    ping = net.spawn(0, ["ping", "-c", "1", "-W", "5", "h2"], stdout=subprocess.PIPE, text=True)
    print(ping.communicate(timeout=20)[0])
    print(json.dumps([net.verification.privileges, net.verification.ports[0].rate_bps, net.counters()[0].up_packets]))
"""


@pytest.mark.usefixtures("requires_user_namespaces")
@pytest.mark.parametrize(
    ("prefix", "reexec"),
    [(("unshare", "-Urnm"), ""), ((), "netns.run_in_user_namespace()")],
    ids=["inside unshare", "by itself"],
)
def test_a_plain_user_can_run_it_in_a_user_namespace(prefix: tuple[str, ...], reexec: str) -> None:
    done = as_nobody(ROOTLESS.replace("REEXEC", reexec), *prefix)
    assert done.returncode == 0, done.stderr
    assert " 0% packet loss" in done.stdout
    privileges, rate_bps, packets = json.loads(done.stdout.splitlines()[-1])
    assert (privileges, rate_bps) == ("user namespace", 100_000_000)
    assert packets >= 1


def test_a_plain_user_without_namespaces_is_told_how_to_get_them() -> None:
    done = as_nobody(ROOTLESS.replace("REEXEC", ""))
    assert done.returncode != 0
    assert (
        done.stderr.rstrip()
        .splitlines()[-1]
        .startswith(
            "emulation.testbed.mininet.shaping.UnfitError: Mininet needs root or a user namespace: "
            "begin the command with `sudo $(which switchagg)` or"
        )
    )


def test_an_orphan_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells a process of its parent's death only if it asked before: a process that asks too late must
    check."""
    command = netns.command_in(os.getpid(), ["true"])
    assert subprocess.run(command, timeout=300).returncode == 0
    monkeypatch.setattr(os, "getpid", lambda: 1)
    command = netns.command_in(2, ["true"])
    assert subprocess.run(command, timeout=300).returncode == 1
