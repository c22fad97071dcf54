"""PsConfig: what all members of a parameter-server job agree on; compared by the servers before anything is summed."""

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from switchagg.join import CALL_TIMEOUT_S
from switchagg.option_syntax import choices
from transport.ps.coded import PushCodec

BSP, BACKUP, SSP, ASP, DC_ASGD = "bsp", "backup", "ssp", "asp", "dc_asgd"
MODES = (BSP, BACKUP, SSP, ASP, DC_ASGD)
ASYNCHRONOUS = (SSP, ASP, DC_ASGD)
"""The servers keep weights, and apply each gradient by itself."""

ORDERS = ("rank", "arrival")
ON_WORKER_LOSS = ("end", "shrink")
ON_SERVER_LOSS = ("end", "move")

_ON_LOSS = (("on_worker_loss", ON_WORKER_LOSS), ("on_server_loss", ON_SERVER_LOSS))

SLICE_ELEMENTS = 40_000
"""P3's slice, 160 kB of float32: one slice is what an urgent one may have to wait for."""

WORKERS_MAX = 60_000
SERVERS_MAX = 4096


@dataclass(frozen=True)
class PsConfig:
    """Everything that must be the same on all members, but for addresses.

    workers, servers: members 0 … workers-1 are the workers, by rank; the servers follow.
    mode: "bsp": a sum is answered when all workers' values are in it. "backup": when those of all but `backups` are;
        what comes later is dropped. "ssp", "asp", "dc_asgd": the servers keep weights, a gradient is applied when it
        comes and answered with weights; with "ssp" only when no worker is more than `staleness` iterations behind its
        sender, with "dc_asgd" after delay compensation. Barriers and broadcasts wait for all workers in every mode.
    push_then_pull: "bsp": a server answers the slices of a sum once it has all that it gets of it, so the directions
        of a call don't overlap, as ps-lite's don't within a key; else each as soon as it is complete.
    slice_elements: longer arrays are cut into slices of at most so many elements, spread over all servers.
    order: "rank": values are added in the order of ranks, so sums always have the same bits; "arrival":
        as they come, which needs less memory at a server while a low rank is late.
    retained_bytes: results that a server keeps for late workers ("backup"); above it, it waits for all again.
    learning_rate, momentum, weight_decay: the servers' SGD, as torch.optim.SGD has them.
    compensation: λ of DC-ASGD.
    on_worker_loss: "end": the job fails everywhere. "shrink": the others continue without it; every sum carries the
        number of workers in it.
    on_server_loss: "end": the job fails everywhere. "move": the others take over its slices, and every sum keeps its
        bits ("bsp", at servers of their own, without weights). spares: so many of the servers, the last ones, have
        no slices until another is lost.
    heartbeat_s: how often members send heartbeats; dead_after_s: an outage so long ends nothing; a member is
        dead that sends no message for a heartbeat and two seconds longer.
    call_timeout_s: how long a call may wait for members that live.
    codec: how workers code sums, as a text; where servers keep weights, how gradients travel there (`ps.coded`), as in
        "lanes8+ef"; "": not at all. Servers check that all do it alike.
    tensor_bytes: sizes of the tensors with keys 0, 1, …, where they are known beforehand: they are spread by size.
    """

    workers: int
    servers: int = 1
    mode: str = BSP
    backups: int = 0
    staleness: int = 0
    push_then_pull: bool = False
    slice_elements: int = SLICE_ELEMENTS
    order: str = "rank"
    retained_bytes: int = 256 << 20
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    compensation: float = 0.04
    on_worker_loss: str = "end"
    on_server_loss: str = "end"
    spares: int = 0
    heartbeat_s: float = 1.0
    dead_after_s: float = 10.0
    call_timeout_s: float = CALL_TIMEOUT_S
    codec: str = ""
    tensor_bytes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError, in one line that lists what is allowed."""
        for name, words in (("mode", MODES), ("order", ORDERS), *_ON_LOSS):
            if (word := getattr(self, name)) not in words:
                raise ValueError(f"{name} '{str(word)[:60]}' is unknown{choices(str(word), words)}")
        ranges = {
            "workers": (1, WORKERS_MAX),
            "servers": (1, SERVERS_MAX),
            "backups": (0, max(self.workers - 1, 0)),
            "staleness": (0, 1 << 30),
            "slice_elements": (1, 1 << 30),
            "retained_bytes": (0, 1 << 50),
            "spares": (0, self.servers - 1 if self.moves else 0),
        }
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} {getattr(self, name)}: {low} to {high}")
        for name, mode, has in (
            ("backups", BACKUP, "has any"),
            ("push_then_pull", BSP, "can wait for all of a call"),
            ("staleness", SSP, "bounds it"),
        ):
            if getattr(self, name) and self.mode != mode:
                raise ValueError(f"{name} {getattr(self, name)}: only mode {mode} {has}, not {self.mode}")
        self._check_losses()
        if self.codec and self.keeps_weights:
            PushCodec(self.codec)
        elif self.codec and (self.mode != BSP or self.on_worker_loss != "end"):
            raise ValueError(f"{self.codec}: its sums need all workers: mode {BSP}, and a loss that ends the job")
        for name in ("learning_rate", "momentum", "weight_decay", "compensation"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} {getattr(self, name)}: a finite number, 0 or more")
        if not 0 < self.heartbeat_s < self.dead_after_s <= 1e6 or not 0 < self.call_timeout_s <= 1e6:
            raise ValueError(
                f"heartbeat_s {self.heartbeat_s}, dead_after_s {self.dead_after_s}, call_timeout_s "
                f"{self.call_timeout_s}: above 0, and the first below the second"
            )

    def _check_losses(self) -> None:
        ends = self.on_worker_loss == "end"
        if self.moves and not (self.mode == BSP and self.servers > 1 and not self.push_then_pull and ends):
            raise ValueError(
                f"on_server_loss move: of mode {BSP} and 2 servers or more, without push_then_pull, and where a "
                "worker's loss ends the job"
            )

    @property
    def members(self) -> int:
        return self.workers + self.servers

    @property
    def moves(self) -> bool:
        """Whether the job goes on without a server that is lost; so workers retain what others may lack."""
        return self.on_server_loss == "move"

    @property
    def has_rounds(self) -> bool:
        """Whether a sum may be complete without a worker, which is then sent it; so calls under a key are numbered."""
        return self.mode == BACKUP

    @property
    def keeps_weights(self) -> bool:
        """Whether the servers apply a gradient when it comes, rather than sum first."""
        return self.mode in ASYNCHRONOUS

    def to_bytes(self) -> bytes:
        """As a worker's hello carries it."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    def difference(self, other: "PsConfig") -> tuple[str, str] | None:
        """How the first field that differs is set here and there, each as "name value"; None if none does."""
        for field in fields(self):
            local, remote = getattr(self, field.name), getattr(other, field.name)
            if field.name == "tensor_bytes" and local != remote:
                return _different_tensors(local, remote)
            if local != remote:
                return f"{field.name} {local}", f"{field.name} {remote}"
        return None


def config_from_bytes(data: bytes) -> PsConfig:
    """The configuration that `to_bytes` encoded. Raises ValueError for anything else."""
    try:
        loaded: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no configuration: {error}") from error
    kinds = {field.name: type(getattr(_EXAMPLE, field.name)) for field in fields(PsConfig)}
    if not isinstance(loaded, dict) or set(loaded) != set(kinds):
        raise ValueError("a configuration of another version of switchagg")
    if isinstance(loaded["tensor_bytes"], list):
        loaded["tensor_bytes"] = tuple(loaded["tensor_bytes"])
    for name, kind in kinds.items():
        if kind is float and type(loaded[name]) is int:
            loaded[name] = float(loaded[name])
        if type(loaded[name]) is not kind:
            raise ValueError(f"{name} is no {kind.__name__}")
    if any(type(size) is not int for size in loaded["tensor_bytes"]):
        raise ValueError("tensor_bytes are no numbers")
    return PsConfig(**loaded)


def _different_tensors(local: tuple[int, ...], remote: tuple[int, ...]) -> tuple[str, str]:
    if len(local) != len(remote):
        return f"{len(local)} tensors", f"{len(remote)} tensors"
    key = next(key for key, size in enumerate(local) if size != remote[key])
    return f"tensor {key} of {local[key]} bytes", f"tensor {key} of {remote[key]} bytes"


_EXAMPLE = PsConfig(workers=1)
