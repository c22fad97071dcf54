"""Watches some iterations of a model and makes a profile of them: which layer needs which tensors, and when things are.

A layer is a module with parameters of its own. A parameter belongs to the first layer called that has it; one that is
used without a call of its module (as `nn.MultiheadAttention` uses its output projection) to the nearest module around
it that was called, since that one's call is the last moment known to be early enough.
"""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from transport.schedule.scheduler import LayerProfile, Profile, TensorProfile

GRAPH_NODES_MAX = 20_000
"""Nodes of the autograd graph looked at for one layer; beyond it, the layer counts as following the one before."""


class Observer:
    """A model's iterations as seen by its hooks; all times are ns of a single clock.

    parameters: name and parameter, in the order that all ranks share. graph: whether to look for each layer's inputs.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[tuple[str, nn.Parameter]], *, graph: bool) -> None:
        self._parameters = parameters
        self._graph = graph
        self._names = {module: name or "model" for name, module in model.named_modules()}
        self._around = {child: module for module in self._names for child in module.children()}
        self._users: dict[nn.Parameter, list[nn.Module]] = {parameter: [] for _, parameter in parameters}
        for module in self._names:
            for parameter in module.parameters(recurse=False):
                if parameter in self._users:
                    self._users[parameter].append(module)
        self._owners = {module for users in self._users.values() for module in users}
        self._calls: dict[nn.Module, int] = {}  # of this forward pass, in order -> time
        self._inputs: dict[nn.Module, tuple[nn.Module, ...] | None] = {}
        self._output_layers: dict[Any, nn.Module] = {}  # node of the autograd graph -> the layer whose output it made
        self._forward_end_ns = 0
        self._gradients: dict[int, int] = {}  # parameter -> time at which this backward pass made it
        self._iterations: list[tuple[dict[nn.Module, int], int, dict[int, int]]] = []

    # ---- hooks record

    def forward_begins(self) -> None:
        """The outermost module is called."""
        self._calls.clear()
        self._inputs.clear()
        self._output_layers.clear()
        self._gradients.clear()

    def called(self, module: nn.Module, inputs: Any, now_ns: int) -> None:
        """A module's forward begins."""
        if module in self._calls:
            return
        if self._graph and module in self._owners:
            self._inputs[module] = self._producers(inputs)
        self._calls[module] = now_ns

    def returned(self, module: nn.Module, output: Any, now_ns: int) -> None:
        """A module's forward is over."""
        self._forward_end_ns = now_ns
        if module not in self._owners or not self._graph or next(reversed(self._calls), None) is not module:
            return  # if others were called inside it, what they made is known already
        for tensor in _tensors(output):
            if tensor.grad_fn is not None:
                self._output_layers.setdefault(tensor.grad_fn, module)

    def gradient(self, parameter: int, now_ns: int) -> None:
        """A parameter's gradient exists."""
        self._gradients[parameter] = now_ns

    def iteration_ends(self) -> None:
        """No further gradient of this iteration will come."""
        self._iterations.append((dict(self._calls), self._forward_end_ns, dict(self._gradients)))

    # ---- results

    def waits(self) -> dict[int, nn.Module]:
        """For each parameter with a gradient whose own modules weren't called: the module whose call must wait."""
        modules = {}
        for index, (_, parameter) in enumerate(self._parameters):
            if index in self._gradients and not any(module in self._calls for module in self._users[parameter]):
                modules[index] = self._nearest(parameter)
        return modules

    def profile(self) -> Profile:
        """The profile of the last iteration, with the medians of the times of all but the first."""
        layers, places = self._layers()
        iterations = self._iterations[1:] or self._iterations
        times: dict[nn.Module, list[int]] = {module: [] for module in layers}
        ready: dict[int, list[int]] = {}
        for calls, forward_end_ns, gradients in iterations:
            ends = [*list(calls.values())[1:], forward_end_ns]
            spans: dict[nn.Module, int] = {}
            current: nn.Module | None = None
            for (module, begin_ns), end_ns in zip(calls.items(), ends, strict=False):
                current = module if module in times else current  # what lies between layers belongs to the one before
                if current is not None:
                    spans[current] = spans.get(current, 0) + max(0, end_ns - begin_ns)
            for module, span_ns in spans.items():
                times[module].append(span_ns)
            for index, now_ns in gradients.items():
                ready.setdefault(index, []).append(max(0, now_ns - forward_end_ns))
        medians = {index: round(statistics.median(values)) for index, values in ready.items()}
        last_ns = max(medians.values(), default=0)
        return Profile(
            tuple(
                TensorProfile(
                    name,
                    parameter.numel(),
                    places[index],
                    medians.get(index, last_ns),
                    str(parameter.dtype).removeprefix("torch."),
                )
                for index, (name, parameter) in enumerate(self._parameters)
            ),
            tuple(
                LayerProfile(
                    self._names[module],
                    round(statistics.median(times[module])) if times[module] else 0,
                    self._inputs_of(module, layers),
                )
                for module in layers
            )
            or (LayerProfile("model"),),
            last_ns,
        )

    # ---- private

    def _layers(self) -> tuple[list[nn.Module], list[int]]:
        """Modules that wait for parameters, in order of their calls; the place of each parameter's among them."""
        order = {module: place for place, module in enumerate(self._calls)}
        owners: list[nn.Module | None] = []
        for _, parameter in self._parameters:
            called = [module for module in self._users[parameter] if module in order]
            owner = min(called, key=order.__getitem__) if called else self._nearest(parameter)
            owners.append(owner if owner in order else None)
        layers = sorted({owner for owner in owners if owner is not None}, key=order.__getitem__)
        places = {module: place for place, module in enumerate(layers)}
        last = max(0, len(layers) - 1)
        return layers, [last if owner is None else places[owner] for owner in owners]

    def _nearest(self, parameter: nn.Parameter) -> nn.Module:
        module = self._users[parameter][0]
        while module not in self._calls and module in self._around:
            module = self._around[module]
        return module

    def _inputs_of(self, module: nn.Module, layers: list[nn.Module]) -> tuple[int, ...] | None:
        inputs = self._inputs.get(module)
        if inputs is None:
            return None
        places = {layer: place for place, layer in enumerate(layers)}
        position = places[module]
        if any(other not in places for other in inputs):
            return None
        return tuple(sorted({places[other] for other in inputs if places[other] < position}))

    def _producers(self, inputs: Any) -> tuple[nn.Module, ...] | None:
        """The layers that made these inputs; None if that can't be known."""
        layers: dict[nn.Module, None] = {}
        waiting = [tensor.grad_fn for tensor in _tensors(inputs) if tensor.grad_fn is not None]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            if node in self._output_layers:
                layers[self._output_layers[node]] = None
                continue
            for other, _ in node.next_functions:
                if other is not None and other not in seen:
                    seen.add(other)
                    waiting.append(other)
            if len(seen) > GRAPH_NODES_MAX:
                return None
        return tuple(layers)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in arguments or results of a module, in lists, tuples and dicts too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
