"""Hosts that drive the sans-IO protocols. Hosts compute in no virtual time, except for `HostCosts`."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from numpy.typing import NDArray

from emulation.sim.host_costs import FlowPacer, HostCosts, Processor
from emulation.sim.network.simulated_link import CE, ECT, UDP_FRAMING_BYTES, CorruptedFrame, SimulatedLink, addressed
from emulation.sim.network.strict_link import ClassQueue, StrictLink
from emulation.sim.network.virtual_clock import VirtualClock
from emulation.sim.spines.spine_trees import TreeEndpoints
from switchagg.calls.call_request import CallRequest
from switchagg.calls.member_calls import CallPlace, MemberCalls
from switchagg.codecs.array_codec import Reduction
from switchagg.endpoint import CallCompleted, Endpoint, StreamFailed
from switchagg.job import UNCONTROLLED, JobConfig
from switchagg.partial_endpoint import PartialEndpoint
from switchagg.wire import STREAM_OFFSET, Bundle, frame_bytes, job_of

Done = Callable[[], None]
CREDIT_BYTES_MAX = 65_536
CREDIT_NS = 1_000_000  # a host keeps about this much sending time in its queue, as Linux's TCP small queues do


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


class Alarm:
    """A timer that may be set earlier at any time. It may ring early: ask again what is due, and set it again."""

    def __init__(self, network: VirtualClock, ring: Done) -> None:
        self._network = network
        self._ring = ring
        self._at_ns: int | None = None

    def set(self, deadline_ns: int | None) -> None:
        """Ring at the deadline or before; None changes nothing."""
        if deadline_ns is not None and (self._at_ns is None or deadline_ns < self._at_ns):
            self._at_ns = max(deadline_ns, self._network.now_ns)
            self._network.schedule(self._at_ns, self._due)

    def _due(self, _frame: None, _sender: int, _to: int) -> None:
        if self._at_ns == self._network.now_ns:  # otherwise it was set to an earlier time, and has rung
            self._at_ns = None
            self._ring()


class HostUplink:
    """A host's queue to its link: holds a bounded credit of bytes, and asks for more when half of it is sent.

    So frames leave the protocol when they leave the host, not a window earlier, and no host overflows its own queue.
    Jobs on one host have a credit each, of their own bytes, so that they share the link.
    `give(limit)` sends up to `limit` frames of at most frame_bytes (framing included) and returns how many.
    """

    def __init__(
        self, network: VirtualClock, link: SimulatedLink | ClassQueue, frame_bytes: int, give: Callable[[int], int]
    ) -> None:
        credit = min(CREDIT_BYTES_MAX, link.config.rate_bps * CREDIT_NS // 8_000_000_000)
        self._credit_bytes = max(credit, 2 * frame_bytes)
        self._network = network
        self._link = link
        self._frame_bytes = frame_bytes
        self._give = give
        self._waiting = False
        self._handed: deque[tuple[int, int]] = deque()  # where jobs share the link: (when they have left, bytes) given

    def pump(self) -> None:
        """Send what the protocol has, as far as the credit goes; continues automatically."""
        if self._waiting:
            return
        alone = self._link.users == 1
        room = self._credit_bytes - (self._link.backlog_bytes(self._network.now_ns) if alone else self._job_backlog())
        limit = room // self._frame_bytes
        frames = self._give(limit) if limit > 0 else 0
        if not alone and frames:
            self._handed.append((self._link.time_at_backlog_ns(0), frames * self._frame_bytes))
        if frames < limit:
            return
        self._waiting = True
        wake_ns = self._link.time_at_backlog_ns(self._credit_bytes // 2) if alone else self._handed[0][0]
        self._network.schedule(max(wake_ns, self._network.now_ns), self._wake)

    def _job_backlog(self) -> int:
        while self._handed and self._handed[0][0] <= self._network.now_ns:
            self._handed.popleft()
        return sum(size_bytes for _, size_bytes in self._handed)

    def _wake(self, _frame: None, _sender: int, _to: int) -> None:
        self._waiting = False
        self.pump()


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
        self._drop_checksum = 0
        self._network = link.network
        self._rank = endpoint.rank
        self._address, switches = ends
        self._job = job = endpoint.job
        self._calls = calls
        self._link = link
        self._on_failure = on_failure
        self._done: dict[int, Done] = {}
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
        self._send: Callable[[Any, int, int, int, int], bool] = link.send
        network, frame = link.network, frame_bytes(self._job.elements) + UDP_FRAMING_BYTES
        if link.strict:  # a credit for each class: none waits for another's bytes
            self._uplinks = [
                HostUplink(
                    network, ClassQueue(network, cast(StrictLink, link), kind), frame, partial(self._give, kind=kind)
                )
                for kind in self._calls.ledger.turns.classes
            ]
        else:
            self._uplinks = [HostUplink(network, link, frame, self._give)]
        self._alarm = Alarm(network, self._ring)
        self._pace: FlowPacer | None = None
        self._paced = Alarm(network, self._pump)

    def has_costs(self, costs: HostCosts) -> None:
        """From the start: a call is a transfer to the switch, and one from there."""
        self._transfer_ns = costs.transfer_ns
        self._pace = FlowPacer(costs.flow_bps) if costs.flow_bps else None

    @property
    def drop_checksum(self) -> int:
        """Damaged frames."""
        return self._drop_checksum

    def launch(self, call: SimulatedCall) -> None:
        """Begin a collective in place; calls of a class take its streams in turn, as in a session."""
        then = partial(self._host.run, self._transfer_ns, call.done)
        self._host.run(self._transfer_ns, partial(self._launch, call._replace(done=then)))

    def _launch(self, call: SimulatedCall) -> None:
        array, request, done, coding = call
        entered = self._calls.enter(self._calls.lay_out(array, request, coding))
        left = len(entered)

        def part_done(place: CallPlace) -> None:
            nonlocal left
            self._calls.ledger.finish(place)
            left -= 1
            if not left:
                done()

        for place, part in entered:
            self._done[id(part)] = partial(part_done, place)
            self.endpoint.submit(place[0], part)
        self._events()
        self._pump()

    def has_early(self, sizes: Sequence[int]) -> bool:
        """Whether the results of the next calls are there, means of so many float32, best effort."""
        endpoint = self.endpoint if self._host.idle else None
        return isinstance(endpoint, PartialEndpoint) and self._calls.finished_without(endpoint.has_early, sizes)

    def readmit(self, endpoint: Endpoint | TreeEndpoints) -> None:
        """Go on with a new generation of the job; no call is in progress."""
        self.endpoint = endpoint
        self._job = self._calls.job = endpoint.job

    def receive(self, frame: Any, sender: int, to: int) -> None:
        """A frame (1, size) uint8 from the switch."""
        if frame.__class__ is CorruptedFrame:
            frame = frame.received()
            if frame is None:
                self._drop_checksum += 1
                return
        self._take(frame, bool(to & CE))

    def _take(self, frame: Bundle, marked: bool) -> None:
        self.endpoint.receive(frame, self._network.now_ns, marked)
        self._events()
        self._pump()

    def _events(self) -> None:
        while (event := self.endpoint.next_event()) is not None:
            if isinstance(event, CallCompleted):
                self._done.pop(id(event.call))()
            else:
                self._on_failure(self._rank, event)

    def _pump(self) -> None:
        for uplink in self._uplinks:
            uplink.pump()

    def _give(self, limit: int, kind: int | None = None) -> int:
        now_ns, count, pace = self._network.now_ns, 0, self._pace
        send, sender = self._send, self._address
        if pace is not None:
            limit = min(limit, int(pace.next_ns <= now_ns))
        while len(bundle := self.endpoint.frames_to_send(now_ns, limit - count, kind)):
            size, to = bundle.shape[1] + UDP_FRAMING_BYTES, self._to[job_of(bundle[0])]
            for row in range(len(bundle)):
                send(bundle[row : row + 1], size, now_ns, sender, to[bundle[row, STREAM_OFFSET]])
                if pace is not None:
                    pace.left(now_ns, size)
            count += len(bundle)
        if pace is not None and pace.next_ns > now_ns:
            self._paced.set(pace.next_ns)
        if count:
            self._alarm.set(self.endpoint.next_deadline_ns())
        return count

    def _ring(self) -> None:
        self.endpoint.handle_timer(self._network.now_ns)
        self._events()
        self._pump()
        self._alarm.set(self.endpoint.next_deadline_ns())
