"""Overlap across iterations: the next forward pass begins when its first layers' sums are back.

    handle = priority.attach(model, optimizer, group, schedule="bytescheduler")     # once; the loop stays as it is
    for points, labels in data:
        optimizer.zero_grad()
        loss = cross_entropy(model(points), labels)     # each layer waits for its own sums, and steps its parameters
        loss.backward()                                 # each gradient's transfer starts as soon as it exists
        optimizer.step()                                # returns at once: the rest happens as sums return
    handle.close()

The first iterations run unscheduled and are measured; rank 0's profile and the policy then give every rank one plan of
transfers (`transport.schedule.scheduler`). Gradients become means over the ranks, as under DDP. The user's own
optimizer steps a parameter with the options of the `step()` call it belongs to, so parameters have the bits of the
unscheduled run, if the group adds in the same order whatever a transfer consists of.

The loop differs from an ordinary one: between `step()` and the next forward pass, layers that weren't called yet have
old parameters. `handle.wait()` brings them up to date; it is called automatically for `state_dict()` of model and
optimizer. Between `backward()` and `step()`, `handle.wait()` makes `.grad` the means, for clipping. `.grad` is None
from `step()` on until the parameter has been stepped.

A failed call ends in AggregationFailed, on the thread that trains, from the next forward, backward, `step` or `wait`.
"""

import contextlib
import time
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from transport.contracts.group_contract import AllreduceGroup
from transport.schedule.scheduler import RECORDS_MAX, LinearCost, Policy, Profile, parse_policy
from transport.schedule.tuning import missing
from transport.torch.feedback import RateFollower, codec_state, load_codec_state
from transport.torch.priority.channel import Channel, open_channel
from transport.torch.priority.exchange import Exchange, TransferRecord, measure_cost
from transport.torch.priority.observer import Observer
from transport.torch.priority.optimizer import Options, PartialSteps
from transport.torch.priority.schedule_tuning import ScheduleTuning

OBSERVED_ITERATIONS = 3
"""By default: the first is a warm-up, the medians of the others count."""

DTYPES = (torch.float32, torch.float64)


class ForwardWait(NamedTuple):
    """A module's forward waited for its sums, which takes in the steps of its parameters."""

    iteration: int
    module: str
    begin_ns: int
    end_ns: int


class Records(NamedTuple):
    """The events since the last call, at most RECORDS_MAX of each kind; transfers in order of completion.

    Times are of time.monotonic_ns().
    """

    transfers: list[TransferRecord]
    waits: list[ForwardWait]


@dataclass(frozen=True)
class AttachOptions:
    """find_unused_parameters: some parameters may get no gradient in an iteration; they are left as DDP leaves them,
    which costs one small call. If it is False, they take part with zeros. share_parameters: all ranks first get rank
    0's parameters and buffers. elementwise_optimizer: the optimizer isn't PyTorch's, but treats each parameter by
    itself. tuning_log: where rank 0 writes what "bytescheduler:tune=15" tried, as CSV. Raises ValueError.
    """

    observed_iterations: int = OBSERVED_ITERATIONS
    find_unused_parameters: bool = True
    share_parameters: bool = True
    elementwise_optimizer: bool = False
    tuning_log: Path | str | None = None

    def __post_init__(self) -> None:
        if self.observed_iterations < 1:
            raise ValueError(f"observed_iterations {self.observed_iterations}: 1 or more")


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    group: AllreduceGroup | dist.ProcessGroup | None = None,
    schedule: Policy | str = "bytescheduler",
    *,
    options: AttachOptions = AttachOptions(),  # frozen
) -> "PriorityHandle":
    """Sum this model's gradients over a group, each with the priority that `schedule` gives. All ranks must call it.

    model: not wrapped by DDP; all its trainable parameters in the optimizer, float32 or float64, on the CPU. group: see
    `channel.open_channel`; it stays the caller's. schedule: a policy or its text.

    Raises ValueError or TypeError for what can't be, AggregationFailed if the group fails.
    """
    policy = parse_policy(schedule) if isinstance(schedule, str) else schedule
    parameters = _trainable(model, optimizer)
    channel = open_channel(group)
    try:
        handle = PriorityHandle(model, optimizer, channel, policy, parameters, options)
        handle._begin()
        return handle
    except BaseException:
        channel.close()
        raise


def _trainable(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    """Name and parameter of all that is scheduled, in an order that all ranks share."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError("attach: the model is wrapped by DDP, which would sum gradients itself; give its .module")
    known = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    trainable = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or not parameter.numel():
            continue
        if parameter not in known:
            raise ValueError(f"attach: parameter {name} is not in the optimizer: its gradient would go nowhere")
        if parameter.dtype not in DTYPES:
            raise ValueError(f"attach: parameter {name} is {parameter.dtype}; float32 and float64 can be scheduled")
        if parameter.device.type != "cpu":
            raise ValueError(f"attach: parameter {name} is on {parameter.device}; only CPU tensors can be scheduled")
        trainable.append((name, parameter))
    if not trainable:
        raise ValueError("attach: the model has no trainable parameter")
    model_parameters = {parameter for _, parameter in trainable}
    if any(p.requires_grad and p.numel() and p not in model_parameters for p in known):
        raise ValueError("attach: the optimizer has parameters that are not the model's; attach a model that has all")
    return trainable


class PriorityHandle:
    """The result of `attach`. Use it from the thread that trains; as a context manager it closes itself."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        channel: Channel,
        policy: Policy,
        parameters: Sequence[tuple[str, nn.Parameter]],
        options: AttachOptions,
    ) -> None:
        """Private: see `attach`."""
        self.policy = policy
        self.profile: Profile | None = None
        """Rank 0's profile, once the observed iterations are over."""
        self._model, self._optimizer, self._channel = model, optimizer, channel
        self._parameters = list(parameters)
        self._index = {parameter: index for index, (_, parameter) in enumerate(self._parameters)}
        self._group_of = {
            self._index[parameter]: number
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
            if parameter in self._index
        }
        self._observed_left = options.observed_iterations
        self._observer: Observer | None = Observer(model, self._parameters, graph=policy.reads_graph)
        self._observer_hooks: list[Any] = []
        self._rates = RateFollower(optimizer, {parameter: name for name, parameter in self._parameters})
        self._exchange = Exchange(
            channel, self._parameters, options.find_unused_parameters, lambda: self._rates.follow(channel.compression)
        )
        self._steps: PartialSteps | None = None
        self._hooks: list[Any] = []
        self._paused = False
        self._options: dict[int, Options] = {}  # parameter -> options of the step that it waits for
        self._zeroed: dict[int, bool] = {}  # parameter that waits for a step -> its set_to_none
        self._waits: deque[ForwardWait] = deque(maxlen=RECORDS_MAX)
        self._iteration = 0
        self._tuning: ScheduleTuning | None = None
        self._how = options
        self._cost = LinearCost()
        self._closed = False

    # ---- users call these

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside this context, backward passes only add up gradients; the next one outside sums them over the ranks."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def wait(self) -> None:
        """Finish all sums and steps that have begun. Then `.grad` of parameters without a step holds means.

        Needed before parameters or gradients are used outside of the model's forward. Raises AggregationFailed.
        """
        self._check()
        if self._exchange.collecting:
            self._exchange.backward_done()
        for index in self._exchange.busy():
            self._exchange.wait(index)
            if index in self._options:
                self._settle(index)
            else:
                self._exchange.mean(index)
        self._exchange.await_idle()  # also what only notifies: the group may be closed next

    def codec_state(self) -> dict[str, Any]:
        """The state of this rank's codec; each rank saves its own; {} without a codec. It waits first."""
        self.wait()
        return codec_state(self._channel.compression)

    def load_codec_state(self, state: dict[str, Any]) -> None:
        """Load a state of `codec_state`. A state of another codec, or another rank, raises ValueError."""
        self.wait()
        load_codec_state(self._channel.compression, state)

    def records(self) -> Records:
        """Transfers and waits since the last call, for a timeline."""
        waits = list(self._waits)
        self._waits.clear()
        return Records(self._exchange.records(), waits)

    @property
    def iteration(self) -> int:
        """How many times `step` was called."""
        return self._iteration

    def close(self) -> None:
        """Finish sums and steps, and restore the loop; after a failure, don't wait. A second call does nothing."""
        if self._closed:
            return
        try:
            if self._exchange.failure is None:
                self.wait()
        finally:
            self._release()

    def _release(self) -> None:
        self._closed = True
        for hook in (*self._hooks, *self._observer_hooks):
            hook.remove()
        self._model.__dict__.pop("zero_grad", None)
        if self._steps is not None:
            self._steps.release()
        self._exchange.close()
        self._channel.close()

    def __enter__(self) -> "PriorityHandle":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """After an exception nothing is waited for: other ranks may not come."""
        if kind is None:
            self.close()
        elif not self._closed:
            self._release()

    # ---- private: attaching and planning

    def _begin(self) -> None:
        self._agree()
        if self._how.share_parameters:
            self._share()
        self._steps = PartialSteps(
            self._optimizer, self._on_step, self._on_zero_grad, elementwise=self._how.elementwise_optimizer
        )
        try:
            self._hook()
        except BaseException:
            self._release()
            raise

    def _agree(self) -> None:
        """Fail on all ranks if they have other parameters or another schedule than rank 0."""
        description = repr((self.policy, [(name, tuple(p.shape), p.dtype) for name, p in self._parameters])).encode()
        expected = self._channel.from_rank_0(description)
        lacking = missing() if self.policy.tuning is not None else ""
        faults = np.zeros(self._channel.workers, np.int32)
        faults[self._channel.rank] = 2 if lacking else description != expected
        self._channel.control(faults)
        if lacking:
            raise ValueError(f"attach: {lacking}")
        if description != expected:
            difference = _difference(description.decode(), expected.decode())
            raise ValueError(f"attach: rank {self._channel.rank} and rank 0 differ: {difference}")
        for fault, what in ((1, "has another schedule, or other parameters, than rank 0"), (2, "can't tune")):
            if len(ranks := (faults == fault).nonzero()[0]):
                raise ValueError(f"attach: rank {', '.join(map(str, ranks))} {what}")

    def _share(self) -> None:
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            if tensor.numel():
                flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                received = bytearray(self._channel.from_rank_0(flat.numpy().tobytes()))
                with torch.no_grad():
                    tensor.copy_(torch.frombuffer(received, dtype=tensor.dtype).view(tensor.shape))

    def _hook(self) -> None:
        model = self._model
        for index, (_, parameter) in enumerate(self._parameters):
            register: Callable[..., Any] = parameter.register_post_accumulate_grad_hook  # untyped in the stubs
            self._hooks.append(register(self._gradient_hook(index)))
        for name, module in model.named_modules():
            indices = [self._index[p] for p in module.parameters(recurse=False) if p in self._index]
            if indices:
                self._hooks.append(module.register_forward_pre_hook(self._forward_hook(module, name, indices)))
            before, after = self._observer_hooks_of(module, module is model)
            self._observer_hooks.append(module.register_forward_pre_hook(before))
            self._observer_hooks.append(module.register_forward_hook(after))

        def zero_grad(called: nn.Module, set_to_none: bool = True) -> None:
            if called is model:
                self._on_zero_grad(set_to_none)
            else:  # it is a copy of the model
                type(called).zero_grad(called, set_to_none)

        model.zero_grad = types.MethodType(zero_grad, model)  # type: ignore[method-assign]
        for owner in (model, self._optimizer):
            self._hooks.append(owner.register_state_dict_pre_hook(lambda *_: self._up_to_date()))
            self._hooks.append(owner.register_load_state_dict_pre_hook(lambda *_: self._up_to_date()))

    def _observer_hooks_of(self, module: nn.Module, outermost: bool) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(_: nn.Module, inputs: Any) -> None:
            if self._observer is not None and torch.is_grad_enabled():
                if outermost:
                    self._observer.forward_begins()
                self._observer.called(module, inputs, time.monotonic_ns())

        def after(_: nn.Module, __: Any, output: Any) -> None:
            if self._observer is not None and torch.is_grad_enabled():
                self._observer.returned(module, output, time.monotonic_ns())

        return before, after

    def _observed(self) -> None:
        """An observed iteration is over. After the last one, all ranks make the plan of rank 0's profile."""
        assert self._observer is not None
        self._observer.iteration_ends()
        self._observed_left -= 1
        if self._observed_left:
            return
        for hook in self._observer_hooks:
            hook.remove()
        self._observer_hooks.clear()
        extra: dict[nn.Module, list[int]] = {}
        for index, module in self._observer.waits().items():
            extra.setdefault(module, []).append(index)
        names = {module: name for name, module in self._model.named_modules()}
        for module, indices in extra.items():
            self._hooks.append(module.register_forward_pre_hook(self._forward_hook(module, names[module], indices)))
        self.profile = Profile.decode(self._channel.from_rank_0(self._observer.profile().encode()))
        self._observer = None
        if self._needs_cost():
            measured = measure_cost(self._channel)
            words = f"{measured.alpha_ns!r} {measured.beta_ns_per_byte!r}".encode()
            self._cost = LinearCost(*map(float, self._channel.from_rank_0(words).split()))
        self._plan(self.policy)
        if (tunable := self.policy.tuning) is not None:
            log = None if self._how.tuning_log is None else Path(self._how.tuning_log)
            self._tuning = ScheduleTuning(tunable, self._channel.rank, self._channel.from_rank_0, log)

    def _needs_cost(self) -> bool:
        return self.policy.needs_cost or (self._channel.gates_starts and self.policy.credit_bytes is not None)

    def _plan(self, policy: Policy) -> None:
        assert self.profile is not None
        self.policy = policy
        transfers = policy.plan(self.profile, self._cost)
        self._exchange.plan(transfers, self.profile, self._cost, policy.credit_bytes, policy.cycle_ns)

    # ---- private: hooks, which all run on the thread that trains

    def _check(self) -> None:
        if self._closed:
            raise RuntimeError("the priority handle is closed")
        if self._exchange.failure is not None:
            raise self._exchange.failure

    def _gradient_hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            if self._closed:
                return
            exchange = self._exchange
            if index in self._options:
                raise RuntimeError(
                    f"parameter {self._parameters[index][0]} was used outside of a call of its module before its "
                    f"last step was done: call handle.wait() before such a use"
                )
            if exchange.is_busy(index):
                raise RuntimeError(
                    f"parameter {self._parameters[index][0]}: a second backward pass before optimizer.step(); "
                    f"run all but the last within handle.no_sync()"
                )
            if self._paused:
                return
            self._check()
            if not exchange.collecting:
                self._settle_all()  # what no forward waited for
            if self._observer is not None:
                self._observer.gradient(index, time.monotonic_ns())
            exchange.ready(index)

        return hook

    def _forward_hook(self, module: nn.Module, name: str, indices: list[int]) -> Callable[[nn.Module, Any], None]:
        def hook(called: nn.Module, _: Any) -> None:
            if self._closed or called is not module:  # a copy of the model has our hooks, too
                return
            if self._exchange.failure is not None:
                raise self._exchange.failure
            waiting = [index for index in indices if index in self._options]
            if waiting:
                begin_ns = time.monotonic_ns()
                for index in waiting:
                    self._finish(index)
                self._waits.append(ForwardWait(self._iteration - 1, name, begin_ns, time.monotonic_ns()))

        return hook

    def _finish(self, index: int) -> None:
        """Wait for a parameter's sum and step it; meanwhile, step others whose sums are here."""
        while index in self._options:  # its sum may come while we look which of the others is here
            if self._exchange.wait(index, alternatives=self._options.keys()):
                here: int | None = index
            else:
                here = self._exchange.one_here(self._options.keys())
            self._check()
            if here is not None:
                self._settle(here)

    def _settle(self, index: int) -> None:
        """Step a parameter whose sum is here."""
        assert self._steps is not None
        parameter = self._parameters[index][1]
        options = self._options.pop(index)
        set_to_none = self._zeroed.pop(index, None)
        gradient = self._exchange.take(index)
        later = parameter.grad  # of micro-batches since; None, as a rule
        if gradient is not None:
            parameter.grad = gradient
            self._steps.step_one(parameter, options[self._group_of[index]])
            if set_to_none is None:
                later = gradient if later is None else later.add_(gradient)
            elif not set_to_none and later is None:
                later = gradient.zero_()
        parameter.grad = later

    def _settle_all(self) -> None:
        for index in sorted(self._options):
            self._finish(index)

    def _on_step(self) -> None:
        self._check()
        outsiders = [
            p for group in self._optimizer.param_groups for p in group["params"]
            if p.grad is not None and p.numel() and p not in self._index
        ]  # fmt: skip
        if outsiders:
            raise RuntimeError("the optimizer has got parameters since attach: close the handle and attach again")
        assert self._steps is not None
        indices = [index for index in self._exchange.busy() if index not in self._options]
        if self._exchange.collecting or not indices:  # else `wait` has ended the backward pass
            if not self._exchange.collecting:
                self._settle_all()
            self._exchange.backward_done()
            indices = self._exchange.busy()
        options = self._steps.options()
        for index in indices:
            self._options[index] = options
            self._exchange.hold(index)
        self._iteration += 1
        if self._observer is not None:
            self._settle_all()
            self._observed()
        elif self._tuning is not None and self._tuning.due:
            self._settle_all()
            self._exchange.await_idle()
            self._plan(self._tuning.next_policy(self._iteration))
        elif self._tuning is not None:
            self._tuning.iteration_ends()

    def _on_zero_grad(self, set_to_none: bool = True) -> None:
        if any(self._exchange.is_busy(index) and index not in self._options for index in range(len(self._parameters))):
            self.wait()  # gradients that no step asked for: they are dropped, on every rank alike
            self._exchange.drop()
        for index in self._options:
            self._zeroed[index] = set_to_none
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                if set_to_none:
                    parameter.grad = None
                else:
                    parameter.grad.detach_().zero_()

    def _up_to_date(self) -> None:
        if not self._closed and self._exchange.failure is None:
            self.wait()


def _difference(first: str, second: str) -> str:
    """The first place where two descriptions differ."""
    at = next(
        (place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    low = max(0, at - 40)
    return f"…{first[low : at + 40]}… against …{second[low : at + 40]}…"
