"""Workers of method `switch`: hosts in C that drive the endpoints of the compiled core, whose frames Python never sees.

They compute in no virtual time, except for `HostCosts`.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from emulation.sim.engine import engine_library
from emulation.sim.engine.links import SimulatedLink
from emulation.sim.host_costs import HostCosts, Processor
from emulation.sim.network.host_uplink import Done
from emulation.sim.network.simulated_link import ECT, addressed
from emulation.sim.spines.spine_trees import TreeEndpoints
from switchagg.calls.call_request import CallRequest
from switchagg.calls.chunked_call import ArrayCall
from switchagg.calls.member_calls import CallPlace, MemberCalls
from switchagg.codecs.array_codec import Reduction
from switchagg.endpoint import CallCompleted, Endpoint, StreamFailed
from switchagg.job import UNCONTROLLED, JobConfig
from switchagg.native import headers
from switchagg.native.library import load
from switchagg.native.native_endpoint import NativeEndpoint


class SimulatedCall(NamedTuple):
    """A rank's part in a call in virtual time: the request, and what a session's future and buffer are elsewhere."""

    array: NDArray[Any]
    request: CallRequest
    done: Done
    coding: Reduction | None = None
    """The step of a codec that the call is; None: sums are coded as those of their size are."""

    def with_request(self, **changes: Any) -> "SimulatedCall":
        """The call with other fields of its request."""
        return self._replace(request=self.request._replace(**changes))


Carry = Callable[[CallPlace, ArrayCall, Done], None]
"""carry(place, part, done): begin a part of a call in place; done: it has ended."""


class AggregationHost:
    """A worker of the `switch` method: an Endpoint on a link. `on_failure` is called with a stream that gave up.

    ends: its own address; by job, one for each of its trees, that of the switch it sends to.
    """

    def __init__(
        self,
        endpoint: Endpoint | TreeEndpoints,
        link: SimulatedLink,
        on_failure: Callable[[int, StreamFailed], None],
        ends: tuple[int, Mapping[JobConfig, int]],
        calls: MemberCalls,
    ) -> None:
        self.endpoint = endpoint
        self._network = link.network
        self._rank = endpoint.rank
        self._address, switches = ends
        self._job = job = endpoint.job
        self.calls = calls
        self._link = link
        self._on_failure = on_failure
        self._open: dict[int, tuple[CallPlace, ArrayCall, Done]] = {}  # by the part's identity
        self._held: list[SimulatedCall] | None = None
        self.carry: Carry = self.submit
        """What carries a part of a call: the endpoint, or what a job with a fallback has decided."""
        ecn = ECT if job.congestion != UNCONTROLLED and link.config.ecn_bytes is not None else 0
        strict = link.strict  # elsewhere a job has one class
        self._to = {  # by job and stream, as packets name them
            name.job_id: [(addressed(switch, stream.priority) if strict else switch) | ecn for stream in name.streams]
            for name, switch in switches.items()
        }
        self._transfer_ns = 0
        self._host = Processor(link.network)
        self._join(link)

    def _join(self, link: SimulatedLink) -> None:
        clock = link.network
        self._library = load()
        endpoints = _parts(self.endpoint)
        trees = (headers.struct("sim_tree") * len(endpoints))()
        for facts, endpoint in zip(trees, endpoints, strict=True):
            to = self._to[endpoint.job.job_id]
            facts.endpoint, facts.job_id, facts.streams = endpoint.handle, endpoint.job.job_id, len(to)
            facts.to = ctypes.cast((ctypes.c_uint32 * len(to))(*to), ctypes.c_void_p)
        classes = self.calls.ledger.turns.classes
        self._worker = engine_library.there(
            self._library.sa_sim_worker(
                clock.handle,
                link.handle,
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

    def has_costs(self, costs: HostCosts) -> None:
        """From the start: a call is a transfer to the switch, and one from there."""
        self._transfer_ns = costs.transfer_ns
        self._pace_at(costs.flow_bps)

    def _pace_at(self, flow_bps: int) -> None:
        self._library.sa_sim_worker_pace(self._worker, flow_bps)

    @property
    def drop_checksum(self) -> int:
        """Damaged frames."""
        count: int = self._library.sa_sim_worker_drop_checksum(self._worker)
        return count

    def launch(self, call: SimulatedCall) -> None:
        """Begin a collective in place; calls of a class take its streams in turn, as in a session."""
        then = partial(self._host.run, self._transfer_ns, call.done)
        self._host.run(self._transfer_ns, partial(self._launch, call._replace(done=then)))

    def _launch(self, call: SimulatedCall) -> None:
        if self._held is not None:
            self._held.append(call)
            return
        array, request, done, coding = call
        entered = self.calls.enter(self.calls.lay_out(array, request, coding))
        left = len(entered)

        def part_done(place: CallPlace) -> None:
            nonlocal left
            self.calls.ledger.finish(place)
            left -= 1
            if not left:
                done()

        for place, part in entered:
            self.carry(place, part, partial(part_done, place))
        self._events()
        self._pump()

    def submit(self, place: CallPlace, part: ArrayCall, done: Done) -> None:
        """Give a part to the endpoint."""
        self._open[id(part)] = place, part, done
        self.endpoint.submit(place[0], part)

    def hold(self) -> None:
        """From now on calls get no number, and wait for `release`."""
        if self._held is None:
            self._held = []

    def release(self) -> None:
        """Begin what was held, in order."""
        held, self._held = self._held or [], None
        for call in held:
            self._launch(call)

    def take_back(self) -> "list[tuple[CallPlace, ArrayCall, Done, NDArray[np.bool_]]]":
        """Parts that the endpoint has not finished, with the rows that each holds; it isn't used any more."""
        self._events()
        parts = [(*part, cast(Endpoint, self.endpoint).held(part[1])) for part in self._open.values()]
        self._open.clear()
        return parts

    def has_early(self, sizes: Sequence[int]) -> bool:
        """Whether the results of the next calls are there, means of so many float32, best effort."""
        endpoint = cast(Endpoint, self.endpoint)  # a job with partial sums has one tree
        return self._host.idle and self.calls.finished_without(endpoint.has_early, sizes)

    def readmit(self, endpoint: Endpoint | TreeEndpoints) -> None:
        """Go on with a new generation of the job; no call is in progress."""
        self._replace(endpoint)
        self.endpoint = endpoint
        self._job = self.calls.job = endpoint.job

    def _replace(self, endpoint: Endpoint | TreeEndpoints) -> None:
        handles = [part.handle for part in _parts(endpoint)]
        self._library.sa_sim_worker_readmit(self._worker, (ctypes.c_void_p * len(handles))(*handles))

    def receive(self, _frame: Any, _sender: int, _to: int) -> None:
        """The method is never called: frames stay in C."""
        raise AssertionError("a frame from C")

    def _events(self) -> None:
        while (event := self.endpoint.next_event()) is not None:
            if isinstance(event, CallCompleted):
                self._open.pop(id(event.call))[2]()
            else:
                self._on_failure(self._rank, event)

    def _pump(self) -> None:
        self._library.sa_sim_worker_pump(self._worker)


def _parts(endpoint: Endpoint | TreeEndpoints) -> Sequence[NativeEndpoint]:
    """The facts of each tree."""
    return cast(Sequence[NativeEndpoint], endpoint.parts if isinstance(endpoint, TreeEndpoints) else [endpoint])
