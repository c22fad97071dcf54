"""Every method that has a shape: which it is, and how sums of real arrays are coded."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np

from emulation.sim.flow.call_load import CallLoad
from emulation.sim.flow.call_values import in_rounds
from emulation.sim.flow.collective_messages import Carriage, IdleNetworkCall, ProgramActor
from emulation.sim.flow.flow_network import FlowNetwork
from emulation.sim.flow.flow_simulation import FlowCall, FlowSimulation, NotDescribed
from emulation.sim.flow.phases import PHASED, Chains, LinkPhase, phased
from emulation.sim.flow.servers import PsActor
from emulation.sim.flow.switching import Tree, shape_of_call
from emulation.sim.host_costs import Processor
from emulation.sim.network.aggregation_host import SimulatedCall
from emulation.sim.network.gloo_simulation import as_gloo_does, compressed
from emulation.sim.network.host_simulation import measured_choice
from emulation.sim.network.host_uplink import CREDIT_BYTES_MAX, CREDIT_NS
from emulation.sim.network.simulated_link import IP_BYTES
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.size_only import SizeOnlyArray
from switchagg.calls.array_calls import rounds_of
from switchagg.calls.chunked_call import ArrayCall
from switchagg.calls.member_calls import MemberCalls
from switchagg.codecs import FIXED_POINT
from switchagg.codecs.rounding import call_key
from switchagg.codecs.spec import parse_sums
from switchagg.description import Kind
from switchagg.native.library import require
from switchagg.wire import Op, Route
from transport.collectives.collective import Task
from transport.collectives.collective_party import HEAD_BYTES
from transport.collectives.collective_table import COLLECTIVES, fitting, program
from transport.collectives.cost import traffic_matrix
from transport.group.method_name import GLOO_CODECS, GROUPED, flows, host_methods
from transport.links.ethernet import ETHERNET_BYTES
from transport.links.framing import RELIABLE_BYTES
from transport.ps.config import BSP
from transport.ps.ps_messages import HEAD_BYTES as PS_HEAD_BYTES
from transport.ps.sharding import Sharding

WORKERS_MOST = 4096
"""The stream of a job of the switch."""
MESSAGES_MOST = 10_000
"""About so many messages of a call are followed one by one; longer calls are computed by phases, where ranks are
alike."""
PAIRS_MOST = 64
"""Workers up to which windows of connections are those of all that cross a port; above, none limits."""


class MessageFlow(FlowSimulation):
    """Methods whose members send each other messages."""

    def carriage(self, pairs: Callable[[], Any]) -> Carriage:
        """How their messages travel. pairs(): members that may send to each other, to divide windows by."""
        reliable = self.reliable
        window: Callable[[int, int], int] = lambda _sender, _to: reliable.window_bytes  # noqa: E731
        if self.config.workers <= PAIRS_MOST:
            connections = self._connections(pairs())
            window = lambda sender, to: connections(sender, to).window_bytes  # noqa: E731
        frame_bytes = RELIABLE_BYTES + ETHERNET_BYTES + IP_BYTES
        full = reliable.segment_bytes + frame_bytes

        def credit_bytes(rate: float) -> float:
            """Three quarters of it, since it is filled when half of it has left."""
            return 0.75 * max(min(CREDIT_BYTES_MAX, rate * CREDIT_NS), 2 * full)

        return Carriage(
            reliable.segment_bytes,
            frame_bytes,
            frame_bytes,
            reliable.ack_every_segments,
            credit_bytes,
            window,
            self.config.costs,
        )


class HostFlow(MessageFlow):
    """Collectives among hosts, from their plans; `auto` chooses as it does of packets."""

    def __init__(
        self, config: SimulationConfig, shared: FlowNetwork | None = None, *, method: str, by_formula: bool = False
    ) -> None:
        super().__init__(config, shared, method=method, by_formula=by_formula)
        self.choice = measured_choice(config) if method == "auto" else None
        self.chosen: dict[int, str] = {}
        self._steps: dict[tuple[str, str], list[LinkPhase]] = {}

    @cached_property
    def how(self) -> Carriage:
        weighed = (
            [name for name, collective in COLLECTIVES.items() if collective.in_auto] if self.choice else [self.method]
        )
        workers, group = self.config.workers, self.config.group if self.method in GROUPED else 0
        return self.carriage(lambda: {pair for name in weighed for pair in traffic_matrix(name, workers, group)})

    def algorithm(self, call: SimulatedCall) -> str:
        """The collective that does a call."""
        kind = cast(Kind, call.request.kind)
        if kind != "allreduce" or self.choice is None:
            return fitting(kind, self.method, self.config.workers) if kind != "allreduce" else self.method
        size_bytes = call.array.nbytes
        self.chosen.setdefault(size_bytes, self.choice.words(size_bytes))
        return self.choice.algorithm(size_bytes)

    def shape_of(self, call: SimulatedCall) -> CallLoad:
        """See `FlowSimulation`."""
        workers, option = self.config.workers, self.config.group if self.method in GROUPED else 0
        segment_bytes, array, name = self.config.message_bytes - HEAD_BYTES, call.array, self.algorithm(call)
        kind = cast(Kind, call.request.kind)
        segments = min(workers, 64) + 2 * array.nbytes // segment_bytes  # about, of a rank
        if workers * segments > MESSAGES_MOST:
            phased_plan = PHASED.get((kind, name))
            if phased_plan is not None and phased_plan.fits(workers):
                if (kind, name) not in self._steps:
                    chains = Chains(self.flows, self.topology.members)
                    self._steps[kind, name] = chains.steps(phased_plan.phases(workers, option))
                return phased(self._steps[kind, name], array.nbytes, self.flows, self.how, segment_bytes)
            if workers * segments > MESSAGES_MOST * 100:
                raise NotDescribed(f"{name} {kind} on {workers} workers: too many messages, and no phases")
        require(f"method {name}")
        actors = []
        for member in range(workers):
            task = Task(kind, name, member, workers, array.size, call.request.root, option)
            actors.append(ProgramActor(program(task, array.dtype.itemsize, segment_bytes)))
        return IdleNetworkCall(actors, self.flows, self.members, self.how).run(workers)

    def notes(self) -> list[str]:
        return [words for _, words in sorted(self.chosen.items())]


class GlooFlow(HostFlow):
    """PyTorch's Gloo by its algorithms, as in `emulation.sim.network.gloo_simulation`."""

    def __init__(
        self, config: SimulationConfig, shared: FlowNetwork | None = None, *, by_formula: bool = False
    ) -> None:
        self._hook = config.codec if config.codec in GLOO_CODECS else ""
        config = replace(config, codec="") if self._hook else config
        super().__init__(config, shared, method="ring", by_formula=by_formula)
        if self._hook:
            self.mean_op = "avg"

    def begin(self, rank: int, call: SimulatedCall) -> None:
        if call.request.op == "avg" and not isinstance(call.array, SizeOnlyArray):
            call = compressed(call, self._hook, self.config.workers)
        super().begin(rank, as_gloo_does(call))


class PsFlow(MessageFlow):
    """Parameter servers that answer when all workers have pushed (mode bsp)."""

    def __init__(
        self, config: SimulationConfig, shared: FlowNetwork | None = None, *, by_formula: bool = False
    ) -> None:
        if config.ps.get("mode", BSP) != BSP:
            raise NotDescribed(f"its servers are asynchronous or have backups (mode {config.ps['mode']})")
        super().__init__(config, shared, method="ps", servers=config.servers, by_formula=by_formula)
        servers = config.servers or config.workers
        slice_elements = config.ps.get("slice_elements", (config.message_bytes - PS_HEAD_BYTES) // 4)
        self._sharding = Sharding(servers, slice_elements, config.ps.get("tensor_bytes", ()))

    @cached_property
    def how(self) -> Carriage:
        return self.carriage(lambda: flows("ps", self.config.workers, self.config.servers))

    def variant(self, call: SimulatedCall) -> tuple[Hashable, ...]:
        """The server of its first slice."""
        return (self._sharding.first_server(call.request.key or 0),)

    def shape_of(self, call: SimulatedCall) -> CallLoad:
        """See `FlowSimulation`."""
        workers, key, size, kind = self.config.workers, call.request.key or 0, call.array.size, call.request.kind
        if kind in ("reduce_scatter", "all_gather"):
            slices = self._sharding.cut_shards(key, size, workers, gather=kind == "all_gather")
        elif kind == "allreduce":
            slices = self._sharding.cut(key, size)
        else:
            raise NotDescribed(f"{kind} by parameter servers")
        on_workers, later = (
            not self.config.servers,
            self.config.ps.get("push_then_pull", False) and kind != "all_gather",
        )
        itemsize, members = call.array.dtype.itemsize, range(len(self.members))
        actors = [PsActor(member, workers, slices, itemsize, on_workers, later) for member in members]
        return IdleNetworkCall(actors, self.flows, self.members, self.how).run(workers)


class SwitchFlow(FlowSimulation):
    """The switch method: calls of a stream one after the other, streams beside each other.

    More workers than a job of the protocol has are taken for as many: times and bytes don't depend on their number,
    but on the switches between them. Arrays with values then aren't summed: NotDescribed.
    """

    codes_in_rounds = False

    def __init__(
        self, config: SimulationConfig, shared: FlowNetwork | None = None, *, by_formula: bool = False
    ) -> None:
        super().__init__(config, shared, method="switch", by_formula=by_formula)
        self.job = replace(self.config, workers=min(config.workers, WORKERS_MOST)).job()
        if self.job.partial:
            raise NotDescribed("its sums are partial: which ranks' values are in them depends on packets")
        if config.split_calls:
            raise NotDescribed("calls are split over streams ([switch] split_calls)")
        if config.first_slot is None:
            raise NotDescribed("jobs share slots, which are divided anew as they come and go")
        self.plain_priority = max(config.classes)
        self._calls: dict[int, MemberCalls] = {}
        self._tree = Tree(self.flows, self.topology)
        self._hosts: dict[int, Processor] = {}
        self._routed = len(self.topology.aggregators) == 1

    def place(self, rank: int, call: SimulatedCall) -> tuple[Hashable, Hashable, int]:
        (place,) = self._calls_of(rank).ledger.begin(call.request.priority)
        self._calls_of(rank).ledger.finish(place)
        return place, place[0], call_key(self.config.codec_seed, max(rank, 0), *place)

    def _calls_of(self, rank: int) -> MemberCalls:
        if rank not in self._calls:
            sums = parse_sums(self.config.codec or FIXED_POINT.name)
            self._calls[rank] = MemberCalls(self.job, rank, sums, routed=self._routed)
        return self._calls[rank]

    def begin(self, rank: int, call: SimulatedCall) -> None:
        """As of `AggregationHost`: a call is a transfer to the switch, and one from there."""
        transfer_ns = self.config.costs.transfer_ns
        if self.by_formula or not transfer_ns:
            super().begin(rank, call)
            return
        host = self._hosts.setdefault(rank, Processor(self.network))
        call = call._replace(done=partial(host.run, transfer_ns, call.done))
        host.run(transfer_ns, partial(super().begin, rank, call))

    def array_call(self, call: SimulatedCall) -> ArrayCall:
        """The switch's call for an array, with its codec."""
        array = np.empty(call.array.size, call.array.dtype) if isinstance(call.array, SizeOnlyArray) else call.array
        array_call: ArrayCall = self._calls_of(0).lay_out(array, call.request, call.coding).parts[0]
        return array_call

    def sum_up(self, together: FlowCall) -> None:
        if self.job.workers < self.config.workers:
            raise NotDescribed(f"sums of {self.config.workers} workers; a job has {WORKERS_MOST} at most")
        first_call = self.array_call(together.calls[0])
        if (
            first_call.op is not Op.SUM
            or first_call.shares.route is Route.FROM_OWNER
            or first_call.array.dtype.kind != "f"
        ):
            super().sum_up(together)
            return
        every = [(self.array_call(together.calls[rank]), together.keys[rank]) for rank in range(self.config.workers)]
        elements, workers = self.job.room, self.config.workers
        rounds = partial(rounds_of, elements=elements, workers=workers)
        in_rounds([rounds(c.array, codec=c.codec, shares=c.shares, key=key, residual=c.residual) for c, key in every])

    def shape_of(self, call: SimulatedCall) -> CallLoad:
        """See `FlowSimulation`."""
        window = self.job.streams[0].window_slots
        flow_byte_ns = 8e9 / self.config.costs.flow_bps if self.config.costs.flow_bps else 0.0
        return shape_of_call(self.array_call(call), self.job, window, self._tree, flow_byte_ns)


FLOWS: dict[str, Callable[..., FlowSimulation]] = {
    "switch": SwitchFlow,
    **{method: partial(HostFlow, method=method) for method in (*host_methods(), "auto")},
    "ps": PsFlow,
    "gloo": GlooFlow,
}
"""of(config, shared), as SIMULATIONS; others have no shape."""
