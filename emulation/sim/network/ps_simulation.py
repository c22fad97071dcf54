"""The parameter server in all its modes in virtual time: a host per worker, and one per server if there are any."""

from collections.abc import Sequence

from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.host_uplink import Done
from emulation.sim.network.mesh_host import MemberHost
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.network.switched_network import SwitchedNetwork
from transport.group.method_name import flows
from transport.ps.colocated import FOR_SERVER, Colocated
from transport.ps.config import BACKUP, PsConfig
from transport.ps.ps_calls import PsCall
from transport.ps.ps_messages import HEAD_BYTES, begins_transfer
from transport.ps.ps_server import PsServer
from transport.ps.ps_worker import PsWorker


class PsSimulation(Simulation):
    """config.servers hosts after the workers; with 0, every worker has a server beside it.

    `launch` is an allreduce; `begin` any call of a `PsWorker`. The servers' computing takes no virtual time.
    """

    def __init__(self, config: SimulationConfig, shared: SwitchedNetwork | None = None) -> None:
        super().__init__(config, shared, config.servers)
        workers, servers = config.workers, config.servers
        slice_elements = (config.message_bytes - HEAD_BYTES) // 4  # of float32
        ps = PsConfig(workers, servers or workers, **{"slice_elements": slice_elements, **config.ps})
        self.backups = ps.backups
        if ps.mode == BACKUP:
            self.mean_op = "avg"
        kind = PsWorker if servers else Colocated
        self.workers: list[PsWorker | Colocated] = [kind(rank, ps, job="ps") for rank in range(workers)]
        self.servers = [PsServer(workers + server, ps) for server in range(servers)]
        self.hosts: list[MemberHost] = []
        self._done: dict[PsCall, Done] = {}
        connections = self._connections(flows("ps", workers, servers))
        parties: list[PsWorker | Colocated | PsServer] = [*self.workers, *self.servers]
        prefix_bytes = 0 if servers else len(FOR_SERVER)

        def begins(head: bytes) -> bool:
            return begins_transfer(head[prefix_bytes:], ps.servers)

        for member, party in enumerate(parties):
            self.hosts.append(self._mesh_host(member, party, connections, self._settle, "ps", begins))
        for host in self.hosts:
            host.pump()  # hellos, and the first heartbeat

    def begin(self, rank: int, call: SimulatedCall) -> None:
        submitted = self.workers[rank].submit(call.request, call.array, now_ns=self.network.now_ns)
        self._done[submitted] = call.done
        self._settle(rank)
        self.hosts[rank].pump()

    def finished_without(self, rank: int, sizes: Sequence[int]) -> bool:
        return self.workers[rank].behind >= len(sizes)

    def leave(self, rank: int) -> None:
        """A rank needs nothing any more."""
        self.workers[rank].leave()
        self.hosts[rank].pump()

    def _settle(self, member: int) -> None:
        if member >= len(self.workers):
            return
        for call, failure in self.workers[member].events():
            if failure is not None:
                raise failure
            self._done.pop(call)()

    def retransmissions(self) -> int:
        return sum(host.retransmissions for host in self.hosts)

    def switch_counters(self) -> dict[str, int]:
        return {}

    def drop_checksum(self) -> int:
        return sum(host.drop_checksum for host in self.hosts)
