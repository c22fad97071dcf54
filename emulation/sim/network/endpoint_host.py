"""A worker of method `switch` in Python: an endpoint in Python, or one whose packets the host changes, on a link."""

from collections.abc import Callable
from functools import partial
from typing import Any

from emulation.sim.engine.links import SimulatedLink
from emulation.sim.host_costs import FlowPacer
from emulation.sim.network.aggregation_host import AggregationHost
from emulation.sim.network.host_uplink import Alarm, ClassQueue, HostUplink
from emulation.sim.network.simulated_link import CE, UDP_FRAMING_BYTES
from emulation.sim.spines.spine_trees import TreeEndpoints
from switchagg.endpoint import Endpoint
from switchagg.wire import STREAM_OFFSET, Bundle, frame_bytes, job_of


class EndpointHost(AggregationHost):
    """As `AggregationHost`, of which C knows nothing."""

    def _join(self, link: SimulatedLink) -> None:
        self._send: Callable[[Any, int, int, int, int], bool] = link.send
        network, frame = link.network, frame_bytes(self._job.elements) + UDP_FRAMING_BYTES
        if link.strict:  # a credit for each class: none waits for another's bytes
            self._uplinks = [
                HostUplink(network, ClassQueue(network, link, kind), frame, partial(self._give, kind=kind))
                for kind in self.calls.ledger.turns.classes
            ]
        else:
            self._uplinks = [HostUplink(network, link, frame, self._give)]
        self._damaged = 0
        self._alarm = Alarm(network, self._ring)
        self._pace: FlowPacer | None = None
        self._paced = Alarm(network, self._pump)

    def _pace_at(self, flow_bps: int) -> None:
        self._pace = FlowPacer(flow_bps) if flow_bps else None

    @property
    def drop_checksum(self) -> int:
        """Damaged frames."""
        return self._damaged

    def _replace(self, endpoint: Endpoint | TreeEndpoints) -> None:
        """Nobody else knows it."""

    def receive(self, frame: Any, _sender: int, to: int) -> None:
        """A frame (1, size) uint8 from the switch; None: its checksum is wrong."""
        if frame is None:
            self._damaged += 1
        else:
            self._take(frame, bool(to & CE))

    def _take(self, frame: Bundle, marked: bool) -> None:
        self.endpoint.receive(frame, self._network.now_ns, marked)
        self._events()
        self._pump()

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
