"""Watches a program's steps from outside, by hooks that PyTorch has for all modules and optimizers, and records some.

An iteration is a step of the first optimizer that steps. After `warmup` of them torch.profiler runs for one more and
for `iterations`; while it does, each module that has parameters of its own marks its forward pass (LAYER and its name).
"""

import contextlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile, record_function, schedule

LAYER = "layer: "
"""The marks of forward passes begin with this."""


class Recorder:
    """Records this process's training to `path` (.json.gz) once `watch` is entered.

    stop: raise SystemExit once it is recorded; on all ranks at the same step, so nobody waits for another.
    """

    def __init__(self, path: Path, warmup: int = 5, iterations: int = 10, *, stop: bool = False) -> None:
        self.steps = 0
        self.recorded = False
        self._path, self._warmup, self._iterations, self._stop = path, warmup, iterations, stop
        self._optimizer: torch.optim.Optimizer | None = None
        self._profiler: profile | None = None
        self._names: dict[nn.Module, str] = {}
        self._open: list[tuple[nn.Module, Any]] = []

    @contextlib.contextmanager
    def watch(self) -> Any:
        """The block within is watched. A recording that hasn't ended at its end is dropped: it lacks iterations."""
        self._path.unlink(missing_ok=True)
        hooks = [
            register_module_forward_pre_hook(self._begins),
            register_module_forward_hook(self._ends, always_call=True),
            register_optimizer_step_post_hook(self._stepped),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            if self._profiler is not None:
                self._profiler.on_trace_ready = None
                with contextlib.suppress(RuntimeError):
                    self._profiler.stop()

    def _begins(self, module: nn.Module, _inputs: Any) -> None:
        if self._profiler is None:
            return
        if module not in self._names:  # the outermost of its modules, which is called before those inside
            inner = module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module
            self._names |= {child: name for name, child in inner.named_modules() if child not in self._names}
            self._names.setdefault(module, "")
        if next(module.parameters(recurse=False), None) is not None:
            mark = record_function(f"{LAYER}{self._names[module] or type(module).__name__}")
            mark.__enter__()
            self._open.append((module, mark))

    def _ends(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        while self._open and any(module is open_module for open_module, _ in self._open):
            last, mark = self._open.pop()
            mark.__exit__(None, None, None)
            if last is module:
                break

    def _stepped(self, optimizer: torch.optim.Optimizer, _args: Any, _options: Any) -> None:
        self._optimizer = self._optimizer or optimizer
        if optimizer is not self._optimizer or self.recorded:
            return
        self.steps += 1
        if self.steps == self._warmup:
            self._profiler = self._started()
        elif self._profiler is not None:
            self._profiler.step()  # it calls `_save` after the last one
        if self.recorded and self._stop:
            raise SystemExit(0)

    def _started(self) -> profile:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        started = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=self._iterations, repeat=1),
            on_trace_ready=self._save,
            record_shapes=True,
        )
        started.start()
        return started

    def _save(self, profiler: profile) -> None:
        temporary = self._path.with_name(f".{os.getpid()}.{self._path.name}")
        profiler.export_chrome_trace(str(temporary))
        os.replace(temporary, self._path)
        self.recorded, self._profiler = True, None
        self._names.clear()
