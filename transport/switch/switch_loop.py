"""SwitchLoop: one thread that hosts a data plane on a link.

    commands -> receive -> data plane, all of a port's rows together -> send -> sleep

Commands from other threads run between iterations in this thread, so a data plane never sees two at once. Results of an
iteration that go to the same workers are joined, so that the link can hand many to the kernel in one call. A data
plane's output must be fresh memory: it is kept until the link takes it. `CommandLoop` says what a loop guarantees to
its callers; `transport.switch.native_switch_loop.NativeSwitchLoop` does the same with its iterations in C.
"""

import contextlib
import itertools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from switchagg.aggregator import Parent, SlotView
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.native import NativePlane, slot_view
from switchagg.errors import JobError, SwitchaggError
from switchagg.job import JobConfig
from switchagg.priority import CE, ECN_MASK
from switchagg.wire import FLAG_RESULT, FLAGS_AT, HEADER_BYTES, MARKED, RANK_AT, Bundle, headers, job_of
from transport.contracts.switch_host import Uplink
from transport.links.hop_tags import Hop, HopKeys
from transport.links.link import Address, Link

IDLE_S = 1.0
"""Longest sleep: an upper bound on what a lost wake-up could cost."""

ANSWER_S = 10.0
"""How long a command may wait until it runs, and `stop` for the thread."""

QUEUE_BYTES_MAX = 4 << 20
"""Default of what may wait for one worker while the link is full: two windows of 1024 packets."""

SLOTS_PER_COMMAND = 256
"""How many slots `slots_of` looks at between packets: a few milliseconds."""

Result = TypeVar("Result")
Place = TypeVar("Place")


@dataclass(slots=True, eq=False)
class SwitchPort:
    """Where one worker is, and the jobs that use it."""

    number: int
    address: Address
    jobs: set[int] = field(default_factory=set)


PortT = TypeVar("PortT", bound=SwitchPort)


class HopEnds(NamedTuple):
    """What a `Hop`, or one in C, is made of."""

    elements: int
    keys: Sequence[HopKeys]
    ports: Sequence[int]


def _hop_ends(
    job: JobConfig, ports: Sequence[int], secret: bytes, uplink: Uplink | None, parent: Parent | None
) -> tuple[HopEnds | None, HopEnds | None]:
    """Those of a job's children and of its parent; None of those whose packets have no tags."""
    keys = [HopKeys.of(secret, rank) for rank in range(len(ports))] if secret else []
    children = HopEnds(job.elements, keys, ports) if secret else None
    uplink_keys = uplink and HopKeys.read(uplink.keys)
    if not uplink_keys or parent is None:
        return children, None
    return children, HopEnds(job.elements, [uplink_keys], [parent.port])


class CommandLoop(ABC, Generic[PortT]):
    """The ports and commands of a switch, and the thread that serves them; a subclass implements the event loop.

    link: bound, not to be used by others from now on; the loop closes it when the thread ends. on_failure: called in
    the loop's thread if it ends by an unexpected exception; `failure` holds that exception, and every command raises
    SwitchaggError from then on.

    Datagrams from an address that no admitted job names count as drop_unknown_sender and don't reach the data plane.
    Commands raise SwitchaggError when the loop isn't running or doesn't answer within 10 s.
    """

    def __init__(
        self, link: Link, dataplane: DataPlane, on_failure: Callable[[BaseException], None] | None = None
    ) -> None:
        self._link = link
        self._dataplane = dataplane
        self._on_failure = on_failure
        self._ports: dict[int, PortT] = {}
        self._by_address: dict[Address, PortT] = {}
        self._lock = threading.Lock()  # It guards the next two fields.
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._running = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"switch-loop-{link.address[1]}", daemon=True)

    # Methods that any thread may call

    def start(self) -> None:
        """Start the thread; once."""
        self._running = True
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the link; again is allowed. Raises SwitchaggError if it doesn't end within 10 s."""
        with self._lock:
            self._running = False
        self._link.wake()
        if self._thread.ident is None:
            self._close()  # was never started
        elif threading.current_thread() is not self._thread:
            self._thread.join(ANSWER_S)
            if self._thread.is_alive():
                raise SwitchaggError(f"the switch loop did not end within {ANSWER_S:.0f} s")

    @property
    def failure(self) -> BaseException | None:
        """The unexpected exception that ended the loop, or None."""
        return self._failure

    def admit(
        self, job: JobConfig, addresses: Sequence[Address], uplink: Uplink | None = None, secret: bytes = b""
    ) -> None:
        """Take a job, or a new generation of one; addresses[rank] is where that rank's link is: a worker's, or that of
        a switch below this one (H1). uplink: the parent's. secret: as of a `SwitchHost`; packets without a right tag
        count as drop_unauthenticated then, and don't reach the data plane (A5).

        Raises JobError if the data plane refuses it, two ranks share an address, or the link can't reach one.
        """
        resolved = [self._link.resolve(address) for address in addresses]
        above = None if uplink is None else replace(uplink, address=self._link.resolve(uplink.address))
        ends = resolved if above is None else [*resolved, above.address]
        if len(set(ends)) != len(ends):
            raise JobError(f"job {job.job_id}: ranks and parent need different addresses, got {ends}")
        self._ask(lambda: self._admit(job, resolved, above, secret))

    def evict(self, job_id: int) -> None:
        """Forget a job: its packets are dropped from now on. Unknown jobs are ignored.

        Unlike other commands it is carried out even if the answer comes too late: the slots are reused after it.
        """
        self._ask(lambda: self._evict(job_id), binding=True)

    def seen(self, slot: int, version: int) -> SlotView:
        """The contents of a slot version now. Raises KeyError for a slot no job owns."""
        return self._ask(lambda: self._dataplane.seen(slot, version))

    def slots_of(self, job: JobConfig) -> dict[tuple[int, int], SlotView]:
        """(slot, version) -> what it holds, for the versions of the job that have seen any rank.

        Packets don't wait for it: of a native data plane the registers are copied and read in the caller's thread, of
        another a few slots are looked at a time.
        """
        views: dict[tuple[int, int], SlotView] = {}
        if isinstance(plane := self._dataplane, NativePlane):
            registers = self._ask(lambda: plane.registers_of(job))
            used = np.flatnonzero(registers["seen"])
            columns = (used, registers["held"][used], registers["seen"][used])
            for index, held, seen in zip(*(column.tolist() for column in columns), strict=True):
                views[job.slots[0] + index // 2, index % 2] = slot_view(held, seen)
            return views
        for stream in job.streams:
            end = stream.first_slot + stream.window_slots
            for first in range(stream.first_slot, end, SLOTS_PER_COMMAND):
                views |= self._ask(partial(self._views, range(first, min(end, first + SLOTS_PER_COMMAND))))
        return views

    def counters(self) -> dict[str, int]:
        """The data plane's counters, drop_unknown_sender and others of the loop, and the link's prefixed link_."""
        return self._ask(self._all_counters)

    def _ask(self, action: Callable[[], Result], *, binding: bool = False) -> Result:
        """Run an action in the loop's thread and hand over its result or exception. binding: it can't be given up."""
        answer: Future[Result] = Future()
        with self._lock:
            if not self._running:
                raise SwitchaggError("the switch loop isn't running") from self._failure
            self._commands.append((action, answer))
        self._link.wake()
        try:
            return answer.result(ANSWER_S)
        except TimeoutError:
            if not binding:
                answer.cancel()
            raise SwitchaggError(f"the switch loop did not answer within {ANSWER_S:.0f} s") from None

    # Methods that run in the thread

    def _run(self) -> None:
        try:
            while self._running:
                self._carry_out_commands()
                self._run_once()
        except BaseException as error:
            self._failure = error
        finally:
            with self._lock:
                self._running = False
                unanswered = list(self._commands)
                self._commands.clear()
            for _, answer in unanswered:
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(SwitchaggError("the switch loop has ended"))
            self._close()
        if self._failure is not None and self._on_failure is not None:
            self._on_failure(self._failure)

    def _carry_out_commands(self) -> None:
        while self._commands:
            action, answer = self._commands.popleft()
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(action())
                except Exception as error:
                    answer.set_exception(error)

    # Implemented by subclasses

    @abstractmethod
    def _run_once(self) -> None:
        """Handle packets, until a `wake` of the link or for at most IDLE_S."""

    @abstractmethod
    def _open_port(self, number: int, address: Address) -> PortT:
        """A port whose datagrams go to the data plane from now on."""

    @abstractmethod
    def _free_port(self, port: PortT) -> None:
        """Drop what waits for a port; its number and address will be used again."""

    @abstractmethod
    def _authenticate(self, job_id: int, children: "HopEnds | None", parent: "HopEnds | None") -> None:
        """Have a job's packets verified and tagged, from and to its children, and its parent; None: not."""

    @abstractmethod
    def _loop_counters(self) -> dict[str, int]:
        """drop_unknown_sender and the loop's other counters."""

    def _close(self) -> None:
        """Free everything, when the thread ends."""
        self._link.close()

    # Commands, in the loop's thread

    def _admit(self, job: JobConfig, addresses: Sequence[Address], uplink: Uplink | None, secret: bytes) -> None:
        ports: list[PortT] = []
        parent = None
        try:
            ports.extend(map(self._port_at, addresses))
            numbers = [port.number for port in ports]
            if uplink is not None:
                ports.append(above := self._port_at(uplink.address))
                parent = Parent(above.number, uplink.rank)
            self._dataplane.admit(job, numbers, parent)
            try:
                self._authenticate(job.job_id, *_hop_ends(job, numbers, secret, uplink, parent))
            except BaseException:
                self._dataplane.evict(job.job_id)
                raise
        except BaseException:
            self._free_unused(ports)
            raise
        leavers = [port for port in self._ports.values() if job.job_id in port.jobs]
        for port in leavers:
            port.jobs.discard(job.job_id)
        for port in ports:
            port.jobs.add(job.job_id)
        self._free_unused(leavers)

    def _evict(self, job_id: int) -> None:
        self._dataplane.evict(job_id)
        self._authenticate(job_id, None, None)
        leavers = [port for port in self._ports.values() if job_id in port.jobs]
        for port in leavers:
            port.jobs.discard(job_id)
        self._free_unused(leavers)

    def _views(self, slots: range) -> dict[tuple[int, int], SlotView]:
        views = {}
        for slot in slots:
            for version in (0, 1):
                with contextlib.suppress(KeyError):  # its job has ended meanwhile
                    view = self._dataplane.seen(slot, version)
                    if view.ranks:
                        views[slot, version] = view
        return views

    def _port_at(self, address: Address) -> PortT:
        """The port of an address; a new one, with the smallest free number, if it has none."""
        port = self._by_address.get(address)
        if port is None:
            number = next(n for n in itertools.count() if n not in self._ports)
            port = self._ports[number] = self._by_address[address] = self._open_port(number, address)
        return port

    def _free_unused(self, ports: Sequence[PortT]) -> None:
        for port in ports:
            if not port.jobs:
                del self._ports[port.number], self._by_address[port.address]
                self._free_port(port)

    def _all_counters(self) -> dict[str, int]:
        return {
            **self._dataplane.counters,
            **self._loop_counters(),
            **{f"link_{name}": value for name, value in self._link.counters.items()},
        }


@dataclass(slots=True, eq=False)
class _QueuedPort(SwitchPort):
    """A port, and what waits there for room on the link."""

    queue: deque[tuple[int | None, Bundle]] = field(default_factory=deque)  # bundles that wait, with their TOS
    queued_bytes: int = 0


class SwitchLoop(CommandLoop[_QueuedPort]):
    """Runs any data plane on any link; see CommandLoop.

    queue_bytes_max: bytes that may wait for one worker while the link is full; what exceeds it is dropped and counted
    (drop_queue_full), and the protocol sends it again. Where the link has a TOS results have that
    of the packets that caused them (S6, G4); what waits here is sent in order all the same.
    """

    def __init__(
        self,
        link: Link,
        dataplane: DataPlane,
        *,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        super().__init__(link, dataplane, on_failure)
        self._queue_bytes_max = queue_bytes_max
        self._waiting: deque[_QueuedPort] = deque()  # those with a queue; while there are any, the link is full
        self._counters = {"drop_unknown_sender": 0, "drop_queue_full": 0, "drop_unauthenticated": 0}
        self._hops: dict[tuple[int, bool], Hop] = {}  # by job, and whether its packets here are results

    def _open_port(self, number: int, address: Address) -> _QueuedPort:
        return _QueuedPort(number, address)

    def _free_port(self, port: _QueuedPort) -> None:
        if port.queue:
            self._waiting.remove(port)

    def _authenticate(self, job_id: int, children: HopEnds | None, parent: HopEnds | None) -> None:
        for is_result, ends in ((False, children), (True, parent)):
            self._hops.pop((job_id, is_result), None)
            if ends is not None:
                self._hops[job_id, is_result] = Hop(*ends)

    def _loop_counters(self) -> dict[str, int]:
        return self._counters

    def _run_once(self) -> None:
        self._send_waiting()
        for (numbers, hop), tos, packets in self._decide():
            hashes = hop.hashes(packets) if hop else None
            for number in numbers:
                tagged = packets if hop is None or hashes is None else hop.tagged_for(packets, hashes, number)
                self._send(self._ports[number], tagged, tos or None)
        self._link.wait(IDLE_S, writable=bool(self._waiting))

    def _verified(self, bundle: Bundle) -> list[Bundle]:
        """The packets that may go to the data plane, without their tags (A5): those of all jobs that have none, as they
        came, and of each other job those that are right."""
        if not self._hops or bundle.shape[1] < HEADER_BYTES:
            return [bundle]
        packets = []
        which = headers(bundle)["job"].astype(np.int64) << 1 | bundle[:, FLAGS_AT] & FLAG_RESULT
        for number in np.unique(which).tolist():
            rows, hop = bundle[which == number], self._hops.get((number >> 1, bool(number & 1)))
            right = rows if hop is None else hop.verified(rows, result=bool(number & 1))
            self._counters["drop_unauthenticated"] += len(rows) - len(right)
            packets.append(right)
        return [right for right in packets if len(right)]

    def _decide(self) -> list[tuple[tuple[tuple[int, ...], Hop | None], int, Bundle]]:
        """Give the data plane what has arrived; returns its outputs, with their ports, hop and TOS, in order."""
        arrived: _Joined[int] = _Joined()
        for bundle, sender, tos in self._link.receive():
            port = self._by_address.get(sender)
            if port is None:
                self._counters["drop_unknown_sender"] += len(bundle)
            else:
                arrived.add(port.number, tos, bundle)
        outputs: _Joined[tuple[tuple[int, ...], Hop | None]] = _Joined()
        for number, came_with, together in arrived.bundles():
            for right in self._verified(together):
                tos = _marked(right, came_with)
                for output in self._dataplane.process(right, number):
                    outputs.add((output.ports, self._hop_to(output.bundle)), tos, output.bundle)
        return outputs.bundles()

    def _hop_to(self, packets: Bundle) -> Hop | None:
        """The hop whose tags packets of ours get: of one job, and all results or none."""
        if not self._hops:
            return None
        return self._hops.get((job_of(packets[0]), not packets[0, FLAGS_AT] & FLAG_RESULT))

    def _send(self, port: _QueuedPort, bundle: Bundle, tos: int | None) -> None:
        """Send to one worker, or queue for it what the link has no room for."""
        accepted = 0
        if not self._waiting:
            accepted = self._link.send(bundle, port.address, tos)
            if accepted == len(bundle):
                return
        unsent = bundle[accepted:]
        size = max(1, bundle.shape[1])
        queued = min(len(unsent), (self._queue_bytes_max - port.queued_bytes) // size)
        self._counters["drop_queue_full"] += len(unsent) - queued
        if queued <= 0:
            return
        if not port.queue:
            self._waiting.append(port)
        port.queue.append((tos, unsent[:queued]))
        port.queued_bytes += queued * size

    def _send_waiting(self) -> None:
        """Send what waits, a bundle of each worker at a time so that none waits for the backlog of another."""
        while self._waiting:
            port = self._waiting.popleft()
            tos, bundle = port.queue.popleft()
            size = max(1, bundle.shape[1])
            accepted = self._link.send(bundle, port.address, tos)
            port.queued_bytes -= accepted * size
            if accepted < len(bundle):
                port.queue.appendleft((tos, bundle[accepted:]))
                if accepted:
                    self._waiting.append(port)  # it had its share of the room
                else:
                    self._waiting.appendleft(port)
                return
            if port.queue:
                self._waiting.append(port)


class _Joined(Generic[Place]):
    """Bundles of one place, size and TOS as one; of a place and size they stay in order, whatever their TOS: workers
    take what is overtaken for lost (W8)."""

    def __init__(self) -> None:
        self._all: list[tuple[Place, int, list[Bundle]]] = []
        self._latest: dict[tuple[Place, int], tuple[int, list[Bundle]]] = {}

    def add(self, place: Place, tos: int, bundle: Bundle) -> None:
        key = place, bundle.shape[1]
        latest = self._latest.get(key)
        if latest is None or latest[0] != tos:
            latest = self._latest[key] = tos, []
            self._all.append((place, *latest))
        latest[1].append(bundle)

    def bundles(self) -> list[tuple[Place, int, Bundle]]:
        return [
            (place, tos, bundles[0] if len(bundles) == 1 else np.concatenate(bundles))
            for place, tos, bundles in self._all
        ]


def _marked(bundle: Bundle, tos: int) -> int:
    """Contributions that came marked CE say so from now on (G2). It returns the TOS of their results (G4)."""
    if tos & ECN_MASK != CE or bundle.shape[1] < HEADER_BYTES:
        return tos
    contributions = bundle[:, FLAGS_AT] & FLAG_RESULT == 0
    bundle[contributions, RANK_AT] |= MARKED
    return tos - 1 if contributions.any() else tos
