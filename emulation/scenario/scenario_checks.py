"""Rules over keys of several tables of a scenario: the fault in words, behind the file's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from emulation.scenario.scenario_flows import flows_fault, own_hosts
from emulation.scenario.scenario_tables import (
    BEST,
    KERNEL,
    MAX_MIN,
    PACKET_KEYS,
    RDMA_CONTROLS,
    SGD,
    ComputeDistribution,
    JobOptions,
    ParameterServer,
    TopologyOptions,
)
from emulation.scenario.topologies.topology import HASH, SPRAY, STAR
from emulation.scenario.topologies.topology_kinds import TOPOLOGIES, trees
from emulation.scenario.workload_kinds import DDP, WORKLOADS
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.job import MAX_CHILDREN, MAX_PARTIAL
from switchagg.option_syntax import choices
from transport.contracts.timeouts import LEASE_LEAST_S
from transport.group.method_name import METHODS
from transport.links.ethernet import ETHERNET_BYTES
from transport.links.link_kinds import LINKS, links_with
from transport.ps.coded import PushCodec
from transport.ps.config import BACKUP, BSP, SSP

if TYPE_CHECKING:
    from emulation.scenario.scenario import Scenario

MININET_HOSTS_MOST = 64
LEASE_LEAST_NS = round(LEASE_LEAST_S * 1e9)
OF_PROFILES = {"parallel": DDP, "degree": 0, "stages": 1, "device_flops": 0}
"""Keys of [workload] for a profile alone, and what they are without one."""
OF_SUMS = {key: getattr(JobOptions("", 1), key) for key in ("method", "size_bytes", "in_flight", "compute_ns")}
"""Keys of [[jobs]] that a profile has no use for, and what they are by default."""
FLOW_BPS_LEAST = 1_000_000  # as of links
PAUSE_KEYS = ("pfc_xon_bytes", "pfc_headroom_bytes", "pfc_flows", "ecn_most_bytes")
UNUSUAL_QUEUES = ("drop_bytes", "pfc_bytes", *PAUSE_KEYS)
"""Keys of [topology] that results have only where they aren't 0."""
DROPPING = ("mlt", "dgt")
"""Methods whose packets say whether a queue may drop them first."""


def fault(scenario: Scenario) -> str:
    """The first one; "" if there is none."""
    checks = (
        _queues,
        _spines,
        _shapes,
        _shared_nics,
        _costs,
        _flows,
        _jobs,
        _hosts,
        _profile,
        _samples,
        _parallel,
        _synchronisation,
        _partial_sums,
        _servers,
        _codecs,
        _secret_sums,
        _compute,
        _failover,
    )
    return next(filter(None, (check(scenario) for check in checks)), "")


def _queues(scenario: Scenario) -> str:
    """Rules for queue features that Linux lacks."""
    topology, methods = scenario.topology, scenario.methods
    if topology.congestion_control in RDMA_CONTROLS and methods.mininet:
        where = f"[topology] congestion_control: {topology.congestion_control}"
        return f"{where}: RoCE is in virtual time alone; allowed: [methods] mininet = [], and --on sim"
    if topology.pfc_bytes or any(getattr(topology, key) for key in PAUSE_KEYS):
        return _pauses(scenario)
    if not topology.drop_bytes:
        return ""
    where = "[topology] drop_bytes"
    if methods.mininet:
        return f"{where}: no queue in Mininet knows what may go first; allowed: [methods] mininet = [], and --on sim"
    if topology.drop_bytes >= topology.queue_bytes:
        return f"{where}: {topology.drop_bytes} is out of range; allowed: below queue_bytes ({topology.queue_bytes})"
    if not any(method.method in DROPPING for method in methods.sim):
        return f"{where}: none of the methods says what may go first; allowed: 0, or one of {', '.join(DROPPING)}"
    return ""


def _pauses(scenario: Scenario) -> str:
    """Rules for links that can be paused."""
    topology, faults = scenario.topology, scenario.faults
    where = f"[topology] pfc_bytes: {topology.pfc_bytes}"
    if not topology.pfc_bytes:
        key = next(key for key in PAUSE_KEYS if getattr(topology, key))
        return (
            f"[topology] {key}: {getattr(topology, key)} is of links that can be paused; allowed: 0, or with pfc_bytes"
        )
    if scenario.methods.mininet:
        return f"{where}: Linux's shapers send no pauses; allowed: [methods] mininet = [], and --on sim"
    if topology.pfc_bytes < 2 * frame_bytes_of(topology):
        return f"{where} holds less than two frames; allowed: {2 * frame_bytes_of(topology)} or more"
    if topology.pfc_xon_bytes > topology.pfc_bytes:
        return f"[topology] pfc_xon_bytes: {topology.pfc_xon_bytes} is out of range; allowed: 0 … pfc_bytes"
    if topology.ecn_most_bytes and not 0 < topology.ecn_bytes < topology.ecn_most_bytes:
        return (
            f"[topology] ecn_most_bytes: {topology.ecn_most_bytes} is out of range; allowed: 0, or above an ecn_bytes"
        )
    if topology.priority_queues:
        return f"{where}: a link has one lossless class; allowed: priority_queues = 0"
    if topology.drop_bytes:
        return f"{where}: nothing is dropped there; allowed: drop_bytes = 0"
    if faults.tail or faults.duplicate or faults.reorder:
        return f"{where}: headroom is for links that deliver once, after delay_ns; allowed: [faults] loss, corrupt"
    return ""


def frame_bytes_of(topology: TopologyOptions) -> int:
    """The largest on a link."""
    return topology.mtu_bytes + ETHERNET_BYTES


def _spines(scenario: Scenario) -> str:
    """Several of them, and trees over them."""
    spines, switch = scenario.topology.spines, scenario.switch
    if spines > 1 and scenario.methods.mininet:
        return (
            f"[topology] spines: {spines}: bridges in Mininet spread nothing over several; allowed: 1, or [methods] "
            "mininet = [] and --on sim"
        )
    if spines > 1 and scenario.topology.pfc_bytes:
        return f"[topology] spines: {spines}: links that can be paused lead over one; allowed: 1, or pfc_bytes = 0"
    rdma = scenario.topology.congestion_control in RDMA_CONTROLS or any(flow.rdma for flow in scenario.flows)
    if spines > 1 and rdma and scenario.topology.paths == SPRAY:
        return f"[topology] paths: {SPRAY}: RoCE takes what is overtaken for lost; allowed: {HASH}"
    if switch.trees > (most := min(spines, switch.streams)):
        what = f"spines = {spines}" if most == spines else f"streams = {most}, one at least for each"
        return f"[switch] trees: {switch.trees} are too many for {what}; allowed: 0 … {most}"
    return ""


def _shapes(scenario: Scenario) -> str:
    """Hosts that forward, and links of rates of their own."""
    topology, kind = scenario.topology, TOPOLOGIES[scenario.topology.kind]
    alone = "allowed: [methods] mininet = [], and --on sim"
    if topology.link_bps and scenario.methods.mininet:
        return f"[topology] link_bps: in Mininet links have one rate, and what follows from it; {alone}"
    if not kind.forwards:
        return ""
    where = f"[topology] kind: {kind.name}"
    if scenario.methods.mininet:
        return f"{where}: bridges in Mininet need links without a circle; {alone}"
    if topology.pfc_bytes:
        return f"{where}: pauses stop circles of links for good; allowed: pfc_bytes = 0"
    if more := own_hosts(scenario.flows) + hosts_of(scenario.jobs):
        return f"{where}: it has no place for {more} more hosts, of [[jobs]] or [[flows]]; allowed: those of ranks"
    for name in [method.method for method in scenario.methods.sim] + [job.method for job in scenario.jobs]:
        if name in METHODS and METHODS[name].packets:
            return (
                f"[methods] {name}: hosts of a {kind.name} forward, and no switch is above all; allowed: host methods"
            )
    return ""


def _shared_nics(scenario: Scenario) -> str:
    """Several ranks on each host."""
    topology = scenario.topology
    where = f"[topology] ranks_per_host: {topology.ranks_per_host}"
    if topology.ranks_per_host == 1:
        return ""
    if scenario.methods.mininet:
        return (
            f"{where}: in Mininet each rank has a host of its own; allowed: 1, or [methods] mininet = [] and --on sim"
        )
    if topology.pfc_bytes:
        return f"{where}: what joins ranks inside a host can't be paused; allowed: 1, or pfc_bytes = 0"
    for name in [method.method for method in scenario.methods.sim] + [job.method for job in scenario.jobs]:
        if name in METHODS and METHODS[name].trailer_bytes:
            return f"{where}: {name} sums in the switch that a worker is at, not in a host; allowed: other methods"
    return ""


def _costs(scenario: Scenario) -> str:
    """Rules for the cost of transfers on hosts."""
    key = next((name for name, value in vars(scenario.hosts).items() if value), "")
    if not key:
        return ""
    where = f"[hosts] {key}"
    if scenario.methods.mininet:
        return f"{where}: hosts of Mininet take what they take; allowed: 0, or [methods] mininet = [] and --on sim"
    packets = next((name for name in PACKET_KEYS if getattr(scenario.hosts, name)), "")
    if packets and scenario.topology.pfc_bytes:
        return f"[hosts] {packets}: links that can be paused lead to hosts at once; allowed: 0, or pfc_bytes = 0"
    used = [method.method for method in scenario.methods.sim] + [job.method for job in scenario.jobs]
    for name in used if key not in PACKET_KEYS else ():
        if name in METHODS and (METHODS[name].trailer_bytes or METHODS[name].loses):
            return f"{where}: not with {name}, whose packets are no transfers; allowed: the other methods"
    calls = next((key for key in ("calls_at_once", "call_ns") if getattr(scenario.hosts, key)), "")
    if calls and any(map(scenario.asynchronous, scenario.methods.sim)):
        return (
            f"[hosts] {calls}: with [ps] mode = '{scenario.ps.mode}' gradients are no collectives; allowed: 0, "
            f"or mode = '{BSP}'"
        )
    if scenario.hosts.flow_bps and (scenario.flows or scenario.topology.congestion_control not in (BEST, KERNEL)):
        return (
            "[hosts] flow_bps: TCP and RoCE have a rate of their own; allowed: 0, or no [[flows]] and [topology] "
            f"congestion_control = '{BEST}'"
        )
    if 0 < scenario.hosts.flow_bps < FLOW_BPS_LEAST:
        return f"[hosts] flow_bps: {scenario.hosts.flow_bps} is out of range; allowed: 0, or {FLOW_BPS_LEAST} and more"
    return ""


def _flows(scenario: Scenario) -> str:
    return flows_fault(scenario.flows, scenario.topology.workers, bool(scenario.methods.mininet))


def _hosts(scenario: Scenario) -> str:
    """How many there may be."""
    workers, methods = scenario.topology.workers, scenario.methods
    hosts = workers + scenario.ps.servers + own_hosts(scenario.flows) + hosts_of(scenario.jobs)
    if methods.mininet and hosts > MININET_HOSTS_MOST:
        return (
            f"[topology] workers: {hosts} hosts in all, with servers and those of [[jobs]] and [[flows]], are too many "
            f"for Mininet; allowed: {MININET_HOSTS_MOST}, or [methods] mininet = [] and --on sim"
        )
    for method in methods.sim:
        if METHODS[method.method].trailer_bytes and workers > MAX_CHILDREN:
            return f"[methods] sim: {method}: its packets name {MAX_CHILDREN} ranks; allowed: so many workers at most"
        if not method.is_switch:
            continue
        links = scenario.links(method.method)
        for name, below in links.children.items():
            if len(below) > (most := MAX_CHILDREN - (name != links.root)):
                return (
                    f"[topology] workers: {len(below)} workers or switches send to one switch of method {method}; "
                    f"allowed: {most}, in more racks or a fat_tree"
                )
    return ""


def _partial_sums(scenario: Scenario) -> str:
    """Rules for sums at the switch that may lack some ranks."""
    switch, topology = scenario.switch, scenario.topology
    if not switch.partial:
        return ""
    where = f"[switch] {'backups' if switch.backups else 'close_after_ns'}"
    if not 2 <= topology.workers <= MAX_PARTIAL or switch.backups >= topology.workers:
        return f"{where}: of {topology.workers} workers; allowed: fewer than there are, of 2 … {MAX_PARTIAL}"
    if topology.fabric.kind != STAR.kind:
        return f"{where}: a tree of switches has no partial sums yet; allowed: [topology] kind = '{STAR.kind}'"
    if scenario.workload.synchronisation or WORKLOADS[scenario.workload.name].parallel != DDP:
        return f"{where}: only sums of gradients may lack some ranks; allowed: DDP, in every step"
    kind = DATAPLANES.get(switch.dataplane)
    if kind is not None and not kind.partial:
        able = ", ".join(kind.name for kind in DATAPLANES.values() if kind.partial)
        return f"{where}: not with dataplane = '{switch.dataplane}'; allowed: auto, {able}"
    for backend, methods in vars(scenario.methods).items():
        if other := next((method for method in methods if METHODS[method.method].trailer_bytes), None):
            return f"[methods] {backend}: {other}: {where} is of method switch; allowed: without {other}"
        for method in (method for method in methods if method.is_switch):
            if method.schedule:
                return f"[methods] {backend}: {method}: schedules have no partial sums; allowed: without one"
            if method.spec and (method.spec.row_codec is None or method.spec.feedback == "ef21"):
                return f"[methods] {backend}: {method}: its sums need all ranks; allowed: codecs of rows, without +ef21"
            if not LINKS[method.link].header_only:
                able = ", ".join(name for name in links_with("switch") if LINKS[name].header_only)
                return f"[methods] {backend}: {method}: {where}: its packets are all of one size; allowed: {able}"
    return ""


def _jobs(scenario: Scenario) -> str:
    """Rules for other jobs."""
    jobs, workers = scenario.jobs, scenario.topology.workers
    if jobs and scenario.methods.mininet:
        return "[[jobs]]: other jobs are in virtual time alone; allowed: [methods] mininet = [], and --on sim"
    if jobs and scenario.switch.partial:
        return (
            "[[jobs]]: slots are divided anew when calls are complete, partial sums never are; allowed: one of the two"
        )
    names = [job.name for job in jobs]
    for job in jobs:
        if names.count(job.name) > 1:
            return f"[[jobs]] name: '{job.name}' is there twice; allowed: each once"
        if absent := [rank for rank in job.on if rank >= workers]:
            return f"[[jobs]] on: {absent[0]} is out of range; allowed: 0 … {workers - 1}"
        if job.stop_ns and job.stop_ns <= job.start_ns:
            return f"[[jobs]] stop_ns: {job.stop_ns} is not after start_ns = {job.start_ns}; allowed: later, or 0"
        if job.profile and (key := next((key for key in OF_SUMS if getattr(job, key) != OF_SUMS[key]), "")):
            return f"[[jobs]] {key}: {getattr(job, key)} is of sums; allowed: without it, or without profile"
        if job.stop_ns and job.sums:
            return f"[[jobs]] sums: {job.sums} beside stop_ns = {job.stop_ns}; allowed: one of the two"
    if 0 < scenario.switch.slots < (len(jobs) + 1) * scenario.switch.streams and scenario.switch.shares == MAX_MIN:
        least = (len(jobs) + 1) * scenario.switch.streams
        return f"[switch] slots: {scenario.switch.slots} are too few; allowed: {least} or more, one for each stream"
    return ""


def _profile(scenario: Scenario) -> str:
    """Rules for a model as numbers."""
    workload = scenario.workload
    if not workload.profile:
        key = next((key for key in OF_PROFILES if getattr(workload, key) != OF_PROFILES[key]), None)
        return f"[workload] {key}: it needs a profile; allowed: {OF_PROFILES[key]} without one" if key else ""
    if scenario.methods.mininet:
        return "[workload] profile: a model as numbers trains nothing; allowed: [methods] mininet = [], and --on sim"
    if unsuited := next((str(name) for name in scenario.methods.sim if scenario.asynchronous(name)), None):
        return f"[methods] sim: {unsuited}: with [workload] profile no server has weights; allowed: [ps] mode = '{BSP}'"
    return ""


def graph_fault(scenario: Scenario) -> str:
    """Rules for a workload graph, whose collectives are more than sums of gradients."""
    for method in scenario.methods.sim:
        unsuited = method.method == "ps" or METHODS[method.method].loses or METHODS[method.method].trailer_bytes
        if method.schedule or method.codec or unsuited:
            what = "a schedule" if method.schedule else "a codec" if method.codec else "this method"
            return (
                f"[methods] sim: {method}: a workload graph is more than sums of gradients, not for {what}; "
                "allowed: switch, gloo and host methods of collectives, as they are"
            )
    if scenario.jobs or scenario.switch.partial:
        key = "[[jobs]]" if scenario.jobs else "[switch] backups, close_after_ns"
        return f"{key}: not beside a workload graph, whose groups have all slots, and sums all ranks; allowed: without"
    return ""


def _samples(scenario: Scenario) -> str:
    """Workers learn from different samples."""
    workers, batch = scenario.topology.workers, scenario.workload.batch_per_worker
    kind = WORKLOADS[scenario.workload.name]
    if kind.samples is None or scenario.workload.profile or workers * batch <= kind.samples:
        return ""
    most = f"1 … {kind.samples // workers}" if workers <= kind.samples else f"{kind.samples} workers"
    return (
        f"[workload] batch_per_worker: {batch} on each of {workers} workers is out of range; allowed: {most} "
        f"({kind.samples} {kind.unit} to learn from)"
    )


def hosts_of(jobs: Sequence[JobOptions]) -> int:
    """How many hosts jobs have for themselves."""
    return sum(job.workers for job in jobs if not job.on)


def _parallel(scenario: Scenario) -> str:
    """Rules for a model that no rank holds entirely."""
    kind = WORKLOADS[scenario.workload.name]
    if kind.workers and scenario.topology.workers not in kind.workers:
        return (
            f"[topology] workers: {scenario.topology.workers} can't share [workload] name = '{kind.name}'; allowed: "
            f"{', '.join(map(str, kind.workers))}"
        )
    if kind.parallel == DDP:
        return ""
    for backend, methods in vars(scenario.methods).items():
        for method in methods:
            if method.schedule or method.codec or method.method == "ps" or METHODS[method.method].loses:
                what = "schedule" if method.schedule else "codec" if method.codec else ""
                allowed = f"a method without a {what}" if what else "any other method"
                return (
                    f"[methods] {backend}: {method}: not with [workload] name = '{kind.name}', whose collectives are "
                    f"more than sums of gradients; allowed: {allowed}"
                )
    return ""


def _synchronisation(scenario: Scenario) -> str:
    """Rules for a training method: DDP over a process group."""
    if not scenario.workload.synchronisation:
        return ""
    where = f"[workload] synchronisation: {scenario.workload.synchronisation}: not with"
    kind = WORKLOADS[scenario.workload.name]
    if kind.parallel != DDP:
        return f"{where} [workload] name = '{kind.name}', whose ranks share a model; allowed: each its own"
    for method in scenario.methods.mininet:
        hooked = method.is_hook  # the hook is DDP's, so it sees gradients alone
        if method.schedule or hooked or (method.method == "ps" and scenario.ps != ParameterServer()):
            allowed = "methods without a schedule, gloo without a codec, [ps] as it is by default"
            return f"{where} [methods] mininet: {method}; allowed: {allowed}"
    return ""


def _servers(scenario: Scenario) -> str:
    """Rules for keys that belong to a single mode of `ps`."""
    ps, workers = scenario.ps, scenario.topology.workers
    if ps.staleness and ps.mode != SSP:
        return f"[ps] staleness: {ps.staleness} is not possible with mode = '{ps.mode}'; allowed: 0, or mode = '{SSP}'"
    if ps.push_then_pull and ps.mode != BSP:
        return f"[ps] push_then_pull: 1 is not possible with mode = '{ps.mode}'; allowed: 0, or mode = '{BSP}'"
    if ps.mode != BACKUP and ps.backups:
        return f"[ps] backups: {ps.backups} is not possible with mode = '{ps.mode}'; allowed: 0, or mode = '{BACKUP}'"
    if ps.mode == BACKUP and not 1 <= ps.backups < workers:
        return (
            f"[ps] backups: {ps.backups} of {workers} workers is out of range; allowed: 1 … {workers - 1} with mode = "
            f"'{BACKUP}'"
        )
    scheduled = [method for method in scenario.methods.mininet if method.method == "ps" and method.schedule]
    if ps.mode == BACKUP and scheduled:
        return (
            f"[methods] mininet: {scheduled[0]}: in real time schedules divide by all workers, not by those that a sum "
            f"of [ps] mode = '{BACKUP}' holds; allowed: ps, or mode = '{BSP}'"
        )
    used = [name for names in vars(scenario.methods).values() for name in names if scenario.asynchronous(name)]
    if unsuited := next((str(name) for name in used if name.schedule), None):
        return (
            f"[methods] {unsuited}: with [ps] mode = '{ps.mode}' there are no sums to schedule; allowed: "
            f"{unsuited.partition('+')[0]}, whose urgent layers go first anyway, or mode = '{BSP}'"
        )
    if used and scenario.workload.optimizer != SGD:
        return (
            f"[workload] optimizer: '{scenario.workload.optimizer}' is not possible with [ps] mode = '{ps.mode}', "
            f"whose servers make the steps; allowed: '{SGD}', then of all methods"
        )
    return ""


def _codecs(scenario: Scenario) -> str:
    """Whether so many workers, and the servers' mode, can have the codec of each method."""
    for backend, methods in vars(scenario.methods).items():
        for method in methods:
            where = f"[methods] {backend}: {method}"
            try:
                if method.codec and scenario.asynchronous(method):
                    PushCodec(method.codec)
                elif method.spec:
                    method.spec.for_workers(scenario.topology.workers)
            except ValueError as error:
                return f"{where}: {error}"
            if method.codec and method.method == "ps" and scenario.ps.mode == BACKUP:
                return f"{where}: coded sums need all workers, not [ps] mode = '{BACKUP}'; allowed: the other modes"
    return ""


def _secret_sums(scenario: Scenario) -> str:
    """Why the sums of a method whose name says `+secret`, or of the switch by [switch] secret, can't be (X1)."""
    terms = scenario.switch.resolved(scenario.switch.elements, scenario.topology.workers)
    for backend, methods in vars(scenario.methods).items():
        for method in methods:
            fault = replace(terms, **method.terms).secret_fault if method.is_switch else ""
            if fault:
                return f"[methods] {backend}: {method}: {fault}"
    return ""


def paced_fault(scenario: Scenario) -> str:
    """Why real ranks can't compute at the pace of virtual ones; "" if they can, or needn't."""
    key, workload = scenario.unequal_compute or "[workload] paced" * scenario.paced, scenario.workload
    if not key:
        return ""
    unpaced = "" if scenario.unequal_compute else ", or [workload] paced = 0"
    if WORKLOADS[workload.name].parallel != DDP:
        return f"{key}: in real time only DDP's ranks compute at a given pace, not those of '{workload.name}'{unpaced}"
    if scheduled := [method for method in scenario.methods.mininet if method.schedule]:
        scheduled_text = f"with a schedule ({scheduled[0]}) real ranks compute as fast as their machine lets them"
        return f"{key}: {scheduled_text}{unpaced}"
    if workload.compute_ns is None and workload.compute_jitter:
        return f"{key}: no real rank is faster than it is; allowed: with [workload] compute_ns"
    if workload.compute_ns is None and any(slow.factor < 1 for slow in scenario.faults.stragglers):
        return f"{key}: factor: no real rank is faster than it is; with [workload] compute_ns it could be, or from 1 on"
    return ""


def _compute(scenario: Scenario) -> str:
    """Ranks that compute for different times, and links with a tail."""
    workers, compute_ns, faults = scenario.topology.workers, scenario.workload.compute_ns, scenario.faults
    if scenario.workload.paced and compute_ns is None:
        return "[workload] paced: 1 needs to know the pace; allowed: 0, or with compute_ns"
    if isinstance(compute_ns, tuple) and len(compute_ns) != workers:
        return f"[workload] compute_ns: {len(compute_ns)} numbers for {workers} workers; allowed: one for each"
    drawn = compute_ns if isinstance(compute_ns, ComputeDistribution) else None
    jitter = scenario.workload.compute_jitter
    if jitter and drawn:
        return "[workload] compute_jitter: compute_ns is drawn already; allowed: one of the two"
    if jitter and jitter.distribution == "shifted_exponential" and jitter.deviation > 1:
        return f"[workload] compute_jitter: deviation: {jitter.deviation:g} is out of range; allowed there: 0 … 1"
    if drawn and drawn.distribution == "shifted_exponential" and drawn.deviation_ns > drawn.mean_ns:
        return (
            f"[workload] compute_ns: deviation_ns: {drawn.deviation_ns} is out of range; allowed with a shifted "
            f"exponential: 0 … mean_ns ({drawn.mean_ns})"
        )
    if faults.tail and faults.tail.rank >= workers:
        return f"[faults] tail: rank: {faults.tail.rank} is out of range; allowed: -1 … {workers - 1}"
    if faults.tail and scenario.methods.mininet:
        return "[faults] tail: there is none in Mininet; allowed: [methods] mininet = [], and --on sim"
    if absent := [straggler.rank for straggler in faults.stragglers if straggler.rank >= workers]:
        return f"[faults] stragglers: rank: {absent[0]} is out of range; allowed: 0 … {workers - 1}"
    return ""


def _failover(scenario: Scenario) -> str:
    """Switches that die, and what the job has against that."""
    switch, lost = scenario.switch, scenario.faults.lost_switches
    if not (lost or switch.fallback or switch.standby or switch.lease_ns):
        return ""
    where = f'[switch] fallback: "{switch.fallback}"' if switch.fallback else "[faults] lost_switches"
    if switch.standby and not switch.fallback:
        return f"[switch] standby: {switch.standby}: to go from one switch to the next a job needs a fallback, as ring"
    if 0 < switch.lease_ns < LEASE_LEAST_NS:
        return f"[switch] lease_ns: {switch.lease_ns} is out of range; allowed: 0, or {LEASE_LEAST_NS} or more"
    if scenario.methods.mininet:
        return f"{where}: it is in virtual time alone; allowed: [methods] mininet = [], and --on sim"
    if not any(method.is_switch for method in scenario.methods.sim):
        return f"{where}: none of the methods has a switch to lose; allowed: [methods] sim with switch"
    obstacles = {
        "[[jobs]]": bool(scenario.jobs),
        "[switch] backups, close_after_ns": switch.partial,
        "[topology] spines": scenario.topology.spines > 1,
        "[topology] pfc_bytes": scenario.topology.pfc_bytes > 0,
        f"[topology] workers above {MAX_CHILDREN}": scenario.topology.workers > MAX_CHILDREN,
    }
    if other := next((name for name, there in obstacles.items() if there), ""):
        return f"{where}: not beside {other}; leave out one of the two"
    summing = trees(scenario.links("switch"), scenario.topology.placement, 1)[0].aggregators
    if absent := [entry.switch for entry in lost if entry.switch and entry.switch not in summing]:
        return f"[faults] lost_switches: switch: {absent[0]} sums nothing{choices(absent[0], summing)}"
    if early := [entry for entry in lost if 0 < entry.back_ns <= entry.at_ns]:
        return f"[faults] lost_switches: back_ns: {early[0].back_ns} is not after at_ns = {early[0].at_ns}"
    return ""
