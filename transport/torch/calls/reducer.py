"""Collectives of tensors over groups: order across ranks, completion, failure.

A group pairs the calls of all ranks by their order, so every rank must submit the same calls in the same order. The
order in which a program makes its calls is such an order; the order in which callbacks on finished calls happen to
run is not. Calls made inside a callback therefore go to a *lane* of their own, a second job on the switch, in an order
that all ranks share: first those made by the callbacks of call 0, then those of call 1, and so on.

A call is handed to the group as soon as its turn comes, and waits for no earlier one; the group limits calls in flight.
"""

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from switchagg.codecs.compression import Compression
from switchagg.description import COMBINING, requested_op_text
from transport.contracts.group_contract import Group
from transport.torch.calls.completions import CompletionPool
from transport.torch.calls.tensor_layout import GroupCall, RankContext
from transport.torch.calls.tensor_staging import CudaStage, GlooStage, HostStage, SideStreams, TensorStage
from transport.torch.calls.work import DEADLINES, SwitchWork, current_hook

JOIN_WORKS = 16
"""The reducer keeps this many Works of DDP.join beyond their end: a Work that only C++ holds loses its half in Python,
and join hands DDP's C++ reducer a Work in each forward pass, whose Future it reads in the backward pass."""

JOIN = "torch.distributed.algorithms.join"

ANSWER_S = 1.0
"""The time in which a group must name the ranks that a timed-out call waits for."""

WAIT_MARGIN_S = 10.0
"""`wait()` ends this long after the call's deadline, which ends the call with a better message."""

DEPTH_MAX = 3
"""Callbacks of callbacks of callbacks: each level takes slots on the switch; more is a runaway program."""


OpenGroup = Callable[[int], Group | None]
"""Joins the switch for a lane (0: calls of the program itself); None where all ranks agreed not to use it."""


class _CallProgress:
    """How far a collective is, from `Reducer.start` until its callbacks have returned."""

    def __init__(self, work: SwitchWork | None, stages: Sequence[TensorStage], depth: int) -> None:
        self.work = work
        self.stages = stages
        self.depth = depth
        self.ready = not any(stage.needs_fetch for stage in stages)
        self.remaining = len(stages)
        self.hook = current_hook()
        self.error: BaseException | None = None
        self.children: deque[_CallProgress] = deque()  # calls made by its callbacks and not yet submitted
        self.over = False  # the network is done with it
        self.closed = False  # its callbacks have returned


class _Lane:
    def __init__(self) -> None:
        self.opening = threading.Lock()
        self.opened = False
        self.session: Group | None = None
        self.parents: deque[_CallProgress] = deque()


class Reducer:
    """Carries out collectives by a group, in the background. It is thread-safe.

    After a first failure every call, also later ones, fails at once with the same cause. what: names the
    group in errors. limit_s: asked with every call, how long it may take if it has no limit of its own.
    """

    def __init__(self, open_group: OpenGroup, what: str, limit_s: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._open_group = open_group
        self._what = what
        self._pool = CompletionPool("switchagg")
        self._lock = threading.Lock()
        self._lanes = [_Lane() for _ in range(DEPTH_MAX + 1)]
        self._program = _CallProgress(None, (), -1)  # parent of all calls that no callback made
        self._lanes[0].parents.append(self._program)
        self._running = threading.local()  # .call: the call whose callbacks this thread runs
        self._side_streams = SideStreams()
        self._calls = 0
        self._join_works: deque[SwitchWork] = deque(maxlen=JOIN_WORKS)
        self._failure: BaseException | None = None
        self._closed = False

    def open(self) -> bool:
        """Join the switch if that hasn't happened; whether calls can go through it. Raises what joining raises."""
        return self._session(0) is not None

    @property
    def is_open(self) -> bool:
        """Whether `open` was true."""
        return self._lanes[0].session is not None

    @property
    def failure(self) -> BaseException | None:
        """The error that ended this reducer, or None."""
        return self._failure

    @property
    def errored(self) -> BaseException | None:
        """The failure of this reducer, or of one of its groups, which no call may have met yet; else None."""
        with self._lock:
            sessions = [lane.session for lane in self._lanes if lane.session is not None]
        return self._failure or next((session.failure for session in sessions if session.failure is not None), None)

    def counters(self) -> dict[str, int]:
        """Counts of this rank's packets over all its sessions, by outcome; empty before it has a session."""
        with self._lock:
            sessions = [lane.session for lane in self._lanes if lane.session is not None]
        total: Counter[str] = Counter()
        for session in sessions:
            total.update(session.counters)
        return dict(total)

    def core(self) -> str:
        """The core that carries this rank's packets, "native" or "python"; "" before it has a session."""
        with self._lock:
            return next((lane.session.core for lane in self._lanes if lane.session is not None), "")

    def raise_failure(self) -> None:
        """Raise DistBackendError if an earlier call failed or the reducer is closed."""
        if self._failure is not None:
            raise dist.DistBackendError(f"{self._what} can't be used any more: {self._failure}") from self._failure

    @property
    def compares(self) -> bool:
        """Whether calls that Gloo carries out are compared: once there is a group that can."""
        group = self._lanes[0].session
        return group is not None and group.method not in ("ps", "gloo")

    @property
    def in_callback(self) -> bool:
        """Whether this thread runs a callback of a call."""
        return getattr(self._running, "call", None) is not None

    @property
    def compression(self) -> Compression | None:
        """The compression of the program's own calls, once `open` was true; None without a codec."""
        group = self._lanes[0].session
        return None if group is None else group.compression

    def ranks(self) -> RankContext:
        """This rank's context, once `open` was true."""
        group = self._session(0)
        assert group is not None
        is_switch, compares = group.method == "switch", self.compares
        return RankContext(group.rank, group.workers, is_switch, group.row, compares, group.means)

    def start(
        self,
        parts: Sequence[GroupCall],
        results: list[torch.Tensor],
        limit_s: float | None = None,
        gloo: dist.Work | None = None,
        ended: "torch.futures.Future[None] | None" = None,
    ) -> SwitchWork:
        """Start a collective of these parts. Never raises for the network: the Work does.

        results, ended: the Work's. limit_s: after which the call fails, and the group with it. gloo: what carries out
        a part that only compares; its own time-out ends it.
        """
        limit_s = self._limit_s() if limit_s is None else limit_s
        with self._lock:
            number, self._calls = self._calls, self._calls + 1
        tensors = [tensor for part in parts for tensor, _ in (*part.gives, *part.takes)]
        devices = sorted({tensor.device for tensor in (*tensors, *results) if tensor.device.type != "cpu"}, key=str)
        what = f"{self._what}: {_named(parts, number)}"
        work = SwitchWork(results, what, limit_s + WAIT_MARGIN_S, devices, ended)
        if len(results) == 1 and results[0].numel() == 1 and _called_by_join():
            self._join_works.append(work)
        # Where there is nothing to send, or no way to, callbacks run where they are attached.
        if not parts or self._failure is not None:
            work.settle(self._failure)
            work.deliver()
            return work
        parent: _CallProgress = getattr(self._running, "call", None) or self._program
        depth, call = parent.depth + 1, None
        try:
            if depth > DEPTH_MAX:
                raise dist.DistBackendError(f"collectives inside callbacks are nested more than {DEPTH_MAX} deep")
            if self._session(depth) is None:
                raise dist.DistBackendError(f"the switch has no room for the calls of callbacks (lane {depth})")
            call = _CallProgress(work, [self._stage(part, gloo) for part in parts], depth)
            DEADLINES.add(call, limit_s, partial(self._expire, call, f"timed out after {limit_s:g} s"))
            with self._lock:
                self.raise_failure()
                parent.children.append(call)
        except Exception as error:
            DEADLINES.remove(call)
            self.fail(error)
            work.settle(error)
            work.deliver()
            return work
        if call.ready:
            self._submit_ready(depth)
        else:
            self._pool.submit(partial(self._fetch, call))
        return work

    def refused(self, error: Exception, parts: Sequence[GroupCall], results: list[torch.Tensor]) -> SwitchWork:
        """The Work of a call that no rank makes, since all raise this error. Later calls work."""
        work = SwitchWork(results, f"{self._what}: {_named(parts, self._calls)}", 0.0)
        work.settle(error)
        work.deliver()
        return work

    def close(self) -> None:
        """Leave the switch; pending calls fail; threads end. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.fail(dist.DistBackendError("it was shut down"), wait=True)
        self._pool.close()

    def _stage(self, part: GroupCall, gloo: dist.Work | None) -> TensorStage:
        places = part.gives or part.takes
        if not places:
            return GlooStage(part, gloo)
        device = places[0][0].device
        return HostStage(part) if device.type == "cpu" else CudaStage(part, self._side_streams.of(device))

    def _session(self, depth: int) -> Group | None:
        lane = self._lanes[depth]
        with lane.opening:
            if not lane.opened:
                session = self._open_group(depth)
                with self._lock:
                    lane.session, lane.opened = session, True
                    late = self._closed or self._failure is not None
                if late and session is not None:
                    session.close()
            return lane.session

    def _fetch(self, call: _CallProgress) -> None:
        try:
            for stage in call.stages:
                stage.fetch()
        except Exception as error:
            self.fail(error)
            return
        with self._lock:
            call.ready = True
        self._submit_ready(call.depth)

    def _submit_ready(self, depth: int) -> None:
        """Hand the lane's calls to the session, as far as the shared order allows it now."""
        if depth > DEPTH_MAX:
            return
        started: list[tuple[_CallProgress, Future[Any]]] = []
        refused: Exception | None = None
        with self._lock:
            try:
                while (call := self._next_call(depth)) is not None:
                    self._submit(call, started)
            except Exception as error:
                refused = error
        # The lock is released: a future that is done already runs its callback here.
        for call, future in started:
            future.add_done_callback(partial(self._hand_over, call))
        if refused is not None:
            self.fail(refused)

    def _next_call(self, depth: int) -> _CallProgress | None:
        """The lane's next call in the shared order, or None if it isn't known yet, or not ready. Under the lock."""
        parents = self._lanes[depth].parents
        while parents and self._failure is None:
            parent = parents[0]
            if parent.children:
                return parent.children[0] if parent.children[0].ready else None
            if not parent.closed:
                return None
            parents.popleft()
        return None

    def _submit(self, call: _CallProgress, started: "list[tuple[_CallProgress, Future[Any]]]") -> None:
        lane = self._lanes[call.depth]
        assert lane.session is not None
        for stage in call.stages:
            started.append((call, lane.session.submit(stage.request, stage.array)))
        lane.parents[0].children.popleft()
        if call.depth < DEPTH_MAX:
            self._lanes[call.depth + 1].parents.append(call)

    def _hand_over(self, call: _CallProgress, future: "Future[Any]") -> None:
        """The network thread calls this; it must not run users' callbacks."""
        self._pool.submit(partial(self._part_done, call, future))

    def _part_done(self, call: _CallProgress, future: "Future[Any]") -> None:
        error = future.exception() if not future.cancelled() else dist.DistBackendError("the call was cancelled")
        with self._lock:
            call.error = call.error or error
            call.remaining -= 1
            if call.remaining:
                return
        self._finish(call, call.error)

    def _finish(self, call: _CallProgress, error: BaseException | None) -> None:
        """Write the results back and run the user's callbacks, on a thread of the pool."""
        assert call.work is not None
        DEADLINES.remove(call)
        call.over = True
        if error is not None:
            self.fail(error)
            error = self._failure
        else:
            try:
                for stage in call.stages:
                    stage.restore()
            except Exception as fault:
                error = fault
        call.work.settle(error, partial(_synchronize, call.stages))
        if call.hook is not None:
            call.hook.wait(call.work)
        outer = getattr(self._running, "call", None)
        self._running.call = call
        try:
            with ExitStack() as streams:  # consumers of a Future wait for the streams that were current when it was set
                for stage in call.stages:
                    streams.enter_context(stage.on_its_stream())
                call.work.deliver()
        finally:
            self._running.call = outer
            with self._lock:
                call.closed = True
            self._submit_ready(call.depth + 1)

    def _expire(self, call: _CallProgress, words: str) -> None:
        """A call's time is over: the group fails, and names the ranks that it waits for if it can within ANSWER_S."""
        session = self._lanes[call.depth].session
        if not call.over and session is not None:
            DEADLINES.add(call, ANSWER_S, lambda: None if call.over else self.fail(dist.DistBackendError(words)))
            session.give_up(words)

    def fail(self, error: BaseException, wait: bool = False) -> None:
        """End everything with this cause, unless that has happened; wait: until the sessions are closed."""
        with self._lock:
            first = self._failure is None
            if first:
                self._failure = error
            stranded = [call for lane in self._lanes for parent in lane.parents for call in parent.children]
            for lane in self._lanes:
                for parent in lane.parents:
                    parent.children.clear()
            sessions = [lane.session for lane in self._lanes if lane.session is not None]
        for call in stranded:
            self._pool.submit(partial(self._finish, call, error))
        if wait:
            _close(sessions)
        elif first:
            self._pool.submit(partial(_close, sessions))


def _called_by_join() -> bool:
    """Whether DDP.join makes this call, to tell that this rank still has inputs."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != JOIN:
        frame = frame.f_back
    return frame is not None


def _named(parts: Sequence[GroupCall], number: int) -> str:
    """A call, for errors: "allreduce 7 (sum, 5 elements)"."""
    if not parts:
        return f"call {number}"
    first = parts[0].signature
    op = [requested_op_text(first.requested_op, first.op, "")[0]] if first.kind in COMBINING else []
    elements = sum(part.signature.elements for part in parts)
    return f"{first.kind} {number} ({', '.join([*op, f'{elements} elements'])})"


def _close(sessions: list[Group]) -> None:
    for session in sessions:
        session.close()


def _synchronize(stages: Sequence[TensorStage]) -> None:
    for stage in stages:
        stage.synchronize()
