"""The shares of the CPUs' time that programs other than ours had, and which programs those are. Linux's /proc;
standard library only."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

NAMED_MOST = 3  # programs told
NAMED_SHARE = 0.01  # of the CPUs' time: fewer isn't told
OTHERS_SHARE = 0.1  # of the CPUs' time: what other programs may take before they are the first thing to look at
PROBE_S = 1.0  # ticks enough to tell that


class Usage(NamedTuple):
    """CPU time until now, in ticks. busy: of all programs; total: of the CPUs, idle too; stolen: by the hypervisor.

    run_ticks: of a process and its descendants, those that have ended and were waited for included; others_ticks: of
    each other process that we see, and its name: kernel threads change theirs."""

    total: int
    busy: int
    idle: int
    stolen: int
    run_ticks: int
    others_ticks: dict[int, tuple[str, int]]


def usage(root_pid: int) -> Usage:
    """Of the whole machine; root_pid: of the process from which all of ours descend."""
    cpu = list(map(int, Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]))
    processes: dict[int, tuple[str, int, int]] = {}  # name, ticks, ticks with those of ended children
    children: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        try:
            head, _, tail = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:
            continue  # it has ended
        words = tail.split()
        processes[pid] = head.partition("(")[2], sum(map(int, words[11:13])), sum(map(int, words[11:15]))
        children.setdefault(int(words[1]), []).append(pid)
    run_ticks, waiting = 0, [root_pid]
    while waiting:
        pid = waiting.pop()
        run_ticks += processes.pop(pid, ("", 0, 0))[2]
        waiting += children.get(pid, [])
    others_ticks = {pid: (name.partition("/")[0], ticks) for pid, (name, ticks, _) in processes.items()}
    # interrupts are left out of `busy`: they carry the emulated network's packets
    return Usage(sum(cpu[:8]), sum(cpu[:3]), cpu[3] + cpu[4], cpu[7], run_ticks, others_ticks)


def spent_by_others(before: Usage, after: Usage) -> Counter[str]:
    """Ticks between the two, by program."""
    spent: Counter[str] = Counter()
    for pid, (name, ticks) in after.others_ticks.items():
        spent[name] += ticks - before.others_ticks.get(pid, ("", 0))[1]
    return spent


def busiest(spent: Mapping[str, int], total: int) -> list[tuple[str, float]]:
    """The programs that had most, and their shares of the CPUs' time."""
    ordered = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    shares = [(name, ticks / max(1, total)) for name, ticks in ordered[:NAMED_MOST]]
    return [(name, share) for name, share in shares if share >= NAMED_SHARE]


def other_share(before: Usage, after: Usage) -> float:
    """The share of the CPUs' time between the two readings that other programs had."""
    run_ticks = after.run_ticks - before.run_ticks
    return max(0, after.busy - before.busy - run_ticks) / max(1, after.total - before.total)


def busy_since(before: Usage, root_pid: int) -> tuple[float, list[tuple[str, float]]]:
    """The share of the CPUs' time that other programs and the hypervisor had since, and the busiest of the programs."""
    after = usage(root_pid)
    total = after.total - before.total
    stolen = (after.stolen - before.stolen) / max(1, total)
    return other_share(before, after) + stolen, busiest(spent_by_others(before, after), total)
