"""What all tests share: seeds to replay, what this machine allows, the list of skips, and a look for leftovers."""

import fcntl
import functools
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import hypothesis
import pytest

from switchagg.native.library import missing

pytest_plugins = ["switchagg.testing"]  # tests/vectors/*.stf run live, too, on the fastest data plane

SEEDS_DEFAULT = 30
LEFTOVER_GRACE_S = float(os.environ.get("SWITCHAGG_LEFTOVER_GRACE_S", "3"))
# Inherited by every process the tests start, also by those that detach: how we know our own at the end.
TOKEN_NAME = "SWITCHAGG_TEST_RUN"
# Python's own, which live until the interpreter ends
EXPECTED_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

LINKS_BEFORE = pytest.StashKey[set[str]]()
SYSTEM_TESTS_RAN = pytest.StashKey[bool]()
LEFTOVERS = pytest.StashKey[list[str]]()

# `repeatable`: the same examples on every machine. `explore` (HYPOTHESIS_PROFILE=explore): new ones in each run.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


# ---- seeds


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("switchagg")
    group.addoption(
        "--seeds",
        type=int,
        default=int(os.environ.get("SWITCHAGG_SEEDS", SEEDS_DEFAULT)),
        metavar="N",
        help=f"run each test that takes a `seed` with seeds 0..N-1 (default {SEEDS_DEFAULT}, or SWITCHAGG_SEEDS)",
    )
    group.addoption("--seed", type=int, default=None, metavar="S", help="run each such test with this one seed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test with an argument `seed` its seeds, unless it names them itself."""
    marks = metafunc.definition.iter_markers("parametrize")
    own = {name.strip() for mark in marks for name in str(mark.args[0]).split(",")}
    if "seed" in metafunc.fixturenames and "seed" not in own:
        one = metafunc.config.getoption("--seed")
        metafunc.parametrize("seed", range(metafunc.config.getoption("--seeds")) if one is None else [one])


# ---- what this machine allows


@pytest.fixture(scope="session")
def requires_root_namespaces() -> None:
    """Skip unless we are root and may make network namespaces."""
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces, veth and tc")
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs unshare (package util-linux)")
    if subprocess.run([unshare, "-n", "true"], capture_output=True, timeout=300, check=False).returncode != 0:
        pytest.skip("needs network namespaces: this root may not make one (container without CAP_SYS_ADMIN?)")


@pytest.fixture(scope="session")
def requires_bpf() -> None:
    """Skip unless our BPF programs were built and this process may load them."""
    from switchagg.native import bpf

    if reason := bpf.missing((bpf.MTU_1500, bpf.JUMBO, bpf.LOSS)):
        pytest.skip(f"needs BPF: {reason}")


@pytest.fixture(scope="session")
def requires_mininet(requires_root_namespaces: None) -> None:
    """Skip unless Mininet and the programs it calls are installed."""
    missing = [name for name in ("mnexec", "ip", "tc", "ethtool", "ifconfig") if shutil.which(name) is None]
    try:
        import mininet.net  # noqa: F401
    except ImportError:
        missing.insert(0, "mininet")
    if missing:
        pytest.skip(f"needs Mininet; missing: {', '.join(missing)} (`make setup` as root installs it)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what a test runs over "native", whatever the parameter is called, where the C core is missing."""
    if not (reason := missing()):
        return
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if any(isinstance(value, str) and value == "native" for value in parameters.values()):
            item.add_marker(pytest.mark.skip(reason=f"needs the compiled core: {reason}"))


def pytest_collection_finish() -> None:
    """Lets the garbage collector leave alone what lives until the end: 14,000 tests, and the modules of all files."""
    gc.collect()
    gc.freeze()


# ---- parallel runs (pytest -n 2)

SYSTEM, LONG = "system", "long: "


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: tests in real time mostly wait."""
    return len(os.sched_getaffinity(0)) + 1


def group_of(file: str) -> str:
    """Tests of a file stay together, and all files whose tests make links: they look at the machine's."""
    text = Path(file).read_text(encoding="utf-8") if file.endswith(".py") else ""
    makes_links = any(word in text for word in ("mark.system", "requires_root_namespaces", "requires_mininet"))
    return SYSTEM if makes_links else f"{LONG}{file}" if "mark.long" in text else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class TestGroups(LoadScopeScheduling):  # type: ignore[misc]
        groups: ClassVar[dict[str, str]] = {}

        def _assign_work_unit(self, node: Any) -> None:
            """Gives out links' tests first, then long files: what is begun last must be short."""
            long = [scope for scope in self.workqueue if scope == SYSTEM or scope.startswith(LONG)]
            if long:
                self.workqueue.move_to_end(SYSTEM if SYSTEM in long else long[0], last=False)
            super()._assign_work_unit(node)

        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            if file not in self.groups:
                self.groups[file] = group_of(str(config.rootpath / file))
            return self.groups[file]

    return TestGroups(config, log)


def turns_path() -> Path:
    return Path(tempfile.gettempdir(), f"switchagg-turns-{os.environ[TOKEN_NAME]}")


@functools.cache
def turns() -> Any:
    """The file whose bytes the processes of a parallel run lock."""
    return turns_path().open("a+b")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test marked `alone` waits until those beside it have ended, and no other begins before it has."""
    if not is_parallel_worker(item.config):
        return (yield)
    gate, room = 0, 1
    fcntl.lockf(turns(), fcntl.LOCK_EX, 1, gate)  # who waits for the room keeps it closed to those who come later
    fcntl.lockf(turns(), fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH, 1, room)
    fcntl.lockf(turns(), fcntl.LOCK_UN, 1, gate)
    try:
        return (yield)
    finally:
        fcntl.lockf(turns(), fcntl.LOCK_UN, 1, room)


def is_parallel_worker(config: pytest.Config) -> bool:
    """True in the processes that pytest-xdist starts: the one that started them looks for leftovers."""
    return hasattr(config, "workerinput")


def parallel_workers(config: pytest.Config) -> list[int]:
    """Processes of a parallel run: all that the process which gives out the tests has started."""
    if not config.pluginmanager.hasplugin("dsession"):
        return []
    return [int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()]


# ---- nothing is left behind


def network_names() -> set[str]:
    """Links of this network namespace, and named namespaces."""
    named = Path("/run/netns")
    namespaces = {f"namespace {entry.name}" for entry in named.iterdir()} if named.is_dir() else set()
    return namespaces | {f"link {name}" for _, name in socket.if_nameindex()}


def our_processes(token: str) -> list[str]:
    """Living processes, other than this one, that inherited our token."""
    ours = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) == os.getpid() or f"{TOKEN_NAME}={token}".encode() not in (
                (process / "environ").read_bytes().split(b"\0")
            ):
                continue
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # ended meanwhile, or another user's
            continue
        if command and not any(expected in command for expected in EXPECTED_PROCESSES):
            ours.append(f"process {process.name}: {command[:200]}")
    return ours


def leftovers(config: pytest.Config) -> list[str]:
    found = our_processes(os.environ[TOKEN_NAME])
    # Only system tests make links here; other programs may do so at any time, so without such tests we do not look.
    if config.stash[SYSTEM_TESTS_RAN]:
        found += sorted(network_names() - config.stash[LINKS_BEFORE])
    return found


def pytest_configure(config: pytest.Config) -> None:
    if not is_parallel_worker(config):
        os.environ[TOKEN_NAME] = f"{os.getpid()}-{time.time_ns()}"
    config.stash[LINKS_BEFORE] = network_names()
    config.stash[SYSTEM_TESTS_RAN] = False
    config.stash[LEFTOVERS] = []
    config.pluginmanager.register(SystemTests(config))
    run_pid = os.getpid()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        """A time limit ends the run with TERM: let every `finally` end what its test started."""
        if os.getpid() == run_pid:
            for pid in parallel_workers(config):
                os.kill(pid, signal.SIGTERM)
            raise KeyboardInterrupt
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a job in a script's background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what the tests start has to hear Ctrl-C


class SystemTests:
    """Notes that a system test ran, here or in a worker of a parallel run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and "system" in report.keywords:
            self._config.stash[SYSTEM_TESTS_RAN] = True


@pytest.hookimpl(trylast=True)  # after the workers of a parallel run have ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if processes, links or namespaces made by it are still there after a grace period."""
    if forks := sys.modules.get("torch_forks"):
        forks.end()
    if is_parallel_worker(session.config):
        return
    turns_path().unlink(missing_ok=True)
    deadline = time.monotonic() + LEFTOVER_GRACE_S
    while (found := leftovers(session.config)) and time.monotonic() < deadline:
        time.sleep(0.1)
    session.config.stash[LEFTOVERS] = found
    if found and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


# ---- the end of the run


def skip_reasons(terminal: pytest.TerminalReporter) -> Counter[str]:
    """How many tests skipped for each reason."""
    reports = terminal.stats.get("skipped", [])
    return Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if reasons := skip_reasons(terminalreporter):
        terminalreporter.section("skipped")
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count:5d} x {reason}")
    if found := config.stash[LEFTOVERS]:
        terminalreporter.section("left behind by the tests", red=True)
        for line in found:
            terminalreporter.line(line)
