"""A seeded world of a job that loses switches, leaves them and goes back, while its calls are under way (L1 to L10).

Ranks make calls of several streams when they like, and overwrite an array as soon as its call is finished. A network
loses, repeats and reorders packets; switches die in mid-call; each rank notices when it likes. Ranks then meet by
collectives in memory, whose results come to each rank at a time of its own, or to some ranks alone where a rank dies.
Every choice comes from one generator. Whatever happens, a call that ends on a rank has the bits that a switch gives
which isn't disturbed.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from switch_parts import combine, draw_part, kept, undisturbed

from simulation.checkers import Violation
from switchagg.calls.chunked_call import ArrayCall
from switchagg.codecs.array_codec import Reduction
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.dataplane.reference import ReferencePlane
from switchagg.endpoint import CallCompleted, Endpoint
from switchagg.failover.agreement import CallPath, MemberRow, Mover, NextMove, Stage
from switchagg.failover.part_rows import PartRows, RetainedParts
from switchagg.failover.recovery_rounds import host_rounds, recovery_rounds
from switchagg.job import JobConfig, StreamConfig
from switchagg.native.library import missing
from switchagg.native.native_endpoint import NativeEndpoint

Place = tuple[int, int]
"""(stream, number) of a part."""

KEY = bytes(16)


@dataclass
class HostCall:
    """A rank's part on hosts. pending: its collective, which all ranks' must meet; combined: it has its result."""

    label: str
    rounds: Iterator[Reduction]
    pending: Reduction | None = None
    steps: int = 0
    combined: bool = False


@dataclass
class Session:
    """A rank's place at a switch."""

    place: int
    endpoint: Endpoint
    retained: list[RetainedParts]
    open: dict[Place, ArrayCall] = field(default_factory=dict)
    lost: dict[Place, PartRows] = field(default_factory=dict)
    """What this rank had of unfinished parts when its session ended."""
    alive: bool = True


class Rank:
    """One rank: its user, its session, its calls on hosts."""

    def __init__(self, world: "FailoverWorld", number: int) -> None:
        self.world, self.number = world, number
        self.mover = Mover(place=1)
        self.session: Session | None = world.session(number, 1, (0,) * len(world.parts))
        self.joined = 0
        """Place of a session to which it could go back."""
        self.next = [0] * len(world.parts)
        self.calls: dict[Place, ArrayCall] = {}
        self.finished: dict[Place, tuple[bytes, bytes]] = {}
        self.on_hosts: dict[Place, HostCall] = {}
        self.ends: tuple[int, ...] = ()  # of the parts of the switch that was left
        self.row: MemberRow | None = None
        self.rounds = 0  # exchanges that it has followed
        self.failed = False

    # the user

    def make(self, stream: int) -> None:
        number = self.next[stream]
        place = stream, number
        open_calls = number - sum(1 for other in self.finished if other[0] == stream)
        if self.failed or self.mover.frozen or number == len(self.world.parts[stream]) or open_calls >= 6:
            return
        self.next[stream] += 1
        call = self.calls[place] = self.world.parts[stream][number].call(self.number, number, self.world.job)
        match self.mover.path_of(stream, number):
            case CallPath.HOSTS:
                self.begin(place, "hosts", host_rounds(call, self.number, self.world.job))
            case CallPath.RECOVERY:
                self.recover(place, PartRows(call, self.number, self.world.job))
            case CallPath.SWITCH:
                assert self.session is not None
                if self.session.alive:
                    self.session.open[place] = call
                    self.session.endpoint.submit(stream, call)
                    self.pump()
                else:  # its session has failed, and nobody has told the mover
                    self.session.lost[place] = PartRows(call, self.number, self.world.job)

    def finish(self, place: Place) -> None:
        assert place not in self.finished
        call = self.calls[place]
        self.finished[place] = kept(call)
        want = kept(self.world.wanted[place[0]][place[1]][self.number])
        if self.finished[place] != want:
            raise Violation(f"rank {self.number}: {place} of {self.world.parts[place[0]][place[1]]} has other bits")
        call.array.view(np.uint8)[:] = 0x5A  # the user's own again

    # the session

    def pump(self) -> None:
        session = self.session
        if session is None or not session.alive:
            return
        while len(frames := session.endpoint.frames_to_send(self.world.now_ns, limit=4)):
            self.world.network += [
                (session.place, -1, self.number, frames[row : row + 1].copy()) for row in range(len(frames))
            ]
        while (event := session.endpoint.next_event()) is not None:
            assert isinstance(event, CallCompleted), event
            place = next(place for place, call in session.open.items() if call is event.call)
            del session.open[place]
            session.retained[place[0]].keep(place[1], event.call)
            self.finish(place)

    def stop_session(self) -> None:
        """Of the switch that has parts of this rank."""
        session = self.session
        if session is None or not session.alive:
            return
        self.pump()
        session.alive = False
        for (stream, number), call in session.open.items():
            held = session.endpoint.held(call)
            session.lost[stream, number] = PartRows(call, self.number, self.world.job, held)

    # hosts

    def begin(self, place: Place, label: str, rounds: Iterator[Reduction]) -> None:
        self.on_hosts[place] = HostCall(label, rounds)
        self.resume(place)

    def recover(self, place: Place, part: PartRows) -> None:
        self.begin(place, "recovery", recovery_rounds(part))

    def resume(self, place: Place) -> None:
        call = self.on_hosts[place]
        call.combined, call.pending = False, next(call.rounds, None)
        call.steps += 1
        if call.pending is None:
            del self.on_hosts[place]
            if place not in self.finished:
                self.finish(place)

    # exchanges

    def enter_exchange(self) -> None:
        if self.row is None and not self.failed:
            is_lost, retained = self.mover.stage is Stage.LOST, self.session.retained if self.session else []
            lowest = [each.tell_lowest() if is_lost else each.lowest for each in retained] or self.next
            self.row = self.mover.row(self.next, lowest)

    def leave_exchange(self, rows: list[MemberRow]) -> None:
        self.row, self.rounds = None, self.rounds + 1
        agreement = self.mover.apply(rows)
        match agreement.move:
            case NextMove.LOSE:
                if self.world.rng.random() < 0.5:  # else its loop goes on until it recovers
                    self.stop_session()
            case NextMove.TO_HOSTS:
                self.ends = agreement.first
            case NextMove.RECOVER:
                self.ends = agreement.first
                self.stop_session()
                for stream, (first, end) in enumerate(zip(agreement.lowest, agreement.first, strict=True)):
                    for number in range(first, min(end, self.next[stream])):
                        self.recover((stream, number), self.what_is_left((stream, number)))
                self.session = None
            case NextMove.TO_SWITCH:
                self.session = self.world.session(self.number, agreement.place, agreement.first)
                self.session.alive = self.mover.stage is not Stage.LOST
                self.joined = 0

    @property
    def open_calls(self) -> dict[Place, ArrayCall]:
        """Calls at a switch."""
        return self.session.open if self.session is not None and self.session.alive else {}

    def what_is_left(self, place: Place) -> PartRows:
        assert self.session is not None
        if place in self.session.lost:
            return self.session.lost[place]
        part = self.session.retained[place[0]].of(place[1])
        if part is None:
            raise Violation(f"rank {self.number}: {place} is disputed and not retained")
        return part

    @property
    def is_drained(self) -> bool:
        made_all = all(number >= end for number, end in zip(self.next, self.ends, strict=True))
        below = ((stream, number) for stream, end in enumerate(self.ends) for number in range(end))
        return made_all and all(place in self.finished and place not in self.on_hosts for place in below)


class FailoverWorld:
    """One run. deaths: of ranks, at most."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.workers = rng.choice([2, 2, 3, 4, 6])
        streams, slot = [], 0
        for _ in range(rng.choice([1, 1, 2, 3])):
            streams.append(StreamConfig(slot, rng.choice([1, 2, 3, 8])))
            slot += streams[-1].window_slots
        verify = rng.choice(["off"] * 7 + ["on"])
        self.job = JobConfig(1, 1, self.workers, 24, tuple(streams), retry_limit=1 << 30, verify=verify)
        self.parts = [
            [draw_part(rng, self.job, rng.choice([1, 2, 2, 8])) for _ in range(rng.randint(2, 8))] for _ in streams
        ]
        compiled = () if missing() else (NativeEndpoint, DATAPLANES["native"])
        self.wanted = [undisturbed(parts, self.job, stream, *compiled) for stream, parts in enumerate(self.parts)]
        self.loss, self.copies = rng.choice([0, 0.1, 0.3]), rng.choice([0, 0.2])
        self.slow_rank = rng.choice([-2, *range(self.workers)])  # its results are late
        self.now_ns = 0
        self.network: list[tuple[int, int, int, Any]] = []  # (place, to, from, frame); -1 is the switch
        self.planes: dict[int, ReferencePlane] = {}
        self.generation = 1
        self.open_switch(1)
        self.switch_deaths = rng.choice([1, 1, 2, 3])
        self.rank_deaths = rng.choice([0, 0, 0, 1])
        self.leaves = rng.random() < 0.3
        self.ranks = [Rank(self, number) for number in range(self.workers)]

    def window(self, stream: int) -> int:
        return self.job.streams[stream].window_slots

    def open_switch(self, place: int) -> None:
        plane = self.planes[place] = ReferencePlane(self.job.slots[1], self.job.elements)
        plane.admit(replace(self.job, generation=place), range(self.workers))

    def session(self, rank: int, place: int, first: tuple[int, ...]) -> Session:
        job = replace(self.job, generation=place)
        retained = [RetainedParts(self.window(stream), rank, job, number) for stream, number in enumerate(first)]
        return Session(place, Endpoint(job, rank, key=KEY), retained)

    # ---- running

    def run(self) -> None:
        steps = [self.make] + [self.deliver] * 8 + [self.collect] * 2 + [self.meet] * 6
        steps += [self.trouble] + [self.join] * 3
        for step in range(60_000):
            self.troubled = step < 3_000
            self.rng.choice(steps)()
            if all(rank.failed or len(rank.finished) == sum(map(len, self.parts)) for rank in self.ranks):
                break
        else:
            state = [
                (r.mover.stage.name, r.mover.frozen, r.next, len(r.finished), list(r.on_hosts)) for r in self.ranks
            ]
            raise Violation(f"they get nowhere: {state}")
        if not any(rank.failed for rank in self.ranks):
            assert all(len(rank.finished) == sum(map(len, self.parts)) for rank in self.ranks)

    def make(self) -> None:
        self.rng.choice(self.ranks).make(self.rng.randrange(len(self.parts)))

    def deliver(self) -> None:
        if not self.network:
            self.now_ns += 1_000_000_000
            for rank in self.ranks:
                if rank.session is not None and rank.session.alive and not rank.failed:
                    rank.session.endpoint.handle_timer(self.now_ns)
                    rank.pump()
            return
        index = self.rng.randrange(len(self.network)) if self.rng.random() < 0.5 else 0
        if self.troubled and self.network[index][1] == self.slow_rank and self.rng.random() < 0.9:
            return
        place, to, source, frame = self.network.pop(index)
        if self.troubled and self.rng.random() < self.copies:
            self.network.append((place, to, source, frame))
        if self.troubled and self.rng.random() < self.loss:
            return
        if to >= 0:
            rank = self.ranks[to]
            if rank.session is not None and rank.session.alive and rank.session.place == place and not rank.failed:
                rank.session.endpoint.receive(frame, self.now_ns)
                rank.pump()
        elif place in self.planes:
            for output in self.planes[place].process(frame, source):
                rows = [output.bundle[row : row + 1].copy() for row in range(len(output.bundle))]
                self.network += [(place, port, -1, row) for row in rows for port in output.ports]

    def trouble(self) -> None:
        """A switch dies, asks the job to leave, or a rank notices that it is dead; rarely, a rank dies."""
        rng = self.rng
        rank = rng.choice(self.ranks)
        uneven = any(place in rank.finished for other in self.ranks for place in other.open_calls)
        if self.troubled and self.planes and self.switch_deaths and rng.random() < (0.5 if uneven else 0.03):
            self.switch_deaths -= 1
            self.planes.clear()
        elif self.troubled and self.rank_deaths and rng.random() < 0.005:
            self.rank_deaths -= 1
            rank.failed = True
        elif self.leaves and rng.random() < 0.3:
            rank.mover.asked_to_leave()
        if rank.failed:
            return
        if rank.joined and (rank.joined not in self.planes or any(other.failed for other in self.ranks)):
            rank.mover.session_lost(rank.joined)
            rank.joined = 0
        session = rank.session
        if session is not None and (session.place not in self.planes or any(other.failed for other in self.ranks)):
            if rng.random() < 0.5:
                rank.stop_session()
            rank.mover.session_lost(session.place)

    def join(self) -> None:
        """Away from a switch a rank joins one; the generation is the same for all that join the same switch."""
        rank = self.rng.choice(self.ranks)
        if rank.failed or rank.mover.stage is not Stage.AWAY or not self.troubled or rank.row is not None:
            return
        if self.generation not in self.planes:
            if self.rng.random() < 0.5:
                self.generation += 1
                self.open_switch(self.generation)
        elif not rank.joined and (rank.session is None or rank.session.place != self.generation):
            rank.joined = self.generation
            rank.mover.joined(self.generation)
        elif rank.session is not None and rank.session.place == self.generation and self.rng.random() < 0.2:
            self.generation += 1
            self.open_switch(self.generation)

    # ---- hosts

    def collect(self) -> None:
        """A collective that all ranks have come to, or a rank that goes on with what one has given it."""
        rank = self.rng.choice(self.ranks)
        if rank.failed or not rank.on_hosts:
            return
        place = self.rng.choice(list(rank.on_hosts))
        if rank.on_hosts[place].combined:
            rank.resume(place)
            return
        if any(other.failed for other in self.ranks):
            rank.failed = True
            return
        calls = [other.on_hosts.get(place) for other in self.ranks]
        steps = {(call.label, call.steps) for call in calls if call is not None}
        if None in calls or len(steps) > 1:
            return
        pending = [call.pending for call in calls if call is not None and call.pending is not None]
        facts = {(each.kind, each.op, each.root, each.array.dtype, each.array.shape) for each in pending}
        if len(facts) != 1:
            raise Violation(f"{place}: ranks come to different collectives: {facts}")
        combine([each.array for each in pending], pending[0])
        for call in calls:
            assert call is not None
            call.combined = True

    def meet(self) -> None:
        """Ranks exchange rows as soon as one isn't at its switch; each follows the table when it likes."""
        rank = self.rng.choice(self.ranks)
        if rank.failed:
            return
        if rank.mover.stage is Stage.AWAY and not rank.row and rank.is_drained:
            rank.mover.drained()
        if all(other.mover.stage is Stage.AT_SWITCH and other.row is None for other in self.ranks):
            return
        latest = max(other.rounds for other in self.ranks)
        tables: dict[int, list[MemberRow]] = self.__dict__.setdefault("tables", {})
        if rank.row is None:
            rank.enter_exchange()
            return
        if rank.rounds not in tables:
            if any(other.failed for other in self.ranks):
                rank.failed = True
                return
            if any(other.row is None or other.rounds != latest for other in self.ranks):
                return
            tables[rank.rounds] = [other.row for other in self.ranks if other.row is not None]
        elif any(other.failed for other in self.ranks) and self.rng.random() < 0.3:
            rank.failed = True
            return
        rank.leave_exchange(tables[rank.rounds])
