"""A topology in Mininet: hosts (10.0.0.1 …), workers first, and switches, every port shaped and read back.

A switch is a network namespace of its own: a Linux bridge over its ports lets hosts reach each other (host methods,
rendezvous). On those that aggregate the data plane, a process, answers at the bridge's address, 10.0.0.254 of the root;
what it sends leaves through the same shaped ports. All veths are born inside the namespaces, so nothing ever appears in
the machine's own network, two networks can't collide, and everything vanishes with the processes that hold it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from emulation.scenario.topologies.topology import Hop
from emulation.testbed import netns, qdisc
from emulation.testbed.mininet import shaping
from emulation.testbed.mininet.node_addresses import (
    SUBNET_BITS,
    SWITCH_ADDRESS,
    NodeAddress,
    host_address,
    host_mac,
    places,
    switch_place,
    switch_places,
)
from emulation.testbed.mininet.services import RunningService, ServiceProcess
from emulation.testbed.mininet.shaping import NetworkSpec, PortReport, UnfitError
from emulation.testbed.resource import Resource

if TYPE_CHECKING:  # Mininet's own command runs this file under the system's Python, which has less
    from emulation.testbed.nursery import Nursery, NurseryProcess

_DEBIAN_MININET = Path("/usr/lib/python3/dist-packages/mininet")


def _find_mininet() -> None:
    """Makes Debian's Mininet importable from a virtual environment: PyPI has no release of it."""
    if importlib.util.find_spec("mininet") is not None:
        return
    mn_spec = importlib.util.spec_from_file_location(
        "mininet", _DEBIAN_MININET / "__init__.py", submodule_search_locations=[str(_DEBIAN_MININET)]
    )
    if not _DEBIAN_MININET.is_dir() or mn_spec is None or mn_spec.loader is None:
        raise UnfitError("Mininet is not installed: apt-get install mininet (Debian, Ubuntu), or run it with --on sim")
    sys.modules["mininet"] = module = importlib.util.module_from_spec(mn_spec)
    mn_spec.loader.exec_module(module)


_find_mininet()
netns.find_programs()

from mininet.link import Intf  # noqa: E402
from mininet.link import Link as Link  # noqa: E402
from mininet.link import TCIntf as TCIntf  # noqa: E402
from mininet.log import error as error  # noqa: E402
from mininet.net import Mininet as Mininet  # noqa: E402
from mininet.node import Host, Node, Switch  # noqa: E402
from mininet.topo import Topo as Topo  # noqa: E402

_NO_IPV6 = """for at in all default; do
  [ ! -e /proc/sys/net/ipv6/conf/$at/disable_ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/$at/disable_ipv6
done
"""


def keep_machine_settings() -> None:
    """Keeps Mininet from raising sysctls and limits of the whole machine, for good, at its first network.

    It would leave, among others, TCP's buffers different from what every other program was measured with.
    """
    Mininet.inited = True


def require_mininet() -> None:
    """Raises UnfitError if Mininet can't run here: no privileges, or a program is missing."""
    needed = {"mnexec": "mininet", "ip": "iproute2", "tc": "iproute2", "ethtool": "ethtool", "ifconfig": "net-tools"}
    missing = {package for program, package in needed.items() if shutil.which(program) is None}
    if missing:
        raise UnfitError(f"missing programs: apt-get install {' '.join(sorted(missing))}, or run it with --on sim")
    if not netns.is_privileged():
        raise UnfitError(
            "Mininet needs root or a user namespace: begin the command with `sudo $(which switchagg)` or with "
            "`unshare -Urnm switchagg`, or run it with --on sim"
        )


class QuietIntf(Intf):
    """An interface whose node sets it up in one go: Mininet's own way forks five programs for each."""

    def config(self, **_: Any) -> dict[str, Any]:
        return {}

    def setIP(self, ipstr: str, prefixLen: int | None = None) -> None:
        self.ip, _, prefix = ipstr.partition("/")
        self.prefixLen = int(prefix) if prefix else prefixLen

    def setMAC(self, macstr: str) -> None:
        self.mac = macstr


class WorkerHost(Host):
    """A host whose names resolve without a name server: each look-up would wait seconds for one that isn't there."""

    def __init__(self, name: str, spec: NetworkSpec | None = None, rank: int = 0, **params: Any) -> None:
        self.spec, self.rank = spec, rank
        super().__init__(name, **params)

    def config(self, **params: Any) -> dict[str, Any]:
        result: dict[str, Any] = super().config(**params)
        script = _NO_IPV6 + self._names()
        if self.spec is not None:
            script += self._addresses(self.spec, self.defaultIntf().name)
        _configure(self, script)
        return result

    def _names(self) -> str:
        """Lines that replace /etc/hosts and /etc/resolv.conf, in this node's mount namespace only."""
        address = str(self.IP()).partition("/")[0]
        lines = ["127.0.0.1 localhost", f"{address} {platform.node()}", f"{SWITCH_ADDRESS} s1"]
        if self.spec is not None:
            lines += [f"{host_address(rank)} {name}" for rank, name in enumerate(self.spec.links.members)]
        text = "\n".join(lines)
        return f"""
[ ! -e /etc/resolv.conf ] || mount --bind /dev/null /etc/resolv.conf
mount -t tmpfs none /mnt
cat > /mnt/hosts <<'END'
{text}
END
mount --bind /mnt/hosts /etc/hosts
umount -l /mnt
"""

    def _addresses(self, spec: NetworkSpec, interface: str) -> str:
        """Lines that bring the interface up, shaped, with its address and everybody's neighbour entry."""
        neighbours = "\n".join(
            f"neigh replace {address} lladdr {mac} dev {interface} nud permanent"
            for name, (address, mac) in places(spec.links).items()
            if name != self.name
        )
        return "\n".join(
            [
                _tcp(spec),
                f"ip link set {interface} mtu {spec.mtu_bytes}",
                f"ip link set {interface} up",
                f"ip addr add {host_address(self.rank)}/{SUBNET_BITS} dev {interface}",
                f"ip -batch - <<'END'\n{neighbours}\nEND",
                *shaping.host_lines(spec.port(self.name, spec.links.neighbours[self.name][0]), interface),
            ]
        )


class BridgeSwitch(Switch):
    """A Linux bridge in a namespace of its own, with an address: the switch without a data plane.

    `spec` None (`mn --custom`): the ports stay as the link class made them, and what it was asked for is
    checked, because it only logs what the kernel refused.
    """

    controlIntf = None  # Mininet's own switches set it in the root namespace only

    def __init__(self, name: str, spec: NetworkSpec | None = None, ip: str = "", **params: Any) -> None:
        self.spec = spec
        params["inNamespace"] = True  # Mininet passes False explicitly
        super().__init__(name, **params)
        if spec is None:
            place = _mn_address(self)
        else:
            number = spec.links.switches.index(name)
            place = switch_places(spec.links).get(name) or NodeAddress(SWITCH_ADDRESS, f"02:00:00:00:03:{number:02x}")
        self.switch_ip = ip or place.address
        # made first, the bridge takes the index that the workers' interfaces have: a veth whose peer has the same
        # index looks like a plain device to the kernel, which then takes a second to notice that it is up
        command = f"ip link add {name} address {place.mac} type bridge stp_state 0 mcast_snooping 0\n"
        _configure(self, _NO_IPV6 + command)

    @property
    def aggregates(self) -> bool:
        """Whether it has an address, where a data plane may answer; the others only forward."""
        return self.spec is None or self.name in self.spec.links.aggregators

    def connected(self) -> bool:
        """Always: there is no controller."""
        return True

    def start(self, controllers: Sequence[Any]) -> None:
        """Makes the bridge over our ports. Raises UnfitError."""
        bits = self.switch_ip.partition("/")[2] or SUBNET_BITS
        address = self.switch_ip.partition("/")[0]
        lines = ["ip link set lo up"]
        if self.spec is not None:
            lines.append(_tcp(self.spec))
        for port in self._ports():
            lines += self._port_lines(port)
        lines.append(f"ip link set {self.name} up")
        if self.aggregates:
            lines.append(f"ip addr add {address}/{bits} dev {self.name}")
        if self.aggregates and self.spec is not None:
            lines += [
                f"ip neigh replace {other} lladdr {mac} dev {self.name} nud permanent"
                for name, (other, mac) in places(self.spec.links).items()
                if name != self.name
            ]
        _configure(self, "\n".join(lines) + "\n")
        if self.spec is None:
            self._check_mn_links()

    def attach(self, intf: Any) -> None:
        """Takes a port made at run time, by name or as it is: `net.addLink(s1, h3)`, then `s1.attach("s1-eth3")`.

        Raises UnfitError.
        """
        _configure(self, "\n".join(self._port_lines(self._mn_port(intf))) + "\n")
        self._check_mn_links()

    def detach(self, intf: Any) -> None:
        """Gives the port back: the interface stays, and carries nothing. Raises UnfitError."""
        _configure(self, f"ip link set {self._mn_port(intf).name} nomaster\n")

    def _mn_port(self, intf: Any) -> Any:
        port = self.nameToIntf.get(str(intf))
        if port is None or self.spec is not None:
            why = "the links are a scenario's" if self.spec else f"make it: net.addLink({self.name}, host)"
            raise UnfitError(f"{self.name} has no port {intf} to attach or detach; {why}")
        return port

    def _ports(self) -> list[Any]:
        return [port for port in self.intfList() if port.name != "lo"]

    def _port_lines(self, port: Any) -> list[str]:
        """Lines that shape a port and put it under the bridge, which need not learn the addresses behind it."""
        peer, spec = _peer(port), self.spec
        under = [f"ip link set {port.name} master {self.name}", f"ip link set {port.name} up"]
        if spec is None:
            behind = [peer.mac] if peer.mac else []
        else:
            links, under = spec.links, [f"ip link set {port.name} mtu {spec.mtu_bytes}", *under]
            macs = {node: place.mac for node, place in places(links).items() if node != self.name}
            behind = [mac for node, mac in macs.items() if links.next_hop(self.name, node) == peer.node.name]
        under += [f"bridge fdb replace {mac} dev {port.name} master static" for mac in behind]
        return (
            under if spec is None else [*under, *shaping.shape_lines(spec.port(self.name, peer.node.name), port.name)]
        )

    def _check_mn_links(self) -> None:
        """Refuses what `--link tc` was asked for and did not do."""
        reader = qdisc.QdiscReader(self.pid)
        with contextlib.closing(reader):
            for port in self._ports():
                present = {entry.kind for entry in reader.qdiscs(_ifindex(self.pid, port.name))}
                kinds_of = {"bw": {"htb", "tbf", "hfsc"}, "delay": {"netem"}, "loss": {"netem"}, "jitter": {"netem"}}
                for name, kinds in kinds_of.items():
                    if port.params.get(name) and not present & kinds:
                        raise UnfitError(
                            f"{port.name}: {name}={port.params[name]} was asked for and the kernel did not do it "
                            f"(it has {', '.join(sorted(present)) or 'no qdisc'})"
                        )


class LinkedTopo(Topo):
    """A topology's hosts, switches and links; for `mn --custom`, a star of workers h1 … hn around switch s1."""

    def build(self, workers: int = 4, spec: NetworkSpec | None = None) -> None:
        """`spec` gives every node the whole set-up; without it Mininet's classes do hosts and links."""
        links = (spec or NetworkSpec(int(workers))).links
        shared = {} if spec is None else {"spec": spec}
        aggregators = switch_places(links)
        for name in links.switches:
            address = aggregators[name].address if name in aggregators else SWITCH_ADDRESS
            self.addSwitch(name, ip=f"{address}/{SUBNET_BITS}", **shared)
        macs = {name: host_mac(rank) for rank, name in enumerate(links.members)}
        for rank, name in enumerate(links.members):
            ranked = {} if spec is None else {"spec": spec, "rank": rank}
            self.addHost(name, ip=f"{host_address(rank)}/{SUBNET_BITS}", **ranked)
        for number, link in enumerate(links.links, 1):
            addresses = [
                macs.get(end, f"02:00:00:00:0{place}:{number:02x}") for place, end in ((2, link.a), (1, link.b))
            ]
            self.addLink(link.a, link.b, addr1=addresses[0], addr2=addresses[1])


@dataclass(frozen=True)
class HostPlace:
    """Where a host is: join its namespaces by `pid`. rank: of a worker; servers follow. port: the switch's end of its
    link, as node and interface.
    """

    rank: int
    name: str
    pid: int
    address: str
    interface: str
    port: tuple[str, str]


@dataclass(frozen=True)
class Verification:
    """The settings read back from the kernel after building; they are saved with the results."""

    kernel: str
    privileges: str  # "root" or "user namespace"
    congestion_control: str
    ports: list[PortReport]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LinkCounters:
    """The counters of a host's link since it was built. up: from host to switch. They count whole frames; a GSO
    bundle counts as its segments."""

    rank: int
    up_bytes: int
    up_packets: int
    up_drops: int
    down_bytes: int
    down_packets: int
    down_drops: int


class EmulatedNetwork(Resource):
    """A network, running. A context manager: whatever happens inside, leaving it ends all we started, by id.

    Raises UnfitError from `__enter__` when this machine can't honour `spec`. Build takes well under a second for 4
    workers. Use it from the main thread: our processes are killed by the kernel when the thread that made them ends.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        self.spec = spec
        self.hosts: tuple[HostPlace, ...] = ()
        self.services: list[RunningService] = []  # data planes, in the switch's namespaces, and parameter servers
        self._net: Any = None
        self._processes: list[subprocess.Popen[Any]] = []
        self._readers: dict[str, qdisc.QdiscReader] = {}
        self._verification: Verification | None = None

    def _open(self) -> None:
        require_mininet()
        shaping.refuse_impossible(self.spec)
        self._build()

    @property
    def verification(self) -> Verification:
        """The settings that were read back. Only while or after it runs."""
        assert self._verification is not None, "the network was never built"
        return self._verification

    @property
    def workers(self) -> tuple[HostPlace, ...]:
        """By rank."""
        return self.hosts[: self.spec.workers]

    @property
    def servers(self) -> tuple[HostPlace, ...]:
        """Hosts of parameter servers."""
        return self.hosts[self.spec.workers :][: self.spec.servers]

    @property
    def switch_pid(self) -> int:
        """Process whose namespaces are those of the switch that aggregates, or of the root of several."""
        return self.pids[self.spec.links.root]

    @property
    def pids(self) -> dict[str, int]:
        """By node, a process in its namespaces: the switches', then the hosts'."""
        return {node.name: int(node.pid) for node in [*self._net.switches, *self._net.hosts]}

    def interface(self, hop: Hop) -> str:
        """Name, unique in the network, of what sends over this direction of a link."""
        return str(self._net.get(hop[0]).connectionsTo(self._net.get(hop[1]))[0][0])

    def start_server(self, number: int, service: ServiceProcess) -> RunningService:
        """Starts a parameter server's process on its host; it need not be ready yet."""
        running = RunningService(self.servers[number].pid, service)
        self.services.append(running)
        return running

    def start_data_plane(self, plane: ServiceProcess, switch: str | None = None) -> RunningService:
        """Starts a process in a switch's namespaces, waits until it is ready, and reads the links back again.

        switch: its name; None: the root. Raises UnfitError with its last output, or where the links are no longer what
        was asked for.
        """
        running = RunningService(self.pids[switch or self.spec.links.root], plane)
        self.services.append(running)
        running.wait_until_ready()
        self._verification = self._verify()
        return running

    def spawn(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a command in a host's namespaces; it ends with the network at the latest. host: a worker's is its
        rank. `options`: Popen's."""
        process = netns.spawn(self.hosts[host].pid, command, **options)
        self._processes.append(process)
        return process

    def fork(
        self, host: int, nursery: Nursery, entry: str, argument: str, environment: dict[str, str], log: IO[bytes]
    ) -> NurseryProcess:
        """As `spawn`, from a nursery, which ends later than the network: a process in a host's network."""
        process = nursery.start(entry, argument, environment, log, self.hosts[host].pid)
        self._processes.append(cast("subprocess.Popen[Any]", process))
        return process

    def counters(self) -> list[LinkCounters]:
        """The counters of every link: by rank, then those of servers. Raises OSError."""
        ports = {(port.node, port.interface): port for port in self.verification.ports}
        counters = []
        for host in self.hosts:
            up = self._readers[host.name].root(ports[host.name, host.interface].ifindex)
            down = self._readers[host.port[0]].root(ports[host.port].ifindex)
            counters.append(
                LinkCounters(
                    rank=host.rank,
                    up_bytes=up.sent_bytes,
                    up_packets=up.sent_packets,
                    up_drops=up.drops,
                    down_bytes=down.sent_bytes,
                    down_packets=down.sent_packets,
                    down_drops=down.drops,
                )
            )
        return counters

    def segments_resent(self) -> int:
        """By TCP, hosts of workers and servers. Raises OSError."""
        return sum(_tcp_resent(host.pid) for host in self.workers + self.servers)

    def close(self) -> None:
        """Ends everything that was started: processes first, then the namespaces with all that is in them.
        Idempotent."""
        for process in self._processes:
            netns.end(process, grace_s=1.0)
        self._processes.clear()
        for running in self.services:
            running.close()
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        if self._net is None:
            return
        for node in [*self._net.hosts, *self._net.switches]:
            _end_shell(node)
        self._net = None

    def _build(self) -> None:
        keep_machine_settings()
        # the network must be reachable for close() before its first node exists
        self._net = Mininet(
            topo=LinkedTopo(spec=self.spec),
            switch=BridgeSwitch,
            host=WorkerHost,
            link=Link,
            intf=QuietIntf,
            controller=None,
            build=False,
        )
        self._net.build()
        self._net.start()
        self.hosts = tuple(_host_place(rank, host) for rank, host in enumerate(self._net.hosts))
        self._verification = self._verify()

    def _verify(self) -> Verification:
        ports: list[PortReport] = []
        for node in [*self._net.hosts, *self._net.switches]:
            _wait_until_up(node)
            if node.name not in self._readers:
                self._readers[node.name] = qdisc.QdiscReader(node.pid)
            specs = {p.name: self.spec.port(node.name, _peer(p).node.name) for p in node.intfList() if p.name != "lo"}
            ports += shaping.read_back(specs, node.name, node.pid, self._readers[node.name])
        settings = netns.run_script(self.workers[0].pid, "cd /proc/sys/net/ipv4; cat tcp_congestion_control tcp_ecn")
        control, ecn = settings.split()
        if self.spec.congestion_control not in (None, control):
            raise UnfitError(f"TCP congestion control is {control}, not {self.spec.congestion_control}, in a namespace")
        if self.spec.ecn_bytes and ecn != "1":
            raise UnfitError(f"TCP asks for no marks in a namespace whose links mark: tcp_ecn is {ecn}, not 1")
        notes, held = list(_notes(self.spec)), "user namespace" if netns.in_user_namespace() else "root"
        return Verification(
            kernel=platform.release(), privileges=held, congestion_control=control, ports=ports, notes=notes
        )


def _mn_address(switch: Any) -> NodeAddress:
    """The address of a switch at Mininet's command line, by the number in the switch's name. Raises UnfitError."""
    try:
        return switch_place(int(switch.dpid, 16))
    except ValueError as refusal:
        _end_shell(switch)
        raise UnfitError(f"{switch.name}: {refusal}") from None


def _peer(port: Any) -> Any:
    """The interface at the other end of a link."""
    return port.link.intf2 if port.link.intf1 is port else port.link.intf1


def _host_place(rank: int, host: Any) -> HostPlace:
    interface = host.defaultIntf()
    port = _peer(interface)
    return HostPlace(rank, host.name, int(host.pid), host_address(rank), interface.name, (port.node.name, port.name))


def _notes(spec: NetworkSpec) -> Iterator[str]:
    if not spec.rate_bps:
        yield f"links are not shaped; their root qdisc is {shaping.UNSHAPED_QUEUE}, which counts"
        return
    yield (
        f"HTB counts whole Ethernet frames without FCS; after a pause a port may send {spec.burst_bytes} bytes at once"
    )
    if spec.priority_queues:
        yield (
            f"each of a port's {spec.priority_queues} priority classes has a queue of {spec.queue_bytes} bytes, and a "
            "thousandth of the rate for its own"
        )
    if spec.netem_wishes:
        yield "netem queues count packets: the limit is the queue's bytes and those in flight, in full frames"
    else:
        yield "Queues count bytes (bfifo), and of a GSO bundle each of its segments."
    if netns.in_user_namespace():
        yield "in a user namespace socket buffers stay within net.core.rmem_max and wmem_max"


def _tcp(spec: NetworkSpec) -> str:
    """Lines that choose its control, and ask for marks (ECN) where links mark. Refusal shows in the read-back."""
    wanted = {"tcp_congestion_control": spec.congestion_control, "tcp_ecn": spec.ecn_bytes and 1}
    return "\n".join(f"echo {value} > /proc/sys/net/ipv4/{name} || :" for name, value in wanted.items() if value) or ":"


def _configure(node: Any, script: str) -> None:
    try:
        netns.run_script(node.pid, script)
    except subprocess.CalledProcessError as error:
        words = error.stderr.strip().splitlines() or ["no message"]
        raise UnfitError(f"{node.name}: this machine can't set the node up: {words[-1]}") from error


def _wait_until_up(node: Any, timeout_s: float = 5.0) -> None:
    """The kernel opens a link's queues some time after it is set up, and drops everything until then."""
    deadline = time.monotonic() + timeout_s
    for port in node.intfList():
        state = _seen_by(node.pid) / port.name / "operstate"
        while port.name != "lo" and state.read_text(encoding="ascii").strip() != "up":
            if time.monotonic() > deadline:
                raise UnfitError(f"{node.name}: {port.name} did not come up within {timeout_s:g} s")
            time.sleep(0.005)


def _tcp_resent(pid: int) -> int:
    """Segments that TCP has sent again in the network namespace of `pid`."""
    lines = Path(f"/proc/{pid}/net/snmp").read_text(encoding="ascii").splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def _ifindex(pid: int, interface: str) -> int:
    return int((_seen_by(pid) / interface / "ifindex").read_text(encoding="ascii"))


def _seen_by(pid: int) -> Path:
    """The interfaces of a node, through its own mount of /sys: no need to enter its namespaces."""
    return Path(f"/proc/{pid}/root") / "sys/class/net"


def _end_shell(node: Any) -> None:
    """Ends a node's shell, whatever it is doing, and with it the node's namespaces."""
    if node.shell is None:
        return
    node.shell.kill()
    node.shell.wait()
    Node.outToNode.pop(node.stdout.fileno(), None)
    Node.inToNode.pop(node.stdin.fileno(), None)
    node.stdin.close()
    os.close(node.slave)
    node.shell = None
