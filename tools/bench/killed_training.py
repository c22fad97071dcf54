"""The same training twice, undisturbed and with its switch killed three times: the losses of both, by time and by step.

Twice the switch is started again two seconds later, and the job goes back to it; the third time it stays dead, and a
standby has been started in the meantime. All of it runs on loopback, a process per rank.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from emulation.report import figure_kit
from emulation.report.svg import GRID, INK
from emulation.scenario.errors import RunFailed
from transport.meshes.job_key import TOKEN_VARIABLE, new_token

RANKS, BACK_S = 3, 2.0
PAUSE_S = 0.03
"""Of each step, in place of a larger model."""

SOON_S = 600.0
KILLED, ORDINARY = "#D55E00", "#0072B2"


@dataclass
class Run:
    """What a training leaves behind: each step's time, and its loss as text, with all bits; kills and returns, in
    seconds since the first step; each rank's digest of its parameters."""

    times_s: list[float] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    kills_s: list[float] = field(default_factory=list)
    returns_s: list[float] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)


def measure(steps: int, lease_s: float, log: Callable[[str], None]) -> tuple[Run, Run]:
    """Both trainings. Raises RunFailed for a rank that ends early, or where any bit differs."""
    plain, disturbed = (_Training(steps, kills, lease_s, log).run() for kills in (0, 3))
    if plain.losses != disturbed.losses or len(plain.losses) != steps:
        raise RunFailed("the losses of the two trainings differ")
    if len(plain.digests | disturbed.digests) != 1:
        raise RunFailed("the parameters of ranks differ")
    if (len(disturbed.kills_s), len(disturbed.returns_s)) != (3, 3):
        raise RunFailed(f"{len(disturbed.kills_s)} kills, and {len(disturbed.returns_s)} returns to a switch")
    return plain, disturbed


class _Training:
    """One training, its switches, and who kills them."""

    def __init__(self, steps: int, kills: int, lease_s: float, log: Callable[[str], None]) -> None:
        self._steps, self._kills, self._lease_s, self._log = steps, kills, lease_s, log
        self._ports = _free_ports(4)
        self._run = Run()
        self._progress = threading.Condition()
        self._begin_ns = 0
        self._last_words = ""

    def run(self) -> Run:
        switches = {0: self._switch(0)}
        names = ",".join(f"tcp://127.0.0.1:{self._ports[2 * place]}" for place in range(2))
        variables = {"SWITCHAGG_SWITCH": names, "SWITCHAGG_FALLBACK": "ring", TOKEN_VARIABLE: new_token()}
        variables |= {"WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tools.bench.killed_training", str(self._steps), f"{folder}/meeting"]
            environment = {**os.environ, **variables}
            ranks: list[subprocess.Popen[str]] = []
            readers: list[threading.Thread] = []
            try:
                for number in range(RANKS):
                    words, stderr = [*command, str(number)], subprocess.STDOUT
                    rank = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
                    ranks.append(rank)
                    readers.append(threading.Thread(target=self._read, args=(rank,), daemon=True))
                    readers[-1].start()
                self._disturb(switches)
                for rank, reader in zip(ranks, readers, strict=True):
                    if rank.wait(SOON_S):
                        raise RunFailed(f"a rank ended with status {rank.returncode}: {self._last_words}")
                    reader.join(SOON_S)
            finally:
                processes: list[subprocess.Popen[Any]] = [*ranks, *switches.values()]
                for process in processes:
                    process.kill()
                    process.wait()
        return self._run

    def _switch(self, place: int) -> subprocess.Popen[bytes]:
        control, data = self._ports[2 * place : 2 * place + 2]
        command = [sys.executable, "-m", "emulation.cli.main", "switch", "--lease", str(self._lease_s)]
        command += ["--control", f"tcp://127.0.0.1:{control}", "--data", f"127.0.0.1:{data}"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _disturb(self, switches: dict[int, subprocess.Popen[bytes]]) -> None:
        """Kill the switch at the first, second and third quarter of the steps, each time once the job is back."""
        for kill in range(self._kills):
            self._await(self._run.losses, (kill + 1) * self._steps // 4)
            if kill == 2:
                switches[1] = self._switch(1)
                time.sleep(BACK_S)
            switches[0].send_signal(signal.SIGKILL)
            switches[0].wait()
            self._run.kills_s.append((time.monotonic_ns() - self._begin_ns) / 1e9)
            self._log(f"kill {kill + 1}: after {len(self._run.losses)} steps")
            if kill < 2:
                time.sleep(BACK_S)
                switches[0] = self._switch(0)
            self._await(self._run.returns_s, kill + 1)
            self._log(f"the job is back after {self._run.returns_s[-1] - self._run.kills_s[-1]:.1f} s")

    def _await(self, events: Sequence[object], count: int) -> None:
        with self._progress:
            if not self._progress.wait_for(lambda: len(events) >= count, SOON_S):
                raise RunFailed(
                    f"{len(self._run.losses)} of {self._steps} steps after {SOON_S:g} s: {self._last_words}"
                )

    def _read(self, rank: subprocess.Popen[str]) -> None:
        """What a rank says: steps and its digest, and of rank 0 where the job's calls go."""
        assert rank.stdout is not None
        for line in rank.stdout:
            word, *rest = line.split() or [""]
            with self._progress:
                if word == "step":
                    self._begin_ns = self._begin_ns or int(rest[0])
                    self._run.times_s.append((int(rest[0]) - self._begin_ns) / 1e9)
                    self._run.losses.append(rest[1])
                elif word == "digest":
                    self._run.digests.add(rest[0])
                elif "goes through the switch" in line and self._run.kills_s:
                    self._run.returns_s.append((time.monotonic_ns() - self._begin_ns) / 1e9)
                elif word:
                    self._last_words = line.strip()
                self._progress.notify_all()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has at the moment."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def draw(plain: Run, disturbed: Run) -> Figure:
    """Two panels: loss by time, with kills and returns; loss by step."""
    figure, (by_time, by_step) = figure_kit.stacked((2.7, 2.3), 5.2)
    curves = [(plain, ORDINARY, 3.2, "undisturbed"), (disturbed, KILLED, 1.1, "killed three times")]
    for run, colour, width, label in curves:
        losses = _smooth([float.fromhex(loss) for loss in run.losses])
        by_time.plot(run.times_s, losses, color=colour, linewidth=width, label=label)
        by_step.plot(losses, color=colour, linewidth=width)
    _mark(by_time, disturbed)
    by_time.set_xlabel("seconds since the first step")
    figure.legend(loc="outside upper center", ncols=2, fontsize=9.5, columnspacing=1.2)
    by_step.set_xlabel("step")
    by_step.set_title(f"all {len(plain.losses)} losses are equal, bit for bit", fontsize=10)
    for axes in (by_time, by_step):
        axes.set_ylabel("loss, mean of 9 steps", fontsize=9)
        axes.set_ylim(bottom=0)
        axes.margins(x=0.01)
    return figure


def _mark(axes: Axes, run: Run) -> None:
    """Kills, returns, and between them the time without a switch."""
    top = 1.04 * axes.get_ylim()[1]
    for kill_s, return_s in zip(run.kills_s, run.returns_s, strict=True):
        absence = axes.axvspan(kill_s, return_s, color=GRID, zorder=0)
    marks: dict[str, Any] = {"color": INK, "markersize": 7, "linestyle": "", "clip_on": False}
    axes.plot(run.kills_s, [top] * 3, marker="x", markeredgewidth=2, label="the switch is killed", **marks)
    axes.plot(run.returns_s, [top] * 3, marker="^", label="back; last, at a standby", **marks)
    absence.set_label("without the switch")


def _smooth(losses: list[float], width: int = 9) -> list[float]:
    """Means of neighbouring losses: a batch's own differs from the next one's by more than the curve falls."""
    return [sum(part) / len(part) for at in range(len(losses)) if (part := losses[max(0, at - width + 1) : at + 1])]


def _train(steps: int, meeting: str, rank: int) -> None:
    """A rank: DDP on a task that it can learn."""
    import hashlib

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import transport.torch

    assert transport.torch  # it registers the backend
    dist.init_process_group("switchagg", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    torch.manual_seed(1)
    teacher = torch.randn(64, 10)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    for step in range(steps):
        torch.manual_seed(1000 * step + rank)
        inputs = torch.randn(64, 64)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(inputs), (inputs @ teacher).argmax(1))
        loss.backward()
        optimizer.step()
        if rank == 0:
            print("step", time.monotonic_ns(), float(loss).hex(), flush=True)
        time.sleep(PAUSE_S)
    values = torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])
    print("digest", hashlib.sha256(values.numpy().tobytes()).hexdigest(), flush=True)
    dist.destroy_process_group()


def write(runs: tuple[Run, Run], path: Path) -> None:
    """The figure, as a PNG. Raises OSError."""
    figure_kit.write(figure_kit.draw({path.stem: lambda: draw(*runs)}), path.parent)


if __name__ == "__main__":
    _train(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
