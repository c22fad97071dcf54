"""A rank of the user's script: python -m emulation.experiments.tryout.try_rank PLACE (a `ScriptPlace` as JSON).

Reports go out on the standard output that it was started with, commands come in on its standard input; the script has
the log for both of its outputs. Only PyTorch's public hooks are used, and two of its functions are wrapped:
`init_process_group`, so that the method decides on the backend, and `torch.autograd.backward`, to see losses.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import resource
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from emulation.experiments.tryout.try_messages import RunRecorded, ScriptPlace, StepsDone
from emulation.testbed.children import MESSAGE_LENGTH_MAX, ChildReport, CommandFailed

GLOO, NCCL, SWITCHAGG = "gloo", "nccl", "switchagg"
UNSEEN = "an optimizer of torch.optim must step in the process that torchrun starts, not in one that the script starts"


class ScriptChannel:
    """The pipes to `switchagg try`; from now on the script's standard output is the log, and nothing comes in."""

    def __init__(self) -> None:
        self._reports = os.fdopen(os.dup(1), "wb", 0)
        self._commands = os.fdopen(os.dup(0), "rb", 0)
        os.dup2(2, 1)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)

    def send(self, report: ChildReport) -> None:
        with contextlib.suppress(OSError):  # nobody is there any more: the next wait ends this process
            self._reports.write(msgspec.json.encode(report) + b"\n")

    def wait(self) -> None:
        """Until the next command. Ends the process if `switchagg try` has ended."""
        if not self._commands.readline():
            os._exit(1)


class StepWatch:
    """Times the steps of the first optimizer that steps, and holds the rank after some of them."""

    def __init__(self, holds: list[int], report: Callable[[StepsDone], None], niceness: int = 0) -> None:
        self.steps = self.backwards = 0
        self._holds, self._report, self._niceness = holds, report, niceness
        self._optimizer: Any = None
        self._last_ns = time.perf_counter_ns()
        self._durations_ns: list[int] = []
        self._losses: list[Any] = []
        self._roots: list[Any] = []

    @property
    def done(self) -> bool:
        return self.steps >= self._holds[-1]

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """The block within is watched."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        backward = torch.autograd.backward

        @functools.wraps(backward)
        def observed(tensors: Any, grad_tensors: Any = None, *args: Any, **options: Any) -> Any:
            if grad_tensors is None and isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
                self.backwards += 1
                self._roots.append(tensors.detach().clone())  # scripts average it over the ranks in place
            return backward(tensors, grad_tensors, *args, **options)

        torch.autograd.backward = observed
        hook = register_optimizer_step_post_hook(self.stepped)
        try:
            yield
        finally:
            torch.autograd.backward = backward
            hook.remove()

    def stepped(self, optimizer: Any, _args: Any, _options: Any) -> None:
        """After a step of any optimizer. Raises SystemExit after the last one that is wanted."""
        self._optimizer = self._optimizer or optimizer
        if optimizer is not self._optimizer or self.done:
            return
        now_ns = time.perf_counter_ns()
        self.steps += 1
        self._durations_ns.append(now_ns - self._last_ns)
        self._losses.append(self._roots)
        self._roots = []
        compute_after_packets(self._niceness)
        if self.steps in self._holds:
            self._hold()
            now_ns = time.perf_counter_ns()
        self._last_ns = now_ns
        if self.done:
            raise SystemExit(0)

    def _hold(self) -> None:
        losses = [sum(map(float, roots)) / len(roots) if roots else None for roots in self._losses]
        computing = threading.get_native_id()
        threads = sorted(int(name) for name in os.listdir("/proc/self/task") if int(name) != computing)
        report = StepsDone(self._durations_ns, losses, threads, peak_bytes())
        self._durations_ns, self._losses = [], []
        self._report(report)


def main() -> None:
    """Runs the script, and reports what became of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us ends us
    place, channel = msgspec.json.decode(sys.argv[1], type=ScriptPlace), ScriptChannel()
    os.environ.update(place.environment)
    try:
        _prepare(place)
        (_record if place.trace else _train)(place, channel)
    except SystemExit as end:
        words = str(end.code) if isinstance(end.code, str) else f"it ended with exit code {end.code}"
        _fail(channel, f"{place.program}: {words}", end)
    except Exception as error:
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == place.program]
        where = f", line {lines[-1]}" if lines else ""
        _fail(channel, f"{place.program}{where}: {words}", error)
    sys.stdout.flush()


def _fail(channel: ScriptChannel, message: str, error: BaseException) -> NoReturn:
    channel.send(CommandFailed(" ".join(message.split())[:MESSAGE_LENGTH_MAX]))
    raise error


def _prepare(place: ScriptPlace) -> None:
    """Seeds that a script may set anew, a backend that it can't choose, and where Gloo sends."""
    import torch

    random.seed(place.seed + place.rank)
    torch.manual_seed(place.seed + place.rank)
    with contextlib.suppress(ImportError):
        import numpy as np

        np.random.seed(place.seed + place.rank)
    from transport.torch.rendezvous import SwitchOptions, interface_with

    if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_with(SwitchOptions().local_address())):
        os.environ["GLOO_SOCKET_IFNAME"] = name  # Gloo would ask the resolver for our name
    choose_backend(place.method)


def choose_backend(method: str) -> None:
    """`init_process_group` makes the method's backend, whatever the script asks for."""
    import torch.distributed as dist
    from torch.distributed import device_mesh, distributed_c10d

    begin = distributed_c10d.init_process_group

    @functools.wraps(begin)
    def chosen(backend: str | None = None, *args: Any, **options: Any) -> Any:
        wanted = backend_of(method, backend)
        if wanted != backend:
            options.pop("pg_options", None)  # they are of another backend
        return begin(wanted, *args, **options)

    for module in (dist, distributed_c10d, device_mesh):
        module.init_process_group = chosen  # type: ignore[attr-defined]


def backend_of(method: str, backend: str | None) -> str | None:
    """The backend of a method, for a script that asks for `backend`."""
    if method == NCCL:
        return backend if backend and NCCL in backend else "cpu:gloo,cuda:nccl"
    return GLOO if method == GLOO else SWITCHAGG


def _train(place: ScriptPlace, channel: ScriptChannel) -> None:

    def report(done: StepsDone) -> None:
        channel.send(done)
        channel.wait()

    watch = StepWatch(place.holds, report, place.niceness)
    try:
        with watch.watch():
            _execute(place)
    except SystemExit as end:
        if not watch.done and end.code:
            raise
    if not watch.done:
        what = f"{watch.steps} steps of an optimizer and {watch.backwards} losses with a backward pass"
        more = "let it train longer, or ask for fewer with --steps" if watch.steps else UNSEEN
        channel.send(CommandFailed(f"{place.program} ended after {what}; {place.holds[-1]} steps are needed: {more}"))


def compute_after_packets(niceness: int) -> None:
    """This thread computes only where no packet waits: after a step the threads that carry them are there, and keep
    their priority."""
    if niceness:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def _record(place: ScriptPlace, channel: ScriptChannel) -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from transport.torch.recording.recorder import Recorder

    def stepped(*_: Any) -> None:
        compute_after_packets(place.niceness)
        if recorder.recorded:  # the script goes on, for it has caught SystemExit
            channel.send(RunRecorded(peak_bytes()))
            os._exit(0)
        if not torch.distributed.is_initialized():
            raise SystemExit("its ranks exchange nothing: call init_process_group, and put the model into DDP or FSDP2")

    register_optimizer_step_post_hook(stepped)
    recorder = Recorder(trace_path(place.trace, place.rank), place.warmup, place.recorded, stop=True)
    try:
        with recorder.watch():
            _execute(place)
    except SystemExit as end:
        if not recorder.recorded and end.code:
            raise
    if recorder.recorded:
        channel.send(RunRecorded(peak_bytes()))
        return
    needed = place.warmup + place.recorded + 1
    ended = f"{place.program} ended after {recorder.steps} steps of an optimizer; {needed} are needed"
    channel.send(CommandFailed(f"{ended}: {'let it train longer' if recorder.steps else UNSEEN}"))


def trace_path(stem: str, rank: int) -> Path:
    """Where a rank's recording is."""
    return Path(f"{stem}.rank{rank}.json.gz")


def _execute(place: ScriptPlace) -> None:
    """The script as `python SCRIPT ARGS` runs it."""
    sys.argv = [place.program, *place.arguments]
    if place.is_module:
        sys.path.insert(0, "")
        runpy.run_module(place.program, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(place.program).resolve().parent))
        runpy.run_path(place.program, run_name="__main__")


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
