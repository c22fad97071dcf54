"""Facts about the machine and the moment of a run: what `host.json` holds, apart from the results."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from switchagg.native import library
from switchagg.native.headers import SA_ABI

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, or what the package is installed into."""

_PACKAGES = ("switchagg", "torch", "numpy", "pyzmq", "msgspec", "mininet", "matplotlib", "scikit-learn")


def cpu_ticks() -> list[int]:
    """user nice system idle iowait irq softirq steal of all CPUs, in the kernel's ticks."""
    return list(map(int, Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]))


def host_facts(command: Sequence[str]) -> dict[str, Any]:
    """JSON-able facts of this machine now: system, hardware, versions, and the command that was typed."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "system": pretty_name(),
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu_model": _field(Path("/proc/cpuinfo"), "model name"),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "load_average_1_min": round(os.getloadavg()[0], 2),
        "root": os.geteuid() == 0,
        "tcp_congestion_control": _first_line(Path("/proc/sys/net/ipv4/tcp_congestion_control")),
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := installed_version(name)) is not None},
        "source_revision": revision(),
        "compiled_core": compiled_core(),
    }


def compiled_core() -> dict[str, Any]:
    """Where the compiled core is, and its ABI; or why there is none."""
    missing = library.missing()
    return {"missing": missing} if missing else {"path": library.load()._name, "abi": SA_ABI}


def interface_bytes(name: str) -> tuple[int, int]:
    """Bytes that an interface of this network namespace has sent and received until now."""
    lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    named = {key.strip(): numbers.split() for key, colon, numbers in (line.partition(":") for line in lines) if colon}
    return int(named[name][8]), int(named[name][0])


def installed_version(name: str) -> str | None:
    """The version of a distribution, which is not imported; None if it isn't installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return None


def _field(path: Path, name: str) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def pretty_name() -> str:
    """The system's, such as Debian GNU/Linux 13 (trixie)."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform()


def revision() -> str | None:
    """Commit of the checkout this runs from, with "+changes" if it differs; None outside a checkout."""
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+changes", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
