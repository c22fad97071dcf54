"""A scenario's network while it runs, its switches, servers and ranks, and what its links carry: for compare and bench.

Packets of `[faults] loss` are lost by netem; if `loss_by` says so, by a BPF program at both ends of each link or by the
switch itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from emulation.scenario.bounds import elements_of
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario
from emulation.scenario.scenario_tables import BEST, KERNEL
from emulation.testbed import netns
from emulation.testbed.children import killed_by
from emulation.testbed.mininet.node_addresses import NodeAddress, switch_places
from emulation.testbed.mininet.services import RunningService, ServiceProcess, SwitchPlace, switchagg_command
from emulation.testbed.mininet.shaping import NetworkSpec, UnfitError
from emulation.testbed.nursery import Nursery, NurseryProcess
from emulation.testbed.resource import Resource
from emulation.testbed.trainers.trainer_messages import GROUP_JOB, GROUP_PORT
from switchagg.errors import SwitchaggError
from switchagg.priority import CLASSES
from transport.control.control_client import query_status
from transport.group.method_name import MethodName
from transport.links.link_kinds import LINKS
from transport.meshes.job_key import TOKEN_VARIABLE, new_token
from transport.rdma.rdma_sockets import SEGMENTS_VARIABLE

if TYPE_CHECKING:
    from emulation.testbed.mininet.emulated_network import EmulatedNetwork
    from switchagg.native.bpf import LossProgram

STATUS_S = 30.0
CONTROL_PORT = 5555  # of the first switch, and its data port is the next
RENDEZVOUS_PORT = 29_500
BY_LINKS, BY_SWITCH = "links", "switch"


@dataclass(frozen=True)
class NetworkTraffic:
    """The traffic of a network's links since it was built: a list has an entry per host, a number is a sum."""

    up_bytes: list[int]
    down_bytes: list[int]
    up_packets: int
    drops: int  # of the emulated queues
    segments_resent: int  # by TCP, all hosts

    @classmethod
    def of(cls, star: EmulatedNetwork) -> NetworkTraffic:
        """Until now. Raises OSError."""
        links = star.counters()
        return cls(
            [link.up_bytes for link in links],
            [link.down_bytes for link in links],
            sum(link.up_packets for link in links),
            sum(link.up_drops + link.down_drops for link in links),
            star.segments_resent(),
        )

    def __sub__(self, earlier: NetworkTraffic) -> NetworkTraffic:
        """The traffic since then."""
        return NetworkTraffic(
            [after - before for after, before in zip(self.up_bytes, earlier.up_bytes, strict=True)],
            [after - before for after, before in zip(self.down_bytes, earlier.down_bytes, strict=True)],
            self.up_packets - earlier.up_packets,
            self.drops - earlier.drops,
            self.segments_resent - earlier.segments_resent,
        )


@dataclass(frozen=True)
class MethodService:
    """What runs for one method beside its ranks. name: the method's, for messages; what: "the switch", "server 0".

    ends: it may end before us, with status 0, when its job is done.
    """

    name: str
    what: str
    running: RunningService
    ends: bool

    def check(self) -> None:
        """Raises RunFailed if it has ended."""
        if not self.running.ended or (self.ends and self.running.process.returncode == 0):
            return
        status, log_path = self.running.process.returncode, self.running.service.log_path
        ended = f"ended with status {status}: {self.running.last_line() or 'it wrote nothing'}"
        how = f"was killed by {signal_name}" if (signal_name := killed_by(status)) else ended
        raise RunFailed(f"{self.name}: {self.what} {how}" + (f" (more in {log_path})" if log_path else ""))


@dataclass(frozen=True)
class RunningSwitch(MethodService):
    """A data plane. below: those of the switches below it, all levels."""

    control: str
    below: tuple[RunningSwitch, ...] = ()

    def cpu_ns(self) -> int:
        """CPU time of the daemon, and those below, so far."""
        return sum(switch.running.cpu_ns() for switch in (self, *self.below))

    @property
    def plane(self) -> str:
        """The data plane that it runs, as the daemon named it when it was ready."""
        named = re.search(r"switch ready: .* \((\w+), ", self.running.output())
        return named[1] if named else "unknown"


class RunningScenario(Resource):
    """The network of a scenario while it runs: a context manager that ends all it has started.

    servers: hosts for parameter servers, beside the workers'. Raises UnfitError if this machine can't honour the
    scenario, RunFailed.
    """

    def __init__(self, scenario: Scenario, loss_by: str | None = None, servers: int = 0) -> None:
        from emulation.testbed.mininet import emulated_network

        self.scenario = scenario
        spec = dataclasses.replace(
            NetworkSpec.from_scenario(scenario), congestion_control=congestion_control(scenario), servers=servers
        )
        self._loss_by, self.segments_max = loss_by, spec.segments_max
        self.star: EmulatedNetwork = emulated_network.EmulatedNetwork(
            dataclasses.replace(spec, loss=0.0) if loss_by else spec
        )
        self.switches: list[RunningSwitch] = []
        self.servers: list[MethodService] = []
        self._token = new_token()
        self._losses: list[LossProgram] = []

    def _open(self) -> None:
        self.star.__enter__()
        if self._loss_by == BY_LINKS:
            self._lose_on_links()

    def close(self) -> None:
        """Ends everything that was started. Idempotent."""
        for program in self._losses:
            program.close()
        self._losses.clear()
        self.star.close()

    @property
    def facts(self) -> dict[str, Any]:
        """The network as read back from the kernel."""
        return dataclasses.asdict(self.star.verification)

    def start_switch(
        self, scenario: Scenario, method: MethodName, name: str, log_path: Path | None = None
    ) -> RunningSwitch:
        """Starts the switch that a method needs, or the tree of them, with this scenario's options, and waits until
        they answer. Below the root their logs have their names in front.

        Raises UnfitError with its last output.
        """
        options, port = scenario.switch, CONTROL_PORT + 2 * len(self.switches)
        loss = scenario.faults.loss
        place = SwitchPlace(
            control_port=port,
            data_port=LINKS[method.link].port or port + 1,
            dataplane=options.dataplane,
            link=method.link,
            elements=elements_of(method, options.elements, scenario.topology.mtu_bytes),
            slots=(max(options.streams, CLASSES) if method.schedule else options.streams) * options.window_slots,
            segments=self.segments_max if method.link == "udp" else 0,
            impair=f"loss={loss!r},seed={scenario.seed}" if self._loss_by == BY_SWITCH else "",
        )
        copies, links = self._multicast(method, options.dataplane), self.star.spec.links
        started: dict[str, RunningSwitch] = {}
        for node, (address, _) in self._downward():
            above = links.parent(node)
            place = dataclasses.replace(place, address=address, name=node if above else "")
            place = dataclasses.replace(place, parent=started[above].control if above else "")
            place = dataclasses.replace(place, multicast=node if copies else "")
            log = log_path.with_name(f"{node}-{log_path.name}") if log_path and above else log_path
            running = self.star.start_data_plane(place.process(log), node)
            what = f"the switch {node}" if above else "the switch"
            started[node] = RunningSwitch(name, what, running, ends=False, control=place.control)
        root, *below = started.values()
        self.switches.append(dataclasses.replace(root, below=tuple(below)))
        return self.switches[-1]

    def _downward(self) -> list[tuple[str, NodeAddress]]:
        """The switches that aggregate, each after the one above it."""
        links = self.star.spec.links
        return sorted(switch_places(links).items(), key=lambda item: len(links.path(item[0], links.root)))

    def _multicast(self, method: MethodName, dataplane: str) -> bool:
        """Whether the kernel copies results for all workers: at bridges, where BPF may; else each gets its own."""
        from switchagg.native import bpf, multicast

        fits = method.link == "udp" and dataplane in ("auto", "native") and self._loss_by != BY_SWITCH
        return fits and not bpf.missing((multicast.OBJECT,))

    def via(self, rank: int) -> str:
        """Name of the switch that a worker sends to, "" for the root (C20)."""
        links = self.star.spec.links
        above = links.parent(links.workers[rank]) or links.root
        return "" if above == links.root else above

    def start_servers(self, method: MethodName, timeout_s: float, folder: Path) -> None:
        """Starts a parameter server on each of the servers' hosts, and waits until it waits for the workers.

        timeout_s: within which all must have met. Raises UnfitError with its last output.
        """
        limit_s = min(timeout_s, 86_400.0)  # the most that the command takes
        words = ["server", "--link", method.link, "--job", GROUP_JOB, "--timeout", f"{limit_s:.0f}"]
        for option, hosts in (("--workers", self.star.workers), ("--servers", self.star.servers)):
            words += [option, ",".join(f"{host.address}:{GROUP_PORT}" for host in hosts)]
        for number in range(len(self.star.servers)):
            service = ServiceProcess(
                switchagg_command(*words, "--number", str(number)),
                ready="switchagg server waiting",
                log_path=folder / f"server-{number}.log",
                environment=self._environment,
                name=f"server {number}",
            )
            running = self.star.start_server(number, service)
            self.servers.append(MethodService(str(method), f"server {number}", running, ends=True))
        for server in self.servers:
            server.running.wait_until_ready()

    def end_servers(self, timeout_s: float) -> None:
        """Lets servers whose workers have left end by themselves. Raises RunFailed if one fails."""
        for server in self.servers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.running.process.wait(timeout_s)
            server.check()

    def check_services(self) -> None:
        """Raises RunFailed if one has ended that the ranks need."""
        for service in self._services:
            service.check()

    def pids_of_services(self) -> list[int]:
        """Processes that the ranks wait for beside each other."""
        return [service.running.process.pid for service in self._services]

    @property
    def _services(self) -> list[MethodService]:
        return [*self.switches, *(below for switch in self.switches for below in switch.below), *self.servers]

    def switch_counters(self, switch: RunningSwitch) -> dict[str, int]:
        """The counters of a data plane and of those below it together, asked for from within their namespaces. Raises
        RunFailed."""
        counted: Counter[str] = Counter()
        nodes = [node for node, _ in self._downward()]
        for node, plane in zip(nodes, (switch, *switch.below), strict=True):
            try:
                answer = netns.within(self.star.pids[node], partial(query_status, plane.control, timeout_s=STATUS_S))
            except (SwitchaggError, OSError) as error:
                raise RunFailed(f"{plane.name}: {plane.what}'s counters can't be read: {words_of(error)}") from error
            counted.update(answer.data_counters)
        return dict(counted)

    def start_rank(self, rank: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a rank's process on its host, on one thread of computing. `options`: Popen's, but for `env`."""
        return self.star.spawn(rank, command, **{**options, "env": self._environment_of(rank)})

    def fork_rank(self, rank: int, nursery: Nursery, entry: str, argument: str, log: IO[bytes]) -> NurseryProcess:
        """The same from a nursery, which ends later than the network. entry, argument, log: as of `Nursery.start`."""
        return self.star.fork(rank, nursery, entry, argument, self._environment_of(rank), log)

    def _environment_of(self, rank: int) -> dict[str, str]:
        return {**self._environment, "GLOO_SOCKET_IFNAME": self.star.workers[rank].interface}

    @property
    def _environment(self) -> dict[str, str]:
        """Of ranks and servers. What is larger than a host's bundles the kernel would take apart behind HTB."""
        variables = {"OMP_NUM_THREADS": "1", SEGMENTS_VARIABLE: str(self.segments_max), TOKEN_VARIABLE: self._token}
        return {**os.environ, **variables}

    @property
    def lost(self) -> dict[str, int]:
        """Packets that the programs on all links let pass and lost, in both directions."""
        counts = [program.counts for program in self._losses]
        return {"passed": sum(passed for passed, _ in counts), "lost": sum(lost for _, lost in counts)}

    def _lose_on_links(self) -> None:
        """Puts a program at both ends of every link that loses packets one by one, of all methods. Raises UnfitError.

        It stands where packets come in, behind the shaper: a lost packet has used its share of the link.
        """
        pids = self.star.pids
        for number, port in enumerate(self.star.verification.ports):
            seed = self.scenario.seed * 10_000 + number
            lose = partial(_lose, port.interface, self.scenario.faults.loss, seed)
            try:
                self._losses.append(netns.within(pids[port.node], lose))
            except (SwitchaggError, OSError) as error:
                raise UnfitError(f"packets can't be lost on {port.interface}: {error}") from error


def _lose(interface: str, share: float, seed: int) -> LossProgram:
    from switchagg.native.bpf import LossProgram

    return LossProgram(interface, share, seed).__enter__()


def congestion_control(scenario: Scenario) -> str | None:
    """TCP congestion control to set in every namespace; None: leave the machine's own.

    The kernel lets namespaces choose only among the machine's default and those open to everybody. Of these `best` is
    what serves host methods best: bbr alone keeps its rate where packets are lost; elsewhere it is slow after a
    pause of a connection, which costs all methods but rings up to a third. Raises RunFailed.
    """
    wanted = scenario.topology.congestion_control
    if wanted == KERNEL:
        return None
    settings = Path("/proc/sys/net/ipv4")
    usable = (settings / "tcp_allowed_congestion_control").read_text(encoding="ascii").split()
    usable.append((settings / "tcp_congestion_control").read_text(encoding="ascii").strip())
    if wanted == BEST:
        preferred = ("bbr", "cubic", "reno") if scenario.faults.loss else ("cubic", "reno")
        return next((name for name in preferred if name in usable), None)
    if wanted not in usable:
        raise RunFailed(
            f"{scenario.file}: [topology] congestion_control: {wanted} can't be set in a network namespace here; "
            f"allowed: best, kernel, {', '.join(sorted(set(usable)))} (others after, as root: "
            f"sysctl net.ipv4.tcp_allowed_congestion_control='{' '.join(sorted({*usable, wanted}))}')"
        )
    return wanted


def words_of(error: Exception) -> str:
    """A line of a program's or the kernel's output."""
    lines = str(getattr(error, "stderr", None) or "").strip().splitlines()
    return lines[-1] if lines else " ".join(str(error).split())
