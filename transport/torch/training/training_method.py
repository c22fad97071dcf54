"""The base of training methods, with their names and options, and of a method at work on a rank.

A method is a frozen dataclass whose fields are its options, written as a schedule's: `diloco:period=100,rate=0.7`; a
codec may follow, as after a method of the network: `diloco:period=100~lanes8+ef`. The method's `begin` makes an
`AttachedMethod`, which the hooks of the optimiser's step call: `before_step` with this rank's gradients in place and
the weights they were computed with, `after_step` when the optimiser has stepped. So the loop stays as it is, with
accumulation, closures, clipping, schedulers of learning rates and all optimisers but LBFGS. All ranks take the same
number of steps.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch

from switchagg.codecs.array_codec import Reduction
from switchagg.codecs.spec import CodecSpec, parse_codec
from switchagg.option_syntax import describe
from transport.torch.feedback import codec_state, load_codec_state
from transport.torch.training.replica import Replica


@dataclass(frozen=True)
class TrainingMethod(ABC):
    """Options of a method, each made by `switchagg.option_syntax.option`. It raises ValueError for bad options.

    name: as it is written. label, summary: how reports name it, and what they say it does, as a clause. allreduces:
    whether that is how ranks exchange. exactly: why what it sums mustn't be coded by the process group; "": it may.
    coded: whether it may have a codec of its own. rates: whether what that codes are gradients, which a learning rate
    will multiply. codec: of its sums, on any process group; what DDP sums doesn't go through it.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    summary: ClassVar[str]
    allreduces: ClassVar[bool] = True
    exactly: ClassVar[str] = ""
    coded: ClassVar[bool] = True
    rates: ClassVar[bool] = False

    codec: str = field(default="", kw_only=True)

    @property
    def round_steps(self) -> int:
        """The number of steps after which the method's actions repeat."""
        return 1

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if "read" in option.metadata and value is not None:
                try:
                    option.metadata["read"](str(value))
                except ValueError as error:
                    raise ValueError(f"{self.name}: {option.metadata['word']}={value}: must be {error}") from None
        if self.codec:
            try:
                spec = parse_codec(self.codec)
            except ValueError as error:
                raise ValueError(f"{self.name}: {error}") from None
            if not self.coded:
                raise ValueError(f"{self.name}: codec {self.codec} is none of its: {self.exactly}")
            object.__setattr__(self, "codec", str(spec))

    @property
    def spec(self) -> CodecSpec | None:
        """The codec with its error feedback."""
        return parse_codec(self.codec) if self.codec else None

    @abstractmethod
    def begin(self, replica: Replica) -> "AttachedMethod":
        """The method at work. Raises ValueError where options don't go with the replica."""

    def __str__(self) -> str:
        return describe(self) + (f"~{self.codec}" if self.codec else "")


class AttachedMethod(ABC):
    """A method at work on one rank. steps: of the optimiser so far. Steps are counted from 1.

    A subclass says what happens around a step, and keeps its own collectives in flight.
    """

    def __init__(self, method: TrainingMethod, replica: Replica) -> None:
        self._method, self._replica = method, replica
        self._paused = False
        self._hooks = [
            replica.optimizer.register_step_pre_hook(self._before),
            replica.optimizer.register_step_post_hook(self._after),
        ]

    # ---- methods override these

    def synchronous(self, step: int) -> bool:
        """Whether this step is plain synchronous SGD: gradients are averaged before it."""
        return False

    def before_step(self, step: int) -> None:  # noqa: B027  # many methods do nothing here
        """Gradients are in place."""

    def after_step(self, step: int) -> None:  # noqa: B027
        """The optimiser has stepped."""

    @abstractmethod
    def complete(self) -> None:
        """End what is in flight, and leave all ranks with the same parameters."""

    def state(self) -> dict[str, Any]:
        """The method's state, beside the model's and the optimiser's."""
        return {}

    def load(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Load the values that `state` gave."""

    # ---- users call these

    @property
    def steps(self) -> int:
        return self._replica.step

    @property
    def waited_ns(self) -> int:
        """How long this rank has waited for collectives, DDP's aside."""
        return self._replica.waited_ns

    @property
    def waited_calls(self) -> int:
        """How many of them it has waited for: the same number on all ranks after the same step."""
        return self._replica.waited_calls

    def observe(
        self, started: Callable[[int, Any], None], reduced: Callable[[Reduction], None] = lambda reduction: None
    ) -> None:
        """started: called with the bytes and the Work of each allreduce of the method, when it starts.

        reduced: called with each collective of the method's codec, of which such an allreduce consists.
        """
        self._replica.observe(started, reduced)

    def start(self) -> None:
        """The next backward pass is the first of the next step."""
        self._replica.set_synchronous(self.synchronous(self.steps + 1))

    def finish(self) -> None:
        """Leave all ranks with the same parameters, and the mean of buffers with floats. Training may go on.

        All ranks must call it. Raises DistBackendError.
        """
        with torch.no_grad():
            self.complete()
            self._replica.average(self._replica.buffers)

    def detach(self) -> None:
        """From now on the optimiser steps alone, and DDP sums again. A second call does nothing."""
        for hook in self._hooks:
            hook.remove()
        self._replica.set_synchronous(True)

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank; the model's and the optimiser's are saved beside it, for each rank too."""
        state = {"method": str(self._method), "steps": self.steps, "state": self.state()}
        return {**state, "codec": codec_state(self._replica.compression)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of `state_dict`, after those of model and optimiser. Raises ValueError if they don't match."""
        if state["method"] != str(self._method):
            raise ValueError(f"{self._replica.what}: the state is of {state['method']}, this is {self._method}")
        self._replica.step = state["steps"]
        try:
            self.load(state["state"])
            load_codec_state(self._replica.compression, state["codec"])
        except ValueError as error:
            raise ValueError(f"{self._replica.what}: {error}") from None
        self.start()

    # ---- the optimiser calls these hooks

    def _before(self, _: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if self._paused:
            return None
        args, kwargs = _evaluated(args, kwargs)
        self._replica.step += 1
        self._replica.check()
        if self._method.rates:
            self._replica.follow_rates()
        with torch.no_grad():
            if self._replica.ddp is None and self.synchronous(self.steps):
                self._replica.average_gradients()
            self.before_step(self.steps)
        return args, kwargs

    def _after(self, *_: Any) -> None:
        if not self._paused:
            with torch.no_grad():
                self.after_step(self.steps)
            self.start()

    def _step_alone(self) -> None:
        """A step of the optimiser that isn't the user's."""
        self._paused = True
        try:
            self._replica.optimizer.step()
        finally:
            self._paused = False


def _evaluated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `step` (itself, and perhaps a closure) with its closure evaluated: gradients are in place."""
    closure: Callable[[], Any] | None = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        return args, kwargs
    with torch.enable_grad():
        loss = closure()
    return (args[0], lambda: loss), {}
