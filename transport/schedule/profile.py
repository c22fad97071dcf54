"""The inputs of a schedule: a profile of a model's iteration, and the cost of a transfer. This module is pure."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

ITEM_BYTES = {"float32": 4, "float64": 8}
"""Types of gradients that can be scheduled, and their sizes."""


@dataclass(frozen=True)
class TensorProfile:
    """The gradient of a parameter tensor.

    layer: number of the layer that needs its sum, so its place in the forward pass. ready_ns: when its gradient exists,
    from the start of the backward pass.
    """

    name: str
    elements: int
    layer: int
    ready_ns: int
    dtype: str = "float32"

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def size_bytes(self) -> int:
        return self.elements * self.item_bytes


@dataclass(frozen=True)
class LayerProfile:
    """A part of the forward pass that begins when the sums of its own tensors are there.

    forward_ns: how long it takes; 0 where that isn't known. inputs: layers whose outputs it uses; None: the one before,
    as in a chain.
    """

    name: str
    forward_ns: int = 0
    inputs: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Profile:
    """An iteration of a model on one rank, normally rank 0, sent to all. Raises ValueError for impossible values.

    tensors: in any order that all ranks share; a schedule names them by their place here. layers: in forward order.
    backward_ns: length of the backward pass.
    """

    tensors: tuple[TensorProfile, ...]
    layers: tuple[LayerProfile, ...]
    backward_ns: int

    def __post_init__(self) -> None:
        for tensor in self.tensors:
            where = f"profile, tensor {tensor.name}"
            if tensor.dtype not in ITEM_BYTES:
                raise ValueError(f"{where}: {tensor.dtype}; allowed: {', '.join(ITEM_BYTES)}")
            if tensor.elements < 1 or tensor.ready_ns < 0:
                raise ValueError(f"{where}: {tensor.elements} elements, ready at {tensor.ready_ns} ns")
            if not 0 <= tensor.layer < len(self.layers):
                raise ValueError(f"{where}: layer {tensor.layer} of {len(self.layers)}")
        for place, layer in enumerate(self.layers):
            if layer.forward_ns < 0 or any(not 0 <= other < place for other in layer.inputs or ()):
                raise ValueError(f"profile, layer {layer.name}: inputs must be earlier layers, times 0 ns or more")

    @property
    def size_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def forward_ns(self) -> int:
        return sum(layer.forward_ns for layer in self.layers)

    @cached_property
    def arrivals(self) -> tuple[int, ...]:
        """Tensors in the order in which their gradients come to exist; of equal times, the last layer's first."""
        return tuple(
            sorted(
                range(len(self.tensors)),
                key=lambda index: (self.tensors[index].ready_ns, -self.tensors[index].layer, -index),
            )
        )

    def encode(self) -> bytes:
        """For the other ranks."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Profile":
        """The profile in the bytes of `encode`."""
        fields = json.loads(data)
        return cls(
            tuple(TensorProfile(**tensor) for tensor in fields["tensors"]),
            tuple(
                LayerProfile(
                    layer["name"],
                    layer["forward_ns"],
                    None if layer["inputs"] is None else tuple(layer["inputs"]),
                )
                for layer in fields["layers"]
            ),
            fields["backward_ns"],
        )


@dataclass(frozen=True)
class LinearCost:
    """How long a whole transfer takes alone: alpha_ns + beta_ns_per_byte × its bytes, as fitted or as given.

    The cost holds for a method, a number of ranks and a link: it is no constant of the link (surveys mix the two up).
    """

    alpha_ns: float = field(default=0.0)
    beta_ns_per_byte: float = field(default=0.0)

    def __post_init__(self) -> None:
        if not (self.alpha_ns >= 0 and self.beta_ns_per_byte >= 0):
            raise ValueError(f"cost {self.alpha_ns:g} ns + {self.beta_ns_per_byte:g} ns/byte: 0 or more each")

    def time_ns(self, size_bytes: float) -> float:
        return self.alpha_ns + self.beta_ns_per_byte * size_bytes


def fit_cost(sizes_bytes: Sequence[int], times_ns: Sequence[float]) -> LinearCost:
    """Least squares through measured transfers of at least two sizes; negative coefficients become 0."""
    count = len(sizes_bytes)
    mean_size, mean_time = sum(sizes_bytes) / count, sum(times_ns) / count
    spread = sum((size - mean_size) ** 2 for size in sizes_bytes)
    if not spread:
        raise ValueError("fit_cost: at least two different sizes")
    products = zip(sizes_bytes, times_ns, strict=True)
    beta = max(0.0, sum((size - mean_size) * (time - mean_time) for size, time in products) / spread)
    return LinearCost(max(0.0, mean_time - beta * mean_size), beta)
