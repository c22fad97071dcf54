"""The document that all benchmarks write: machine facts, load during the run, results (README.md here)."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulation.results.results import write_json
from emulation.scenario.errors import RunFailed
from emulation.testbed.host import cpu_ticks, host_facts

SCHEMA = "switchagg-bench-2"


class MachineLoad:
    """CPU time of the whole machine between two moments."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._first = cpu_ticks()

    def measures(self) -> dict[str, Any]:
        """Shares of all CPUs' time since the start."""
        spent = [last - first for first, last in zip(self._first, cpu_ticks(), strict=True)]
        all_ = max(1, sum(spent))
        return {
            "duration_s": time.monotonic() - self._begun_s,
            "idle_share": (spent[3] + spent[4]) / all_,
            "softirq_share": spent[6] / all_,
            "stolen_share": spent[7] / all_,
            "load_average_1_min": os.getloadavg()[0],
        }


def machine() -> dict[str, Any]:
    """Facts of this machine, and how its CPUs and TCP are set."""
    settings = Path("/proc/sys/net/ipv4")
    return {
        **host_facts(["switchagg", *sys.argv[1:]]),
        "tcp_available_congestion_control": _words(settings / "tcp_available_congestion_control"),
        "tcp_rmem": _words(settings / "tcp_rmem"),
        "tcp_wmem": _words(settings / "tcp_wmem"),
        "caches": _caches(),
    }


def build(parts: dict[str, Any], facts: dict[str, Any], load: dict[str, Any], quick: bool) -> dict[str, Any]:
    """The whole document."""
    return {"schema": SCHEMA, "machine": facts, "load": load, "quick": quick, "parts": parts}


def write(path: Path, document: dict[str, Any]) -> None:
    """Replaces the file at once. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, document)


def read(path: Path) -> dict[str, Any]:
    """A document of this schema. Raises RunFailed."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFailed(f"{path}: {error.strerror}; `make bench` writes it") from error
    except ValueError as error:
        raise RunFailed(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise RunFailed(f"{path}: not a benchmark's results (schema {SCHEMA}); remove it, or choose another --out")
    return content


def failures(parts_document: dict[str, Any], parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Failures of these parts with their reasons, each once; and the host methods that loss brought to a halt.

    A halt is a measurement: TCP over links that lose packets may take longer than anybody waits.
    """
    failed: list[str] = []
    gave_up: list[str] = []
    for name in parts:
        part = parts_document[name]
        entries = part if isinstance(part, list) else [{"title": name, "failures": part["failures"]}]
        for entry in entries:
            lossy = bool(entry.get("loss_by") and entry["scenario"]["faults"]["loss"])
            for method, reason in entry["failures"].items():
                host = not method.startswith("switch")
                (gave_up if lossy and host else failed).append(f"{entry['title']}: {reason}")
    return list(dict.fromkeys(failed)), list(dict.fromkeys(gave_up))


def _words(path: Path) -> Sequence[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


def _caches() -> dict[str, str]:
    """Sizes of CPU 0's caches, by level and kind."""
    caches = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text(encoding="ascii").strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        caches[f"L{level} {kind.lower()}"] = size
    return caches
