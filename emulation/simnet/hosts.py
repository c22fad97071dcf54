"""The ends of the star: hosts that turn the handle of the sans-IO protocols. Their computing takes no virtual time."""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from emulation.simnet.link import ETHERNET_BYTES, IP_BYTES, UDP_FRAMING_BYTES, CorruptedFrame, Link
from emulation.simnet.network import Network
from switchagg.call import make_call
from switchagg.endpoint import CallCompleted, Endpoint, StreamFailed
from switchagg.job import JobConfig
from transport.collectives.ring import RingAllreduce
from transport.reliable import DATA, KIND_OFFSET, Receiver, ReliableConfig, Sender

Done = Callable[[], None]
CREDIT_BYTES_MAX = 65_536
CREDIT_NS = 1_000_000  # a host keeps about this much sending time in its queue, as Linux's TCP small queues do


class Alarm:
    """One timer that may be set earlier at any time. It may ring early: ask again what is due, and set it again."""

    def __init__(self, network: Network, ring: Done) -> None:
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


class Uplink:
    """A host's queue to its link: holds a bounded credit of bytes, and asks for more when half of it is sent.

    So frames leave the protocol when they leave the host, not a window earlier, and no host overflows its own queue.
    `give(limit)` sends up to `limit` frames of at most frame_bytes (framing included) and says how many.
    """

    def __init__(self, network: Network, link: Link, frame_bytes: int, give: Callable[[int], int]) -> None:
        credit = min(CREDIT_BYTES_MAX, link.config.rate_bps * CREDIT_NS // 8_000_000_000)
        self._credit_bytes = max(credit, 2 * frame_bytes)
        self._network = network
        self._link = link
        self._frame_bytes = frame_bytes
        self._give = give
        self._waiting = False

    def pump(self) -> None:
        """Send what the protocol has, as far as the credit goes; continues by itself."""
        if self._waiting:
            return
        room = self._credit_bytes - self._link.backlog_bytes(self._network.now_ns)
        limit = room // self._frame_bytes
        if limit > 0 and self._give(limit) < limit:
            return
        self._waiting = True
        wake_ns = self._link.time_at_backlog_ns(self._credit_bytes // 2)
        self._network.schedule(max(wake_ns, self._network.now_ns), self._wake)

    def _wake(self, _frame: None, _sender: int, _to: int) -> None:
        self._waiting = False
        self.pump()


class AggregationHost:
    """A worker of the `switch` method: an Endpoint on a link. `on_failure` is told of a stream that gave up."""

    def __init__(
        self, network: Network, rank: int, job: JobConfig, link: Link, on_failure: Callable[[int, StreamFailed], None]
    ) -> None:
        self.endpoint = Endpoint(job, rank)
        self.drop_checksum = 0
        self._network = network
        self._rank = rank
        self._job = job
        self._link = link
        self._on_failure = on_failure
        self._done: dict[int, Done] = {}
        self._launched = 0
        self._wire_bytes = 20 + 4 * job.elements + UDP_FRAMING_BYTES
        self._uplink = Uplink(network, link, self._wire_bytes, self._give)
        self._alarm = Alarm(network, self._ring)

    def launch(self, array: NDArray[Any], op: str, done: Done) -> None:
        """Begin an allreduce in place; calls take the streams in turn. `done` is called once it is complete."""
        stream = self._launched % len(self._job.streams)
        self._launched += 1
        call = make_call(array, op, self._job)
        self._done[id(call)] = done
        self.endpoint.submit(stream, call)
        self._events()
        self._uplink.pump()

    def receive(self, frame: Any, sender: int, to: int) -> None:
        """A frame (1, size) uint8 from the switch."""
        if frame.__class__ is CorruptedFrame:
            frame = frame.received()
            if frame is None:
                self.drop_checksum += 1
                return
        self.endpoint.receive(frame, self._network.now_ns)
        self._events()
        self._uplink.pump()

    def _events(self) -> None:
        while (event := self.endpoint.next_event()) is not None:
            if isinstance(event, CallCompleted):
                self._done.pop(id(event.call))()
            else:
                self._on_failure(self._rank, event)

    def _give(self, limit: int) -> int:
        now_ns = self._network.now_ns
        bundle = self.endpoint.frames_to_send(now_ns, limit)
        count = len(bundle)
        send, rank, size = self._link.send, self._rank, self._wire_bytes
        for row in range(count):
            send(bundle[row : row + 1], size, now_ns, rank, rank)
        if count:
            self._alarm.set(self.endpoint.next_deadline_ns())
        return count

    def _ring(self) -> None:
        self.endpoint.handle_timer(self._network.now_ns)
        self._events()
        self._uplink.pump()
        self._alarm.set(self.endpoint.next_deadline_ns())


class RingHost:
    """A worker of the `ring` method: sends to rank + 1, receives from rank - 1, each over a reliable connection.

    Allreduces may overlap; messages of one that this rank hasn't launched yet wait for it.
    """

    def __init__(
        self, network: Network, rank: int, workers: int, config: ReliableConfig, link: Link, message_bytes: int
    ) -> None:
        right, left = (rank + 1) % workers, (rank - 1) % workers
        self.sender = Sender(config, connection=rank, job="ring", peer=right)
        self.receiver = Receiver(config, connection=left)
        self.drop_checksum = 0
        self._network = network
        self._rank = rank
        self._workers = workers
        self._left = left
        self._right = right
        self._link = link
        self._message_bytes = message_bytes
        self._launched = 0
        self._running: dict[int, tuple[RingAllreduce, Done]] = {}
        self._early: dict[int, list[tuple[int, int, bytes]]] = {}
        self._uplink = Uplink(network, link, config.segment_bytes + 32 + ETHERNET_BYTES + IP_BYTES, self._give)
        self._alarm = Alarm(network, self._ring)

    def launch(self, array: NDArray[Any], op: str, done: Done) -> None:
        """Begin an allreduce in place. `done` is called once it is complete."""
        number = self._launched
        self._launched += 1
        ring = RingAllreduce(self._rank, self._workers, "max" if op == "max" else "sum", self._message_bytes)
        ring.start(array)
        for message in self._early.pop(number, ()):
            ring.receive(*message)
        self._running[number] = (ring, done)
        self._advance(number)
        self._uplink.pump()

    def receive(self, frame: Any, sender: int, to: int) -> None:
        """A frame of a neighbour, its bytes from after the IP header."""
        if frame.__class__ is CorruptedFrame:
            frame = frame.received()
            if frame is None:
                self.drop_checksum += 1
                return
        now_ns = self._network.now_ns
        if len(frame) > KIND_OFFSET and frame[KIND_OFFSET] == DATA:
            self.receiver.receive(frame, now_ns)
            self._acknowledge(now_ns)
            while (message := self.receiver.next_message()) is not None:
                number, place = divmod(message.tag, 1 << 32)
                self._take(number, place >> 16, place & 0xFFFF, message.data)
        else:
            self.sender.receive(frame, now_ns)
            self._alarm.set(self.sender.next_deadline_ns())
        self._uplink.pump()

    def _take(self, number: int, step: int, segment: int, data: bytes) -> None:
        running = self._running.get(number)
        if running is None:
            assert number >= self._launched, f"a message of allreduce {number}, which is complete"
            self._early.setdefault(number, []).append((step, segment, data))
            return
        running[0].receive(step, segment, data)
        self._advance(number)

    def _advance(self, number: int) -> None:
        ring, done = self._running[number]
        for step, segment, data in ring.messages_to_send():
            self.sender.submit(number << 32 | step << 16 | segment, data)
        if ring.done:
            del self._running[number]
            done()

    def _acknowledge(self, now_ns: int) -> None:
        for ack in self.receiver.frames_to_send(now_ns):
            self._link.send(ack, len(ack) + ETHERNET_BYTES + IP_BYTES, now_ns, self._rank, self._left)
        self._alarm.set(self.receiver.next_deadline_ns())

    def _give(self, limit: int) -> int:
        now_ns = self._network.now_ns
        frames = self.sender.frames_to_send(now_ns, limit)
        send, rank, right = self._link.send, self._rank, self._right
        for frame in frames:
            send(frame, len(frame) + ETHERNET_BYTES + IP_BYTES, now_ns, rank, right)
        if frames:
            self._alarm.set(self.sender.next_deadline_ns())
        return len(frames)

    def _ring(self) -> None:
        now_ns = self._network.now_ns
        self.sender.handle_timer(now_ns)
        self.receiver.handle_timer(now_ns)
        self._acknowledge(now_ns)
        self._uplink.pump()
        self._alarm.set(self.sender.next_deadline_ns())
