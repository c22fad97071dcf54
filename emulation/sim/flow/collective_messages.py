"""A collective of host methods alone on idle links, an event per message: when its ranks are done, what links carried.

A message leaves its member whole, behind those that were ready before it, and follows its way through links as a train
of frames: cut through frame by frame, behind what a link sends already. It goes on as the packets do: each has all
headers, a switch forwards a frame once all of it is there, acknowledgements take their part of the way back.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from emulation.sim.flow.call_load import CallLoad
from emulation.sim.flow.flow_network import FlowNetwork
from emulation.sim.host_costs import FREE, HostCosts
from switchagg.native.headers import SA_NODE_LOCAL, SA_NODE_SEND
from transport.collectives.collective_party import HEAD_BYTES
from transport.collectives.programs import CompiledProgram


class ReadyMessage(NamedTuple):
    """A message that is ready. tag: what its receiver knows it by. node: what is told once it has left. begins: it is
    the first of a transfer."""

    to: int
    size_bytes: int
    tag: Any
    node: int = -1
    begins: bool = True


class Actor(Protocol):
    """A member's program. Methods return the messages that are ready by then."""

    done: bool

    def start(self) -> list[ReadyMessage]:
        """The call begins."""

    def on_sent(self, node: int) -> list[ReadyMessage]:
        """A message has left."""

    def on_received(self, sender: int, tag: Any) -> list[ReadyMessage]:
        """A message is there."""


class ProgramActor:
    """Runs a compiled plan without values, as `transport.collectives.execution` does with them."""

    def __init__(self, program: CompiledProgram) -> None:
        self._program, self._itemsize = program.lists, program.native.itemsize
        self._waits = self._program.waits.copy()
        self._left = program.nodes
        self._early: set[int] = set()
        self.done = not self._left

    def start(self) -> list[ReadyMessage]:
        """See `Actor`; the first segments to all, so that all can begin."""
        ready: list[int] = []
        for node, (kind, waits) in enumerate(zip(self._program.kinds, self._program.waits, strict=True)):
            if not waits and kind == SA_NODE_SEND:
                ready.append(node)
            elif not waits and kind == SA_NODE_LOCAL:
                ready += self._complete(node)
        labels = self._program.labels
        return [self._message(node) for node in sorted(ready, key=lambda node: labels[node][2])]

    def on_sent(self, node: int) -> list[ReadyMessage]:
        """See `Actor`."""
        self._waits[node] = -1
        return [self._message(successor) for successor in self._complete(node)]

    def on_received(self, sender: int, tag: tuple[int, int]) -> list[ReadyMessage]:
        """See `Actor`."""
        node = self._program.arrivals[sender, *tag]
        if self._waits[node]:
            self._early.add(node)
            return []
        return [self._message(successor) for successor in self._complete(node)]

    def _message(self, node: int) -> ReadyMessage:
        program = self._program
        to, *tag = program.labels[node]
        size_bytes = HEAD_BYTES + (program.highs[node] - program.lows[node]) * self._itemsize
        return ReadyMessage(to, size_bytes, (*tag,), node, begins=tag[-1] == 0)

    def _complete(self, node: int) -> list[int]:
        """A node is complete: the messages that are ready now."""
        self._left -= 1
        ready, complete, waits = [], [node], self._waits
        while complete:
            for after in self._program.after[complete.pop()]:
                waits[after] -= 1
                if waits[after]:
                    continue
                kind = self._program.kinds[after]
                if kind == SA_NODE_SEND:
                    ready.append(after)
                elif kind == SA_NODE_LOCAL or after in self._early:
                    self._left -= 1
                    complete.append(after)
        self.done = not self._left
        return ready


@dataclass(frozen=True)
class Carriage:
    """How messages travel. segment_bytes: of a message in a frame; frame_bytes: what all headers add; ack_bytes: of an
    acknowledgement's frame, one for ack_every frames and one for the end of a message. credit_bytes: of a host, what
    counts as sent and is not yet on its link. window_bytes(sender, to): of a connection. costs: of hosts."""

    segment_bytes: int
    frame_bytes: int
    ack_bytes: int
    ack_every: int
    credit_bytes: Callable[[float], float]
    window_bytes: Callable[[int, int], int]
    costs: HostCosts = FREE

    @property
    def flow_byte_ns(self) -> float:
        """The least time per byte of a connection."""
        return 8e9 / self.costs.flow_bps if self.costs.flow_bps else 0.0

    def frames(self, size_bytes: int) -> int:
        """The number of frames of a message."""
        return max(1, -(-size_bytes // self.segment_bytes))


_ARRIVED, _IDLE, _LEFT, _HANDED, _PROCESSED = range(5)


class IdleNetworkCall:
    """A call on an otherwise idle network. `run` is called once."""

    def __init__(self, actors: Sequence[Actor], network: FlowNetwork, members: Sequence[str], how: Carriage) -> None:
        self._actors, self._network, self._members, self._how = actors, network, members, how
        links, count = network.links, len(actors)
        slowest = max(network.byte_ns)
        # A link as fast as several hosts' serves as many trains beside each other: when each lane has sent its own.
        lanes = [max(1, int(slowest / byte_ns + 0.001)) for byte_ns in network.byte_ns]
        self._free_ns = [[0.0] * width for width in lanes]
        self._ack_bytes = [0] * links  # of acknowledgements that the link has to send beside the next message
        self._busy_ns = np.zeros(links)
        self._sent_bytes, self._received_bytes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._queues: list[deque[ReadyMessage]] = [deque() for _ in actors]
        self._requests: list[deque[ReadyMessage]] = [deque() for _ in actors]  # the host hasn't come to them
        self._tasks, self._host_ns = [0] * count, [0.0] * count  # of the host, and when it is through with them
        self._worked_ns = np.zeros(count)
        self._sending = [False] * count
        self._window_ns: dict[tuple[int, int], float] = {}  # when a connection has room again
        self._heap: list[tuple[float, int, int, int, int, Any]] = []
        self._number = 0
        self._done_ns = np.zeros(count)

    def run(self, ranks: int) -> CallLoad:
        """Until nothing is left to happen. ranks: how many of the actors, the first ones, have a result."""
        how = self._how
        for member, actor in enumerate(self._actors):
            self._take(0.0, member, actor.start())
        while self._heap:
            now_ns, _, what, member, other, detail = heapq.heappop(self._heap)
            actor = self._actors[member]
            if what == _IDLE:
                self._sending[member] = False
                self._next(now_ns, member)
                continue
            if what == _HANDED:
                self._tasks[member] -= 1
                self._queues[member].append(detail)
                self._next(now_ns, member)
                self._hand(now_ns, member)
                continue
            was = actor.done
            if what == _ARRIVED:
                message, frames = detail
                self._acknowledge(now_ns, member, other, frames)
                if how.costs.transfer_ns and (message.begins or self._tasks[member]):
                    self._work(now_ns, member, how.costs.transfer_ns * message.begins, _PROCESSED, other, message)
                    continue
                ready = actor.on_received(other, message.tag)
            elif what == _PROCESSED:
                self._tasks[member] -= 1
                ready = actor.on_received(other, detail.tag)
            else:
                ready = actor.on_sent(detail)
            if actor.done and not was:
                self._done_ns[member] = now_ns
            self._take(now_ns, member, ready)
        assert all(actor.done for actor in self._actors), "a member waits for messages that nobody sends"
        busiest = self._busy_ns >= self._busy_ns.max(initial=0.0) * 0.999
        body_ns = max((max(self._free_ns[link]) for link in np.flatnonzero(busiest)), default=0.0)
        done_ns = self._done_ns[:ranks]
        body_ns = min(max(body_ns, self._worked_ns.max(initial=0.0)), float(done_ns.max()))
        return CallLoad(body_ns, done_ns, self._busy_ns, self._sent_bytes, self._received_bytes, self._worked_ns)

    def _at(self, time_ns: float, what: int, member: int, other: int = 0, detail: Any = None) -> None:
        self._number += 1
        heapq.heappush(self._heap, (time_ns, self._number, what, member, other, detail))

    def _take(self, now_ns: float, member: int, ready: list[ReadyMessage]) -> None:
        if self._how.costs.transfer_ns:
            self._requests[member].extend(ready)
            self._hand(now_ns, member)
        elif ready:
            self._queues[member].extend(ready)
            self._next(now_ns, member)

    def _work(self, now_ns: float, member: int, cost_ns: int, then: int, other: int, message: ReadyMessage) -> None:
        """A host does one thing after the other."""
        self._tasks[member] += 1
        self._worked_ns[member] += cost_ns
        self._host_ns[member] = max(now_ns, self._host_ns[member]) + cost_ns
        self._at(self._host_ns[member], then, member, other, message)

    def _hand(self, now_ns: float, member: int) -> None:
        """Received messages go first: a host without any of them begins the next message."""
        requests, queue = self._requests[member], self._queues[member]
        while requests and not self._tasks[member]:
            if requests[0].begins:
                self._work(now_ns, member, self._how.costs.transfer_ns, _HANDED, 0, requests.popleft())
            else:
                queue.append(requests.popleft())
        self._next(now_ns, member)

    def _next(self, now_ns: float, member: int) -> None:
        """Put the first message that its window lets go on the link, if that is free."""
        queue = self._queues[member]
        if self._sending[member] or not queue:
            return
        opens = (
            [self._window_ns.get((member, message.to), 0.0) for message in (*queue,)[:64]] if self._window_ns else [0.0]
        )
        place = next((place for place, opens_ns in enumerate(opens) if opens_ns <= now_ns), -1)
        self._sending[member] = True
        if place < 0:
            self._at(min(opens), _IDLE, member)
            return
        message = queue[place]
        del queue[place]
        self._depart(now_ns, member, message)

    def _depart(self, now_ns: float, member: int, message: ReadyMessage) -> None:
        network, how, to = self._network, self._how, message.to
        route = network.route(self._members[member], self._members[to])
        frames = how.frames(message.size_bytes)
        wire = message.size_bytes + frames * how.frame_bytes
        full = min(wire, how.segment_bytes + how.frame_bytes)  # of one frame
        first_ns = last_ns = now_ns  # when the first frame, and the last, are at the link's beginning
        for place, link in enumerate(route.links):
            cost, lanes = network.byte_ns[link], self._free_ns[link]
            free_ns = min(lanes)
            begin_ns = max(first_ns, free_ns)
            acks = self._ack_bytes[link] if free_ns >= first_ns else 0
            self._ack_bytes[link] = 0
            lanes[lanes.index(free_ns)] = begin_ns + (wire + acks) * cost * len(lanes)
            end_ns = max(begin_ns + (wire + acks) * cost, last_ns + full * cost)
            self._busy_ns[link] += wire * cost
            if place == 0:
                self._at(end_ns, _IDLE, member)
                left_ns = max(now_ns, end_ns - how.credit_bytes(1 / cost) * cost)
                if message.node >= 0:
                    self._at(left_ns, _LEFT, member, detail=message.node)
            pause_ns = route.pauses_ns[place]
            first_ns, last_ns = begin_ns + full * cost + pause_ns, end_ns + pause_ns
        window, trip_ns = how.window_bytes(member, to), route.trip_ns(full)
        if route.links and window / trip_ns < 1 / network.byte_ns[route.links[0]]:
            slow_ns = now_ns + message.size_bytes * trip_ns / window
            last_ns = max(last_ns, slow_ns + route.trip_ns(full) / 2)
            self._window_ns[member, to] = slow_ns
        if how.costs.flow_bps:
            last_ns = max(
                last_ns, now_ns + (wire - full) * how.flow_byte_ns + sum(route.pauses_ns) + full * route.byte_ns
            )
            opens_ns = max(self._window_ns.get((member, to), 0.0), now_ns + wire * how.flow_byte_ns)
            self._window_ns[member, to] = opens_ns
        self._at(last_ns, _ARRIVED, to, member, (message, frames))
        self._sent_bytes[member] += wire
        self._received_bytes[to] += wire

    def _acknowledge(self, now_ns: float, member: int, to: int, frames: int) -> None:
        """Acknowledgements take the links' time, not their own: the last one now, those before it while the message
        came. What they wait for, and so the shares of connections that meet in a port, only packets show."""
        how, network = self._how, self._network
        count = -(-frames // how.ack_every)
        route = network.route(self._members[member], self._members[to])
        for place, link in enumerate(route.links):
            cost = network.byte_ns[link]
            self._busy_ns[link] += count * how.ack_bytes * cost
            lanes = self._free_ns[link]
            if min(lanes) > now_ns:
                self._ack_bytes[link] += count * how.ack_bytes
            elif not place and len(lanes) == 1:  # later links are free until it comes
                lanes[0] = now_ns + how.ack_bytes * cost
            now_ns += how.ack_bytes * cost + route.pauses_ns[place]
        self._sent_bytes[member] += count * how.ack_bytes
        self._received_bytes[to] += count * how.ack_bytes
