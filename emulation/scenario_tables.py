"""The tables of a scenario file: their keys, defaults and limits, as frozen dataclasses.

A field's metadata says what `emulation.scenario` accepts for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field
from random import Random
from typing import Any

from emulation.scenario_flows import INCAST, SHORT
from emulation.sim.traffic.controls import CONTROLS
from emulation.topologies.placement import placement_names
from emulation.topologies.table import topology_names
from emulation.topologies.topology import EVERY, PATHS, SPRAY, Fabric
from emulation.training.tasks.table import workload_names
from switchagg.dataplane.table import DATAPLANES
from switchagg.job import CONGESTION, FRIENDLY
from transport.group.method_name import MethodName, host_methods
from transport.group.method_name import parse as parse_method
from transport.ps.config import ASYNCHRONOUS, BSP, MODES

SAME = "same"  # the measured job's method
MAX_MIN, FIRST_COME = "max_min", "first_come"
KERNEL = "kernel"  # whatever this machine's default is; in virtual time cubic beside [[flows]], else windows alone
RDMA_CONTROLS = ("dcqcn", "roce")  # RoCE: with congestion control, or with losses or pauses alone to hold it back
CONGESTION_CONTROLS = (KERNEL, "cubic", "reno", "bbr", "dctcp", *RDMA_CONTROLS)
ENDLESS = (*CONTROLS, *RDMA_CONTROLS)
FLOW_KINDS = (*ENDLESS, SHORT, INCAST)
PACKET, FLOW, FORMULA, AUTO = "packet", "flow", "formula", "auto"
ZOOMS = (PACKET, FLOW, FORMULA, AUTO)
ADAMW, SGD = "adamw", "sgd"
TRAINED = ("name", "optimizer", "evaluate_every", "synchronisation")
"""Keys of [workload] that a profile has no use for."""
PROFILED = ("profile", "parallel", "degree", "stages", "micro_batches", "device_flops")
"""Keys of [workload] that there are with a profile alone."""
COMPUTE_DISTRIBUTIONS = ("normal", "lognormal", "shifted_exponential")
COMPUTE_NS_MOST = 3_600_000_000_000
ITERATIONS_MOST = 1_000_000


def _integer(default: Any, low: int, high: int, unit: str) -> Any:
    return field(default=default, metadata={"kind": int, "low": low, "high": high, "unit": unit})


def _float(default: Any, low: float, high: float, unit: str) -> Any:
    return field(default=default, metadata={"kind": float, "low": low, "high": high, "unit": unit})


def _checked(default: Any, kind: str) -> Any:
    return field(default=default, metadata={"kind": kind})


def _probability() -> Any:
    return _float(0.0, 0.0, 1.0, "probability")


def dataplane_names() -> tuple[str, ...]:
    """What `dataplane` may say."""
    return ("auto", *DATAPLANES)


def _choice(default: Any, allowed: tuple[str, ...] | Callable[[], tuple[str, ...]]) -> Any:
    return field(default=default, metadata={"kind": str, "allowed": allowed})


def _methods(backend: str, *default: str) -> Any:
    return field(default=tuple(map(parse_method, default)), metadata={"kind": tuple, "backend": backend})


@dataclass(frozen=True)
class Methods:
    """Methods to compare, in order, per backend, as `transport.group.method_name` has them: "ring@zeromq", "switch+p3".

    The first that is not the switch is the baseline. An empty list: the scenario is not meant for that backend.
    """

    mininet: tuple[MethodName, ...] = _methods("mininet", "gloo", "switch")
    sim: tuple[MethodName, ...] = _methods("sim", "ring", "switch")


@dataclass(frozen=True)
class TopologyOptions:
    """Hosts, switches and their full-duplex links. Numbers are those of a host's link."""

    kind: str = _choice("star", topology_names)
    # of leaf_spine and fat_tree: how many, or the workers of each, in the order of ranks
    racks: int | tuple[int, ...] = field(default=0, metadata={"kind": "racks"})
    oversubscription: float = _float(1.0, 1.0, 1_000.0, "times")  # a rack's workers' rate over its up-link's
    spines: int = _integer(1, 1, 64, "spines")  # sim: of a fat_tree cores, which divide the rate of up-links equally
    paths: str = _choice(SPRAY, PATHS)  # over them: each frame takes the shortest queue, or each flow one by a hash
    placement: str = _choice(EVERY, placement_names)  # every switch that joins workers aggregates, or one for all
    # sim: of torus, hosts along each side; of bcube, ports of a switch, of which the number of hosts is a power
    sides: int | tuple[int, ...] = _checked((), "racks")
    ports: int = _integer(0, 0, 4096, "ports")
    # sim: rates of some links, by name, as reports draw them: {"h3" = 10e9, "leaf1-spine1" = 40e9}
    link_bps: tuple[tuple[str, int], ...] = _checked((), "rates")
    # sim: GPUs behind one NIC; racks are of hosts then. Each rank has a link of inside_bps to the others of its host
    ranks_per_host: int = _integer(1, 1, 64, "ranks")
    inside_bps: int = _integer(0, 0, 100_000_000_000_000, "bits/s")
    inside_sums: int = _integer(0, 0, 1, "1: what joins them aggregates, too")  # for method switch, as NVLink SHARP
    workers: int = _integer(4, 1, 4096, "workers")  # 4: the smallest star whose bound (1.5) leaves 2 cores alive
    rate_bps: int = _integer(
        200_000_000, 1_000_000, 400_000_000_000, "bits/s"
    )  # per port and direction; 0, of a benchmark alone: not shaped
    delay_ns: int = _integer(0, 0, 1_000_000_000, "ns")  # one way per link; 0: netem is missing on many kernels
    queue_bytes: int = _integer(1_000_000, 3_000, 1_000_000_000, "bytes")  # per port: two default windows
    ecn_bytes: int = _integer(0, 0, 1_000_000_000, "bytes")  # per port: packets behind more are marked CE; 0: none
    drop_bytes: int = _integer(0, 0, 1_000_000_000, "bytes")  # sim: of mlt and dgt what matters least goes; 0: none
    # sim: links without loss (PFC). A switch's port that holds more of the lossless class pauses it; 0: links drop
    pfc_bytes: int = _integer(0, 0, 1_000_000_000, "bytes")
    pfc_xon_bytes: int = _integer(0, 0, 1_000_000_000, "bytes")  # it goes on below; 0: two frames less than pfc_bytes
    pfc_headroom_bytes: int = _integer(0, 0, 1_000_000_000, "bytes")  # 0: all that a link still brings after a pause
    pfc_flows: int = _integer(0, 0, 1, "1: TCP of [[flows]] is in the lossless class, too")  # 0: in one that drops
    ecn_most_bytes: int = _integer(0, 0, 1_000_000_000, "bytes")  # with pfc_bytes: marks by chance (RED) up to here, …
    ecn_chance: float = _float(0.01, 0.0, 1.0, "probability")  # … where it is this; 0 bytes: all above ecn_bytes
    mtu_bytes: int = _integer(1500, 576, 65_535, "bytes")  # IP packet; Ethernet's own default
    priority_queues: int = _integer(0, 0, 8, "queues")  # per port: 8, one for each priority class; 0: all in order
    congestion_control: str = _choice(KERNEL, CONGESTION_CONTROLS)  # of host methods; namespaces may refuse others

    @property
    def fabric(self) -> Fabric:
        return Fabric(
            self.kind,
            self.racks,
            self.oversubscription,
            self.placement,
            self.spines,
            self.paths,
            self.ranks_per_host,
            self.inside_bps,
            bool(self.inside_sums),
            self.sides,
            self.ports,
            self.link_bps,
        )


@dataclass(frozen=True)
class HostOptions:
    """sim: what transfers cost every host, and the rate of one connection: `emulation.sim.host_costs`."""

    transfer_ns: int = _integer(0, 0, 1_000_000_000, "ns")  # of each that it sends, and of each that comes
    flow_bps: int = _integer(0, 0, 400_000_000_000, "bits/s")  # most of one connection; 0: as much as links carry


@dataclass(frozen=True)
class VirtualTime:
    """sim: how finely links are simulated (`emulation.sim.zoom`); auto: the finest that ends within within_s."""

    zoom: str = _choice(PACKET, ZOOMS)
    within_s: int = _integer(60, 1, 10_000_000, "s, of each method, for its communication")


@dataclass(frozen=True)
class Straggler:
    """A rank whose computing takes `factor` times as long, from one iteration to another, both included.

    rank: -1: in each iteration another one, drawn.
    """

    rank: int = _integer(MISSING, -1, 4095, "rank")
    factor: float = _float(2.0, 0.01, 10_000.0, "times")
    from_iteration: int = _integer(0, 0, ITERATIONS_MOST, "iteration")
    to_iteration: int = _integer(ITERATIONS_MOST, 0, ITERATIONS_MOST, "iteration")

    def slows(self, rank: int, iteration: int, seed: int, workers: int) -> bool:
        """Whether it does so now."""
        slow = Random(f"{seed} straggler {iteration}").randrange(workers) if self.rank < 0 else self.rank
        return rank == slow and self.from_iteration <= iteration <= self.to_iteration


@dataclass(frozen=True)
class LinkTail:
    """sim: extra delay of links, as bursts of other traffic add it: see emulation/sim/network/link.py."""

    ratio: float = _float(MISSING, 1.0, 1_000.0, "p99 / p50")
    p50_ns: int = _integer(MISSING, 1, 1_000_000_000, "ns")
    burst_ns: int = _integer(10_000_000, 1_000, 60_000_000_000, "ns, on average")
    rank: int = _integer(-1, -1, 63, "rank: its host's link, both ways; -1: every link")


@dataclass(frozen=True)
class Faults:
    """What goes wrong on every link, per packet and independently, drawn from the scenario's seed in `sim`; ranks that
    are slow, and links whose delay has a tail."""

    loss: float = _probability()
    duplicate: float = _probability()
    reorder: float = _probability()
    corrupt: float = _probability()
    stragglers: tuple[Straggler, ...] = field(default=(), metadata={"kind": Straggler})  # several slow a rank more
    tail: LinkTail | None = field(default=None, metadata={"kind": LinkTail})

    @property
    def of_packets(self) -> bool:
        """Whether links lose, damage or reorder any."""
        return any((self.loss, self.duplicate, self.reorder, self.corrupt))


@dataclass(frozen=True)
class ComputeDistribution:
    """What a rank takes for an iteration is drawn anew for each."""

    distribution: str = _choice(MISSING, COMPUTE_DISTRIBUTIONS)
    mean_ns: int = _integer(MISSING, 1, COMPUTE_NS_MOST, "ns")
    deviation_ns: int = _integer(MISSING, 0, COMPUTE_NS_MOST, "ns")  # standard deviation; what is below 0 is 0


@dataclass(frozen=True)
class ComputeJitter:
    """What each rank takes for each iteration, times a factor of mean 1; what is below 0 is 0."""

    deviation: float = _float(MISSING, 0.0, 10.0, "standard deviation over mean")
    distribution: str = _choice("lognormal", COMPUTE_DISTRIBUTIONS)


@dataclass(frozen=True)
class Workload:
    """What is trained: real models on real data, one share per worker."""

    name: str = _choice("digits", workload_names)
    iterations: int = _integer(150, 2, ITERATIONS_MOST, "iterations")  # enough for digits to pass 97 %
    warmup_iterations: int = _integer(
        5, 1, 1_000, "iterations"
    )  # not counted: DDP rebuilds its buckets after the first
    batch_per_worker: int = _integer(32, 1, 65_536, "samples")
    evaluate_every: int = _integer(25, 1, ITERATIONS_MOST, "iterations")  # test set on rank 0; its time is not counted
    bucket_bytes: int = _integer(1_048_576, 4_096, 1_073_741_824, "bytes")  # DDP's cap: its own first-bucket size
    optimizer: str = _choice(ADAMW, (ADAMW, SGD))  # sgd: at a constant rate, the only one of [ps] that keeps weights
    profile: str = field(default="", metadata={"kind": "text"})  # sim: a model as numbers, in place of `name`
    parallel: str = _choice("ddp", ("ddp", "fsdp", "tp", "pp", "3d"))  # how ranks share the model of a profile
    degree: int = _integer(0, 0, 4096, "ranks")  # of tp, pp: that have a model together, beside replicas; 0: all
    stages: int = _integer(1, 1, 4096, "stages")  # of 3d, where degree is ranks that share tensors
    micro_batches: int = _integer(4, 1, 65_536, "micro-batches")  # of pp, 3d
    device_flops: float = _float(0.0, 0.0, 1e21, "operations a second")  # of a profile with derived times; 0: its own
    synchronisation: str = field(default="", metadata={"kind": "training"})  # a training method; "": in every step
    # Forward+backward of all ranks, one each, or drawn; None: measured once. Real ranks take what they take, but where
    # ranks differ, stragglers among them, they sleep until then (training/pace.py).
    compute_ns: int | tuple[int, ...] | ComputeDistribution | None = field(
        default=None, metadata={"kind": int, "low": 0, "high": COMPUTE_NS_MOST, "unit": "ns", "table": True}
    )
    compute_jitter: ComputeJitter | None = field(default=None, metadata={"kind": ComputeJitter})  # on top of that


@dataclass(frozen=True)
class SwitchOptions:
    """How the switch method sends: packet size, window and streams."""

    elements: int = _integer(360, 32, 16_000, "int32 per packet")  # 360: the most that fits an MTU of 1500
    # Per stream; 256 or, with large packets or small queues, as many as the queue of a port holds of all streams
    window_slots: int = _integer(256, 1, 16_384, "slots")
    streams: int = _integer(2, 1, 64, "streams")  # one bucket may overtake another's tail
    trees: int = _integer(0, 0, 64, "trees")  # with several spines: its streams in turn; 0: one over each spine
    split_calls: int = _integer(0, 0, 1, "1: a long call uses all streams of its class")  # where a way exceeds a window
    backups: int = _integer(0, 0, 62, "workers")  # a sum doesn't wait for the last so many
    close_after_ns: int = _integer(0, 0, 10**12, "ns")  # a sum waits so long at most; 0: for all but the backups
    slots: int = _integer(0, 0, 65_536, "slots")  # of each switch, for all jobs; 0: as many as they ask for
    shares: str = _choice(MAX_MIN, (MAX_MIN, FIRST_COME))  # of slots: by weight, or all it asks for while any are left
    weight: int = _integer(1, 1, 1_000, "times")  # the measured job's share of slots, beside those of [[jobs]]
    retry_limit: int = _integer(30, 1, 1_000, "timeouts in a row")  # sim: then the call fails, naming who is missing
    congestion: str = _choice(FRIENDLY, CONGESTION)  # windows follow marks: fair beside TCP, or as DCTCP's
    aggregators: int = _integer(
        0, 0, 65_536, "aggregators"
    )  # of each switch, of `atp` and `esa`; 0: as many as slot versions
    dataplane: str = _choice("auto", dataplane_names)  # auto: the fastest that passes its test; xdp: in Mininet only

    @property
    def partial(self) -> bool:
        """Whether sums may lack some workers' values."""
        return self.backups > 0 or self.close_after_ns > 0


@dataclass(frozen=True)
class ParameterServer:
    """How method `ps` sums, and where: `transport.ps.config.PsConfig` says what the modes are."""

    servers: int = _integer(0, 0, 64, "servers")  # with hosts and links of their own; 0: one on every worker's host
    mode: str = _choice(BSP, MODES)
    staleness: int = _integer(0, 0, 1_000_000, "iterations")  # ssp: how far the slowest worker may be behind
    backups: int = _integer(0, 0, 63, "workers")  # backup: a sum doesn't wait for the last so many
    push_then_pull: int = _integer(0, 0, 1, "1: no answer before all of a call was pushed")  # bsp; 0: slice by slice

    @property
    def options(self) -> dict[str, Any]:
        """Fields of PsConfig."""
        told = {"mode": self.mode, "staleness": self.staleness, "backups": self.backups}
        return {**told, "push_then_pull": bool(self.push_then_pull)}

    @property
    def keeps_weights(self) -> bool:
        """As PsConfig's."""
        return self.mode in ASYNCHRONOUS


@dataclass(frozen=True)
class JobOptions:
    """Another job, which sums int32 arrays again and again, and checks every sum: sim alone."""

    name: str = _checked(MISSING, "name")
    workers: int = _integer(2, 1, 64, "workers")  # on hosts of their own
    on: tuple[int, ...] = _checked((), "ranks")  # or on those of the measured job's ranks
    method: str = _choice(SAME, (SAME, "switch", "gloo", *host_methods()))
    profile: str = field(default="", metadata={"kind": "text"})  # a workload graph, as a GOAL file, in place of sums
    weight: int = _integer(1, 1, 1_000, "times")  # its share of slots
    priority: int = _integer(0, 0, 7, "class")  # of slots, and of `esa`: lower ones go first
    quota_slots: int = _integer(0, 0, 65_536, "slots")  # at most; 0: as many as its windows
    size_bytes: int = _integer(1_000_000, 4, 1_000_000_000, "bytes")  # of a sum
    in_flight: int = _integer(4, 1, 64, "sums")  # at once
    compute_ns: int = _integer(0, 0, COMPUTE_NS_MOST, "ns")  # after each
    start_ns: int = _integer(0, 0, COMPUTE_NS_MOST, "ns")
    stop_ns: int = _integer(0, 0, COMPUTE_NS_MOST, "ns")  # 0: with the run
    sums: int = _integer(0, 0, 1_000_000, "sums")  # after which it ends; 0: none


@dataclass(frozen=True)
class FlowOptions:
    """Other traffic: TCP flows without end, or RoCE in virtual time, `short` ones of web-like sizes, or `incast`
    (`scenario_flows.Arrivals`).

    They go to the host of a rank, or with -1 to one of their own, and from the host of a rank, or from hosts of their
    own, one for each of `count`. Times are from the first iteration, in Mininet from the first that is counted.
    """

    kind: str = _choice(MISSING, FLOW_KINDS)
    to_rank: int = _integer(0, -1, 63, "rank")
    from_rank: int = _integer(-1, -1, 63, "rank")
    count: int = _integer(1, 1, 64, "flows")  # incast: of each burst; short: hosts that they come from
    congestion: str = _choice("cubic", ENDLESS)  # of short and incast
    ecn: int = _integer(1, 0, 1, "1: negotiated")
    start_ns: int = _integer(0, 0, COMPUTE_NS_MOST, "ns")
    stop_ns: int = _integer(0, 0, COMPUTE_NS_MOST, "ns")  # 0: with the run
    load: float = _float(0.1, 0.001, 1.0, "of the link")
    most_bytes: int = _integer(1_000_000, 1_000, 30_000_000, "bytes")  # of a short flow
    size_bytes: int = _integer(64_000, 1, 100_000_000, "bytes")  # of each flow of an incast
    period_ns: int = _integer(100_000_000, 1_000, COMPUTE_NS_MOST, "ns")  # from one burst to the next

    @property
    def endless(self) -> bool:
        """Whether its flows last as long as the run."""
        return self.kind in ENDLESS

    @property
    def rdma(self) -> bool:
        """Whether they are RoCE, not TCP."""
        return (self.kind if self.endless else self.congestion) in RDMA_CONTROLS


@dataclass(frozen=True)
class BoundedLoss:
    """Methods that may lose gradients for good: `transport.bounded` says what their options are."""

    divide: str = _choice("paper", ("paper", "arrived", "workers"))  # by how many a sum with gaps is scaled
    mlt_tolerance: float = _float(0.1, 0.0, 0.99, "of a tensor")
    mlt_priorities: int = _integer(1, 0, 1, "1: by layer and magnitude")
    dgt_share: float = _float(0.8, 0.0, 1.0, "of blocks")
    dgt_channels: int = _integer(7, 1, 7, "best-effort channels")
    ltp_share: float = _float(0.8, 0.0, 1.0, "of a transfer")
    ltp_extra_ns: int = _integer(30_000_000, 0, 60_000_000_000, "ns from the threshold to the deadline")
    ltp_early_close: int = _integer(1, 0, 1, "1: before all is there")
    optireduce_hadamard: str = _choice("auto", ("auto", "always", "never"))
    optireduce_adaptive: int = _integer(1, 0, 1, "1: stages end early, too")
    optireduce_runs: int = _integer(20, 1, 100_000, "reliable calls of a size, which measure its time-out")

    def options(self, method: str) -> dict[str, Any]:
        """Of one method, by their names there."""
        own = {name.removeprefix(f"{method}_"): value for name, value in vars(self).items() if name.startswith(method)}
        for name in ("priorities", "early_close", "adaptive"):
            if name in own:
                own[name] = bool(own[name])
        return {**own, "divide": None if self.divide == "paper" else self.divide}
