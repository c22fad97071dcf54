"""MembershipRounds decides who the ranks of an elastic group's next generation are, once for all, over a store.

Each process has an identity of its own, and beats: a thread of it changes a key of the store every BEAT_S. Generation g
is decided by whoever first writes the key `decision/g`, which the store allows only once (`compare_set`). A member of
generation g - 1 writes that it has arrived, with the number of its step, and decides when every other member has
arrived, or is dead: its beat hasn't changed for a while, as this process saw it. Processes that wait to join, and beat,
come along. A member that comes later than the decision isn't in it, and joins as a new process does. Where all members
of a generation are dead, those who wait to join decide, and begin anew.
"""

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist

logger = logging.getLogger(__name__)

BEAT_S = 0.2
SILENT_S = 1.0
"""A process whose beat hasn't changed for so long is dead, if a failed call has named it as well: a switch's lease is
as long or longer."""

DEAD_S = 3.0
"""After this it is dead without that: on a busy machine a beat may come late."""

POLL_S = 0.01
NEW = -1
"""The step of a process that has no state yet."""


class GroupGeneration(NamedTuple):
    """The ranks of a generation. members: identities by rank; all get the state of rank 0. steps: of each of them."""

    generation: int
    members: list[str]
    steps: list[int]

    @property
    def is_even(self) -> bool:
        """Whether all have the state of the same step."""
        return len(set(self.steps)) == 1 and self.steps[0] != NEW


class _Beat(NamedTuple):
    value: bytes
    since_s: float
    changed: bool  # since this process follows it


class MembershipRounds:
    """One process's part. store: a prefix of its own, which the processes of one job share. least: no generation has
    fewer ranks. look: raises what ends the wait for the first one. It has a thread until `close`. What waits raises
    DistBackendError when its limit is over, when the job has ended, or when the store is gone."""

    def __init__(self, store: Any, least: int, look: Callable[[], None] = lambda: None) -> None:
        self._store, self._least, self._look_first = store, least, look
        self.identity = uuid.uuid4().hex[:12]
        self.decision: GroupGeneration | None = None
        """The generation that this process is in."""
        self._lock = threading.Lock()
        self._beats: dict[str, _Beat] = {}
        self._joiners: dict[str, tuple[int, int]] = {}  # identity: rank and number of ranks that it was started with
        self._suspects: set[str] = set()
        self._past: set[str] = set()  # who has been in a generation: none of them joins, but under a new identity
        self._joins = 0  # how many entries there are, as far as `_joiners` goes
        self._closed = threading.Event()
        self.on_death: Callable[[], None] | None = None
        """Called while a member of this generation is dead, about once a beat."""
        self._count = 0
        self._looked_s = time.monotonic()
        self._look()
        self._thread = threading.Thread(target=self._run, name=f"elastic-{self.identity}", daemon=True)
        self._thread.start()

    def begin(self, rank: int, workers: int, limit_s: float) -> GroupGeneration:
        """Enter the job: as one of the `workers` of its first generation, in the order of `rank`; if that has begun, as
        one that joins a later one."""
        self._join(rank, workers)
        return self._await(0, NEW, limit_s)

    def next(self, step: int, limit_s: float, suspects: Sequence[int] = ()) -> GroupGeneration:
        """The generation after this process's, which all its members must ask for. step: of this process's state.
        suspects: ranks that a failed call has named."""
        assert self.decision is not None
        with self._lock:
            self._suspects = {self.decision.members[rank] for rank in suspects if rank < len(self.decision.members)}
        generation = self.decision.generation + 1
        self._store.set(f"arrived/{generation}/{self.identity}", str(step))
        return self._await(generation, step, limit_s)

    def meet(self, limit_s: float) -> None:
        """Wait until all members of this generation have seen its decision. Raises DistBackendError as soon as one that
        hasn't is dead: it may have died while it waited to join."""
        decision, deadline = self.decision, time.monotonic() + limit_s
        assert decision is not None
        self._store.set(f"seen/{decision.generation}/{self.identity}", "")
        absent = list(enumerate(decision.members))
        while absent := [
            (rank, member) for rank, member in absent if not self._store.check([f"seen/{decision.generation}/{member}"])
        ]:
            with self._lock:
                dead = [(rank, member) for rank, member in absent if self._is_dead(member)]
            if dead or time.monotonic() > deadline or self._closed.wait(POLL_S):
                ranks = ", ".join(str(rank) for rank, _ in dead or absent)
                raise dist.DistBackendError(f"switchagg: elastic: rank {ranks} of {len(decision.members)} did not come")

    def has_joiners(self) -> bool:
        """Whether a process that is alive waits to join."""
        with self._lock:
            return bool(self._beating_joiners())

    def pause_at(self, step: int) -> None:
        """Have all members of this generation ask for the next one before they begin this step. The caller has yet to
        make its calls of an earlier step: so all others see it in time."""
        assert self.decision is not None
        self._store.set(f"pause/{self.decision.generation}", str(step))

    def pauses(self, step: int) -> bool:
        """Whether a member has said that, of this step or an earlier one."""
        assert self.decision is not None
        key = f"pause/{self.decision.generation}"
        return self._store.check([key]) and int(self._store.get(key)) <= step

    def end_job(self) -> None:
        """Let no process join any more: the training is done."""
        self._store.set("ended", "")

    def close(self) -> None:
        """End the thread: to others this process is dead soon."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join(5)

    def _join(self, rank: int, workers: int) -> None:
        number = self._store.add("joins", 1)
        self._store.set(f"join/{number}", json.dumps([self.identity, rank, workers]))

    def _await(self, generation: int, step: int, limit_s: float) -> GroupGeneration:
        """The first decision from this generation on that has this process in it; decide what is due."""
        deadline, pause_s = time.monotonic() + limit_s, POLL_S / 8
        try:
            while time.monotonic() < deadline and not self._closed.wait(pause_s):
                key = f"decision/{generation}"
                if self._store.check([key]):
                    members, steps = json.loads(self._store.get(key))
                    with self._lock:
                        self._past.update(members)
                        self.decision = decision = GroupGeneration(generation, members, steps)
                    if self.identity in members:
                        return decision
                    if step != NEW:
                        logger.warning("elastic: generation %d begins without this process: it joins anew", generation)
                        step, self.identity = NEW, uuid.uuid4().hex[:12]
                        self._beat()
                        self._join(-1, 0)
                    generation, pause_s = generation + 1, POLL_S / 8
                    continue
                if self._store.check(["ended"]):
                    raise dist.DistBackendError("switchagg: elastic: the job has ended; there is nothing to join")
                if not generation:
                    self._look_first()
                if (proposal := self._proposal(generation)) is not None:
                    self._store.compare_set(key, "", json.dumps(proposal))
                    continue
                pause_s = min(2 * pause_s, POLL_S)
        except (dist.DistNetworkError, dist.DistStoreError) as error:
            raise dist.DistBackendError(
                f"switchagg: elastic: the store is gone, so no rank can join: {error}"
            ) from None
        raise dist.DistBackendError(
            f"switchagg: elastic: timed out: no generation {generation} of at least {self._least} ranks began within "
            f"{limit_s:g} s"
        )

    def _proposal(self, generation: int) -> tuple[list[str], list[int]] | None:
        """Members and steps of that generation, if they can be decided and it is for this process to do."""
        with self._lock:
            joiners = self._beating_joiners()
            before = self.decision.members if self.decision else []
            living = [member for member in before if member == self.identity or not self._is_dead(member)]
        if not generation:
            return self._first(joiners)
        if living and self.identity not in before:
            return None
        keys = [f"arrived/{generation}/{member}" for member in living]
        if keys and not self._store.check(keys):
            return None
        steps = {member: int(self._store.get(key)) for member, key in zip(living, keys, strict=True)}
        members = sorted(living, key=lambda member: (-steps[member], before.index(member)))
        members += sorted(joiners, key=lambda joiner: (joiners[joiner][0], joiner))
        if len(members) < self._least:
            return None
        return members, [steps.get(member, NEW) for member in members]

    def _first(self, joiners: dict[str, tuple[int, int]]) -> tuple[list[str], list[int]] | None:
        """The first generation: as many as were started, one of each rank."""
        by_rank = {rank: identity for identity, (rank, _) in joiners.items()}
        workers = max((workers for _, workers in joiners.values()), default=0)
        if self.identity not in by_rank.values() or len(by_rank) < max(workers, self._least):
            return None
        return [by_rank[rank] for rank in sorted(by_rank)], [NEW] * len(by_rank)

    def _beating_joiners(self) -> dict[str, tuple[int, int]]:
        """Who waits to join and is alive. Under the lock."""
        return {
            identity: entry
            for identity, entry in self._joiners.items()
            if identity not in self._past and (beat := self._beats.get(identity)) is not None
            if identity == self.identity or (beat.changed and self._looked_s - beat.since_s < DEAD_S)
        }

    def _is_dead(self, identity: str) -> bool:
        """As of the last look: a process that was stopped itself has seen nothing meanwhile."""
        beat = self._beats.get(identity)
        limit_s = SILENT_S if identity in self._suspects else DEAD_S
        return beat is not None and self._looked_s - beat.since_s >= limit_s

    def _run(self) -> None:
        try:
            while not self._closed.wait(BEAT_S):
                self._look()
        except Exception as error:  # who waits for the store meets it too
            logger.info("elastic: process %s beats no more: %s", self.identity, error)

    def _beat(self) -> None:
        self._count += 1
        self._store.set(f"beat/{self.identity}", str(self._count))

    def _look(self) -> None:
        """Beat, and see who else does."""
        self._beat()
        joins = self._store.add("joins", 0)
        for number in range(self._joins + 1, joins + 1):
            if not self._store.check([f"join/{number}"]):  # it is being written
                joins = number - 1
                break
            identity, rank, workers = json.loads(self._store.get(f"join/{number}"))
            with self._lock:
                self._joiners[identity] = rank, workers
        self._joins = joins
        with self._lock:
            members = self.decision.members if self.decision else []
            identities = sorted({*self._joiners, *members})
        beats = self._store.multi_get([f"beat/{identity}" for identity in identities]) if identities else []
        now_s = time.monotonic()
        with self._lock:
            slept, self._looked_s = now_s - self._looked_s > SILENT_S / 2, now_s
            for identity, value in zip(identities, beats, strict=True):
                beat = self._beats.get(identity)
                if beat is None or slept or beat.value != value:
                    self._beats[identity] = _Beat(value, now_s, beat is not None and beat.value != value)
            is_dead = any(member != self.identity and self._is_dead(member) for member in members)
        if is_dead and (on_death := self.on_death) is not None:
            on_death()
