"""A scenario: a frozen, strictly checked description of one experiment, read from TOML.

`load(path)` reads a file, `find(name_or_path)` also knows the shipped ones, `canonical(scenario)` gives the plain dict
that stands in `results.json`. Everything wrong with a file is a `ScenarioError` of one line that names the file, the
table, the key and what is allowed. Nothing is guessed and no key is ignored.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from emulation.scenario import scenario_checks
from emulation.scenario.bounds import NetworkParameters, elements_most, loads, servers_of
from emulation.scenario.errors import ScenarioError as ScenarioError
from emulation.scenario.key_values import NAME, WORDS, build_fields, check_tables, shortened, suggestion
from emulation.scenario.profiles.graph import WorkloadGraph
from emulation.scenario.profiles.model_profile import ModelProfile
from emulation.scenario.profiles.profile_errors import ProfileError
from emulation.scenario.profiles.workload_keys import batch_of, load_workload, tenants_fault
from emulation.scenario.scenario_tables import (
    ADAMW,
    PACKET,
    PACKET_KEYS,
    PROFILED,
    SEED_MOST,
    TABLES,
    TRAINED,
    BoundedLoss,
    ComputeDistribution,
    Faults,
    FlowOptions,
    HostOptions,
    JobOptions,
    Methods,
    ParameterServer,
    SwitchSettings,
    TopologyOptions,
    VirtualTime,
    WorkloadOptions,
    keys_of,
)
from emulation.scenario.sweep_axes import SEED, Point, SweepAxes, Value
from emulation.scenario.sweep_axes import parse as parse_sweep
from emulation.scenario.topologies.topology import SPRAY, STAR, LinkSettings, Topology
from emulation.scenario.topologies.topology_kinds import topology
from switchagg.join import JobTerms
from switchagg.option_syntax import choices
from switchagg.option_syntax.option_fields import changed_fields
from switchagg.priority import CLASSES
from switchagg.wire import frame_bytes
from transport.group.method_name import METHODS, MethodName
from transport.links.link_kinds import LINKS
from transport.ps.config import BACKUP

BACKENDS = ("mininet", "sim")
ALLREDUCE = "allreduce"  # a workload without training: one allreduce of `bucket_bytes`, repeated; the benchmark's
SHIPPED_FOLDER = Path(__file__).parents[1] / "scenarios"


@dataclass(frozen=True)
class Scenario:
    """An experiment; with `sweep`, several that differ in some of their keys (see `load_variants`).

    `file` and `folder` are where it came from, for messages and files beside it; they are no part of the results.
    """

    name: str
    title: str
    seed: int
    methods: Methods
    topology: TopologyOptions
    faults: Faults
    workload: WorkloadOptions
    switch: SwitchSettings
    ps: ParameterServer = field(default_factory=ParameterServer)
    bounded: BoundedLoss = field(default_factory=BoundedLoss)
    hosts: HostOptions = field(default_factory=HostOptions)
    virtual_time: VirtualTime = field(default_factory=VirtualTime)
    sweep: SweepAxes = field(default_factory=SweepAxes)
    flows: tuple[FlowOptions, ...] = ()
    jobs: tuple[JobOptions, ...] = ()
    file: str = "scenario"
    folder: str = "."  # a word, since scenarios travel to ranks as JSON

    @property
    def network(self) -> NetworkParameters:
        """The parameters that bound an allreduce."""
        options = self.topology
        return NetworkParameters(
            options.workers,
            options.rate_bps,
            options.mtu_bytes,
            self.switch.elements,
            servers=self.ps.servers,
            backups=options.workers - 1 if self.ps.keeps_weights else self.ps.backups,
            keeps_weights=self.ps.keeps_weights,
            push_then_pull=bool(self.ps.push_then_pull),
            fabric=options.fabric,
            trees=min(self.switch.trees or self.switch.streams, self.switch.streams),
            verify=self.switch.verify,
            **{key: value for key, value in vars(self.hosts).items() if key not in PACKET_KEYS},
        )

    def links(self, method: str) -> Topology:
        """The nodes and links that a method has. Raises ValueError."""
        options = self.topology
        settings = LinkSettings(options.rate_bps, options.delay_ns, options.queue_bytes)
        return topology(options.fabric, options.workers, servers_of(method, self.ps.servers), settings)

    @cached_property
    def replayed(self) -> ModelProfile | WorkloadGraph:
        """The profile or graph that `[workload] profile` and its related keys name. Raises ProfileError."""
        return load_workload(self.workload, self.topology.workers, Path(self.folder))

    @property
    def unequal_compute(self) -> str | None:
        """The key that makes ranks compute for different times; None if none does."""
        if self.faults.stragglers:
            return "[faults] stragglers"
        if self.workload.compute_jitter:
            return "[workload] compute_jitter"
        return "[workload] compute_ns" if isinstance(self.workload.compute_ns, (tuple, ComputeDistribution)) else None

    @property
    def paced(self) -> bool:
        """Whether real ranks compute no faster than `[workload] compute_ns` says."""
        return bool(self.workload.compute_ns and (self.workload.paced or self.unequal_compute))

    def backups_of(self, method: MethodName) -> int | None:
        """How many ranks a sum of the method doesn't wait for; None where sums wait for all, as long as it takes."""
        if method.is_switch and self.switch.partial:
            return self.switch.backups
        return self.ps.backups if method.method == "ps" and self.ps.mode == BACKUP else None

    def asynchronous(self, method: MethodName) -> bool:
        """Whether the method's servers keep weights, and ranks don't wait for each other's gradients."""
        return method.method == "ps" and self.ps.keeps_weights

    def methods_for(self, backend: str) -> tuple[MethodName, ...]:
        """Methods to run on `backend` ("mininet" or "sim"), in order."""
        return self.methods.mininet if backend == "mininet" else self.methods.sim

    def baseline_for(self, backend: str) -> MethodName | None:
        """The first host method, of float32 if there is one: what the switch is compared with. The result is None if
        the scenario has only the switch."""
        hosts = [method for method in self.methods_for(backend) if not method.in_packets]
        return min(hosts, key=lambda method: bool(method.codec), default=None)


_ONLY_IF_SET = {
    "ps": ("push_then_pull",),
    "hosts": ("calls_at_once", "call_ns", *PACKET_KEYS),
    "faults": ("stragglers", "tail", "lost_switches"),
    "switch": ("fallback", "standby", "lease_ns"),
    "workload": ("compute_jitter", "paced"),
    "topology": (*scenario_checks.UNUSUAL_QUEUES, "sides", "ports", "link_bps"),
}
"""Keys that `canonical` has only where they aren't empty or 0."""
_ALWAYS = {"congestion", "split_calls", "backups", "close_after_ns", "weight"}
"""Terms of a job that `canonical` writes at their defaults, too."""
_TOP_KEYS = ("name", "title", "seed")


def load(path: Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """Scenario in a TOML file. `overrides`: {"seed": 3, "topology.rate_bps": 10**9}, checked like the file's keys."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ScenarioError(f"{path}: cannot be read: {reason}") from error
    return parse(text, path.name, overrides, path.parent)


def load_variants(path: Path, overrides: Mapping[str, Any] | None = None) -> list[tuple[Point, Scenario]]:
    """The scenario at each point of its sweep, in order, none of them with a sweep; itself alone if it has none.

    An override of a swept key ends its axis: then that value alone is run.
    """
    scenario = load(path, overrides)
    fixed = {key: value for key, value in (overrides or {}).items() if key.partition(".")[0] != "sweep"}
    if not scenario.sweep.axes:
        return [({}, load(path, {**fixed, "sweep": {}}))]
    variants = []
    for point in scenario.sweep.points:
        variant = load(path, {**fixed, "sweep": {}, **point})
        variants.append(({key: _value(variant, key) for key in point}, variant))
    return variants


def _value(scenario: Scenario, key: str) -> Value:
    """A swept key's, as it was checked."""
    table, _, name = key.rpartition(".")
    value: Value = getattr(getattr(scenario, table) if table else scenario, name)
    return value


def parse(text: str, file: str, overrides: Mapping[str, Any] | None = None, folder: Path = Path()) -> Scenario:
    """Scenario in TOML text; `file` is the name used in messages, `folder` where files are that it names."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: numbers too long, nesting too deep
        raise ScenarioError(f"{file}: not valid TOML: {error}") from error
    for key, value in (overrides or {}).items():
        table, dot, name = key.rpartition(".") if not key.startswith("sweep.") else key.partition(".")
        where = document if not dot else document.setdefault(table, {})
        if not isinstance(where, dict):
            raise ScenarioError(f"{file}: {key}: '{table}' must be a table")
        where[name] = value
    return _with_profile(_build(document, file, str(folder), (overrides or {}).keys()), document)


def find(name_or_path: str) -> Path:
    """Path of a scenario file, or of a shipped scenario given by its bare name."""
    path = Path(name_or_path)
    shipped_paths = shipped()
    try:
        if path.is_file():
            return path
        what = "a folder, not a scenario file" if path.is_dir() else "no such file"
    except OSError as error:  # a folder on the way that may not be entered, a name too long
        what = f"cannot be read: {error.strerror}"
    if name_or_path.removesuffix(".toml") in shipped_paths:
        return shipped_paths[name_or_path.removesuffix(".toml")]
    raise ScenarioError(
        f"{_shortened_text(name_or_path)}: {what}{choices(name_or_path, shipped_paths, 'shipped scenarios')}"
    )


def shipped() -> dict[str, Path]:
    """Shipped scenarios: name -> file, sorted by name."""
    return {path.stem: path for path in sorted(SHIPPED_FOLDER.glob("*.toml"))}


def canonical(scenario: Scenario) -> dict[str, Any]:
    """The scenario as plain JSON values, every default filled in; without the file's name."""
    values = dataclasses.asdict(scenario)
    del values["file"], values["folder"]
    values["sweep"] = scenario.sweep.plain
    if not scenario.sweep.axes:
        del values["sweep"]
    if not any(method.method == "ps" for methods in vars(scenario.methods).values() for method in methods):
        del values["ps"]  # no method of the scenario reads it
    if not any(METHODS[method.method].loses for methods in vars(scenario.methods).values() for method in methods):
        del values["bounded"]
    if scenario.workload.optimizer == ADAMW:
        del values["workload"]["optimizer"]
    if not scenario.workload.synchronisation:
        del values["workload"]["synchronisation"]
    if not scenario.topology.ecn_most_bytes:
        del values["topology"]["ecn_chance"]
    if scenario.topology.fabric == STAR:
        for key in ("racks", "oversubscription", "placement"):
            del values["topology"][key]
    terms = changed_fields(scenario.switch, JobTerms)  # of those that no key names: none
    unwritten = {entry.name for entry in dataclasses.fields(JobTerms)} - terms.keys() - _ALWAYS
    values["switch"] = {key: value for key, value in values["switch"].items() if key not in unwritten}
    for table, keys in _ONLY_IF_SET.items():
        for key in keys:
            if table in values and not getattr(getattr(scenario, table), key):
                del values[table][key]
    _drop_others(values)
    values["methods"] = {backend: list(map(str, names)) for backend, names in vars(scenario.methods).items()}
    return values


def _drop_others(values: dict[str, Any]) -> None:
    """Keys are dropped that only other jobs or flows, several spines, host costs, a profile or a fidelity level need,
    and those that a profile makes useless."""
    if values["virtual_time"]["fidelity_level"] == PACKET:
        del values["virtual_time"]
    if values["topology"]["ranks_per_host"] == 1:
        for key in ("ranks_per_host", "inside_bps", "inside_sums"):
            del values["topology"][key]
    if not any(values["hosts"].values()):
        del values["hosts"]
    for key in TRAINED if values["workload"]["profile"] else PROFILED:
        values["workload"].pop(key, None)
    if (values["topology"]["spines"], values["topology"]["paths"]) == (1, SPRAY):
        del values["topology"]["spines"], values["topology"]["paths"], values["switch"]["trees"]
    if not values["jobs"]:
        for key in ("slots", "shares", "weight"):
            del values["switch"][key]
    for job in (job for job in values["jobs"] if not job["profile"]):
        del job["profile"]
    for key in ("flows", "jobs"):
        if not values[key]:
            del values[key]


def _with_profile(scenario: Scenario, document: dict[str, Any]) -> Scenario:
    """The scenario with its profile's batch, unless it has its own; and profiles checked, those of jobs, too."""
    if fault := tenants_fault(scenario.jobs, Path(scenario.folder)):
        raise ScenarioError(f"{scenario.file}: [[jobs]] profile: {fault}")
    if not scenario.workload.profile:
        return scenario
    keys, where = document["workload"], f"{scenario.file}: [workload]"
    if wrong := next((key for key in TRAINED if key in keys), None):
        raise ScenarioError(f"{where} {wrong}: it is of training; allowed: profile or {wrong}, not both")
    try:
        if "batch_per_worker" not in keys:
            batch = batch_of(scenario.workload, scenario.topology.workers, Path(scenario.folder))
            workload = dataclasses.replace(scenario.workload, batch_per_worker=batch)
            scenario = dataclasses.replace(scenario, workload=workload)
        fault = scenario_checks.graph_fault(scenario) if isinstance(scenario.replayed, WorkloadGraph) else ""
    except ProfileError as error:
        raise ScenarioError(f"{where} profile: {error}") from error
    if fault:
        raise ScenarioError(f"{scenario.file}: {fault}")
    return scenario


def _build(document: dict[str, Any], file: str, folder: str = ".", ended: Collection[str] = ()) -> Scenario:
    """ended: axes of the sweep that aren't any more."""
    known = (*_TOP_KEYS, *TABLES, "flows", "jobs", "sweep")
    for key in document:
        if key not in known:
            raise ScenarioError(f"{file}: unknown key '{key}'{suggestion(key, known)}")
    name = _text(document, "name", file)
    if not NAME.fullmatch(name):
        raise ScenarioError(
            f"{file}: name: {shortened(name)} is not allowed; allowed: {WORDS['name']} (it is the results' folder)"
        )
    title = _text(document, "title", file)
    seed = document.get("seed", 1)
    if type(seed) is not int or not 0 <= seed <= SEED_MOST:
        raise ScenarioError(f"{file}: seed: {shortened(seed)} is out of range; allowed: integers 0 … {SEED_MOST}")
    tables = {name: _build_table(document.get(name, {}), name, kind, file) for name, kind in TABLES.items()}
    flows = check_tables(document.get("flows", []), FlowOptions, f"{file}: [[flows]] ")
    jobs = check_tables(document.get("jobs", []), JobOptions, f"{file}: [[jobs]] ")
    tables["sweep"] = _build_sweep(document.get("sweep", {}), file, ended)
    scenario = Scenario(name=name, title=title, seed=seed, file=file, folder=folder, flows=flows, jobs=jobs, **tables)
    try:
        _ = scenario.links("switch"), scenario.links("ps")
    except ValueError as error:
        raise ScenarioError(f"{file}: [topology] kind: {scenario.topology.kind}: {error}") from None
    switch_keys = document.get("switch", {})
    if (trees := scenario.switch.trees or scenario.topology.spines) > 1:  # a stream for each, and all for a long call
        streams = scenario.switch.streams if "streams" in switch_keys else max(trees, scenario.switch.streams)
        split = scenario.switch.split_calls if "split_calls" in switch_keys else 1
        fitted = dataclasses.replace(scenario.switch, streams=streams, split_calls=split)
        scenario = dataclasses.replace(scenario, switch=fitted)
    if "window_slots" not in switch_keys:
        fitted = dataclasses.replace(scenario.switch, window_slots=_window_that_fits(scenario))
        scenario = dataclasses.replace(scenario, switch=fitted)
    if "warmup_iterations" not in document.get("workload", {}):
        workload = scenario.workload  # of few iterations half are counted
        warmup = min(workload.warmup_iterations, workload.iterations // 2)
        scenario = dataclasses.replace(scenario, workload=dataclasses.replace(workload, warmup_iterations=warmup))
    _check_together(scenario)
    return scenario


def _window_that_fits(scenario: Scenario) -> int:
    """The default window: a port's queue must hold all that may be in flight, or the switch's method drops its own."""
    switch = scenario.switch
    packet_bytes = LINKS["udp"].framing.ethernet_bytes(frame_bytes(switch.elements))
    together = max(map(int, loads("switch", scenario.network).values()))  # workers whose packets cross one port
    fitting = scenario.topology.queue_bytes // (switch.streams * packet_bytes * together)
    return max(1, min(switch.window_slots, fitting))


def _text(document: dict[str, Any], key: str, file: str) -> str:
    if key not in document:
        raise ScenarioError(f"{file}: {key}: missing; every scenario has a name and a title")
    value = document[key]
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ScenarioError(f"{file}: {key}: {shortened(value)} is not allowed; allowed: {WORDS['text']}")
    return value


def _build_table(values: Any, table: str, kind: Any, file: str) -> Any:
    if not isinstance(values, dict):
        raise ScenarioError(f"{file}: '{table}' must be a table: [{table}]")
    return build_fields(values, kind, f"{file}: [{table}] ")


def _build_sweep(values: Any, file: str, ended: Collection[str]) -> SweepAxes:
    if not isinstance(values, dict):
        raise ScenarioError(f"{file}: 'sweep' must be a table: [sweep]")
    keys = [f"{name}.{entry.name}" for name, kind in TABLES.items() for entry in keys_of(kind)]
    try:
        return parse_sweep(values, [SEED, *(key for key in keys if not key.startswith("methods."))], ended)
    except ValueError as error:
        raise ScenarioError(f"{file}: [sweep] {error}") from None


def _check_together(scenario: Scenario) -> None:
    """Rules over two keys at once."""
    workload, switch, topology = scenario.workload, scenario.switch, scenario.topology
    if workload.warmup_iterations >= workload.iterations:
        raise ScenarioError(
            f"{scenario.file}: [workload] warmup_iterations: {workload.warmup_iterations} is out of range; "
            f"allowed: below iterations ({workload.iterations})"
        )
    if not scenario.methods.mininet and not scenario.methods.sim:
        raise ScenarioError(f"{scenario.file}: [methods] both lists are empty; allowed: at least one method")
    most = elements_most(topology.mtu_bytes)
    if switch.elements > most:
        raise ScenarioError(
            f"{scenario.file}: [switch] elements: {switch.elements} does not fit [topology] mtu_bytes = "
            f"{topology.mtu_bytes}; allowed: 32 … {most}"
        )
    if topology.priority_queues not in (0, CLASSES):
        raise ScenarioError(
            f"{scenario.file}: [topology] priority_queues: {topology.priority_queues} is not possible; allowed: 0 "
            f"(everything in order) or {CLASSES} (one for each priority class)"
        )
    if switch.authenticate == "on":
        raise ScenarioError(f"{scenario.file}: [switch] authenticate: a scenario's switch has no keys; leave it out")
    if wrong := scenario_checks.fault(scenario):
        raise ScenarioError(f"{scenario.file}: {wrong}")
    if switch.streams * switch.window_slots > 65_536:
        raise ScenarioError(
            f"{scenario.file}: [switch] window_slots: {switch.window_slots} for each of {switch.streams} streams is "
            "out of range; allowed: at most 65536 slots in all (slot numbers have 16 bits)"
        )


def _shortened_text(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:100]}…"
