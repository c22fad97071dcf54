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
RENAMED_KEYS = {"zoom": "fidelity_level"}
"""Keys of earlier versions, and what they are called now, in the same table. An old key is refused with the new one."""


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
    """Methods to compare, in order, per backend: `ring@zeromq`, `switch+p3`, `switch~lanes8+ef`.

    The first that is not the switch is the baseline. An empty list: the scenario is not meant for that backend.
    """

    mininet: tuple[MethodName, ...] = _methods(
        "mininet", "In Mininet: METHOD[@LINK][+SCHEDULE][~CODEC]", "gloo", "switch"
    )
    sim: tuple[MethodName, ...] = _methods("sim", "In virtual time, whose link is its own: no @LINK", "ring", "switch")


@dataclass(frozen=True)
class TopologyOptions:
    """Hosts, switches and their full-duplex links. Numbers are those of a host's link."""

    # 4 workers: the smallest star whose bound (1.5) leaves 2 cores alive
    workers: int = integer(4, 1, 4096, "workers", "Ranks of the measured job; in Mininet at most 64 hosts")
    rate_bps: int = integer(
        200_000_000,
        1_000_000,
        400_000_000_000,
        "bits/s",
        "Of a host's link, each direction; 0, of benchmarks: not shaped",
    )
    # 0: netem is missing on many kernels
    delay_ns: int = integer(0, 0, 1_000_000_000, "ns", "Of a link, one way; in Mininet it needs the kernel's netem")
    queue_bytes: int = integer(1_000_000, 3_000, 1_000_000_000, "bytes", "Of a port; the default holds two windows")
    mtu_bytes: int = integer(1500, 576, 65_535, "bytes", "Of an IP packet")
    kind: str = choice("star", topology_names, "Which hosts and switches there are, and how they are joined")
    racks: int | tuple[int, ...] = _checked(
        0, "racks", "Of leaf_spine and fat_tree: how many, or the workers of each in the order of ranks"
    )
    oversubscription: float = _float(1.0, 1.0, 1_000.0, "times", "The rate of a rack's workers over its up-link's")
    spines: int = integer(1, 1, 64, "spines", "sim: of a fat_tree cores, which divide the rate of up-links equally")
    paths: str = choice(SPRAY, PATHS, "Over spines: each frame takes the shortest queue, or each flow one by a hash")
    placement: str = choice(EVERY, placement_names, "Which switches aggregate: all that join workers, or one for all")
    sides: int | tuple[int, ...] = _checked((), "racks", "sim: of a torus, hosts along each side")
    ports: int = integer(0, 0, 4096, "ports", "sim: of a bcube's switch; the number of hosts is a power of it")
    link_bps: tuple[tuple[str, int], ...] = _checked(
        (), "rates", 'sim: rates of some links, by name, as reports draw them: {"h3" = 10e9, "leaf1-spine1" = 40e9}'
    )
    ranks_per_host: int = integer(1, 1, 64, "ranks", "sim: GPUs behind one NIC; racks are of hosts then")
    inside_bps: int = integer(0, 0, 100_000_000_000_000, "bits/s", "sim: of each rank's link to the others of its host")
    inside_sums: int = integer(0, 0, 1, "1: yes", "sim: what joins a host's ranks aggregates too, as NVLink SHARP does")
    ecn_bytes: int = integer(
        0, 0, 1_000_000_000, "bytes", "Of a port's queue: packets behind more are marked CE; 0: none"
    )
    drop_bytes: int = integer(
        0, 0, 1_000_000_000, "bytes", "sim: of mlt and dgt, above it what matters least is dropped"
    )
    pfc_bytes: int = integer(
        0, 0, 1_000_000_000, "bytes", "sim: links without loss: a port that holds more pauses its sender; 0: links drop"
    )
    pfc_xon_bytes: int = integer(0, 0, 1_000_000_000, "bytes", "It goes on below; 0: two frames less than pfc_bytes")
    pfc_headroom_bytes: int = integer(
        0, 0, 1_000_000_000, "bytes", "For what still comes after a pause; 0: all of that"
    )
    pfc_flows: int = integer(0, 0, 1, "1: yes", "TCP of [[flows]] is in the lossless class, too, not in one that drops")
    ecn_most_bytes: int = integer(
        0,
        0,
        1_000_000_000,
        "bytes",
        "With pfc_bytes: marks by chance (RED) from ecn_bytes to here; 0: all above are marked",
    )
    ecn_chance: float = _float(0.01, 0.0, 1.0, "probability", "Of a mark at ecn_most_bytes")
    priority_queues: int = integer(0, 0, 8, "queues", "Of a port: 8, one for each priority class, or 0: all in order")
    congestion_control: str = choice(
        BEST,
        CONGESTION_CONTROLS,
        "TCP's. best: bbr where links lose packets, else cubic or reno, as far as namespaces may; kernel: its default",
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
    """sim: what transfers and packets cost every host, and the rate of one connection: `emulation.sim.host_costs`."""

    transfer_ns: int = integer(0, 0, 1_000_000_000, "ns", "Of each transfer that a host sends, and of each that comes")
    flow_bps: int = integer(0, 0, 400_000_000_000, "bits/s", "Most of one connection; 0: as much as links carry")
    calls_at_once: int = integer(
        0,
        0,
        4096,
        "calls",
        "Collectives of a rank: 1, as in NCCL and Horovod; 0: all that are ready, as in groups here",
    )
    call_ns: int = integer(0, 0, 1_000_000_000, "ns", "Of each collective, at each rank, before it begins: its launch")
    packet_ns: int = integer(0, 0, 1_000_000, "ns", "CPU time of each packet that a host sends, and of each that comes")
    switch_packet_ns: int = integer(
        0, 0, 1_000_000, "ns", "CPU time of each packet that comes to a switch's program, and of each that it sends"
    )
    wake_ns: int = integer(
        0, 0, 1_000_000, "ns", "CPU time of such a program or host before the first packet after a pause"
    )
    cpus: int = integer(
        0,
        0,
        4096,
        "CPUs",
        "That hosts and switches share, as where they are emulated on one machine; 0: each has its own",
    )


@dataclass(frozen=True)
class VirtualTime:
    """sim: how finely links are simulated (docs/results/fidelity-levels.md)."""

    fidelity_level: str = choice(
        PACKET, FIDELITY_LEVELS, "Every packet; calls as flows; a formula; auto: the finest that ends within_s"
    )
    within_s: int = integer(60, 1, 10_000_000, "s", "Of auto, for each method's communication")


@dataclass(frozen=True)
class Straggler:
    """A rank whose computing takes `factor` times as long, from one iteration to another, both included."""

    rank: int = integer(MISSING, -1, 4095, "rank", "Which; -1: in each iteration another one, drawn")
    factor: float = _float(2.0, 0.01, 10_000.0, "times", "How much longer it computes")
    from_iteration: int = integer(0, 0, ITERATIONS_MOST, "iteration", "The first")
    to_iteration: int = integer(ITERATIONS_MOST, 0, ITERATIONS_MOST, "iteration", "The last")

    def slows(self, rank: int, iteration: int, seed: int, workers: int) -> bool:
        """Whether it does so now."""
        slow = Random(f"{seed} straggler {iteration}").randrange(workers) if self.rank < 0 else self.rank
        return rank == slow and self.from_iteration <= iteration <= self.to_iteration


@dataclass(frozen=True)
class LinkTail:
    """sim: extra delay of links, as bursts of other traffic add it: see emulation/sim/network/simulated_link.py."""

    ratio: float = _float(MISSING, 1.0, 1_000.0, "times", "p99 over p50 of the delay")
    p50_ns: int = integer(MISSING, 1, 1_000_000_000, "ns", "Its median")
    burst_ns: int = integer(10_000_000, 1_000, 60_000_000_000, "ns", "How long a delay lasts, on average")
    rank: int = integer(-1, -1, 63, "rank", "Its host's link, both ways; -1: every link")


@dataclass(frozen=True)
class LostSwitch:
    """sim: a switch dies in method `switch`, and a new one that knows nothing of the job may take its place. Frames
    between hosts go on. What the job does then is said by [switch] fallback."""

    at_ns: int = integer(MISSING, 1, COMPUTE_NS_MOST, "ns", "When it dies, from the start of the run")
    back_ns: int = integer(0, 0, COMPUTE_NS_MOST, "ns", "When a new one is there; 0: never")
    switch: str = _checked("", "text", 'Its name, as reports draw it; "": the one at the root of the job')


@dataclass(frozen=True)
class Faults:
    """Faults of every link, per packet and independent, drawn from the scenario's seed in `sim`; slow ranks, and links
    whose delay has a tail."""

    loss: float = _probability("A packet is lost")
    duplicate: float = _probability("It comes twice")
    reorder: float = _probability("It comes later than those behind it")
    corrupt: float = _probability("It is damaged")
    stragglers: tuple[Straggler, ...] = field(
        default=(), metadata={"kind": Straggler, "about": "Ranks that are slow; several slow a rank more"}
    )
    tail: LinkTail | None = field(default=None, metadata={"kind": LinkTail, "about": "sim: extra delay of links"})
    lost_switches: tuple[LostSwitch, ...] = field(
        default=(), metadata={"kind": LostSwitch, "about": "sim: switches that die, and are there again"}
    )

    @property
    def of_packets(self) -> bool:
        """Whether links lose, damage or reorder any."""
        return any((self.loss, self.duplicate, self.reorder, self.corrupt))


@dataclass(frozen=True)
class ComputeDistribution:
    """A rank's time for an iteration is drawn anew for each iteration."""

    distribution: str = choice(MISSING, COMPUTE_DISTRIBUTIONS, "Its shape")
    mean_ns: int = integer(MISSING, 1, COMPUTE_NS_MOST, "ns", "Its mean")
    deviation_ns: int = integer(MISSING, 0, COMPUTE_NS_MOST, "ns", "Its standard deviation; what is below 0 is 0")


@dataclass(frozen=True)
class ComputeJitter:
    """A rank's time for an iteration is multiplied by a factor of mean 1; a negative factor is 0."""

    deviation: float = _float(MISSING, 0.0, 10.0, "times", "Standard deviation over mean")
    distribution: str = choice("lognormal", COMPUTE_DISTRIBUTIONS, "Its shape")


@dataclass(frozen=True)
class WorkloadOptions:
    """The training: real models on real data, a share per worker; or, in virtual time, a model as numbers."""

    name: str = choice("digits", workload_names, "Model and data")
    # enough for digits to pass 97 %
    iterations: int = integer(150, 2, ITERATIONS_MOST, "iterations", "Steps of the optimizer")
    # 5: DDP rebuilds its buckets after the first
    warmup_iterations: int = integer(
        5, 1, 1_000, "iterations", "The first so many are not counted; at most half of them by default"
    )
    # 8: an interval of 95 % is 2.4 standard errors; each turn costs an iteration that isn't counted
    blocks: int = integer(
        8, 1, 1_000, "blocks", "Mininet: methods take turns, in so many blocks of iterations; 1: one after the other"
    )
    batch_per_worker: int = integer(32, 1, 65_536, "samples", "Of each rank, an iteration")
    evaluate_every: int = integer(
        25, 1, ITERATIONS_MOST, "iterations", "Rank 0 evaluates on the test set; its time is not counted"
    )
    # DDP's own first-bucket size
    bucket_bytes: int = integer(
        1_048_576, 4_096, 1_073_741_824, "bytes", "DDP's bucket_cap_mb: gradients of one allreduce"
    )
    optimizer: str = choice(ADAMW, (ADAMW, SGD), "sgd: at a constant rate; servers that keep weights take no other")
    synchronisation: str = _checked("", "training", 'A training method (docs/training-methods.md); "": in every step')
    # Real ranks take what they take, but if `paced`, or where ranks differ, they sleep until then (training/pace.py)
    compute_ns: int | tuple[int, ...] | ComputeDistribution | None = field(
        default=None,
        metadata={
            "kind": int,
            "low": 0,
            "high": COMPUTE_NS_MOST,
            "unit": "ns",
            "table": True,
            "about": "Forward and backward of an iteration: of all ranks, of each, or drawn; without it measured once",
        },
    )
    paced: int = integer(
        0, 0, 1, "1: yes", "Mininet: ranks compute no faster than compute_ns, as on GPUs that leave the CPU free"
    )
    compute_jitter: ComputeJitter | None = field(
        default=None, metadata={"kind": ComputeJitter, "about": "A factor on top of that, drawn for each"}
    )
    profile: str = _checked(
        "", "text", "sim: a model as numbers in place of name: a shipped profile or a file (docs/profiles.md)"
    )
    parallel: str = choice("ddp", ("ddp", "fsdp", "tp", "pp", "3d"), "How ranks share the model of a profile")
    degree: int = integer(0, 0, 4096, "ranks", "Of tp, pp and 3d: that have a model together, beside replicas; 0: all")
    stages: int = integer(1, 1, 4096, "stages", "Of 3d, where degree is ranks that share tensors")
    micro_batches: int = integer(4, 1, 65_536, "micro-batches", "Of pp and 3d")
    device_flops: float = _float(
        0.0, 0.0, 1e21, "operations a second", "Of a profile whose times are derived; 0: its own"
    )


@dataclass(frozen=True, kw_only=True)
class SwitchSettings(JobTerms):
    """How the switch method sends: packet size, window and streams; and how a switch divides its slots."""

    elements: int = integer(
        ELEMENTS_MTU_1500, 32, MAX_ELEMENTS, "int32 per packet", "Values of a packet; at most what mtu_bytes holds"
    )
    window_slots: int = integer(
        WINDOW_SLOTS,
        1,
        16_384,
        "slots",
        "Of each stream; less by default where a port's queue doesn't hold all that is in flight",
    )
    streams: int = integer(STREAMS, 1, 64, "streams", "So that one bucket may overtake another's tail")
    dataplane: str = choice(
        "auto", dataplane_names, "auto: the fastest that passes its self-test; xdp: in Mininet only"
    )
    retry_limit: int = integer(30, 1, 1_000, "timeouts in a row", "sim: then the call fails, naming who is missing")
    trees: int = integer(0, 0, 64, "trees", "With several spines: its streams in turn; 0: one over each spine")
    fallback: str = choice(
        "", _fallbacks, "sim: the host method that calls take while there is no switch, as in real runs; empty: none"
    )
    standby: int = integer(0, 0, 7, "switches", "sim: beside the first, to which a job with a fallback may go")
    lease_ns: int = integer(0, 0, 3_600_000_000_000, "ns", "sim: as of `switchagg switch --lease`; 0: 4 s")
    slots: int = integer(0, 0, 65_536, "slots", "Of each switch, for all jobs; 0: as many as they ask for")
    shares: str = choice(
        MAX_MIN, (MAX_MIN, FIRST_COME), "Of slots: by weight, or all that a job asks for while any are left"
    )
    aggregators: int = integer(
        0, 0, 65_536, "aggregators", "Of each switch, of methods atp and esa; 0: as many as slot versions"
    )


@dataclass(frozen=True)
class ParameterServer:
    """How method `ps` sums, and where (docs/parameter-server.md)."""

    servers: int = integer(0, 0, 64, "servers", "With hosts and links of their own; 0: one on every worker's host")
    mode: str = choice(BSP, MODES, "When a worker's pull is answered")
    staleness: int = integer(0, 0, 1_000_000, "iterations", "Of ssp: how far the slowest worker may be behind")
    backups: int = integer(0, 0, 63, "workers", "Of backup: a sum doesn't wait for the last so many")
    push_then_pull: int = integer(
        0, 0, 1, "1: yes", "Of bsp: no answer before all of a call was pushed, not slice by slice"
    )

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
    """sim: another job, which sums int32 arrays again and again, and checks every sum."""

    name: str = _checked(MISSING, "name", "What reports call it")
    workers: int = integer(2, 1, 64, "workers", "Ranks, on hosts of their own")
    on: tuple[int, ...] = _checked((), "ranks", "Or on the hosts of these ranks of the measured job")
    method: str = choice(SAME, (SAME, "switch", "gloo", *host_methods()), "How it sums; same: as the measured job")
    profile: str = _checked("", "text", "A workload graph, as a GOAL file, in place of sums")
    weight: int = integer(1, 1, 1_000, "times", "Its share of slots")
    priority: int = integer(0, 0, 7, "class", "Of slots, and of esa: lower ones go first")
    quota_slots: int = integer(0, 0, 65_536, "slots", "At most; 0: as many as its windows")
    size_bytes: int = integer(1_000_000, 4, 1_000_000_000, "bytes", "Of a sum")
    in_flight: int = integer(4, 1, 64, "sums", "At once")
    compute_ns: int = integer(0, 0, COMPUTE_NS_MOST, "ns", "After each sum")
    start_ns: int = integer(0, 0, COMPUTE_NS_MOST, "ns", "When it begins")
    stop_ns: int = integer(0, 0, COMPUTE_NS_MOST, "ns", "When it ends; 0: with the run")
    sums: int = integer(0, 0, 1_000_000, "sums", "After which it ends; 0: it goes on")


@dataclass(frozen=True)
class FlowOptions:
    """Other traffic: TCP flows without end, or RoCE in virtual time, `short` ones of web-like sizes, or `incast`.

    They go to the host of a rank, or with -1 to one of their own, and from the host of a rank, or from hosts of their
    own, one for each of `count`. Times are from the first iteration, in Mininet from the first that is counted.
    """

    kind: str = choice(MISSING, FLOW_KINDS, "A congestion control: flows without end; or short, incast")
    to_rank: int = integer(0, -1, 63, "rank", "Whose host it goes to; -1: one of its own")
    from_rank: int = integer(-1, -1, 63, "rank", "Whose host it comes from; -1: hosts of its own")
    count: int = integer(1, 1, 64, "flows", "Of incast: of each burst; of short: hosts that they come from")
    congestion: str = choice("cubic", ENDLESS, "Of short and incast")
    ecn: int = integer(1, 0, 1, "1: yes", "ECN is negotiated")
    start_ns: int = integer(0, 0, COMPUTE_NS_MOST, "ns", "When it begins")
    stop_ns: int = integer(0, 0, COMPUTE_NS_MOST, "ns", "When it ends; 0: with the run")
    load: float = _float(0.1, 0.001, 1.0, "of the link", "Of short: what they offer on average")
    most_bytes: int = integer(1_000_000, 1_000, 30_000_000, "bytes", "Of a short flow")
    size_bytes: int = integer(64_000, 1, 100_000_000, "bytes", "Of each flow of an incast")
    period_ns: int = integer(100_000_000, 1_000, COMPUTE_NS_MOST, "ns", "From one burst of incast to the next")

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
    """Methods that may lose gradients for good (docs/bounded-loss.md)."""

    divide: str = choice("paper", ("paper", "arrived", "workers"), "By how many a sum with gaps is scaled")
    mlt_tolerance: float = _float(0.1, 0.0, 0.99, "of a tensor", "What mlt may lose")
    mlt_priorities: int = integer(1, 0, 1, "1: yes", "Packets of mlt have priorities by layer and magnitude")
    dgt_share: float = _float(0.8, 0.0, 1.0, "of blocks", "What dgt sends reliably")
    dgt_channels: int = integer(7, 1, 7, "channels", "Of dgt, best effort")
    ltp_share: float = _float(0.8, 0.0, 1.0, "of a transfer", "From here ltp stops waiting for all of it")
    ltp_extra_ns: int = integer(30_000_000, 0, 60_000_000_000, "ns", "Of ltp: from its threshold to the deadline")
    ltp_early_close: int = integer(1, 0, 1, "1: yes", "ltp ends a transfer before all is there")
    optireduce_hadamard: str = choice("auto", ("auto", "always", "never"), "Whether optireduce spreads what is lost")
    optireduce_adaptive: int = integer(1, 0, 1, "1: yes", "Stages of optireduce end early, too")
    optireduce_runs: int = integer(20, 1, 100_000, "calls", "Reliable ones of a size, which measure its time-out")

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
