"""ElasticTraining: a training loop whose steps outlive ranks.

    dist.init_process_group("switchagg")                         # SWITCHAGG_ELASTIC=1
    training = ElasticTraining(model, optimizer)                 # wraps the model in DDP
    while training.step < steps:
        with training:                                           # a step: those who are left repeat it if a rank dies
            inputs, labels = batch(training.step, training.rank, training.workers)
            optimizer.zero_grad()
            loss_of(training(inputs), labels).backward()
            optimizer.step()
    training.close()

Gradients are divided by the ranks that are counted, since DDP is made anew for each generation. A step that failed on
some ranks and not on others isn't lost: the state of the rank that is ahead goes to all. Without SWITCHAGG_ELASTIC the
same loop is a plain one: an error ends it.
"""

import io
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from transport.torch.backend import SwitchProcessGroup
from transport.torch.elastic.membership_rounds import NEW, GroupGeneration
from transport.torch.hook import compress, switch_group

logger = logging.getLogger(__name__)


class ElasticTraining:
    """A model in training on the default group. Making one is a collective of its ranks, also of one that joins later.

    distributed: makes what wraps the model, once for each generation: DDP, or `partial(DistributedDataParallel, ...)`.
    extras: more with `state_dict` and `load_state_dict`, of plain values and tensors, which a rank that joins gets as
    well (a learning-rate schedule). step: how many steps the optimizer has made. An error inside a step that isn't the
    group's is raised as it is; so are those of collectives outside of steps.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        distributed: Callable[[torch.nn.Module], torch.nn.Module] = DistributedDataParallel,
        extras: Sequence[Any] = (),
    ) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0
        self._distributed, self._extras = distributed, list(extras)
        self._group: SwitchProcessGroup = switch_group(None)
        self._wrapped: torch.nn.Module | None = None
        self._paused = self._stepped = self._has_state = False
        optimizer.register_step_post_hook(self._after_step)
        try:
            self._enter(self._group.generation)
        except Exception as error:
            if self._group.membership is None or self._group.errored() is None:
                raise
            self._form_again(str(error))

    @property
    def rank(self) -> int:
        """This process's rank now."""
        return self._group.rank()

    @property
    def workers(self) -> int:
        """How many ranks there are now."""
        return self._group.size()

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """The wrapped model's output."""
        assert self._wrapped is not None
        return self._wrapped(*inputs, **keywords)

    def __enter__(self) -> "ElasticTraining":
        members = self._group.membership
        if members is not None:
            if self.rank == 0 and not self._paused and members.has_joiners():
                self._paused = True
                members.pause_at(self.step + 1)
            if members.pauses(self.step):
                self._form_again("ranks join")
        self._stepped = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.step += self._stepped
        if error is None or not isinstance(error, Exception):
            return False
        failure = self._group.errored()
        if self._group.membership is None or failure is None:
            return False
        self._form_again(str(failure))
        return True

    def close(self) -> None:
        """End the training: no rank joins any more. The caller destroys the process group."""
        if self._group.membership is not None and self._group.errored() is None:
            self._group.membership.end_job()

    def _after_step(self, *_: Any) -> None:
        self._stepped = True

    def _form_again(self, reason: str) -> None:
        """Go on in the next generation; again, if a rank dies meanwhile."""
        while True:
            logger.info("elastic: rank %d of %d, step %d: %s", self.rank, self.workers, self.step, reason)
            self.optimizer.zero_grad(set_to_none=True)
            _end(self._wrapped)
            self._wrapped = None
            generation = self._group.form_next(self.step if self._has_state else NEW)
            try:
                self._enter(generation)
                return
            except Exception as error:
                if self._group.errored() is None:
                    raise
                reason = str(error)

    def _enter(self, generation: GroupGeneration | None) -> None:
        """Have the state of rank 0, and a model that is wrapped for this generation."""
        if generation is not None and not generation.is_even:
            self._synchronize()
        self._has_state = True
        self._paused = False
        self._wrapped = self._distributed(self.model)
        compression = self._group.compression
        if isinstance(self._wrapped, DistributedDataParallel) and compression is not None and compression.remembers:
            compress(self._wrapped, self.optimizer, self._group)

    def _synchronize(self) -> None:
        """Give rank 0's model, optimizer, extras and step to all."""
        states = [self.model, self.optimizer, *self._extras]
        buffer = io.BytesIO()
        if self.rank == 0:
            torch.save([self.step, *(state.state_dict() for state in states)], buffer)
        size = torch.tensor([buffer.tell()])
        dist.broadcast(size, 0)
        payload = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == 0:
            payload = torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)
        dist.broadcast(payload, 0)
        if self.rank != 0:
            self.step, *contents = torch.load(io.BytesIO(payload.numpy().tobytes()), weights_only=True)
            for state, content in zip(states, contents, strict=True):
                state.load_state_dict(content)


def _end(wrapped: torch.nn.Module | None) -> None:
    """End DDP's reducer now, and not when garbage is collected: its hooks would meet the next one's gradients."""
    for name in ("reducer", "logger") if isinstance(wrapped, DistributedDataParallel) else ():
        wrapped.__dict__.pop(name, None)
