"""Where the ranks of a user's script run: in namespaces with shaped links, or where those can't be had on loopback.

A site is a context manager that ends all that it has started: ranks with what they have started, switches, links.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from emulation.experiments.tryout.try_messages import RunRecorded, ScriptPlace, StepsDone
from emulation.experiments.tryout.try_rank import GLOO, NCCL
from emulation.scenario.bounds import NetworkParameters
from emulation.scenario.scenario import Scenario, parse
from emulation.testbed.children import Child, CommandFailed
from emulation.testbed.mininet.launch import RENDEZVOUS_PORT, RunningScenario
from transport.group.method_name import parse as parse_method
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions

MODULE = "emulation.experiments.tryout.try_rank"
NICENESS = 10
"""Of computing, where ranks share processors with the network: as in `switchagg compare`."""
END_S = 3.0
"""How long a script may take to end by itself once it is asked to."""
Report = StepsDone | RunRecorded


class Site(ABC):
    """workers: ranks. rate_bps: of every rank's link; 0: unknown. network: the links; None: unknown."""

    name: str
    network: NetworkParameters | None = None

    def __init__(self, workers: int, rate_bps: int = 0) -> None:
        self.workers, self.rate_bps = workers, rate_bps
        self._ranks: list[Child[Report]] = []
        self._daemons: list[SwitchDaemon] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object = None, error: BaseException | None = None, _traceback: object = None, /) -> None:
        end_ranks(self._ranks)
        for daemon in self._daemons:
            daemon.stop()

    @abstractmethod
    def start(self, place: ScriptPlace, logs: Path) -> list[Child[Report]]:
        """Starts all ranks. place: of each but for its rank. Raises UnfitError, RunFailed."""

    def end(self, ranks: Sequence[Child[Report]]) -> None:
        """Ends ranks that have done all, and what they have started."""
        end_ranks(ranks, END_S)
        self._ranks = [child for child in self._ranks if child not in ranks]

    def _switch_at(self, address: str, method: str) -> str:
        """Starts the switch that a method needs, in this process. Its control address; "" where it needs none."""
        if not is_switch(method):
            return ""
        daemon = SwitchDaemon(DaemonOptions(f"tcp://{address}:0", (address, 0), link=parse_method(method).link))
        self._daemons.append(daemon)
        daemon.start()
        return daemon.control_endpoint

    def check(self) -> None:  # noqa: B027  # nothing may have ended where nothing else was started
        """Raises RunFailed if something has ended that ranks need."""

    def sent_bytes(self) -> list[int]:
        """What ranks have sent until now, as frames; [] where nobody counts."""
        return []

    def monitor(self) -> Any:
        """What certifies the links, a `FidelityMonitor`; None where none can."""
        return None


def scenario_of(workers: int, rate_bps: int, delay_ns: int, methods: Sequence[str]) -> Scenario:
    """A star of such links. Raises ScenarioError."""
    named = ", ".join(f'"{method}"' for method in methods if method != NCCL)
    text = (
        f'name = "try"\ntitle = "A script of the user"\n[topology]\nworkers = {workers}\nrate_bps = {rate_bps}\n'
        f'delay_ns = {delay_ns}\n[methods]\nmininet = [{named}]\nsim = []\n[workload]\nname = "digits"\n'
    )
    return parse(text, "switchagg try")


def is_switch(method: str) -> bool:
    return method != NCCL and parse_method(method).is_switch


def method_variables(method: str, switch: str) -> dict[str, str]:
    """Of the backend, for a rank."""
    if method in (GLOO, NCCL):
        return {}
    return {"SWITCHAGG_METHOD": method, "SWITCHAGG_LINK": "", "SWITCHAGG_CODEC": "", "SWITCHAGG_SWITCH": switch}


def torchrun_variables(place: ScriptPlace, address: str, port: int, local: int = 1) -> dict[str, str]:
    """What torchrun would set. local: ranks of each machine."""
    node, local_rank = divmod(place.rank, local)
    sizes = dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), place.workers)
    numbers = {"RANK": place.rank, "ROLE_RANK": place.rank, "LOCAL_RANK": local_rank, "GROUP_RANK": node, **sizes}
    numbers |= {"LOCAL_WORLD_SIZE": local, "GROUP_WORLD_SIZE": place.workers // local, "MASTER_PORT": port}
    return {
        **{name: str(number) for name, number in numbers.items()},
        "MASTER_ADDR": address,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": "switchagg-try",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def rank_command(place: ScriptPlace) -> list[str]:
    """-P: a file of the user's folder named like a module of a library must not take its place."""
    return [sys.executable, "-P", "-m", MODULE, msgspec.json.encode(place).decode()]


def rank_log(logs: Path, place: ScriptPlace) -> IO[bytes]:
    logs.mkdir(parents=True, exist_ok=True)
    return (logs / f"{place.phase.replace(':', '-').replace('@', '-')}-rank{place.rank}.log").open("w+b")


def new_child(place: ScriptPlace, process: Any, log: IO[bytes]) -> Child[Report]:
    """A rank by the name that errors have."""
    return Child(f"{place.phase}: rank {place.rank}", process, Report | CommandFailed, log)


def end_ranks(ranks: Sequence[Child[Any]], grace_s: float = 0.0) -> None:
    """Ends ranks and all that they have started; those that have done all may end by themselves for so long."""
    end_s = time.monotonic() + grace_s
    for child in ranks:
        _close(child.process.stdin)  # one that waits for the next command ends
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, end_s - time.monotonic()))
    for child in ranks:
        if child.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)  # its group is its own
        child.process.wait()
        _close(child.process.stdout)
        _close(child.log)


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with contextlib.suppress(OSError):
            pipe.close()


class EmulatedSite(Site):
    """A network namespace for each rank, with a shaped link to the switch. Raises UnfitError."""

    name = "mininet"

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario.topology.workers, scenario.topology.rate_bps)
        self._scenario, self.network, self._network = scenario, scenario.network, RunningScenario(scenario)
        self._jobs = 0

    def __enter__(self) -> Self:
        self._network.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            super().__exit__()
        finally:
            self._network.close()

    def start(self, place: ScriptPlace, logs: Path) -> list[Child[Report]]:
        star, switch, method = self._network.star, "", place.method
        if is_switch(method):
            logs.mkdir(parents=True, exist_ok=True)
            log = logs / f"{method.replace(':', '-')}-switch.log"
            switch = self._network.start_switch(self._scenario, parse_method(method), method, log).control
        port = RENDEZVOUS_PORT + self._jobs
        self._jobs += 1
        ranks = []
        for rank in range(self.workers):
            placed = msgspec.structs.replace(place, rank=rank, niceness=NICENESS)
            variables = torchrun_variables(placed, star.workers[0].address, port) | method_variables(method, switch)
            placed = msgspec.structs.replace(placed, environment=variables)
            log_file = rank_log(logs, placed)
            options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log_file}
            process = self._network.start_rank(rank, rank_command(placed), **options)
            ranks.append(new_child(placed, process, log_file))
            self._ranks.append(ranks[-1])
        return ranks

    def check(self) -> None:
        self._network.check_services()

    def sent_bytes(self) -> list[int]:
        return [link.up_bytes for link in self._network.star.counters()]

    def monitor(self) -> Any:
        from emulation.testbed.certificate.fidelity import FidelityMonitor

        return FidelityMonitor(self._network.star)


class LoopbackSite(Site):
    """Ranks of this machine, which share its loopback: no link is a bottleneck, so that no method can gain."""

    name = "loopback"

    def start(self, place: ScriptPlace, logs: Path) -> list[Child[Report]]:
        method = place.method
        switch, port, ranks = self._switch_at("127.0.0.1", method), free_port("127.0.0.1"), []
        for rank in range(self.workers):
            placed = msgspec.structs.replace(place, rank=rank, niceness=NICENESS)
            variables = torchrun_variables(placed, "127.0.0.1", port, self.workers) | method_variables(method, switch)
            placed = msgspec.structs.replace(placed, environment={"GLOO_SOCKET_IFNAME": "lo", **variables})
            ranks.append(start_here(placed, rank_log(logs, placed)))
            self._ranks.append(ranks[-1])
        return ranks


def start_here(place: ScriptPlace, log: IO[bytes], pipe: Any = subprocess.PIPE) -> Child[Report]:
    """A rank of this machine's own network, in a process group of its own; it dies with this thread."""
    alive = ["setpriv", "--pdeathsig", "KILL"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    process = subprocess.Popen(
        [*alive, *rank_command(place)], stdin=pipe, stdout=pipe, stderr=log, env=environment, process_group=0
    )
    return new_child(place, process, log)


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
