"""A trainer's configuration and its reports: also imported by the processes that start trainers, so without torch."""

from pathlib import Path
from typing import Any, Self

import msgspec

from emulation.results.whole_file import write_text
from emulation.scenario.bounds import elements_of
from emulation.scenario.scenario import Scenario
from emulation.scenario.scenario_tables import ParameterServer
from emulation.testbed.children import ChildCommand, ChildReport, CommandFailed
from switchagg.description import Kind
from transport.group.method_name import METHODS, MethodName, parse

GROUP_PORT = 29_600  # on which ranks and parameter servers listen where that must be known beforehand
GROUP_JOB = "train"


class TrainerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank's part in a run."""

    scenario: Scenario
    method: str  # as in a scenario: gloo, switch, ring@zeromq, ps+p3
    rank: int
    workers: int
    master_address: str  # where rank 0 listens for the rendezvous: an address that all ranks reach
    master_port: int
    interface: str  # network interface that Gloo binds to, e.g. h1-eth0
    via: str = ""  # name of the switch that it sends to, where there are several; "": the root
    switch: str | None = None  # the switch's control address, tcp://host:port; method switch needs it
    addresses: tuple[str, ...] = ()  # of all ranks' hosts; host methods with a schedule, and [ps], need them
    servers: tuple[str, ...] = ()  # of the hosts of parameter servers that have some of their own
    timeout_s: float = 60.0  # a call that takes longer fails
    segments_max: int = 16  # packets that the switch's method hands over in one send: what a burst of the links holds
    holds: tuple[int, ...] = ()  # after so many iterations it waits for `Go` on stdin: until it is this method's turn
    hold_at_end: bool = False  # so, too, before parameters are gathered for the last evaluation

    def __post_init__(self) -> None:
        name = self.name  # raises ValueError
        if not 0 <= self.rank < self.workers:
            raise ValueError(f"rank {self.rank} of {self.workers} workers: allowed: 0 … workers-1")
        if name.is_switch and not self.switch:
            raise ValueError("method switch: `switch` is missing, the address of the switch, tcp://host:port")
        if self.on_known_ports and len(self.addresses) != self.workers:
            raise ValueError(f"method {self.method}: `addresses` has {len(self.addresses)} entries, not {self.workers}")

    @property
    def name(self) -> MethodName:
        return parse(self.method)

    @property
    def on_known_ports(self) -> bool:
        """Whether ranks meet at `addresses`: with a schedule, and where parameter servers must know them."""
        name = self.name
        custom_servers = name.method == "ps" and self.scenario.ps != ParameterServer()
        return METHODS[name.method].end == "mesh" and (bool(name.schedule) or custom_servers)

    @property
    def partial(self) -> bool:
        """Whether sums may lack some ranks."""
        return self.scenario.backups_of(self.name) is not None

    @property
    def elements(self) -> int:
        """Values in a packet of the switch's method."""
        return elements_of(self.name, self.scenario.switch.elements, self.scenario.topology.mtu_bytes)


class Go(ChildCommand):
    """Train on."""


class ComputeAlone(ChildCommand):
    """Compute so many iterations without exchange, on a model apart; `ComputedAlone` answers."""

    iterations: int


class TransferTimes(msgspec.Struct):
    """Gradients that travel together, a bucket or a schedule's transfer, on CLOCK_MONOTONIC."""

    size_bytes: int
    start_ns: int
    end_ns: int = 0
    name: str = ""  # that a schedule gives the transfer
    priority: int | None = None


class ModuleWait(msgspec.Struct, frozen=True):
    """How long a module of the forward pass waited for its sums, on CLOCK_MONOTONIC."""

    name: str
    start_ns: int
    end_ns: int


class TrainingStarted(ChildReport, tag="started"):
    network_threads: list[int]  # kernel ids of those that carry packets
    compute_threads: list[int]
    initial_parameter_hash: str


class IterationReport(ChildReport, tag="iteration"):
    """An iteration's times on this rank. start_ns: of the training's time; monotonic_start_ns: CLOCK_MONOTONIC."""

    iteration: int
    start_ns: int
    monotonic_start_ns: int
    duration_ns: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    compute_ns: int
    first_layer_ns: int
    first_layer_bytes: int
    loss: float | None  # None: the other ranks had finished the round, which this rank took without computing
    retransmissions: int
    buckets: list[TransferTimes]
    waits: list[ModuleWait] | None = None  # within the forward pass, if there is a schedule

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """When each transfer began and ended, on CLOCK_MONOTONIC."""
        return [(bucket.start_ns, bucket.end_ns) for bucket in self.buckets]

    @classmethod
    def of(
        cls,
        times: tuple[int, int, int, int],
        spans: list[TransferTimes],
        waited_ns: int,
        first_layer: TransferTimes | None = None,
        **fields: Any,
    ) -> Self:
        """From when it began and its three passes ended (CLOCK_MONOTONIC), and how long it waited for its transfers.

        others: further fields, and those of a trainer whose passes leave out waiting, or overlap with the next ones.
        """
        begin_ns, forward_ns, backward_ns, end_ns = times
        values: dict[str, Any] = {
            "monotonic_start_ns": begin_ns,
            "duration_ns": end_ns - begin_ns,
            "forward_ns": forward_ns - begin_ns,
            "backward_ns": backward_ns - forward_ns,
            "optimizer_ns": end_ns - backward_ns,
            "compute_ns": end_ns - begin_ns - waited_ns,
            "first_layer_ns": first_layer.end_ns - first_layer.start_ns if first_layer else 0,
            "first_layer_bytes": first_layer.size_bytes if first_layer else 0,
            "buckets": spans,
        }
        return cls(**values | fields)


class ComputedAlone(ChildReport):
    """What forward pass, backward pass and step took in each iteration without exchange, all ranks at once."""

    durations_ns: list[int]


class Evaluated(ChildReport):
    """On rank 0."""

    iteration: int
    time_ns: int
    accuracy: float
    loss: float


class TrainingFinished(ChildReport, tag="finished"):
    parameters: int
    gradient_bytes: int
    parameter_hash: str
    retransmissions: int
    counters: dict[str, int]
    core: str | None  # what carries the switch's packets: "native" or "python"
    facts: dict[str, Any]  # go into the environment of the results
    notes: list[str]
    # Bytes of the arrays of each kind in an iteration; it is empty if only gradients are summed
    collective_bytes: dict[Kind, int] = msgspec.field(default_factory=dict)
    # The process group's calls over the whole run have kind -> path -> "calls" and "bytes"
    call_paths: dict[str, dict[str, dict[str, int]]] = msgspec.field(default_factory=dict)


class TrainingFailed(CommandFailed, tag="failed"):
    iteration: int | None = None  # None: the trainer failed outside of iterations


TrainerReport = TrainingStarted | IterationReport | ComputedAlone | Evaluated | TrainingFinished | TrainingFailed


def write_config(path: Path, config: TrainerConfig) -> None:
    """For people too: the file stays beside the results."""
    write_text(path, msgspec.json.format(msgspec.json.encode(config)).decode())
