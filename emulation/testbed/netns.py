"""Namespaces: open a socket in one, start a process in one that dies with us. Standard library only.

A Mininet node is a shell in a network and a mount namespace of its own; `pid` below is that shell's process id.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from emulation.testbed import patience

_CLONE_NEWNET = 0x4000_0000
_PR_SET_PDEATHSIG = 1
_MARK = "SWITCHAGG_IN_USER_NAMESPACE"  # set for the process that `run_in_user_namespace` becomes: no second try

_libc = ctypes.CDLL(None, use_errno=True)

Result = TypeVar("Result")


def open_socket(pid: int, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """Socket that lives in the network namespace of `pid`. This thread and the others stay where they are."""
    return within(pid, lambda: socket.socket(family, kind, protocol))


def within(pid: int, act: Callable[[], Result]) -> Result:
    """What `act` returns or raises in the network namespace of `pid`, in a thread of its own, as setns concerns that.

    Raises OSError if the namespace can't be entered.
    """
    results: list[Result] = []
    raised: list[BaseException] = []

    def enter() -> None:
        try:
            enter_network(pid)
            results.append(act())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=enter, name=f"within {pid}")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return results[0]


def enter_network(pid: int) -> None:
    """Moves this thread, and those that it starts from now on, to the network namespace of `pid`. Raises OSError."""
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _setns(namespace, _CLONE_NEWNET)
    finally:
        os.close(namespace)


def command_in(pid: int, command: Sequence[str]) -> list[str]:
    """Command line that runs `command` in the namespaces of `pid`, in the same directory, killed when we die.

    No program on the way forks, so the process id is the command's. The kernel ties the signal to the
    *thread* that starts the process: start it from one that lives as long as the process shall. It sends none to a
    process whose parent died before it asked, hence the look at the parent.
    """
    orphans_end = '[ "$PPID" = "$0" ] || exit 1; exec "$@"'
    alive = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", orphans_end, str(os.getpid())]
    return [*alive, "mnexec", "-a", str(pid), *command]


def spawn(pid: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Starts `command` in the namespaces of `pid`; `options` are Popen's. See `command_in` for when it dies.

    It gets a process group of its own: Ctrl-C reaches us alone, and we end our children in order. Not a session: the
    kernel shares the CPUs out by session first (autogroups), and niceness would mean nothing between our processes.
    """
    return subprocess.Popen(command_in(pid, command), process_group=0, **options)


def run_script(pid: int, script: str, timeout_s: float = 20.0) -> str:
    """Runs shell lines in the namespaces of `pid`, stopping at the first that fails.

    Returns what they wrote; raises `subprocess.CalledProcessError` (with .stderr), TimeoutExpired.
    """
    return patience.run(command_in(pid, ["sh", "-es"]), timeout_s, input=script, check=True).stdout


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel to kill this process when the thread that started it ends. Exits if that has happened already."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent_pid:
        sys.exit(1)


def wait_readable(descriptor: int, timeout_s: float) -> bool:
    """Waits until there is something to read, or the end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1e3))


def end(process: subprocess.Popen[Any], grace_s: float = 3.0) -> int:
    """Ends one child process, by its id: asks, waits `grace_s`, then kills. Returns its exit status."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return process.returncode


def find_programs() -> None:
    """Lets this process find tc and ifconfig also for a plain user, whose PATH on Debian lacks the sbin folders."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([*folders, *(f for f in ("/usr/sbin", "/sbin") if f not in folders)])


def is_privileged() -> bool:
    """Whether we may make namespaces and shape links: root, or root of a user namespace with its own network."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    effective = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    network_admin, system_admin = 12, 21
    return bool(effective >> network_admin & 1) and bool(effective >> system_admin & 1) and os.geteuid() == 0


def in_user_namespace() -> bool:
    """Whether our user ids are mapped: some limits (socket buffers, congestion control) can't be raised there."""
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split() != ["0", "0", "4294967295"]


def user_namespaces_allowed() -> bool:
    """Whether a plain user may run `unshare -Urnm` here, and `mount` in it."""
    if shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-Urnm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return patience.run(probe, 20).returncode == 0


def run_in_user_namespace() -> None:
    """Becomes this same command again as root of a new user namespace. Returns only if that can't help.

    No effect with privileges already, where user namespaces are forbidden, or after one try.
    """
    if is_privileged() or os.environ.get(_MARK) or not user_namespaces_allowed():
        return
    probe = ["unshare", "-Ur", sys.executable, "-S", "-c", ""]  # our rights over files may end in there
    if patience.run(probe, 20).returncode:
        return
    environment = {**os.environ, _MARK: "1"}
    command = ["unshare", "-Urnm", sys.executable, *sys.orig_argv[1:]]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(command[0], command, environment)


def _setns(descriptor: int, kind: int) -> None:
    if _libc.setns(descriptor, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter a namespace: {os.strerror(number)}")
