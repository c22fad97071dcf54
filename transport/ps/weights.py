"""KeptSlice: a slice of the weights at a server, with what its optimiser and its workers' clocks need."""

from typing import Any, NamedTuple

import numpy as np

from transport.meshes.mesh import Buffer
from transport.ps.config import DC_ASGD, PsConfig
from transport.ps.ps_arithmetic import Arithmetic, Array, Step
from transport.ps.ps_messages import Head
from transport.ps.shared_buffer import Pool, SharedBuffer


class AppliedPush(NamedTuple):
    """A gradient that has been applied. delay: how many of other workers were, since its sender was last sent
    weights."""

    rank: int
    head: Head
    delay: int
    since_ns: int


class KeptSlice:
    """Weights of one slice. clocks[r]: gradients that rank r has pushed for it."""

    def __init__(self, config: PsConfig, dtype: np.dtype[Any], values: Buffer) -> None:
        self.weights: Array = np.frombuffer(values, dtype).copy()
        self.clocks = [0] * config.workers
        self.held: list[AppliedPush] = []
        """Pushes of workers that are ahead by too much."""
        self._applied = 0
        self._applied_when_sent = [0] * config.workers
        self._config = config
        self._step = Step(config.learning_rate, config.momentum, config.weight_decay, config.compensation)
        self._velocity = np.zeros_like(self.weights) if config.momentum else None
        compensates = config.mode == DC_ASGD
        self._backups: dict[int, Array] | None = {} if compensates else None
        self._first = self.weights.copy() if compensates else None

    def push(self, rank: int, head: Head, gradient: Buffer, arithmetic: Arithmetic, now_ns: int) -> AppliedPush:
        """Apply a worker's gradient."""
        delay = self._applied - self._applied_when_sent[rank]
        self.clocks[rank] += 1
        self._applied += 1
        self.apply(rank, gradient, arithmetic)
        return AppliedPush(rank, head, delay, now_ns)

    def sends(self, rank: int) -> None:
        """A worker is sent the weights as they are now."""
        self._applied_when_sent[rank] = self._applied

    def apply(self, rank: int | None, gradient: Buffer, arithmetic: Arithmetic) -> None:
        """A step of the optimiser. rank: whose delay is compensated, in mode dc_asgd: from the weights it was last
        sent; None for a sum of several."""
        backup = None
        if self._backups is not None and rank is not None and self._first is not None:
            backup = self._backups.setdefault(rank, self._first)
            if backup is self._first:
                backup = self._backups[rank] = self._first.copy()
        values = np.frombuffer(gradient, self.weights.dtype)
        arithmetic.step(self._step, self.weights, self._velocity, backup, values)

    def snapshot(self, pool: Pool, rank: int | None = None) -> SharedBuffer:
        """The weights as they are now, for one or more answers. rank: who pulled them; after a push, `apply`
        has noted what its sender is sent."""
        shared = pool.take(self.weights.nbytes)
        np.copyto(np.frombuffer(shared.view, self.weights.dtype), self.weights)
        if self._backups is not None and rank is not None:
            self._backups[rank] = self.weights.copy()
        return shared

    def may_go_on(self, rank: int, coming: set[int]) -> bool:
        """Whether rank's next iteration would be at most `staleness` ahead of the slowest worker that is left."""
        slowest = min(clock for worker, clock in enumerate(self.clocks) if worker == rank or worker in coming)
        return self.clocks[rank] - slowest <= self._config.staleness
