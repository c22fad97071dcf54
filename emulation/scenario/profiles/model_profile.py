"""A model's iteration as numbers: parameter tensors, and how long each layer's forward and backward pass takes.

A file is TOML or JSON with the same keys, those of `ModelProfile` and `ModelLayer`. Times are given, or follow from
floating-point operations and the rate of a device.
"""

from __future__ import annotations

import itertools
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from emulation.scenario.profiles.buckets import Bucket, bucket_layout
from emulation.scenario.profiles.profile_errors import ProfileError, read_text
from switchagg.option_syntax import choices
from transport.schedule.profile import LayerProfile, Profile, TensorProfile

MODELS_FOLDER = Path(__file__).parent / "models"
FILE_BYTES_MOST = 1 << 26
NS_MOST = 3_600_000_000_000
ELEMENTS_MOST = 1 << 40
BACKWARD_OPERATIONS = 2
"""A layer's backward pass over its forward pass: it has two products, the gradients of inputs and parameters."""

DTYPE = "float32"
"""The type in which gradients are summed."""
ITEM_BYTES = 4

Ns = Annotated[int, msgspec.Meta(ge=0, le=NS_MOST)]
Elements = Annotated[int, msgspec.Meta(ge=1, le=ELEMENTS_MOST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=ELEMENTS_MOST)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=400)]
Operations = Annotated[float, msgspec.Meta(ge=0, le=1e21)]


class ModelLayer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the model whose forward pass begins when its own parameters are there.

    tensors: elements of each parameter tensor, by its name within the layer, in the model's order; none where it only
    computes. forward_ns, backward_ns: of the whole batch. flops: of one sample's forward pass, for times that are
    derived. output: elements that one sample has after the layer; 0: not known. cut: how tensor parallelism divides it
    among ranks: its outputs ("column"), its inputs, so that outputs are sums ("row"), or not at all.
    """

    name: Name
    tensors: dict[Name, Elements] = {}
    forward_ns: Ns = 0
    backward_ns: Ns = 0
    flops: Operations = 0.0
    output: Count = 0
    cut: Literal["", "column", "row"] = ""

    @property
    def elements(self) -> int:
        return sum(self.tensors.values())


class ModelProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An iteration of a model on one rank. Raises ProfileError, without a file's name, for values that can't be."""

    name: Name
    layers: Annotated[tuple[ModelLayer, ...], msgspec.Meta(min_length=1, max_length=100_000)]
    """Layers in forward order."""
    source: dict[Name, str] = {}
    """The origin of "parameters", "times" and other numbers."""
    dtype: str = DTYPE
    batch: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] = 1
    """Samples of a rank in an iteration."""
    device_flops: Operations = 0.0
    """Operations a second, where times follow from layers' flops (backward BACKWARD_OPERATIONS as many); 0: given."""
    skew: tuple[Annotated[float, msgspec.Meta(ge=0.01, le=10_000)], ...] = ()
    """By rank, its times over those here; (): 1 for all."""
    jitter: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    """Standard deviation over mean of a recorded run's computing in an iteration."""
    sent_bytes: tuple[Elements, ...] = ()
    """Buckets of gradients of a recorded run, in the order in which they left."""
    sent_as: str = ""
    """The type of a recorded run's buckets, where it isn't dtype."""

    def __post_init__(self) -> None:
        if self.dtype != DTYPE:
            raise ProfileError(f"dtype: {self.dtype!r} is unknown; allowed: {DTYPE}, whatever the model computes in")
        names = [layer.name for layer in self.layers]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ProfileError(f"layers: {twice!r} is there twice; allowed: each once")
        if not self.elements:
            raise ProfileError("layers: no tensors; allowed: one at least in one of them")
        if 0 < self.device_flops < 1:
            raise ProfileError(f"device_flops: {self.device_flops} is out of range; allowed: 0, or from 1 a second on")
        if self.device_flops:
            layers = tuple(map(self._timed, self.layers))
            for layer, timed in zip(self.layers, layers, strict=True):
                times_ns = layer.forward_ns, layer.backward_ns  # a profile that comes from another process has them
                if times_ns not in ((0, 0), (timed.forward_ns, timed.backward_ns)):
                    raise ProfileError(f"layers: {layer.name!r} has times beside device_flops; allowed: one of the two")
            msgspec.structs.force_setattr(self, "layers", layers)
        if self.compute_ns > NS_MOST:
            raise ProfileError(f"an iteration computes for {self.compute_ns} ns; allowed: {NS_MOST} at most")

    def _timed(self, layer: ModelLayer) -> ModelLayer:
        forward_ns = round(layer.flops * self.batch * 1e9 / self.device_flops)
        if forward_ns > NS_MOST:
            raise ProfileError(f"layers: {layer.name!r} computes for {forward_ns} ns; allowed: {NS_MOST} at most")
        return msgspec.structs.replace(layer, forward_ns=forward_ns, backward_ns=BACKWARD_OPERATIONS * forward_ns)

    def at(self, *, batch: int = 0, device_flops: float = 0.0) -> ModelProfile:
        """The same with another batch or device; 0: as it is. Raises ProfileError where times are measured."""
        if (batch or self.batch) == self.batch and (device_flops or self.device_flops) == self.device_flops:
            return self
        if not self.device_flops:
            raise ProfileError(
                f"{self.name}: its times are of a batch of {self.batch} on one device; others can be derived only of a "
                "profile whose layers have flops, with device_flops"
            )
        untimed = tuple(msgspec.structs.replace(layer, forward_ns=0, backward_ns=0) for layer in self.layers)
        changed = {"batch": batch or self.batch, "device_flops": device_flops or self.device_flops}
        return msgspec.structs.replace(self, layers=untimed, **changed)

    # ---- it is read by these

    @property
    def elements(self) -> int:
        """Values of all parameters."""
        return sum(layer.elements for layer in self.layers)

    @property
    def size_bytes(self) -> int:
        return self.elements * ITEM_BYTES

    @property
    def forward_ns(self) -> int:
        return sum(layer.forward_ns for layer in self.layers)

    @property
    def compute_ns(self) -> int:
        """Forward and backward pass."""
        return self.forward_ns + sum(layer.backward_ns for layer in self.layers)

    @property
    def tensor_names(self) -> list[str]:
        """Names of all parameters, in the model's order."""
        return [f"{layer.name}.{name}" for layer in self.layers for name in layer.tensors]

    def rank_ns(self, workers: int) -> int | tuple[int, ...]:
        """Compute time by rank; a single number if all are alike. Raises ProfileError for another number of ranks."""
        if not self.skew:
            return self.compute_ns
        if len(self.skew) != workers:
            raise ProfileError(f"{self.name}: skew: {len(self.skew)} numbers for {workers} workers")
        return tuple(round(self.compute_ns * factor) for factor in self.skew)

    # ---- it is turned into these

    def buckets(self, bucket_bytes: int) -> tuple[Bucket, ...]:
        """As DDP lays gradients out: those of the last layer first, in each the last tensor first."""
        sizes = [elements for layer in self.layers for elements in layer.tensors.values()]
        arrivals = list(reversed(range(len(sizes))))
        ready = list(reversed(self._ready_shares()))  # arrivals have this order
        groups = bucket_layout(arrivals, [ITEM_BYTES * size for size in sizes], bucket_bytes)
        last = itertools.accumulate(map(len, groups))
        return tuple(
            Bucket(tuple(group), sum(sizes[index] for index in group), ready[until - 1])
            for group, until in zip(groups, last, strict=True)
        )

    def _ready_shares(self) -> list[float]:
        """By tensor, in the model's order: the share of the backward pass after which its gradient is there."""
        backward_ns = self.compute_ns - self.forward_ns
        passed, shares = 0, list[float]()
        for layer in reversed(self.layers):
            passed += layer.backward_ns
            shares += [passed / backward_ns if backward_ns else 1.0] * len(layer.tensors)
        return list(reversed(shares))

    @property
    def forward_fraction(self) -> float:
        """The forward pass's share of both passes."""
        return self.forward_ns / self.compute_ns if self.compute_ns else 0.0

    def schedule_profile(self, compute_ns: int | None = None) -> Profile:
        """The profile that schedules are made from. compute_ns: of both passes, if other than here; parts keep their
        shares. Tensors are in the order in which gradients arrive."""
        total_ns = self.compute_ns if compute_ns is None else compute_ns
        forward_ns = round(total_ns * self.forward_fraction)
        places = [place for place, layer in enumerate(self.layers) for _ in layer.tensors]
        sizes = [elements for layer in self.layers for elements in layer.tensors.values()]
        tensors = [
            TensorProfile(name, elements, place, round((total_ns - forward_ns) * share), self.dtype)
            for name, elements, place, share in zip(self.tensor_names, sizes, places, self._ready_shares(), strict=True)
        ]
        ends = list(itertools.accumulate((layer.forward_ns for layer in self.layers), initial=0))
        scaled = [forward_ns * end // self.forward_ns if self.forward_ns else 0 for end in ends]
        layers = [
            LayerProfile(layer.name, until - start)
            for layer, (start, until) in zip(self.layers, itertools.pairwise(scaled), strict=True)
        ]
        return Profile(tuple(reversed(tensors)), tuple(layers), total_ns - forward_ns)

    def document(self) -> dict[str, Any]:
        """Plain values, as a file has them; without what is as by default or derived."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        for key in ("source", "device_flops", "skew", "jitter", "sent_bytes", "sent_as"):
            if not values[key]:
                del values[key]
        if self.device_flops:
            for layer in values["layers"]:
                del layer["forward_ns"], layer["backward_ns"]
        for layer in values["layers"]:
            for key in [key for key, value in layer.items() if not value and key != "name"]:
                del layer[key]
        return values

    def toml(self) -> str:
        """The text of a file."""
        values = self.document()
        layers = values.pop("layers")
        source = {f"source.{_toml_key(key)}": words for key, words in values.pop("source", {}).items()}
        heads = [f"{key} = {_toml(value)}" for key, value in {**values, **source}.items()]
        return "\n".join([*heads, "layers = [", *(f"    {_toml(layer)}," for layer in layers), "]"]) + "\n"


def decode(text: str, file: str) -> ModelProfile:
    """The profile in TOML or JSON text. file: for messages. Raises ProfileError."""
    try:
        values = json.loads(text) if text.lstrip()[:1] == "{" else tomllib.loads(text)
        return msgspec.convert(values, ModelProfile)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if text.lstrip()[:1] == "{" else "TOML"
        if isinstance(error, msgspec.ValidationError):
            raise ProfileError(f"{file}: {_one_line(_where(str(error), values))}") from error
        raise ProfileError(f"{file}: not valid {kind}: {_one_line(str(error))}") from error
    except ProfileError as error:
        raise ProfileError(f"{file}: {error}") from error


def load(name_or_path: str | Path, folder: Path = Path()) -> ModelProfile:
    """A profile in a file, in `folder` unless its path is absolute; or a shipped one. Raises ProfileError."""
    if str(name_or_path) in (known := shipped()):
        path = known[str(name_or_path)]
    else:
        path = folder / name_or_path
        if not path.suffix and not path.exists():
            hint = choices(str(name_or_path), known, "shipped profiles")
            raise ProfileError(f"{name_or_path}: no such file{hint}")
    return decode(read_text(path, FILE_BYTES_MOST), path.name)


def shipped() -> dict[str, Path]:
    """Shipped profiles: name -> file, sorted by name."""
    return {path.stem: path for path in sorted(MODELS_FOLDER.glob("*.toml"))}


def _where(message: str, values: dict[str, Any]) -> str:
    """msgspec's message, with the path first and the layer's name."""
    what, _, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    name = ""
    if path.startswith("layers["):
        try:
            name = f" ({values['layers'][int(path[7:].partition(']')[0])]['name']})"
        except (LookupError, ValueError, TypeError):
            name = ""
    return f"{path}{name}: {what}" if path else what


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]


def _toml_key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _quoted(key)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        short = f"{int(value):_}" if value.is_integer() and abs(value) < 1e12 else f"{value:g}"
        return short if float(short) == value else repr(value)
    return f"{value:_}"
