"""A worker of the `switch` method in C: `AggregationHost`, whose frames and timers Python never sees."""

import ctypes
from collections.abc import Sequence
from typing import cast

from emulation.sim.engine import engine_library
from emulation.sim.engine.compiled_clock import CompiledClock
from emulation.sim.engine.compiled_links import CompiledLink
from emulation.sim.host_costs import HostCosts
from emulation.sim.network.aggregation_host import AggregationHost
from emulation.sim.network.simulated_link import SimulatedLink
from emulation.sim.spines.spine_trees import TreeEndpoints
from switchagg.endpoint import Endpoint
from switchagg.native import headers
from switchagg.native.library import load
from switchagg.native.native_endpoint import NativeEndpoint


class CompiledHost(AggregationHost):
    """endpoint: of the compiled core, or several of them; link: a CompiledLink."""

    def _join(self, link: SimulatedLink) -> None:
        clock = cast(CompiledClock, link.network)
        self._library = load()
        endpoints = _parts(self.endpoint)
        trees = (headers.struct("sim_tree") * len(endpoints))()
        for facts, endpoint in zip(trees, endpoints, strict=True):
            to = self._to[endpoint.job.job_id]
            facts.endpoint, facts.job_id, facts.streams = endpoint.handle, endpoint.job.job_id, len(to)
            facts.to = ctypes.cast((ctypes.c_uint32 * len(to))(*to), ctypes.c_void_p)
        classes = self._calls.ledger.turns.classes
        self._worker = engine_library.there(
            self._library.sa_sim_worker(
                clock.handle,
                cast(CompiledLink, link).handle,
                self._address,
                len(clock.notices),
                trees,
                len(trees),
                (ctypes.c_uint32 * len(classes))(*classes),
                len(classes),
                link.strict,
            )
        )
        clock.notices.append(self._events)

    def readmit(self, endpoint: Endpoint | TreeEndpoints) -> None:
        """See `AggregationHost`."""
        handles = [part.handle for part in _parts(endpoint)]
        self._library.sa_sim_worker_readmit(self._worker, (ctypes.c_void_p * len(handles))(*handles))
        super().readmit(endpoint)

    def has_costs(self, costs: HostCosts) -> None:
        super().has_costs(costs)
        self._library.sa_sim_worker_pace(self._worker, costs.flow_bps)

    @property
    def drop_checksum(self) -> int:
        count: int = self._library.sa_sim_worker_drop_checksum(self._worker)
        return count

    def _pump(self) -> None:
        self._library.sa_sim_worker_pump(self._worker)


def _parts(endpoint: Endpoint | TreeEndpoints) -> Sequence[NativeEndpoint]:
    """The facts of each tree."""
    return cast(Sequence[NativeEndpoint], endpoint.parts if isinstance(endpoint, TreeEndpoints) else [endpoint])
