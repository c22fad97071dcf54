"""The exchange of one model's gradients: from `.grad` to transfers, and from sums to means.

A transfer of one part uses the gradient's own memory; one of several is gathered in a buffer. The thread that trains
hands gradients over and takes means back; a transfer ends in the thread in which the group resolves futures.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from switchagg.codecs.array_codec import Tensor, Tensors
from switchagg.errors import AggregationFailed
from transport.schedule.schedule_model import launch_order
from transport.schedule.scheduler import (
    LayerProfile,
    LinearCost,
    Profile,
    Scheduler,
    TensorProfile,
    TensorRange,
    Transfer,
    fit_cost,
    plan_transfers,
    tensors_of,
)
from transport.torch.feedback import recut, tensor_of
from transport.torch.priority.channel import Channel, failure_of

Array = NDArray[Any]

MEASURED_SIZES_BYTES = (1_000, 64_000, 1_000_000)
MEASURED_TIMES = 3

USED = "which parameters are used"
"""The record's name of the call that finds which parameters have a gradient on any rank."""


class TransferRecord(NamedTuple):
    """A transfer that is done. Times are of time.monotonic_ns(). iteration: counted from 0, as calls of `step` are."""

    iteration: int
    key: int
    name: str
    priority: int
    size_bytes: int
    ready_ns: int
    launched_ns: int
    completed_ns: int


@dataclass(slots=True)
class _Place:
    """Where elements of a parameter lie in a transfer; offset: None if they are all of it, in the gradient's memory."""

    key: int
    low: int
    high: int
    offset: int | None


@dataclass(slots=True)
class _Gradient:
    """A parameter's gradient from the time it exists until it is taken back."""

    tensor: torch.Tensor
    """As autograd made it, or zeros."""
    flat: torch.Tensor
    """The tensor's elements in a row: the same memory where it is contiguous."""
    local: bool
    """Whether this rank computed it."""
    left: int
    """Transfers that aren't complete."""
    summed: bool = False
    """Whether `tensor` holds the mean."""


class Exchange:
    """Gradients of `parameters` over a channel. All methods but the callbacks belong to the thread that trains.

    find_unused: exchange which parameters have a gradient anywhere; the others come back as None. begins: called before
    the first gradient of each iteration, with nothing in flight. Until `plan` is called, everything is one transfer.
    """

    def __init__(
        self,
        channel: Channel,
        parameters: Sequence[tuple[str, nn.Parameter]],
        find_unused: bool,
        begins: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel, self._begins = channel, begins
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._tensors = [tensor_of(name, parameter) for name, parameter in parameters]
        self._find_unused = find_unused
        self._changed = threading.Condition()
        self._launching = threading.Lock()  # one thread at a time, so that starts keep their order
        self._failure: AggregationFailed | None = None
        self._closed = False
        self._pump: threading.Thread | None = None
        self._gradients: dict[int, _Gradient] = {}
        self._used = np.zeros(len(self._parameters), np.int32)
        self._used_known = False
        self._iterations = 0
        self._earlier = 0  # counts iterations of earlier plans
        self._records: list[TransferRecord] = []
        self.collecting = False
        """Whether a backward pass has begun, and hasn't ended."""
        self._set_plan(*_everything_at_once(parameters))

    def plan(
        self, transfers: Sequence[Transfer], profile: Profile, cost: LinearCost, credit_bytes: int | None, cycle_ns: int
    ) -> None:
        """Use these transfers from the next iteration on. Nothing may be in flight but a last call's end."""
        assert not self._gradients, "gradients are under way"
        self.await_idle()
        self._collect_records()
        if (compression := self._channel.compression) is not None:
            cut = [tensor for transfer in transfers for tensor in tensors_of(transfer, self._tensors)]
            compression.load_state_dict(recut(compression.state_dict(), cut))
        self._set_plan(transfers, profile, cost, credit_bytes, cycle_ns)

    def _set_plan(
        self,
        transfers: Sequence[Transfer],
        profile: Profile,
        cost: LinearCost = LinearCost(),  # noqa: B008  # frozen
        credit_bytes: int | None = None,
        cycle_ns: int = 0,
    ) -> None:
        planned = list(transfers)
        self._transfer_names = [_name_of(transfer, self._names) for transfer in planned]
        self._contents: list[Tensors | None] = [tensors_of(transfer, self._tensors) for transfer in planned]
        if self._find_unused:
            count = len(self._parameters)
            urgent = min(transfer.priority for transfer in planned)
            planned.append(Transfer(len(planned), urgent, (TensorRange(count, 0, count),), 4 * count))
            self._transfer_names.append(USED)
            self._contents.append(None)

        def foreseen() -> list[int]:
            return [*launch_order(transfers, profile, cost, credit_bytes), *range(len(transfers), len(planned))]

        lanes = self._channel.lanes(planned, foreseen)
        gated = self._channel.gates_starts and lanes is not None
        if credit_bytes is not None and not gated:
            self._channel.set_credit(credit_bytes)
        with self._changed:
            self._earlier = self._iterations
            self._scheduler = Scheduler(
                planned, lanes=lanes, credit_bytes=credit_bytes if gated else None, cycle_ns=cycle_ns
            )
        self._places, self._buffers = self._lay_out(transfers)
        self._arrays: dict[int, Array] = dict(self._buffers)
        if self._find_unused:
            self._arrays[len(transfers)] = self._used
        if (gated and credit_bytes is not None) or cycle_ns:
            self._start_pump()

    def _lay_out(self, transfers: Sequence[Transfer]) -> tuple[list[list[_Place]], dict[int, Array]]:
        places: list[list[_Place]] = [[] for _ in self._parameters]
        buffers: dict[int, Array] = {}
        for transfer in transfers:
            offset = 0
            for tensor, low, high in transfer.parts:
                gathered = len(transfer.parts) > 1
                places[tensor].append(_Place(transfer.key, low, high, offset if gathered else None))
                offset += high - low
            if len(transfer.parts) > 1:
                dtype = self._parameters[transfer.parts[0].tensor].dtype
                buffers[transfer.key] = torch.empty(offset, dtype=dtype).numpy()
        return places, buffers

    # ---- gradients go out

    def is_busy(self, index: int) -> bool:
        """Whether a parameter's gradient was handed over and not taken back."""
        return index in self._gradients

    def busy(self) -> list[int]:
        """The parameters that are busy."""
        return sorted(self._gradients)

    def ready(self, index: int) -> None:
        """A parameter's gradient is in `.grad`: it is in flight from now on."""
        if not self.collecting:
            self.await_idle()
            self._begins()
            self.collecting, self._used_known = True, False
            self._used[:] = 0
        self._hand_over(index)
        with self._changed:
            self._scheduler.ready(index, time.monotonic_ns())
        self._launch()

    def backward_done(self) -> None:
        """Parameters without a new gradient take part with their old `.grad`, or zeros."""
        if not self.collecting:
            self.await_idle()
            self._begins()
            self._used_known = False
            self._used[:] = 0
        without = [index for index in range(len(self._parameters)) if index not in self._gradients]
        for index in without:
            self._hand_over(index)
        self.collecting = False
        self._iterations += 1
        if without or self._find_unused:  # else the iteration may be complete, and the scheduler at the next one
            with self._changed:
                self._scheduler.backward_done(time.monotonic_ns())
            self._launch()

    def _hand_over(self, index: int) -> None:
        parameter, gradient = self._parameters[index], self._parameters[index].grad
        if gradient is not None and (gradient.layout != torch.strided or gradient.dtype != parameter.dtype):
            raise TypeError(
                f"the gradient of {self._names[index]} is {gradient.layout}, {gradient.dtype}; only dense ones of the "
                f"parameter's type can be scheduled"
            )
        tensor = torch.zeros_like(parameter) if gradient is None else gradient
        tensor = tensor.detach()
        flat = tensor.contiguous().view(-1)
        self._used[index] = gradient is not None
        values = flat.numpy()
        for place in self._places[index]:
            if place.offset is None:
                self._arrays[place.key] = values[place.low : place.high]
            else:
                end = place.offset + place.high - place.low
                self._buffers[place.key][place.offset : end] = values[place.low : place.high]
        with self._changed:
            self._gradients[index] = _Gradient(tensor, flat, gradient is not None, len(self._places[index]))

    # ---- means come back

    @property
    def failure(self) -> AggregationFailed | None:
        """Why nothing works any more."""
        return self._failure

    def wait(self, index: int, alternatives: Collection[int] = ()) -> bool:
        """Sleep until a parameter's sum is here (True), or that of one of the others. Raises AggregationFailed."""
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._is_here(index):
                    return True
                if any(self._is_here(other) for other in alternatives):
                    return False
                self._changed.wait()

    def one_here(self, indices: Collection[int]) -> int | None:
        """The first of these parameters whose sum is here."""
        with self._changed:
            return next((index for index in sorted(indices) if self._is_here(index)), None)

    def _is_here(self, index: int) -> bool:
        gradient = self._gradients[index]
        return not gradient.left and (gradient.local or not self._find_unused or self._used_known)

    def hold(self, index: int) -> None:
        """Keep the gradient from now on, so that nothing adds to it: `.grad` is None until the parameter is stepped."""
        gradient, parameter = self._gradients[index], self._parameters[index]
        if gradient.summed and parameter.grad is not None:
            gradient.tensor = parameter.grad  # perhaps changed since, by clipping
        parameter.grad = None

    def mean(self, index: int) -> None:
        """Make `.grad` the mean of a parameter whose sum is here."""
        gradient, parameter = self._gradients[index], self._parameters[index]
        self._to_mean(index, gradient)
        if not gradient.local and self._is_used(index, gradient):
            parameter.grad = gradient.tensor

    def take(self, index: int) -> torch.Tensor | None:
        """The mean of a parameter whose sum is here, handed back; None if no rank has a gradient."""
        with self._changed:
            gradient = self._gradients.pop(index)
        self._to_mean(index, gradient)
        return gradient.tensor if self._is_used(index, gradient) else None

    def drop(self) -> None:
        """Forget gradients whose sums are all here."""
        with self._changed:
            self._gradients.clear()

    def _is_used(self, index: int, gradient: _Gradient) -> bool:
        return gradient.local or not self._find_unused or bool(self._used[index])

    def _to_mean(self, index: int, gradient: _Gradient) -> None:
        if gradient.summed:
            return
        gradient.summed = True
        values, divisor = gradient.flat.numpy(), 1 if self._channel.divides else self._channel.workers
        for place in self._places[index]:
            part = values[place.low : place.high]
            if place.offset is None:
                if divisor > 1:
                    np.divide(part, divisor, out=part)
            else:
                end = place.offset + place.high - place.low
                np.divide(self._buffers[place.key][place.offset : end], divisor, out=part)
        if gradient.flat.data_ptr() != gradient.tensor.data_ptr():
            gradient.tensor.copy_(gradient.flat.view(gradient.tensor.shape))

    # Transfers

    def _launch(self) -> None:
        with self._launching:
            with self._changed:
                if self._failure is not None:
                    raise self._failure
                batch = self._scheduler.launches(time.monotonic_ns())
                if self._pump is not None:
                    self._changed.notify_all()  # there may be a deadline
            for transfer in batch:
                try:
                    key = transfer.key
                    future = self._channel.start(transfer, self._arrays[key], self._contents[key])
                except Exception as error:
                    self._fail(error)
                    raise failure_of(error, self._channel) from error
                future.add_done_callback(partial(self._ended, transfer))

    def _ended(self, transfer: Transfer, future: "Future[Any]") -> None:
        """Any thread."""
        error = future.exception()
        if error is not None:
            self._fail(error)
            return
        with self._changed:
            self._scheduler.completed(transfer, time.monotonic_ns())
            for part in transfer.parts:
                if part.tensor == len(self._parameters):
                    self._used_known = True
                else:
                    self._gradients[part.tensor].left -= 1
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or failure_of(error, self._channel)
            self._changed.notify_all()

    def await_idle(self) -> None:
        """Sleep until the last iteration's transfers are all complete, also those that no layer waits for."""
        with self._changed:
            while not self._scheduler.idle:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()

    def _start_pump(self) -> None:
        """A thread that starts what a returned credit or the end of a cycle allows."""
        if self._pump is None:
            self._pump = threading.Thread(target=self._run_pump, name="priority-pump", daemon=True)
            self._pump.start()

    def _run_pump(self) -> None:
        while True:
            with self._changed:
                deadline_ns = self._scheduler.next_deadline_ns()
                now_ns = time.monotonic_ns()
                if deadline_ns is None or deadline_ns > now_ns:
                    self._changed.wait(None if deadline_ns is None else (deadline_ns - now_ns) / 1e9)
                if self._closed or self._failure is not None:
                    return
            try:
                self._launch()
            except Exception as error:
                self._fail(error)
                return

    # Records

    def records(self) -> list[TransferRecord]:
        """Transfers completed since the last call."""
        self._collect_records()
        completed, self._records = self._records, []
        return completed

    def _collect_records(self) -> None:
        with self._changed:
            timings = self._scheduler.take_timings()
        self._records += [
            TransferRecord(self._earlier + timing.iteration, timing.key, self._transfer_names[timing.key], *timing[2:])
            for timing in timings
        ]

    def close(self) -> None:
        """End the pump. Transfers in flight will still complete."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._pump is not None and self._pump is not threading.current_thread():
            self._pump.join(5.0)


def _everything_at_once(parameters: Sequence[tuple[str, nn.Parameter]]) -> tuple[tuple[Transfer, ...], Profile]:
    """The plan while nothing is known of the model: a single transfer."""
    profile = Profile(
        tuple(
            TensorProfile(name, parameter.numel(), 0, 0, str(parameter.dtype).removeprefix("torch."))
            for name, parameter in parameters
        ),
        (LayerProfile("model"),),
        0,
    )
    return plan_transfers("bsp", profile), profile


def _name_of(transfer: Transfer, names: Sequence[str]) -> str:
    first, last = transfer.parts[0], transfer.parts[-1]
    if len(transfer.parts) == 1:
        return f"{names[first.tensor]}[{first.low}:{first.high}]"
    return f"{len(transfer.parts)} tensors, {names[first.tensor]} … {names[last.tensor]}"


def measure_cost(channel: Channel, clock: Callable[[], int] = time.monotonic_ns) -> LinearCost:
    """Start-up and time per byte of a transfer alone, from a few sizes. All ranks must call it."""
    least = []
    for size in MEASURED_SIZES_BYTES:
        array, times = np.zeros(size // 4, np.float32), []
        tensors = [Tensor(f"measured {size}", (size // 4,))]  # which no plan has: it is forgotten then
        for _ in range(MEASURED_TIMES):
            begin_ns = clock()
            channel.control(array, tensors)
            times.append(clock() - begin_ns)
        least.append(min(times))
    return fit_cost(MEASURED_SIZES_BYTES, least)
