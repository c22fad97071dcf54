"""A page carried out: a session of bash in a folder, as a user, with an environment's programs."""

import atexit
import functools
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pages import COMMENT, Step, missing_line, steps

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "switchagg/programs/*.md",
    "p4/README.md",
    "emulation/**/*.md",
    "examples/**/*.md",
)
QUICK_S, LONG_S, ENDS_S = 60, 1500, 10
HUNG = "did not end within"
QUIET_S = 1.5  # a program that serves and says nothing is there by then, or has given up
NOBODY = 65534
ADDRESSES = ("10.0.0.1", "10.0.0.9")
TOKEN = "SWITCHAGG_DOCUMENT"  # in the environment of all that a page starts
FOREIGN = ("SWITCHAGG_", "PYTEST_", "VIRTUAL_ENV")  # variables that a newcomer has not set
SETS_UP = re.compile(r"(sudo )?(make|pip3?|\S*/pip|apt|apt-get|git clone|cd switchagg$|python3? -m (venv|pip))\b")
BUSY = {3: "Certificate: INVALID", 4: "Certificate: DISTURBED"}  # what a run in real time says on a busy machine
PROGRAMS = {"mn", "tshark", "docker", "p4c", "p4c-bm2-ss", "simple_switch", "systemd-analyze"}  # may be missing

# Commands come on descriptor 3, each with the file for its output and ended by NUL; statuses go to 4.
DRIVER = """set -m
while IFS= read -r -d '' command <&3 && IFS= read -r -d '' output <&3; do
  eval "$command" >"$output" 2>&1 </dev/null 3<&- 4>&-
  echo $? >&4
done
"""
# sudo of Debian and its kin, for root where there is none. What is kept beside is how we find what a page started.
SUDO = f"""#!/bin/sh
kept=-i
while :; do case $1 in -E) kept=; shift ;; -n | -H | --) shift ;; *) break ;; esac; done
exec env $kept PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG="$LANG" \\
  COLUMNS="$COLUMNS" {TOKEN}="${TOKEN}" ${{PYTHONPATH:+PYTHONPATH="$PYTHONPATH"}} "$@"
"""


@dataclass
class Outcome:
    step: Step
    seconds: float
    fault: str = ""
    note: str = ""


def documents() -> list[str]:
    """The pages that readers follow, by their paths."""
    return [path.relative_to(ROOT).as_posix() for glob in PAGES for path in sorted(ROOT.glob(glob))]


def privileged() -> bool:
    """Are we root, and may we make namespaces?"""
    command = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "true"]
    return (
        os.geteuid() == 0
        and shutil.which("unshare") is not None
        and subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    )


def closed_folders(*paths: str) -> list[Path]:
    """The topmost folder above each path that other users can't enter."""
    found = (next((up for up in reversed(Path(path).parents) if not up.stat().st_mode & 1), None) for path in paths)
    return sorted({folder for folder in found if folder})


def alone(plain: bool, folder: Path) -> list[str]:
    """The command that gives another one a network, a host name and processes of its own.

    Pages speak of a host with the addresses 10.0.0.1 and 10.0.0.9 at eth0; here is one.

    plain: as a user without rights, to whom the interpreter is opened where only root can enter its folder.
    """
    lines = ["hostname localhost", "ip link set lo up", "ip link add eth0 type veth peer name eth0-peer"]
    lines += [f"ip addr add {address}/24 dev eth0" for address in ADDRESSES]
    lines += ["ip link set eth0 up", "ip link set eth0-peer up"]
    lines += ["mkdir -p /run/netns", "mount -t tmpfs none /run/netns"]  # `ip netns` leaves files on the disk
    if plain:
        needed = {str(Path(sys.prefix).resolve()), str(Path(sys.base_prefix).resolve()), str(ROOT), str(folder)}
        for closed in closed_folders(*needed):
            within = [path for path in sorted(needed) if Path(path).is_relative_to(closed)]
            lines += [
                f"mkdir -p /run/netns/{n} && mount --bind '{path}' /run/netns/{n}" for n, path in enumerate(within)
            ]
            lines += [f"mount -t tmpfs -o mode=755 none '{closed}'"]
            lines += [f"mkdir -p '{path}' && mount --bind /run/netns/{n} '{path}'" for n, path in enumerate(within)]
        lines += [f'exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups "$@"']
    script = "; ".join(["set -e", *lines, 'exec "$@"'])
    namespaces = ["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, "sh", "-c", script, "sh"]


def processes(token: str) -> dict[int, str]:
    """Living processes that a page started: number -> command."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{TOKEN}={token}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (
                    (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                )
    return {pid: command for pid, command in found.items() if command and DRIVER.strip() not in command}


class Session:
    """A bash that carries out one command after the other in `folder`."""

    def __init__(self, folder: Path, environment: dict[str, str], prefix: Sequence[str]) -> None:
        commands, self._commands = os.pipe()
        self._statuses, statuses = os.pipe()
        close = "".join(f" {pipe}<&-" for pipe in (commands, statuses) if pipe > 4)
        self.token = uuid.uuid4().hex
        self._answers = True
        self._bash = subprocess.Popen(
            [*prefix, "bash", "--noprofile", "--norc", "-c", f"exec 3<&{commands} 4>&{statuses}{close}\n{DRIVER}"],
            cwd=folder,
            env={**environment, TOKEN: self.token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(commands, statuses),
            start_new_session=True,
        )
        os.close(commands)
        os.close(statuses)

    def run(self, command: str, output: Path, limit_s: float) -> int | None:
        """The status of a command; None if it takes longer than the limit, or ends the session."""
        if not self._answers:
            return None
        os.write(self._commands, f"{command}\0{output}\0".encode())
        answered = select.select([self._statuses], [], [], limit_s)[0]
        told = os.read(self._statuses, 16).decode().strip() if answered else ""
        self._answers = bool(told)
        return int(told) if told else None

    def close(self) -> list[str]:
        """Ends the page's background jobs; then, by their numbers, those that are left, which are returned."""
        self.run('for job in $(jobs -p); do kill -- -"$job"; done; wait', Path(os.devnull), ENDS_S)
        deadline = time.monotonic() + 1
        left, empty_looks = processes(self.token), 0
        while empty_looks < 2 and time.monotonic() < deadline:  # a process that begins a program shows no environment
            time.sleep(0.05)
            left = processes(self.token)
            empty_looks = 0 if left else empty_looks + 1
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.close(self._commands)
        os.close(self._statuses)
        self._bash.kill()  # and so all that is in its namespaces
        self._bash.wait()
        return list(left.values())


class Page:
    """A session with what a page promises: each step's outcome."""

    def __init__(self, session: Session, folder: Path, limit_s: float | None) -> None:
        self._session, self._folder, self._limit_s = session, folder, limit_s
        self._outputs = Path(tempfile.mkdtemp(prefix="outputs-", dir=folder.parent))
        self._outputs.chmod(0o777)

    def carry_out(self, step: Step, number: int) -> Outcome:
        began = time.monotonic()
        if step.file:
            (self._folder / step.file).parent.mkdir(parents=True, exist_ok=True)
            (self._folder / step.file).write_text("\n".join(step.shown) + "\n", encoding="utf-8")
            return Outcome(step, 0)
        output = self._outputs / str(number)
        limit_s = self._limit_s or (LONG_S if "long" in step.modes else QUICK_S)
        serves = "serves" in step.modes and step.last
        command = f"{{ {step.command}\n}} &" if serves else step.command
        status = self._session.run(command, output, limit_s)
        if status is not None and (serves or step.in_background):
            while self._lacks(step, output) is not None and time.monotonic() - began < limit_s:
                time.sleep(0.05)
        lacks = self._lacks(step, output)
        fault, note = "", ""
        if serves and status is not None:
            time.sleep(0 if step.shown else QUIET_S)
            fault = self._interrupt()
        written = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        if status is None:
            fault = f"{HUNG} {limit_s:g} s, or ended the session"
        elif status in BUSY and BUSY[status] in written and not step.refused:
            note = f"{BUSY[status]}: the machine was busy"
        elif (status != 0) != step.refused and not (serves or step.in_background):
            fault = f"ended with status {status}" + (", though a refusal is shown" if step.refused else "")
        if not fault and not note and lacks is not None:
            fault = f"has no such line{' at its place' if len(step.shown) > 1 else ''}: {lacks.strip()}"
        if fault:
            fault += "".join(f"\n      | {line}" for line in written.splitlines()[-12:])
        return Outcome(step, time.monotonic() - began, fault, note)

    def _interrupt(self) -> str:
        """Ctrl-C for the last job; returns what is wrong."""
        if self._session.run("kill -INT -- -$!", Path(os.devnull), ENDS_S) != 0:
            return "ended before Ctrl-C"
        ended = self._session.run("wait $!", Path(os.devnull), ENDS_S)
        return f"Ctrl-C did not end it within {ENDS_S} s" if ended is None else ""

    def _lacks(self, step: Step, output: Path) -> str | None:
        text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        return missing_line(step.shown, text, "exact" in step.modes)


@dataclass(frozen=True)
class Place:
    """Where pages are run: as whom, with which environment's programs, and with the checkout's files or without."""

    plain: bool = False
    long: bool = False
    programs: Path = Path(sys.prefix)
    checkout: bool = True
    first: tuple[str, ...] = ()  # commands before the page's own
    limit_s: float | None = None

    def left_out(self, step: Step) -> str | None:
        """Why a step isn't run here; None: it is."""
        words = re.findall(r"[\w./-]+", COMMENT.sub("", step.command))
        if "never" in step.modes:
            return step.reason
        if "long" in step.modes and not self.long:
            return "takes minutes: --long"
        if SETS_UP.match(step.command):
            return "changes the environment that would run it; CI's first step does that"
        if (self.plain or os.geteuid() != 0) and ("root" in step.modes or words[:1] == ["sudo"]):
            return "needs root"
        return next((f"needs {name}" for name in words[:3] if name in PROGRAMS and not shutil.which(name)), None)


@contextmanager
def folder_for(place: Place) -> Iterator[Path]:
    """A folder that holds what a clone does, built core and all, and goes with all that pages leave in it."""
    with tempfile.TemporaryDirectory(prefix="switchagg-documents-", ignore_cleanup_errors=True) as temporary:
        Path(temporary).chmod(0o755)
        folder = Path(temporary) / "switchagg"
        folder.mkdir()
        (Path(temporary) / "home").mkdir()
        if place.checkout:
            command = ["git", "-c", "safe.directory=*", "ls-files", "-zco", "--exclude-standard"]
            listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
            native = ROOT / "switchagg/native"
            built = (path.relative_to(ROOT) for path in (*native.glob("*.*o"), native / "rule/packet_terms.h"))
            for name in [*filter(None, listed.split("\0")), *map(str, built)]:
                if (ROOT / name).is_file():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, folder / name)
        (folder / ".venv").symlink_to(place.programs)
        shims = Path(temporary) / "shims"
        shims.mkdir()
        if not shutil.which("sudo") and not place.plain:
            (shims / "sudo").write_text(SUDO)
            (shims / "sudo").chmod(0o755)
        if place.plain:
            subprocess.run(["chown", "-hR", f"{NOBODY}:{NOBODY}", temporary], check=True)
        yield folder


@functools.cache
def cache_of_nobody() -> Path:
    """A folder for the caches of the user without rights; it goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix="switchagg-cache-"))
    os.chown(folder, NOBODY, NOBODY)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def environment(folder: Path, place: Place) -> dict[str, str]:
    """A newcomer's: nothing of ours is set but PATH, and caches are kept, for another user from page to page."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    run = {name: value for name, value in os.environ.items() if name == "SWITCHAGG_TEST_RUN"}
    if not place.checkout:
        kept.pop("PYTHONPATH", None)
    home = folder.parent / "home"
    cache = cache_of_nobody() if place.plain else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = f"{folder.parent / 'shims'}:{place.programs / 'bin'}:{os.environ['PATH']}"
    own = {"PATH": path, "HOME": str(home), "XDG_CACHE_HOME": str(cache), "COLUMNS": "120", "LANG": "C.UTF-8"}
    return kept | run | own


def run_page(page: str, place: Place, tell: Callable[[Outcome], None] = lambda outcome: None) -> list[Outcome]:
    """What came of each command of a page that is run here, told one by one; after the first that hangs none is."""
    planned = [step for step in steps((ROOT / page).read_text(encoding="utf-8")) if not place.left_out(step)]
    outcomes: list[Outcome] = []
    if not any(step.command for step in planned):
        return []
    planned = [Step(0, command) for command in place.first] + planned

    def add(outcome: Outcome) -> None:
        if outcome.step.command:
            outcomes.append(outcome)
            tell(outcome)

    with folder_for(place) as folder:
        session = Session(folder, environment(folder, place), alone(place.plain, folder) if privileged() else [])
        try:
            running = Page(session, folder, place.limit_s)
            for number, step in enumerate(planned):
                add(running.carry_out(step, number))
                if outcomes and HUNG in outcomes[-1].fault:
                    break
        finally:
            left = session.close()
    if left and not (outcomes and HUNG in outcomes[-1].fault):
        add(Outcome(Step(0, "the end of the page"), 0, "left behind: " + "; ".join(left)))
    return outcomes
