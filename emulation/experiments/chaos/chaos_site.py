"""The processes and links of a chaos run: store, switches, ranks, each in its place; what faults act on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from emulation.experiments.chaos.bad_packets import BadPackets
from emulation.experiments.chaos.chaos_network import (
    HUB,
    STRANGER,
    ChaosNetwork,
    LoopbackNetwork,
    require_namespaces,
)
from emulation.experiments.chaos.chaos_options import NAMESPACES, ChaosOptions
from emulation.experiments.chaos.fault_kinds.fault_kind import SWITCH, WORKER, ChaosEvent
from emulation.experiments.chaos.leftovers import Leftovers
from emulation.experiments.chaos.rank_reports import ChaosRankPlace, RankReport
from emulation.experiments.chaos.step_ledger import LapHistory
from emulation.scenario.errors import RunFailed
from emulation.testbed.children import Child
from emulation.testbed.netns import wait_readable
from emulation.testbed.nursery import Nursery, NurseryProcess
from emulation.testbed.resource import Resource
from transport.switch.daemon_options import DaemonOptions

ROOM = "emulation.experiments.chaos"
START_S = 60.0
END_S = 10.0
GROUP_TIMEOUT_S = 30.0
DRAIN_LEASES = 2.0
"""How long a switch that is asked to end waits for jobs to leave it."""


class ChaosSite(Resource):
    """A context manager, whose end removes all that it has made. folder: of checkpoints and logs, which goes, too."""

    def __init__(self, options: ChaosOptions) -> None:
        self.options = options
        self.ranks: list[Child[RankReport]] = []
        self.leftovers = Leftovers()
        self._switches: dict[int, NurseryProcess] = {}
        self._restarting: set[int] = set()
        self._dying: set[int] = set()
        self._packets: list[BadPackets] = []
        self.bad_packets = 0
        self._ending = ExitStack()

    def close(self) -> None:
        self._ending.close()

    def _open(self) -> None:
        options, ending = self.options, self._ending
        nodes = [f"{WORKER} {rank}" for rank in range(options.workers)]
        self.switch_nodes = [f"{SWITCH} {number}" for number in range(options.switches)]
        if options.place == NAMESPACES:
            require_namespaces()
        os.environ[self.leftovers.variable] = self.leftovers.token
        ending.callback(os.environ.pop, self.leftovers.variable)
        self.folder = self.leftovers.folder = Path(tempfile.mkdtemp(prefix="switchagg-chaos-"))
        ending.callback(shutil.rmtree, self.folder)
        self.nursery = ending.enter_context(Nursery([f"{ROOM}.chaos_rank:prepare"]))
        self.network: ChaosNetwork | LoopbackNetwork
        if options.place == NAMESPACES:
            self.network = ending.enter_context(ChaosNetwork([*nodes, *self.switch_nodes, STRANGER]))
        else:
            self.network = LoopbackNetwork()
        self.leftovers.namespaces = dict(self.network.namespaces)
        self.leftovers.links = set(self.network.links)
        self.places = [self._switch_options(name) for name in self.switch_nodes]
        self._start_store()
        for number in range(options.switches):
            self.start_switch(number)
        ending.callback(self.stop_packets)

    def _switch_options(self, name: str) -> DaemonOptions:
        address, lease_s = self.network.address(name), self.options.lease_s
        control, data = (5555, 5556) if self.options.place == NAMESPACES else (_free_port(), _free_port())
        return DaemonOptions(
            f"tcp://{address}:{control}", (address, data), lease_s=lease_s, drain_s=DRAIN_LEASES * lease_s
        )

    def log(self, name: str) -> IO[bytes]:
        """Where a process writes its stderr."""
        return (self.folder / f"{name}.log").open("ab")

    def _start_store(self) -> None:
        address = self.network.address(HUB)
        with self.log("store") as log:
            entry = f"{ROOM}.chaos_rank:serve_store"
            process = self.nursery.start(entry, address, {}, log, self.network.pid(HUB))
        self.store = (address, int(self._first_line(process, "store")))

    def _first_line(self, process: NurseryProcess, name: str) -> str:
        if wait_readable(process.stdout.fileno(), START_S) and (line := process.stdout.readline()):
            return line.decode()
        text = (self.folder / f"{name}.log").read_text(errors="replace").strip()
        raise RunFailed(f"the {name} didn't start: {text.splitlines()[-1] if text else 'it wrote nothing'}")

    # ---- the job

    def start_ranks(self, start: int, first: int, last: int, lap_plans: Sequence[LapHistory] = ()) -> None:
        """The processes of all ranks. The arguments are those of ChaosRankPlace."""
        options = self.options
        self._place = ChaosRankPlace(
            *(0, options.workers, self.store, start, first, last, options.lap_steps, str(self.folder), options.seed),
            GROUP_TIMEOUT_S,
            [lap.members for lap in lap_plans],
        )
        self.ranks = [self._new_rank(rank) for rank in range(options.workers)]

    def start_rank(self, rank: int) -> None:
        """Again, alone. Nothing happens if it lives."""
        if self.ranks and self._has_ended(process := cast(NurseryProcess, self.ranks[rank].process)):
            process.close()
            self.ranks[rank].log.close()
            self.ranks = [*self.ranks[:rank], self._new_rank(rank), *self.ranks[rank + 1 :]]

    def _new_rank(self, rank: int) -> Child[RankReport]:
        options = self.options
        environment = {"SWITCHAGG_METHOD": options.method, "MASTER_ADDR": self.store[0], "TMPDIR": str(self.folder)}
        if self.places:
            environment["SWITCHAGG_SWITCH"] = ",".join(place.bind_control for place in self.places)
        if options.fallback:
            environment["SWITCHAGG_FALLBACK"] = options.fallback
        if options.elastic and not self._place.lap_plans:
            environment["SWITCHAGG_ELASTIC"] = "1"
        place = msgspec.structs.replace(self._place, rank=rank)
        log = self.log(f"start{place.start}-rank{rank}")
        words, inside = msgspec.json.encode(place).decode(), self.network.pid(f"{WORKER} {rank}")
        process = self.nursery.start(f"{ROOM}.chaos_rank:run_rank", words, environment, log, inside)
        return Child(f"rank {rank}", cast(Any, process), RankReport, log)

    def ask_to_stop(self) -> None:
        """All ranks end after a step that rank 0 begins later."""
        assert self.ranks[0].process.stdin is not None
        self.ranks[0].process.stdin.close()

    def end_ranks(self) -> None:
        """Kills those that are left."""
        for child in self.ranks:
            cast(NurseryProcess, child.process).close()
            child.log.close()
        self.ranks = []

    def keep_logs(self, start: int, folder: Path) -> None:
        """Copies what the ranks of this start, and the switches, have written."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in (*self.folder.glob(f"start{start}-*.log"), *self.folder.glob("switch*.log")):
            shutil.copy(path, folder)

    def drop_logs(self, start: int) -> None:
        for path in self.folder.glob(f"start{start}-*.log"):
            path.unlink()

    def end_switches(self) -> list[str]:
        """Asks all switches to end; what was wrong with how they did."""
        faults = []
        for number, process in sorted(self._switches.items()):
            process.send_signal(signal.SIGTERM)
            try:
                if status := process.wait(END_S):
                    faults.append(f"switch {number} ended with status {status}")
            except subprocess.TimeoutExpired:
                faults.append(f"switch {number} did not end within {END_S:g} s of SIGTERM")
            process.close()
        self._switches.clear()
        return faults

    # ---- what faults do

    def signal(self, target: str, number: int) -> None:
        if process := self._process(target):
            process.send_signal(signal.Signals(number))
            if number == signal.SIGKILL:
                self._dying.add(process.pid)

    def start(self, target: str) -> None:
        kind, place = target.split()
        begin = self.start_switch if kind == SWITCH else self.start_rank
        begin(int(place))

    def _process(self, target: str) -> NurseryProcess | None:
        kind, place = target.split()
        if kind == SWITCH:
            return self._switches.get(int(place))
        return cast(NurseryProcess, self.ranks[int(place)].process) if self.ranks else None

    def start_switch(self, switch: int) -> None:
        process = self._switches.get(switch)
        if process is not None:
            if not self._has_ended(process):
                return
            process.close()
        with self.log(f"switch{switch}") as log:
            words = msgspec.json.encode(self.places[switch]).decode()
            inside = self.network.pid(self.switch_nodes[switch])
            process = self.nursery.start(f"{ROOM}.chaos_rank:serve_switch", words, {}, log, inside)
        self._switches[switch] = process
        self._first_line(process, f"switch{switch}")

    def _has_ended(self, process: NurseryProcess) -> bool:
        """Waits for one that was killed: on a busy machine its end takes a while."""
        if process.pid in self._dying:
            process.wait(END_S)
            self._dying.remove(process.pid)
        return process.poll() is not None

    def restart_switch(self, switch: int) -> None:
        self.signal(f"{SWITCH} {switch}", signal.SIGTERM)
        self._restarting.add(switch)

    def start_ended_switches(self) -> bool:
        """Those that shall be restarted and have ended by now. Whether some have not."""
        for switch in sorted(self._restarting):
            if self._switches[switch].poll() is not None:
                self.start_switch(switch)
                self._restarting.remove(switch)
        return bool(self._restarting)

    def cut(self, target: str, end: str) -> None:
        assert isinstance(self.network, ChaosNetwork)
        self.network.cut(target, end)

    def restore(self, target: str) -> None:
        self.network.restore(target)

    def send_packets(self, event: ChaosEvent) -> None:
        assert isinstance(self.network, ChaosNetwork)
        self._packets.append(BadPackets(self.network, self.switch_nodes, self.places[0].bind_data[1], event))

    def stop_packets(self) -> None:
        while self._packets:
            packets = self._packets.pop()
            packets.close()
            self.bad_packets += packets.packets_sent

    def pids(self) -> list[int]:
        """All processes that the job waits for."""
        switches = [process.pid for process in self._switches.values()]
        return [self.nursery.pid, *switches, *(child.process.pid for child in self.ranks)]

    def ask_where(self, rank: int) -> None:
        """A rank writes to its log where each of its threads is."""
        with contextlib.suppress(ProcessLookupError):
            self.signal(f"{WORKER} {rank}", signal.SIGCONT)
            self.signal(f"{WORKER} {rank}", signal.SIGUSR1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
