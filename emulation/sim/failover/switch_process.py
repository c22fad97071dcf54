"""A switch as a process in virtual time: a controller and a data plane, which live, stand still and die together.

What forwards frames is no part of it: hosts reach each other without. Requests to the controller take as long as a
frame does that meets no other, and are lost where either end is out of reach; they aren't packets of the network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from random import Random
from typing import Any, Protocol

from emulation.sim.network.simulated_link import NODE_MASK
from emulation.sim.network.switched_network import SimulatedSwitch
from emulation.sim.network.virtual_clock import VirtualClock
from switchagg.controller.quota import PeerQuota
from switchagg.controller.tree_controller import TreeController
from switchagg.dataplane.contract import DataPlane
from switchagg.job import JobConfig
from switchagg.join import Join
from switchagg.membership import Event, JobAdmitted, JobEvicted, JobReady, MembershipState
from transport.contracts.timeouts import CLAIMS_PER_LEASE
from transport.control.stalls import STALL_NS, StallDetector

BUFFERED_FRAMES = 2048
"""So many frames wait for a switch that stands still; the others are lost."""

FINAL_ANSWERS_NS = 1_000_000_000
"""How long a switch that stops goes on answering (C10)."""


class ProcessState(Enum):
    """Of a process."""

    RUNS = "runs"
    STANDS_STILL = "stands still"
    """SIGSTOP: what comes waits in its buffers."""
    IS_DEAD = "is dead"


class Peer(Protocol):
    """A rank's end of the control plane, which gets answers."""

    def answer(self, state: MembershipState | None) -> None: ...


class PacketTap(Protocol):
    """Sees a switch's packets."""

    def note_contribution(self, frame: Any, sender: int, to: int) -> None: ...

    def note_results(self, bundle: Any, ports: Sequence[int], bits: int) -> None: ...


class DataPlanes(Protocol):
    """What does a controller's will, at all switches of the job's tree."""

    def admit(self, process: SwitchProcess, admitted: JobConfig) -> None: ...

    def forget(self, process: SwitchProcess) -> None: ...


class SwitchProcess:
    """One switch. number: its place in the job's list. node: where its packets come. make_plane: of each of its lives.
    lease_ns: of its controller. job: whose slots it has. seed: of generations."""

    def __init__(
        self,
        number: int,
        node: SimulatedSwitch,
        clock: VirtualClock,
        make_plane: Callable[[], DataPlane],
        planes: DataPlanes,
        *,
        lease_ns: int,
        job: JobConfig,
        seed: str,
    ) -> None:
        self.number, self.node = number, node
        self.name = f"tcp://switch{number}"
        self.state = ProcessState.RUNS
        self.tap: PacketTap | None = None
        """It sees what comes and what leaves."""
        self.is_cut = False
        """Its link is down."""
        self.below: list[SwitchProcess] = []
        """Other switches of its tree, without which no job is admitted."""
        self.lives = 0
        self._clock, self._make_plane, self._planes = clock, make_plane, planes
        self._facts = lease_ns, job
        self._draw = Random(f"{seed} generations {number}")
        self._frames: deque[tuple[Any, int, int]] = deque(maxlen=BUFFERED_FRAMES)
        self._requests: deque[Callable[[], None]] = deque()
        self._stop_at_ns = -1  # of one that drains
        self._stop_reason, self._ends = "", False
        self._then: Callable[[], None] | None = None
        self._begin_life()

    def _begin_life(self) -> None:
        lease_ns, job = self._facts
        self.lives += 1
        self.plane = self._make_plane()
        self.controller = TreeController(
            job.slots[1],
            job.elements,
            lambda: self._draw.getrandbits(32),
            lease_ns=lease_ns,
            claim_ns=lease_ns // CLAIMS_PER_LEASE,
            quota=PeerQuota(slots=job.slots[1]),
        )
        self._peers: dict[int, Peer] = {}
        self._due_ns: int | None = None
        self._stalls = StallDetector(self._clock.now_ns)
        self._stop_at_ns, self._then, self._ends = -1, None, False
        self.state = ProcessState.RUNS

    # What happens to it

    @property
    def runs(self) -> bool:
        """Whether it answers."""
        return self.state is ProcessState.RUNS

    def kill(self) -> None:
        """SIGKILL: all that it knew is gone."""
        self.state = ProcessState.IS_DEAD
        self._frames.clear()
        self._requests.clear()
        self._peers.clear()
        self.follow()
        then, self._then = self._then, None
        if then is not None:
            then()

    def start(self) -> None:
        """A new one at the same addresses, if it is dead."""
        if self.state is ProcessState.IS_DEAD:
            self._begin_life()
            self.follow()

    def stand_still(self) -> None:
        """SIGSTOP."""
        if self.runs:
            self._stalls.ended(self._clock.now_ns)
            self.state = ProcessState.STANDS_STILL
            self.follow()

    def go_on(self) -> None:
        """SIGCONT: it takes what waits, then the time."""
        if self.state is not ProcessState.STANDS_STILL:
            return
        self.state = ProcessState.RUNS
        while self._frames:
            self._process(*self._frames.popleft())
        while self._requests:
            self._requests.popleft()()
        now_ns = self._clock.now_ns
        if self._stalls.ended(now_ns):  # peers may have stood still, too (C6)
            self._due_ns = None
            self._ring_at(now_ns + STALL_NS)
        else:
            self._look_at_time()
        self.follow()

    def drain(self, bound_ns: int, reason: str, then: Callable[[], None]) -> None:
        """SIGTERM: jobs are asked to leave (C27); it ends when none is left, or after bound_ns. then: is called at its
        end, of whatever cause."""
        if self.state is ProcessState.IS_DEAD:
            then()
        if self.state is ProcessState.STANDS_STILL:
            self._requests.append(partial(self.drain, bound_ns, reason, then))
        if not self.runs or self._then is not None:
            return
        self._then, self._stop_reason, self._ends = then, reason, False
        self._stop_at_ns = self._clock.now_ns + bound_ns
        self.controller.drain(reason)
        self._carry_out()
        self._ring_at(self._stop_at_ns)

    def follow(self) -> None:
        """Have the node do what this process does now, if it is the node's."""
        if self.node.dataplane is not self.plane:
            return
        if self.runs and self.tap is None and not self.is_cut:
            self.node.aggregate(self.plane, self.node.address)
        else:
            self.node.intercept(self.take)

    def use_node(self) -> None:
        """From now on the node's frames are for this process."""
        self.node.dataplane = self.plane
        self.follow()

    # Packets

    def take(self, frame: Any, sender: int, to: int) -> None:
        """A frame that comes to its link."""
        if self.is_cut or self.state is ProcessState.IS_DEAD:
            return
        if self.tap is not None:
            self.tap.note_contribution(frame, sender, to)
        if self.runs:
            self._process(frame, sender, to)
        else:
            self._frames.append((frame, sender, to))

    def _process(self, frame: Any, sender: int, to: int) -> None:
        if frame is None or self.is_cut:  # its checksum is wrong
            return
        bits = to & ~NODE_MASK
        for output in self.plane.process(frame, sender):
            self.node.send_results(output.bundle, output.ports, bits)
            if self.tap is not None:
                self.tap.note_results(output.bundle, output.ports, bits)

    # Requests

    def take_request(self, life: int, serve: Callable[[], None]) -> None:
        """A request has come, by a connection to this life of the process."""
        if life != self.lives or self.state is ProcessState.IS_DEAD:
            return
        if self.runs:
            serve()
        else:
            self._requests.append(serve)

    def join(self, request: Join, peer: Peer) -> None:
        """A rank asks to join."""
        if not all(process.runs for process in self.below):
            return
        self._peers[request.incarnation] = peer
        self.controller.join(request, self._clock.now_ns)
        self._serve(request.incarnation)

    def heartbeat(self, incarnation: int, peer: Peer) -> None:
        """A rank lives."""
        self._peers[incarnation] = peer
        self.controller.heartbeat(incarnation, self._clock.now_ns)
        self._serve(incarnation)

    def leave(self, incarnation: int, calls: list[int], reason: str) -> None:
        """A rank leaves."""
        self.controller.leave(incarnation, calls, reason)
        self._carry_out()

    def _serve(self, incarnation: int) -> None:
        self._carry_out()
        if self.runs and (peer := self._peers.get(incarnation)) is not None:
            peer.answer(self.controller.membership_state(incarnation))

    def _carry_out(self) -> None:
        while (event := self.controller.next_event()) is not None:
            self._act_on(event)
        if self._then is not None and not self._ends and not list(self.controller.jobs()):
            self._end()
        if (deadline_ns := self.controller.next_deadline_ns()) is not None:
            self._ring_at(deadline_ns)

    def _act_on(self, event: Event) -> None:
        match event:
            case JobAdmitted() | JobReady():
                admitted = event if isinstance(event, JobAdmitted) else event.admitted
                self._planes.admit(self, admitted.job)
                members = admitted.members
            case JobEvicted():
                self._planes.forget(self)
                return
            case _:
                members = event.members
        for member in members:
            if (peer := self._peers.get(member.incarnation)) is not None:
                peer.answer(self.controller.membership_state(member.incarnation))

    def fail_jobs(self, reason: str) -> None:
        """A switch below is gone (C18): its jobs end."""
        for running in list(self.controller.jobs()):
            self.controller.fail(running.admitted.name, reason)
        self._carry_out()

    def _end(self) -> None:
        """A drain is over: it answers for a little longer, then it is gone."""
        self._ends = True
        self.controller.stop(self._stop_reason)
        while (event := self.controller.next_event()) is not None:
            self._act_on(event)
        life, end_ns = self.lives, self._clock.now_ns + (FINAL_ANSWERS_NS if self._peers else 0)
        self._clock.schedule(end_ns, lambda _frame, _sender, _to: self.kill() if self.lives == life else None)

    # Time

    def _ring_at(self, at_ns: int) -> None:
        at_ns = max(at_ns, self._clock.now_ns)
        if self._due_ns is None or at_ns < self._due_ns:
            self._due_ns = at_ns
            self._clock.schedule(at_ns, self._ring, None, self.lives)

    def _ring(self, _frame: None, life: int, _to: int) -> None:
        if life == self.lives and self._due_ns == self._clock.now_ns:
            self._due_ns = None
            if self.runs:
                self._look_at_time()

    def _look_at_time(self) -> None:
        now_ns = self._clock.now_ns
        self.controller.handle_timer(now_ns)
        self._carry_out()
        if self._then is not None and not self._ends and now_ns >= self._stop_at_ns:
            names = ", ".join(sorted(running.admitted.name for running in self.controller.jobs()))
            self._stop_reason += f"; these jobs had not left: {names}"
            self._end()
