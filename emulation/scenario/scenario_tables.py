"""The tables of a scenario file: their keys, defaults and limits, as frozen dataclasses.

A field's metadata says what `emulation.scenario.scenario` accepts for it.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field, fields
from random import Random
from typing import Any

from emulation.scenario.scenario_flows import INCAST, SHORT
from emulation.scenario.topologies.placement import placement_names
from emulation.scenario.topologies.topology import EVERY, PATHS, SPRAY, Fabric
from emulation.scenario.topologies.topology_kinds import topology_names
from emulation.scenario.workload_kinds import workload_names
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.job import ELEMENTS_MTU_1500, MAX_ELEMENTS
from switchagg.join import STREAMS, WINDOW_SLOTS, JobTerms
from switchagg.option_syntax.option_fields import choice, integer
from transport.group.method_name import MethodName, host_methods
from transport.group.method_name import parse as parse_method
from transport.ps.config import ASYNCHRONOUS, BSP, MODES

SAME = "same"  # the measured job's method
MAX_MIN, FIRST_COME = "max_min", "first_come"
BEST, KERNEL = "best", "kernel"  # in virtual time both are cubic beside [[flows]], else windows alone
CUBIC = "cubic"
RDMA_CONTROLS = ("dcqcn", "roce")  # RoCE: with congestion control, or with losses or pauses alone to hold it back
CONTROLS = (CUBIC, "reno", "bbr")  # TCP's, of virtual time
CONGESTION_CONTROLS = (BEST, KERNEL, *CONTROLS, "dctcp", *RDMA_CONTROLS)
ENDLESS = (*CONTROLS, *RDMA_CONTROLS)
FLOW_KINDS = (*ENDLESS, SHORT, INCAST)
PACKET, FLOW, FORMULA, AUTO = "packet", "flow", "formula", "auto"
FIDELITY_LEVELS = (PACKET, FLOW, FORMULA, AUTO)
ADAMW, SGD = "adamw", "sgd"
TRAINED = ("name", "optimizer", "evaluate_every", "synchronisation")
"""Keys of [workload] that a profile has no use for."""
PROFILED = ("profile", "parallel", "degree", "stages", "micro_batches", "device_flops")
"""Keys of [workload] that there are with a profile alone."""
COMPUTE_DISTRIBUTIONS = ("normal", "lognormal", "shifted_exponential")
COMPUTE_NS_MOST = 3_600_000_000_000
ITERATIONS_MOST = 1_000_000
SEED_MOST = 2**32 - 1


def keys_of(kind: Any) -> list[Field[Any]]:
    """The fields of a table that a scenario file may have."""
    return [entry for entry in fields(kind) if "about" in entry.metadata]


def _float(default: Any, low: float, high: float, unit: str, about: str) -> Any:
    return field(default=default, metadata={"kind": float, "low": low, "high": high, "unit": unit, "about": about})


def _checked(default: Any, kind: Any, about: str) -> Any:
    return field(default=default, metadata={"kind": kind, "about": about})


def _probability(about: str) -> Any:
    return _float(0.0, 0.0, 1.0, "probability", about)


def dataplane_names() -> tuple[str, ...]:
    """The values of `dataplane`."""
    return ("auto", *DATAPLANES)


def _fallbacks() -> tuple[str, ...]:
    """The values of `fallback`."""
    return ("", *host_methods())


def _methods(backend: str, about: str, *default: str) -> Any:
    metadata = {"kind": tuple, "backend": backend, "about": about}
    return field(default=tuple(map(parse_method, default)), metadata=metadata)


@dataclass(frozen=True)
class Methods:
    """Methods to compare, like `ring@zeromq`, `switch+p3`, `switch~lanes8+ef`.

    The first that is not the switch is the baseline. With an empty list, the scenario doesn't run there.
    """

    mininet: tuple[MethodName, ...] = _methods(
        "mininet", "The methods in Mininet, each METHOD[@LINK][~CODEC][+SCHEDULE]", "gloo", "switch"
    )
    sim: tuple[MethodName, ...] = _methods(
        "sim", "The methods in virtual time, which has one link and takes no @LINK", "ring", "switch"
    )


@dataclass(frozen=True)
class TopologyOptions:
    """Hosts, switches and their full-duplex links."""

    # 4 workers: the smallest star whose bound (1.5) leaves 2 cores alive
    workers: int = integer(4, 1, 4096, "workers", "Ranks of the measured job; Mininet takes at most 64")
    rate_bps: int = integer(
        200_000_000,
        1_000_000,
        400_000_000_000,
        "bits/s",
        "Rate of a host's link in each direction",
    )
    # 0: netem is missing on many kernels
    delay_ns: int = integer(
        0, 0, 1_000_000_000, "ns", "Delay of a link, one way; Mininet needs the kernel's netem for it"
    )
    queue_bytes: int = integer(
        1_000_000, 3_000, 1_000_000_000, "bytes", "Queue of a port; the default holds two windows"
    )
    mtu_bytes: int = integer(1500, 576, 65_535, "bytes", "Largest IP packet")
    kind: str = choice("star", topology_names, "The kind of network")
    racks: int | tuple[int, ...] = _checked(
        0, "racks", "Racks of leaf_spine and fat_tree: their number, or the workers of each in the order of ranks"
    )
    oversubscription: float = _float(
        1.0, 1.0, 1_000.0, "times", "Rate of a rack's workers together over the rate of its up-link"
    )
    spines: int = integer(
        1, 1, 64, "spines", "sim: spines (cores of a fat_tree), which share the rate of an up-link equally"
    )
    paths: str = choice(
        SPRAY, PATHS, "How traffic spreads over spines: each frame to the shortest queue, or each flow by a hash"
    )
    placement: str = choice(
        EVERY, placement_names, "Which switches aggregate: every one where branches meet, or only one"
    )
    sides: int | tuple[int, ...] = _checked((), "racks", "sim: hosts along each side of a torus")
    ports: int = integer(0, 0, 4096, "ports", "sim: ports of a bcube's switch; the number of hosts is a power of it")
    link_bps: tuple[tuple[str, int], ...] = _checked(
        (), "rates", "sim: rates of single links, by the names in the report's figure"
    )
    ranks_per_host: int = integer(1, 1, 64, "ranks", "sim: ranks that share a host's NIC; racks then count hosts")
    inside_bps: int = integer(0, 0, 100_000_000_000_000, "bits/s", "sim: rate of a rank's link inside its host")
    inside_sums: int = integer(0, 0, 1, "1: yes", "sim: sums are made inside the host, too, as NVLink SHARP does")
    ecn_bytes: int = integer(
        0, 0, 1_000_000_000, "bytes", "A packet behind a longer queue than this is marked CE; 0: none is"
    )
    drop_bytes: int = integer(
        0, 0, 1_000_000_000, "bytes", "sim: a queue above this drops the least important packets of mlt and dgt"
    )
    pfc_bytes: int = integer(
        0, 0, 1_000_000_000, "bytes", "sim: a port that holds more pauses its sender (PFC); 0: ports drop packets"
    )
    pfc_xon_bytes: int = integer(
        0, 0, 1_000_000_000, "bytes", "A paused sender goes on below this; 0: two frames less than pfc_bytes"
    )
    pfc_headroom_bytes: int = integer(
        0, 0, 1_000_000_000, "bytes", "Space for what still comes after a pause; 0: enough for all of it"
    )
    pfc_flows: int = integer(0, 0, 1, "1: yes", "TCP of [[flows]] is in the lossless class, too")
    ecn_most_bytes: int = integer(
        0,
        0,
        1_000_000_000,
        "bytes",
        "With pfc_bytes: packets are marked by chance (RED) from ecn_bytes to here; 0: all above are marked",
    )
    ecn_chance: float = _float(0.01, 0.0, 1.0, "probability", "Chance of a mark at ecn_most_bytes")
    priority_queues: int = integer(
        0, 0, 8, "queues", "Queues of a port: 8, one for each priority class, or 0 for a single one"
    )
    congestion_control: str = choice(
        BEST,
        CONGESTION_CONTROLS,
        "TCP's congestion control. best: bbr where links lose packets, else cubic or reno; kernel: its default",
    )

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


PACKET_KEYS = ("packet_ns", "switch_packet_ns", "wake_ns", "cpus")
"""Of [hosts], those that only a simulation packet by packet has."""


@dataclass(frozen=True)
class HostOptions:
    """sim: what communication costs hosts and switches. Without these keys it costs nothing."""

    transfer_ns: int = integer(0, 0, 1_000_000_000, "ns", "Cost of each transfer that a host sends or receives")
    flow_bps: int = integer(0, 0, 400_000_000_000, "bits/s", "Highest rate of one connection; 0: the link's")
    calls_at_once: int = integer(
        0,
        0,
        4096,
        "calls",
        "Collectives of a rank in progress: 1, as NCCL and Horovod do; 0: all that are ready",
    )
    call_ns: int = integer(0, 0, 1_000_000_000, "ns", "Cost of launching a collective, at each rank")
    packet_ns: int = integer(0, 0, 1_000_000, "ns", "CPU time of each packet that a host sends or receives")
    switch_packet_ns: int = integer(
        0, 0, 1_000_000, "ns", "CPU time of each packet that a switch's program receives or sends"
    )
    wake_ns: int = integer(0, 0, 1_000_000, "ns", "CPU time of a host or switch's program to wake up after a pause")
    cpus: int = integer(
        0,
        0,
        4096,
        "CPUs",
        "CPUs that all hosts and switches share, as on one machine; 0: each has its own",
    )


@dataclass(frozen=True)
class VirtualTime:
    """sim: how finely links are simulated (docs/emulate.md)."""

    fidelity_level: str = choice(
        PACKET, FIDELITY_LEVELS, "Every packet, calls as flows, or a formula; auto: the finest level that ends within_s"
    )
    within_s: int = integer(60, 1, 10_000_000, "s", "Seconds that auto allows each method")


@dataclass(frozen=True)
class Straggler:
    """A rank that computes more slowly for some iterations."""

    rank: int = integer(MISSING, -1, 4095, "rank", "The slow rank; -1: another one, drawn at random, in each iteration")
    factor: float = _float(2.0, 0.01, 10_000.0, "times", "Its computing takes so many times as long")
    from_iteration: int = integer(0, 0, ITERATIONS_MOST, "iteration", "First iteration in which it is slow")
    to_iteration: int = integer(ITERATIONS_MOST, 0, ITERATIONS_MOST, "iteration", "Last iteration in which it is slow")

    def slows(self, rank: int, iteration: int, seed: int, workers: int) -> bool:
        """Whether it does so now."""
        slow = Random(f"{seed} straggler {iteration}").randrange(workers) if self.rank < 0 else self.rank
        return rank == slow and self.from_iteration <= iteration <= self.to_iteration


@dataclass(frozen=True)
class LinkTail:
    """sim: delay that bursts of other traffic add to links."""

    ratio: float = _float(MISSING, 1.0, 1_000.0, "times", "99th percentile of the delay over its median")
    p50_ns: int = integer(MISSING, 1, 1_000_000_000, "ns", "Median of the delay")
    burst_ns: int = integer(10_000_000, 1_000, 60_000_000_000, "ns", "Mean time that a delay lasts")
    rank: int = integer(-1, -1, 63, "rank", "Rank whose link has the tail, both ways; -1: every link")


@dataclass(frozen=True)
class LostSwitch:
    """sim: a switch of method `switch` dies, and a new one may take its place. `fallback` in [switch] says what the job
    does meanwhile."""

    at_ns: int = integer(MISSING, 1, COMPUTE_NS_MOST, "ns", "Time of its death, from the start of the run")
    back_ns: int = integer(0, 0, COMPUTE_NS_MOST, "ns", "Time at which a new switch is there; 0: never")
    switch: str = _checked("", "text", "Its name in the report's figure; empty: the switch at the job's root")


@dataclass(frozen=True)
class Faults:
    """Faults of every link, independent for each packet, and slow ranks. In virtual time the seed decides them."""

    loss: float = _probability("Chance that a packet is lost")
    duplicate: float = _probability("Chance that it comes twice")
    reorder: float = _probability("Chance that later packets overtake it")
    corrupt: float = _probability("Chance that it is damaged")
    stragglers: tuple[Straggler, ...] = field(
        default=(), metadata={"kind": Straggler, "about": "Slow ranks; several entries of one rank multiply"}
    )
    tail: LinkTail | None = field(default=None, metadata={"kind": LinkTail, "about": "sim: delay of links that varies"})
    lost_switches: tuple[LostSwitch, ...] = field(
        default=(), metadata={"kind": LostSwitch, "about": "sim: switches that die and may come back"}
    )

    @property
    def of_packets(self) -> bool:
        """Whether links lose, damage or reorder any."""
        return any((self.loss, self.duplicate, self.reorder, self.corrupt))


@dataclass(frozen=True)
class ComputeDistribution:
    """A rank's time is drawn anew for each iteration."""

    distribution: str = choice(MISSING, COMPUTE_DISTRIBUTIONS, "Shape of the distribution")
    mean_ns: int = integer(MISSING, 1, COMPUTE_NS_MOST, "ns", "Mean")
    deviation_ns: int = integer(MISSING, 0, COMPUTE_NS_MOST, "ns", "Standard deviation; a negative time counts as 0")


@dataclass(frozen=True)
class ComputeJitter:
    """A rank's time is multiplied by a random factor of mean 1; a negative factor counts as 0."""

    deviation: float = _float(MISSING, 0.0, 10.0, "times", "Standard deviation over mean")
    distribution: str = choice("lognormal", COMPUTE_DISTRIBUTIONS, "Shape of the distribution")


@dataclass(frozen=True)
class WorkloadOptions:
    """The training: a real model on real data, or, in virtual time, a model as numbers."""

    name: str = choice("digits", workload_names, "Model and data")
    # enough for digits to pass 97 %
    iterations: int = integer(150, 2, ITERATIONS_MOST, "iterations", "Steps of the optimizer")
    # 5: DDP rebuilds its buckets after the first
    warmup_iterations: int = integer(
        5, 1, 1_000, "iterations", "First iterations that aren't counted; by default at most half of all"
    )
    # 8: an interval of 95 % is 2.4 standard errors; each turn costs an iteration that isn't counted
    blocks: int = integer(
        8,
        1,
        1_000,
        "blocks",
        "Mininet: methods take turns in so many blocks of iterations; 1: one method after the other",
    )
    batch_per_worker: int = integer(32, 1, 65_536, "samples", "Samples of each rank in an iteration")
    evaluate_every: int = integer(
        25,
        1,
        ITERATIONS_MOST,
        "iterations",
        "Rank 0 evaluates the model after so many iterations; that time isn't counted",
    )
    # DDP's own first-bucket size
    bucket_bytes: int = integer(
        1_048_576, 4_096, 1_073_741_824, "bytes", "Gradients of one allreduce, DDP's bucket_cap_mb"
    )
    optimizer: str = choice(ADAMW, (ADAMW, SGD), "Optimizer; servers that keep weights need sgd")
    synchronisation: str = _checked(
        "", "training", "A training method (docs/training.md); empty: ranks agree in every step"
    )
    # Real ranks take what they take, but if `paced`, or where ranks differ, they sleep until then (training/pace.py)
    compute_ns: int | tuple[int, ...] | ComputeDistribution | None = field(
        default=None,
        metadata={
            "kind": int,
            "low": 0,
            "high": COMPUTE_NS_MOST,
            "unit": "ns",
            "table": True,
            "about": "Time of a forward and backward pass: one, one for each rank, or drawn; not set: measured once",
        },
    )
    paced: int = integer(0, 0, 1, "1: yes", "Mininet: ranks sleep until compute_ns is over, as if a GPU computed")
    compute_jitter: ComputeJitter | None = field(
        default=None, metadata={"kind": ComputeJitter, "about": "A random factor of each rank and iteration"}
    )
    profile: str = _checked(
        "", "text", "sim: a model as numbers in place of name: a shipped profile or a file (docs/your-run.md)"
    )
    parallel: str = choice("ddp", ("ddp", "fsdp", "tp", "pp", "3d"), "How ranks share the model of a profile")
    degree: int = integer(0, 0, 4096, "ranks", "Ranks that hold one replica of the model together (tp, pp, 3d); 0: all")
    stages: int = integer(
        1, 1, 4096, "stages", "Pipeline stages of 3d, where degree counts the ranks that share tensors"
    )
    micro_batches: int = integer(4, 1, 65_536, "micro-batches", "Micro-batches of pp and 3d")
    device_flops: float = _float(
        0.0,
        0.0,
        1e21,
        "operations a second",
        "Speed of a device, for a profile that has operations in place of times; 0: as the profile says",
    )


@dataclass(frozen=True, kw_only=True)
class SwitchSettings(JobTerms):
    """How workers send to the switch, and how the switch shares its slots."""

    elements: int = integer(
        ELEMENTS_MTU_1500, 32, MAX_ELEMENTS, "int32 per packet", "Values in a packet; at most what mtu_bytes holds"
    )
    window_slots: int = integer(
        WINDOW_SLOTS,
        1,
        16_384,
        "slots",
        "Window of each stream; the default is less where a port's queue can't hold all that is in flight",
    )
    streams: int = integer(STREAMS, 1, 64, "streams", "Streams of the job, so that one bucket can overtake another")
    dataplane: str = choice(
        "auto",
        dataplane_names,
        "Data plane of the switch; auto: the fastest that passes its self-test; xdp: in Mininet only",
    )
    retry_limit: int = integer(
        30, 1, 1_000, "timeouts in a row", "sim: time-outs after which a call fails with the missing rank's name"
    )
    trees: int = integer(
        0, 0, 64, "trees", "Trees over several spines, which streams take in turn; 0: one over each spine"
    )
    fallback: str = choice("", _fallbacks, "sim: host method for calls while no switch is there; empty: none")
    standby: int = integer(0, 0, 7, "switches", "sim: further switches, to which a job with a fallback may move")
    lease_ns: int = integer(0, 0, 3_600_000_000_000, "ns", "sim: lease of the switch; 0: 4 s")
    slots: int = integer(0, 0, 65_536, "slots", "Slots of each switch for all jobs; 0: as many as they ask for")
    shares: str = choice(MAX_MIN, (MAX_MIN, FIRST_COME), "How slots are shared: by weight, or first come, first served")
    aggregators: int = integer(
        0, 0, 65_536, "aggregators", "Aggregators of each switch for methods atp and esa; 0: as many as slot versions"
    )


@dataclass(frozen=True)
class ParameterServer:
    """Parameter servers of method `ps` (docs/methods.md)."""

    servers: int = integer(0, 0, 64, "servers", "Servers with hosts of their own; 0: one on every worker's host")
    mode: str = choice(BSP, MODES, "When the server answers a worker's pull")
    staleness: int = integer(0, 0, 1_000_000, "iterations", "Iterations that the slowest worker of ssp may be behind")
    backups: int = integer(0, 0, 63, "workers", "Workers for which a sum of mode backup doesn't wait")
    push_then_pull: int = integer(0, 0, 1, "1: yes", "bsp answers after the whole call was pushed, not slice by slice")

    @property
    def options(self) -> dict[str, Any]:
        """Fields of PsConfig."""
        fields = {"mode": self.mode, "staleness": self.staleness, "backups": self.backups}
        return {**fields, "push_then_pull": bool(self.push_then_pull)}

    @property
    def keeps_weights(self) -> bool:
        """As PsConfig's."""
        return self.mode in ASYNCHRONOUS


@dataclass(frozen=True)
class JobOptions:
    """sim: another job, which sums int32 arrays again and again and checks every sum."""

    name: str = _checked(MISSING, "name", "Its name in reports")
    workers: int = integer(2, 1, 64, "workers", "Ranks, on hosts of their own")
    on: tuple[int, ...] = _checked((), "ranks", "Ranks of the measured job whose hosts it shares")
    method: str = choice(SAME, (SAME, "switch", "gloo", *host_methods()), "Its method; same: the measured job's")
    profile: str = _checked("", "text", "A workload graph (GOAL file) in place of sums")
    weight: int = integer(1, 1, 1_000, "times", "Its share of the slots")
    priority: int = integer(0, 0, 7, "class", "Its class for slots and for esa; a lower one goes first")
    quota_slots: int = integer(0, 0, 65_536, "slots", "Most slots that it may have; 0: as many as its windows")
    size_bytes: int = integer(1_000_000, 4, 1_000_000_000, "bytes", "Size of a sum")
    in_flight: int = integer(4, 1, 64, "sums", "Sums in flight")
    compute_ns: int = integer(0, 0, COMPUTE_NS_MOST, "ns", "Pause after each sum")
    start_ns: int = integer(0, 0, COMPUTE_NS_MOST, "ns", "Time of its start")
    stop_ns: int = integer(0, 0, COMPUTE_NS_MOST, "ns", "Time of its end; 0: the run's")
    sums: int = integer(0, 0, 1_000_000, "sums", "Sums after which it ends; 0: it goes on")


@dataclass(frozen=True)
class FlowOptions:
    """Other traffic: TCP flows without end (in virtual time also RoCE), `short` flows of web-like sizes, or `incast`.

    Times count from the first iteration, in Mininet from the first that is measured.
    """

    kind: str = choice(MISSING, FLOW_KINDS, "A congestion control for flows without end, or short, or incast")
    to_rank: int = integer(0, -1, 63, "rank", "Rank whose host it goes to; -1: a host of its own")
    from_rank: int = integer(-1, -1, 63, "rank", "Rank whose host it comes from; -1: hosts of its own")
    count: int = integer(1, 1, 64, "flows", "Flows of an incast's burst, or hosts that send short flows")
    congestion: str = choice("cubic", ENDLESS, "Congestion control of short and incast")
    ecn: int = integer(1, 0, 1, "1: yes", "ECN is negotiated")
    start_ns: int = integer(0, 0, COMPUTE_NS_MOST, "ns", "Time of its start")
    stop_ns: int = integer(0, 0, COMPUTE_NS_MOST, "ns", "Time of its end; 0: the run's")
    load: float = _float(0.1, 0.001, 1.0, "of the link", "Mean load that short flows offer")
    most_bytes: int = integer(1_000_000, 1_000, 30_000_000, "bytes", "Largest short flow")
    size_bytes: int = integer(64_000, 1, 100_000_000, "bytes", "Size of each flow of an incast")
    period_ns: int = integer(100_000_000, 1_000, COMPUTE_NS_MOST, "ns", "Time from one burst of incast to the next")

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
    """Methods that may lose gradients for good (docs/methods.md)."""

    divide: str = choice("paper", ("paper", "arrived", "workers"), "Divisor of a sum with gaps")
    mlt_tolerance: float = _float(0.1, 0.0, 0.99, "of a tensor", "Part of a tensor that mlt may lose")
    mlt_priorities: int = integer(1, 0, 1, "1: yes", "Packets of mlt have priorities by layer and magnitude")
    dgt_share: float = _float(0.8, 0.0, 1.0, "of blocks", "Part of the blocks that dgt sends reliably")
    dgt_channels: int = integer(7, 1, 7, "channels", "Best-effort channels of dgt")
    ltp_share: float = _float(0.8, 0.0, 1.0, "of a transfer", "Part of a transfer after which ltp may end it")
    ltp_extra_ns: int = integer(30_000_000, 0, 60_000_000_000, "ns", "Time from ltp's threshold to its deadline")
    ltp_early_close: int = integer(1, 0, 1, "1: yes", "ltp may end a transfer early")
    optireduce_hadamard: str = choice(
        "auto", ("auto", "always", "never"), "Whether optireduce spreads losses by a Hadamard transform"
    )
    optireduce_adaptive: int = integer(1, 0, 1, "1: yes", "optireduce may end its stages early")
    optireduce_runs: int = integer(
        20, 1, 100_000, "calls", "Reliable calls of a size from which optireduce learns its time-out"
    )

    def options(self, method: str) -> dict[str, Any]:
        """The options of a method, by their names in `transport.bounded`."""
        options = {
            name.removeprefix(f"{method}_"): value for name, value in vars(self).items() if name.startswith(method)
        }
        for name in ("priorities", "early_close", "adaptive"):
            if name in options:
                options[name] = bool(options[name])
        return {**options, "divide": None if self.divide == "paper" else self.divide}


TABLES: dict[str, Any] = {
    "methods": Methods,
    "topology": TopologyOptions,
    "hosts": HostOptions,
    "faults": Faults,
    "workload": WorkloadOptions,
    "switch": SwitchSettings,
    "ps": ParameterServer,
    "bounded": BoundedLoss,
    "virtual_time": VirtualTime,
}
LISTS: dict[str, Any] = {"flows": FlowOptions, "jobs": JobOptions}
"""Tables of which a scenario may have several: [[flows]], [[jobs]]."""
