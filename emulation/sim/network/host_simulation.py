"""Host methods in virtual time: switches that only forward, collectives between hosts over reliable connections."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from emulation.scenario.topologies.topology import STAR
from emulation.sim.engine.collective_member import CollectiveMember
from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.host_uplink import Done
from emulation.sim.network.mesh_host import MemberHost
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.network.switched_network import SwitchedNetwork
from emulation.sim.size_only import SizeOnlyArray
from switchagg.calls.call_request import CallRequest
from switchagg.description import Kind
from switchagg.errors import AggregationFailed
from switchagg.priority import BEST_EFFORT
from transport.collectives.choice import SIZES_BYTES, AlgorithmChoice, fit, to_words
from transport.collectives.collective_party import HEAD_BYTES, CollectiveParty, begins_transfer
from transport.collectives.collective_table import COLLECTIVES, fitting
from transport.collectives.cost import traffic_matrix
from transport.group.method_name import GROUPED


class HostSimulation(Simulation):
    """A collective by its name, or `auto`. Times out as real groups do: after `CALL_TIMEOUT_NS` without any message."""

    def __init__(self, config: SimulationConfig, shared: SwitchedNetwork | None = None, *, method: str) -> None:
        super().__init__(config, shared)
        self.method = method
        self.choice = measured_choice(config) if method == "auto" else None
        self.chosen: dict[int, str] = {}  # size in bytes -> what `auto` took, and why
        self.hosts: list[MemberHost | CollectiveMember] = []
        self._parties: list[CollectiveParty] = []
        self._done: list[dict[int, Done]] = []
        weighed = (
            [name for name, collective in COLLECTIVES.items() if collective.in_auto] if method == "auto" else [method]
        )
        groups = dict.fromkeys(GROUPED, config.group)
        connections = self._connections(
            {pair for name in weighed for pair in traffic_matrix(name, config.workers, groups.get(name, 0))}
        )
        group = None
        if not config.tcp:
            group = self.shared.member_group(connections, self.first, config.credit_bytes, config.costs)
        self._in_c = group is not None
        option, segment_bytes = groups.get(method, 0), config.message_bytes - HEAD_BYTES
        for member in range(config.workers):
            party: CollectiveParty
            host: MemberHost | CollectiveMember
            if group is not None:
                at = group, self.uplinks[member], self._settle
                party = host = CollectiveMember(
                    member, config.workers, at, job=method, option=option, segment_bytes=segment_bytes
                )
                self._attach(member, host.receive_frame)
            else:
                party = CollectiveParty(member, config.workers, job=method, option=option, segment_bytes=segment_bytes)
                host = self._mesh_host(member, party, connections, self._settle, method, begins_transfer)
            self.hosts.append(host)
            self._parties.append(party)
            self._done.append({})

    def _array(self, array: NDArray[Any] | SizeOnlyArray) -> NDArray[Any]:
        if not self._in_c:
            return super()._array(array)
        return self.shared.array(array, filled=self._compressions is not None)

    def begin(self, rank: int, call: SimulatedCall) -> None:
        algorithm, kind = self.method, cast(Kind, call.request.kind)
        if kind != "allreduce":
            algorithm = fitting(kind, self.method, self.config.workers)
        elif self.choice is not None:
            size_bytes = call.array.nbytes
            algorithm = self.choice.algorithm(size_bytes)
            if size_bytes not in self.chosen:
                self.chosen[size_bytes] = self.choice.words(size_bytes)
        submitted = self._parties[rank].submit(call.request, algorithm, call.array, now_ns=self.network.now_ns)
        self._done[rank][submitted.number] = call.done
        self._settle(rank)
        self.hosts[rank].pump()

    def _settle(self, member: int) -> None:
        try:
            finished = self._parties[member].events()
        except AggregationFailed as failure:
            self._give_up(failure)
            return
        for call, fault in finished:
            if fault is not None:
                self._give_up(fault)
                return
            self._done[member].pop(call.number)()

    def _give_up(self, failure: AggregationFailed) -> None:
        """The members can't go on."""
        raise failure

    def notes(self) -> list[str]:
        return [words for _, words in sorted(self.chosen.items())]

    def retransmissions(self) -> int:
        return sum(host.retransmissions for host in self.hosts)

    def switch_counters(self) -> dict[str, int]:
        return {}

    def drop_checksum(self) -> int:
        return sum(host.drop_checksum for host in self.hosts)


def measured_choice(config: SimulationConfig) -> AlgorithmChoice:
    """The measurement for `auto`: messages from one host to another, timed at the start on the same links."""
    segment_bytes = config.message_bytes - HEAD_BYTES
    if config.workers == 1:
        return AlgorithmChoice(1, 0, 1, segment_bytes)
    alpha_ns, beta_fs_per_byte = to_words(fit([(size, _one_way_ns(config, size) / 1e9) for size in SIZES_BYTES]))
    return AlgorithmChoice(config.workers, alpha_ns, beta_fs_per_byte, segment_bytes)


def _one_way_ns(config: SimulationConfig, size_bytes: int) -> int:
    tail_rank = min(config.tail_rank, 1)
    pair = HostSimulation(
        replace(
            config,
            workers=2,
            fabric=STAR,
            place=None,
            other_hosts=0,
            tail_rank=tail_rank,
            trace=False,
            tcp="",
            pfc=None,
        ),
        method="ring",
    )
    array = np.zeros(size_bytes, np.uint8)
    for rank, done in enumerate((lambda: None, pair.network.stop)):
        pair.begin(rank, SimulatedCall(array.copy(), CallRequest("broadcast", priority=BEST_EFFORT), done))
    pair.run(f"a message of {size_bytes} bytes")
    return pair.network.now_ns
