"""A link's settings: the request, the `tc` lines that set it, and the read-back that refuses what wasn't set.

Mininet logs "unknown qdisc" and runs on; we ask the kernel afterwards and raise `UnfitError`. Standard library only.

Each end of a link shapes what it sends: HTB (rate, in whole Ethernet frames without FCS; a GSO bundle counts as its
segments) over a bfifo (limit in bytes, counted the same way). Delay and faults need netem, as HTB's child.

With priority queues HTB has a class and a bfifo for each priority class (W10): `prio` orders those that borrow from the
link's rate, and of their own they have next to nothing, so that borrowing is all that counts. A u32 filter reads the
DSCP, so that every packet gets its class, from any sender and by any path: our own, TCP's, bridged ones.

Links that are not shaped keep a plain FIFO as root, which counts bytes and packets as HTB does and limits nothing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emulation.scenario.scenario_flows import own_hosts
from emulation.scenario.topologies.topology import STAR, Fabric, LinkSettings, Topology
from emulation.scenario.topologies.topology_kinds import topology
from emulation.testbed import netns, patience, qdisc
from emulation.testbed.mininet import marks
from switchagg.errors import SwitchaggError
from switchagg.priority import BEST_EFFORT, CLASSES, tos_of
from transport.links.ethernet import ETHERNET_BYTES

if TYPE_CHECKING:
    from emulation.scenario.scenario import Scenario

BUNDLE_BYTES = 65_536  # the largest GSO bundle TCP or UDP sends on a fast link: gso_max_size of a veth
QUEUE_LEAST_BYTES = 2 * BUNDLE_BYTES  # below, a bfifo drops every large bundle however idle the link is
UNSHAPED_QUEUE = "pfifo limit 10000"
BURST_NS = 500_000  # how late HTB's timer may be before rate is lost; also the credit an idle link gathers
SEGMENTS_USUAL, SEGMENTS_MOST = 16, 64  # packets of a send; kernels before 6.9 refuse more
RATE_LEAST_BPS, RATE_MOST_BPS = 1_000_000, 100_000_000_000  # below: a frame takes 12 ms; above: no path is that fast
WORKERS_MOST = 64
HTB_QDISC, HTB_CLASS = 0x5_0000, 0x5_0001  # 5: and 5:1
HTB_LEAF = 0x5_0010  # 5:10 … 5:17, one for each priority class
LEAF_SHARE = 1_000  # of the rate is a class's own, whatever the more urgent ones want: HTB knows no class without any
PRECEDENCE_MASK = 0xE0 << 16  # the TOS byte's upper three bits, in the first 32 of an IPv4 header
OFFLOADS = (
    "tcp-segmentation-offload",
    "generic-segmentation-offload",
    "generic-receive-offload",
    "tx-udp-segmentation",
    "tx-checksumming",
    "rx-checksumming",
    "scatter-gather",
)


class UnfitError(SwitchaggError):
    """This machine can't honour the scenario in Mininet: what was asked, what is missing, which backend can."""


@dataclass(frozen=True)
class NetworkSpec:
    """Hosts and switches, and both directions of a host's link, from which the topology derives others. Probabilities
    are per packet, 0 … 1."""

    workers: int
    rate_bps: int = 200_000_000  # 0: not shaped
    queue_bytes: int = 1_000_000
    delay_ns: int = 0  # one way
    ecn_bytes: int = 0  # packets behind more are marked CE; 0: none
    mtu_bytes: int = 1500
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    priority_queues: int = 0  # per port: 8, one for each priority class; 0: everything in order
    congestion_control: str | None = None  # TCP, in every namespace; None: the kernel's default, reported either way
    servers: int = 0  # parameter servers with hosts and links of their own
    flow_hosts: int = 0  # hosts of flows beside the job
    fabric: Fabric = STAR

    @classmethod
    def from_scenario(cls, scenario: Scenario) -> NetworkSpec:
        """The network a scenario asks for."""
        topology, faults = scenario.topology, scenario.faults
        return cls(
            workers=topology.workers,
            fabric=topology.fabric,
            flow_hosts=own_hosts(scenario.flows),
            rate_bps=topology.rate_bps,
            queue_bytes=topology.queue_bytes,
            ecn_bytes=topology.ecn_bytes,
            delay_ns=topology.delay_ns,
            mtu_bytes=topology.mtu_bytes,
            priority_queues=topology.priority_queues,
            loss=faults.loss,
            duplicate=faults.duplicate,
            reorder=faults.reorder,
            corrupt=faults.corrupt,
        )

    @property
    def links(self) -> Topology:
        """All nodes and links."""
        settings = LinkSettings(self.rate_bps, self.delay_ns, self.queue_bytes)
        return topology(self.fabric, self.workers, self.servers + self.flow_hosts, settings)

    def of(self, settings: LinkSettings) -> NetworkSpec:
        """The same, as one link has it."""
        return dataclasses.replace(
            self, rate_bps=settings.rate_bps, delay_ns=settings.delay_ns, queue_bytes=settings.queue_bytes
        )

    def port(self, node: str, neighbour: str) -> NetworkSpec:
        """The same, as the link between two nodes has it."""
        return self.of(self.links.settings((node, neighbour)))

    @property
    def burst_bytes(self) -> int:
        """HTB's burst: what may leave at once after a pause. At least two frames."""
        return max(2 * (self.mtu_bytes + ETHERNET_BYTES), self.rate_bps * BURST_NS // 8_000_000_000)

    @property
    def segments_max(self) -> int:
        """Packets that the switch and its workers hand over in one send: as many as the burst and 64 kB hold, at least
        the usual 16. With priority queues no more, since an urgent packet waits for the send that has begun."""
        most = max(1, min(SEGMENTS_MOST, BUNDLE_BYTES // self.mtu_bytes))
        burst = self.burst_bytes // (self.mtu_bytes + ETHERNET_BYTES) if self.rate_bps else most
        return min(SEGMENTS_USUAL if self.priority_queues else max(SEGMENTS_USUAL, burst), most)

    @property
    def gso_max_bytes(self) -> int:
        """The largest bundle that TCP makes: the burst, and no less than what our own sends hand over.

        A port forwards a bundle once all of it has come. With the kernel's 64 kB, 5 ms at 100 Mb/s, rings over TCP took
        5 to 10 % longer than packets do. Set at hosts: a switch's port would take larger ones apart behind HTB.
        """
        return min(BUNDLE_BYTES, max(self.burst_bytes, self.segments_max * self.mtu_bytes))

    @property
    def netem_wishes(self) -> dict[str, float]:
        """The keys of the scenario that only netem can honour, with their values, if not zero."""
        wishes = {
            "[topology] delay_ns": self.delay_ns,
            "[faults] loss": self.loss,
            "[faults] duplicate": self.duplicate,
            "[faults] reorder": self.reorder,
            "[faults] corrupt": self.corrupt,
        }
        return {key: value for key, value in wishes.items() if value}

    @property
    def per_packet_faults(self) -> bool:
        """Whether packets must travel one by one: netem would lose or spoil whole bundles, so no sender may send
        any."""
        return any((self.loss, self.duplicate, self.reorder, self.corrupt))


@dataclass(frozen=True)
class PortReport:
    """An end of a link, as read from the kernel: 0 stands for what isn't shaped. netem: its options as `tc -j` has
    them."""

    node: str
    interface: str
    ifindex: int
    address: str
    rate_bps: int
    ceil_bps: int
    burst_bytes: int
    queue_bytes: int
    mtu_bytes: int
    gso_max_bytes: int
    gso_max_segments: int
    offloads: dict[str, bool]
    netem: dict[str, Any] | None
    priority_queues: int = 0  # as many as are what they should be


def refuse_impossible(spec: NetworkSpec) -> None:
    """Raises UnfitError for a setting that this machine can't do, before anything is built."""
    for settings in dict.fromkeys(settings for _, settings in spec.links.hops):
        _refuse_link(spec.of(settings))


def _refuse_link(spec: NetworkSpec) -> None:
    limits = {
        "[topology] workers": (spec.workers, 1, WORKERS_MOST, "workers"),
        "[topology] rate_bps": (spec.rate_bps or RATE_MOST_BPS, RATE_LEAST_BPS, RATE_MOST_BPS, "bits/s with HTB"),
        "[topology] queue_bytes": (
            spec.queue_bytes,
            QUEUE_LEAST_BYTES,
            2**32 - 1,
            f"bytes: one GSO bundle has up to {BUNDLE_BYTES}, and a shorter queue would drop it whole",
        ),
        "[topology] mtu_bytes": (spec.mtu_bytes, 576, 65_535, "bytes"),
    }
    for key, (value, least, most, unit) in limits.items():
        if not least <= value <= most:
            raise UnfitError(
                f"{key} = {value}: Mininet links on this machine do {least} … {most} {unit}; run it with --on sim"
            )
    if spec.priority_queues:
        _refuse_priority_queues(spec)
    if spec.ecn_bytes and (reason := marking_missing()):
        raise UnfitError(f"[topology] ecn_bytes = {spec.ecn_bytes}: {reason}; run it with --on sim")
    if spec.netem_wishes and (reason := netem_missing()):
        wishes = ", ".join(f"{key} = {value:g}" for key, value in spec.netem_wishes.items())
        raise UnfitError(
            f"{wishes}: needs the netem qdisc, and this kernel has none ({reason}); the switch could do it to its own "
            "packets but not to a host method's, and both must meet the same; run it with --on sim, or on a kernel "
            "with CONFIG_NET_SCH_NETEM"
        )


def _refuse_priority_queues(spec: NetworkSpec) -> None:
    """Raises UnfitError where a port can't have them."""
    setting = f"[topology] priority_queues = {spec.priority_queues}"
    if spec.priority_queues != CLASSES:
        raise UnfitError(f"{setting}: Mininet links on this machine do 0 or {CLASSES}")
    if spec.netem_wishes:
        wishes = ", ".join(spec.netem_wishes)
        raise UnfitError(f"{setting} together with {wishes}: netem queues in order; run it with --on sim")
    if reason := u32_missing():
        raise UnfitError(
            f"{setting}: needs HTB and the u32 filter, and this kernel has not both ({reason}); run it with --on sim, "
            "or on a kernel with CONFIG_NET_SCH_HTB and CONFIG_NET_CLS_U32"
        )


def u32_missing() -> str | None:
    """Why HTB classes can't be chosen by DSCP, or None if they can: tried in a namespace that is thrown away."""
    added = "tc filter add dev lo parent 5: protocol ip prio 1 u32 match u8 0xe0 0xe0 at 1 flowid 5:1"
    return _refusal("sh", "-c", f"tc qdisc add dev lo root handle 5: htb && {added}")


def marking_missing() -> str | None:
    """Why links can't mark, with what it needs, or None if they can: tried in a namespace that is thrown away."""
    if not marks.OBJECT.exists():
        return f"{marks.OBJECT.name} was not built; install clang and libbpf-dev, then build again"
    path = marks.program(1_000_000, 0, 0, 1_000_000)
    reason = _refusal("sh", "-c", " && ".join(marks.lines("lo", path)))
    return reason and f"needs root and a kernel with clsact and BPF filters ({reason})"


def netem_missing() -> str | None:
    """Why netem can't be used, or None if it can: tried in a namespace that is thrown away."""
    return qdisc_missing("netem delay 1ms")


def qdisc_missing(arguments: str) -> str | None:
    """The error of `tc` for a root qdisc with these arguments; None if it accepts them."""
    return _refusal("tc", "qdisc", "add", "dev", "lo", "root", *arguments.split())


def _refusal(*command: str) -> str | None:
    """The error of a command in a namespace of its own; None if it succeeds."""
    flags = "-n" if netns.is_privileged() else "-Urn"
    done = patience.run(["unshare", flags, *command], 20)
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def shape_lines(spec: NetworkSpec, interface: str) -> list[str]:
    """Shell lines that shape what `interface` sends. The quantum, of use to sibling classes only, stops a warning."""
    if not spec.rate_bps:
        return [f"tc qdisc replace dev {interface} root {UNSHAPED_QUEUE}"]
    rate, burst, frame_bytes = f"{spec.rate_bps}bit", spec.burst_bytes, spec.mtu_bytes + ETHERNET_BYTES
    default = 1 if not spec.priority_queues else 10 + BEST_EFFORT
    marking = marks.program(spec.rate_bps, spec.ecn_bytes, burst, spec.queue_bytes) if spec.ecn_bytes else None
    lines = [
        *(marks.lines(interface, marking) if marking else ()),
        f"tc qdisc replace dev {interface} root handle 5: htb default {default}",
        f"tc class replace dev {interface} parent 5: classid 5:1 htb rate {rate} ceil {rate} "
        f"burst {burst} cburst {burst} quantum {frame_bytes}",
    ]
    if spec.priority_queues:
        return lines + [line for kind in range(CLASSES) for line in _leaf_lines(spec, interface, kind)]
    if not spec.netem_wishes:
        return [*lines, f"tc qdisc replace dev {interface} parent 5:1 handle a: bfifo limit {spec.queue_bytes}"]
    lines.append(f"tc qdisc replace dev {interface} parent 5:1 handle a: netem {netem_arguments(spec)}")
    if spec.per_packet_faults:
        lines.append(f"ethtool -K {interface} tso off gso off tx-udp-segmentation off")
    return lines


def host_lines(spec: NetworkSpec, interface: str) -> list[str]:
    """The same for a host, whose TCP makes the bundles."""
    bundles = [f"ip link set dev {interface} gso_max_size {spec.gso_max_bytes}"] if spec.rate_bps else []
    return [*shape_lines(spec, interface), *bundles]


def _leaf_lines(spec: NetworkSpec, interface: str, kind: int) -> list[str]:
    """Lines for one priority class: its HTB class, its queue, and the filter that brings its packets there.

    Best effort needs no filter: it is where everything goes that is no IPv4, too.
    """
    frame_bytes = spec.mtu_bytes + ETHERNET_BYTES
    lines = [
        f"tc class replace dev {interface} parent 5:1 classid 5:1{kind} htb rate {spec.rate_bps // LEAF_SHARE}bit "
        f"ceil {spec.rate_bps}bit burst {frame_bytes} cburst {spec.burst_bytes} prio {kind} quantum {frame_bytes}",
        f"tc qdisc replace dev {interface} parent 5:1{kind} handle a{kind}: bfifo limit {spec.queue_bytes}",
    ]
    if kind < BEST_EFFORT:
        match = f"u32 match u8 {tos_of(kind):#04x} 0xe0 at 1"
        lines.append(f"tc filter add dev {interface} parent 5: protocol ip prio 1 {match} flowid 5:1{kind}")
    return lines


def netem_arguments(spec: NetworkSpec) -> str:
    """Arguments of `tc qdisc … netem`. Its limit counts packets: the queue's, and those in flight during the delay."""
    in_flight_bytes = spec.rate_bps * spec.delay_ns // 8_000_000_000
    limit = -(-(spec.queue_bytes + in_flight_bytes) // (spec.mtu_bytes + ETHERNET_BYTES))
    words = [f"limit {limit}"]
    if spec.delay_ns:
        words.append(f"delay {spec.delay_ns}ns")
    for name in ("loss", "duplicate", "corrupt", "reorder"):
        share = getattr(spec, name)
        if share:
            words.append(f"{name} {share * 100:.6g}%")
    return " ".join(words)


def read_back(specs: Mapping[str, NetworkSpec], node: str, pid: int, reader: qdisc.QdiscReader) -> list[PortReport]:
    """A node's shaped interfaces, as read from the kernel. specs: by interface, what each was asked to be.

    Raises UnfitError where they differ.
    """
    features = "".join(f"ethtool -k {name}\n" for name in specs)
    links_line, qdiscs_line, *feature_lines = netns.run_script(
        pid, f"ip -d -j link show\ntc -j qdisc show\n{features}"
    ).splitlines()
    links = {link["ifname"]: link for link in json.loads(links_line)}
    netems = {entry["dev"]: entry["options"] for entry in json.loads(qdiscs_line) if entry["kind"] == "netem"}
    offloads = parse_offloads(feature_lines)
    reports = []
    for name, spec in specs.items():
        report = _port(spec, node, links[name], reader, offloads[name], netems.get(name))
        up = {"UP", "LOWER_UP"} <= set(links[name]["flags"])
        problems = ([] if up else ["the link is down"]) + differences(spec, report)
        kind, wanted = reader.root(report.ifindex).kind, "htb" if spec.rate_bps else UNSHAPED_QUEUE.split()[0]
        if kind != wanted:
            problems.append(f"root qdisc {kind} instead of {wanted}")
        if problems:
            raise UnfitError(
                f"{node}: {name} is not the link that was asked for ({'; '.join(problems)}); run it with --on sim"
            )
        reports.append(report)
    return reports


def parse_offloads(lines: list[str]) -> dict[str, dict[str, bool]]:
    """Output of `ethtool -k`, for several interfaces: name -> offload -> on. Those in OFFLOADS only."""
    parsed: dict[str, dict[str, bool]] = {}
    current: dict[str, bool] = {}
    for line in lines:
        name, _, value = line.strip().partition(":")
        if name.startswith("Features for "):
            current = parsed.setdefault(name.removeprefix("Features for "), {})
        elif name in OFFLOADS:
            current[name] = value.split()[0] == "on"
    return parsed


def differences(spec: NetworkSpec, report: PortReport) -> list[str]:
    """How a port differs from what was asked; empty if it doesn't."""
    problems = []
    if report.mtu_bytes != spec.mtu_bytes:
        problems.append(f"MTU {report.mtu_bytes} instead of {spec.mtu_bytes}")
    if not spec.rate_bps:
        return problems
    for what, wanted, actual in (("rate", spec.rate_bps, report.rate_bps), ("ceil", spec.rate_bps, report.ceil_bps)):
        if abs(wanted - actual) >= 8:  # the kernel counts whole bytes per second
            problems.append(f"{what} {actual} instead of {wanted} bits/s")
    if abs(report.burst_bytes - spec.burst_bytes) > 1 + spec.burst_bytes // 100:  # stored as time: ticks of 64 ns
        problems.append(f"burst {report.burst_bytes} instead of {spec.burst_bytes} bytes")
    if report.priority_queues != spec.priority_queues:
        problems.append(f"{report.priority_queues} priority queues instead of {spec.priority_queues}")
    if spec.netem_wishes:
        problems += _netem_differences(spec, report)
    elif report.queue_bytes != spec.queue_bytes:
        problems.append(f"queue {report.queue_bytes} instead of {spec.queue_bytes} bytes")
    return problems


def _netem_differences(spec: NetworkSpec, report: PortReport) -> list[str]:
    if report.netem is None:
        return ["no netem qdisc: no delay, no faults"]
    names = {"loss": "loss-random", "duplicate": "duplicate", "reorder": "reorder", "corrupt": "corrupt"}
    inner = {"loss": "loss"}  # netem's JSON: {"loss-random": {"loss": 0.01, …}, "corrupt": {"corrupt": 0.01, …}}
    problems = []
    for name, key in names.items():
        wanted = getattr(spec, name)
        actual = report.netem.get(key, {}).get(inner.get(name, name), 0.0)
        if abs(wanted - actual) > 1e-6:
            problems.append(f"{name} {actual:g} instead of {wanted:g}")
    delay_s = report.netem.get("delay", {}).get("delay", 0.0)
    if abs(delay_s * 1e9 - spec.delay_ns) > 1_000:
        problems.append(f"delay {delay_s * 1e9:.0f} instead of {spec.delay_ns} ns")
    for key in ("tcp-segmentation-offload", "generic-segmentation-offload"):
        if spec.per_packet_faults and report.offloads.get(key):
            problems.append(f"{key} is on: faults would hit whole bundles")
    return problems


def _port(
    spec: NetworkSpec,
    node: str,
    link: dict[str, Any],
    reader: qdisc.QdiscReader,
    offloads: dict[str, bool],
    netem: dict[str, Any] | None,
) -> PortReport:
    """Report of one interface; zeros where the kernel has no such class or queue."""
    ifindex = link["ifindex"]
    htb = [entry for entry in reader.classes(ifindex) if entry.handle == HTB_CLASS and entry.kind == "htb"]
    settings = qdisc.htb_class(htb[0]) if htb else qdisc.HtbClass(0, 0, 0, 0)
    leaf_class = HTB_LEAF + BEST_EFFORT if spec.priority_queues else HTB_CLASS
    leaf = [entry for entry in reader.qdiscs(ifindex) if entry.parent == leaf_class]
    queue_bytes = 0
    if leaf and leaf[0].kind == "bfifo":
        queue_bytes = qdisc.fifo_limit(leaf[0])
    elif netem is not None:
        queue_bytes = netem["limit"] * (spec.mtu_bytes + ETHERNET_BYTES)
    return PortReport(
        node=node,
        interface=link["ifname"],
        ifindex=ifindex,
        address=link["address"],
        rate_bps=8 * settings.rate_bytes_per_s,
        ceil_bps=8 * settings.ceil_bytes_per_s,
        burst_bytes=settings.burst_bytes,
        queue_bytes=queue_bytes,
        mtu_bytes=link["mtu"],
        gso_max_bytes=link.get("gso_max_size", 0),
        gso_max_segments=link.get("gso_max_segs", 0),
        offloads=offloads,
        netem=netem,
        priority_queues=_priority_queues(spec, reader, ifindex) if spec.priority_queues else 0,
    )


def _priority_queues(spec: NetworkSpec, reader: qdisc.QdiscReader, ifindex: int) -> int:
    """How many priority classes of a port are as `_leaf_lines` asks: class, order, rates, queue and filter."""
    classes = {entry.handle: entry for entry in reader.classes(ifindex) if entry.kind == "htb"}
    queues = {entry.parent: entry for entry in reader.qdiscs(ifindex) if entry.kind == "bfifo"}
    matches = [qdisc.u32_match(entry) for entry in reader.filters(ifindex, HTB_QDISC)]
    parsed = 0
    for kind in range(CLASSES):
        leaf = HTB_LEAF + kind
        entry, queue = classes.get(leaf), queues.get(leaf)
        if entry is None or queue is None or entry.parent != HTB_CLASS:
            continue
        settings = qdisc.htb_class(entry)
        wanted = (leaf, tos_of(kind) << 16, PRECEDENCE_MASK, 0)
        parsed += (
            settings.prio == kind
            and abs(8 * settings.ceil_bytes_per_s - spec.rate_bps) < 8
            and 8 * settings.rate_bytes_per_s <= spec.rate_bps // LEAF_SHARE + 8
            and qdisc.fifo_limit(queue) == spec.queue_bytes
            and (wanted in matches or kind == BEST_EFFORT)
        )
    return parsed
