"""Members of host methods in C: messages, frames and timers that Python never sees."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulation.sim.engine import engine_library
from emulation.sim.engine.links import SimulatedLink
from emulation.sim.engine.member_group import CANCELED, MemberCounters, MemberGroup
from switchagg.errors import AggregationFailed
from switchagg.native import headers
from switchagg.native.headers import SA_COMBINE_ELSEWHERE, SIM_CALL_BYTES
from switchagg.native.library import load
from switchagg.native.native_codec import DTYPES
from transport.collectives.collective import Task
from transport.collectives.collective_party import EARLY_BYTES_MAX, CollectiveCall, CollectiveFinished, CollectiveParty
from transport.collectives.collective_table import COLLECTIVES, plan
from transport.collectives.execution import COMBINE_ELSEWHERE, COMBINED, combine_at, combines_in_c
from transport.collectives.programs import CompiledProgram

_CallFacts = headers.struct("sim_call_facts")


class CollectiveMember(MemberCounters, CollectiveParty):
    """A member's calls, and the host that carries their messages: as a CollectiveParty on a `MeshHost`.

    at: its group, its uplink, and a notice, called when calls have ended or failed. NumPy combines,
    message by message, the types that C can't (16 bits, the maximum of floats).
    """

    def __init__(
        self,
        member: int,
        workers: int,
        at: tuple[MemberGroup, SimulatedLink, Callable[[int], None]],
        *,
        job: str,
        option: int,
        segment_bytes: int,
    ) -> None:
        super().__init__(member, workers, job=job, option=option, segment_bytes=segment_bytes)
        self._group, link, notice = at
        group = self._group
        self._library = load()
        notices = group.clock.notices
        handle = self._library.sa_sim_member(group.handle, link.handle, member, len(notices), link.strict)
        self._handle = engine_library.there(handle)
        notices.append(lambda: notice(member))
        self._in_use: dict[int, tuple[Any, ...]] = {}  # by the number of a call: what C uses of it
        self._combine = COMBINE_ELSEWHERE(self._combine_elsewhere)

    def _program(self, task: Task, itemsize: int) -> CompiledProgram:
        key = (task, itemsize, self._segment_bytes)
        program = self._group.programs.get(key)
        if program is not None:
            return program
        if task.member and self._turns(task, itemsize):
            program = CompiledProgram.turned(self._program(task._replace(member=0), itemsize), task.member)
        else:
            program = CompiledProgram(plan(task), itemsize, self._segment_bytes)
        self._group.programs.put(key, program)
        return program

    def _turns(self, task: Task, itemsize: int) -> bool:
        """Whether the program is member 0's, turned: pieces differ by an element, and may so by a segment."""
        elements = max(1, self._segment_bytes // itemsize)
        least, most = task.elements // task.workers, -(-task.elements // task.workers)
        return (
            COLLECTIVES[task.algorithm].kinds[task.kind].turns
            and least > 0
            and -(-least // elements) == -(-most // elements)
        )

    def _prepare(self, call: CollectiveCall, task: Task) -> None:
        array = call.array
        program = self._program(task, array.itemsize)
        combine, _ = COMBINED[call.op]
        facts = _CallFacts(number=call.number, combine=combine, program=program.address)
        scratch: NDArray[Any] | None = None
        if not self._group.clock.state.size_only:
            assert array.flags.writeable
            scratch = np.empty(program.scratch, array.dtype)
            facts.array, facts.scratch = array.ctypes.data, scratch.ctypes.data
            if combines_in_c(array, call.op):
                facts.dtype = DTYPES.index(array.dtype)
            else:
                facts.combine, facts.dtype, facts.combine_elsewhere = SA_COMBINE_ELSEWHERE, call.number, self._combine
        self._in_use[call.number] = facts, program, scratch, call

    def _combine_elsewhere(self, number: int, into: int, from_address: int, count: int) -> None:
        """Combine, in place, values of a call that C can't, at these addresses."""
        call = self._in_use[number][-1]
        self._group.clock.guarded(lambda: combine_at(call.op, call.array, into, from_address, count))

    def _begin(self, call: CollectiveCall, now_ns: int) -> None:
        self._calls[call.key] = call
        self._by_number[call.number] = call
        facts = self._in_use[call.number][0]
        facts.head[:] = call.head[:SIM_CALL_BYTES]
        facts.priority = int.from_bytes(call.head[SIM_CALL_BYTES:], "big", signed=True)
        result = self._library.sa_sim_member_submit(self._handle, ctypes.byref(facts))
        if result and result != CANCELED:
            raise MemoryError("no memory for a call")

    def _take_early(self, key: bytes, now_ns: int) -> None:
        """C has."""

    def events(self) -> list[CollectiveFinished]:
        """Calls that have ended since the last time. Raises AggregationFailed once a member's have failed."""
        if self._group.failed.failure:
            raise self._failed()
        ended = []
        number: int
        while (number := self._library.sa_sim_member_ended(self._handle)) >= 0:
            call = self._by_number.pop(number)
            del self._calls[call.key], self._in_use[number]
            ended.append(CollectiveFinished(call, None))
        return ended

    def _failed(self) -> AggregationFailed:
        failed = self._group.failed
        finder, peer = failed.member, failed.peer
        local_head, peer_head = (self._text(bytes(head)) for head in (failed.local_call, failed.remote_call))
        name, other = self._name(finder), self._name(peer)
        missing: tuple[int, ...] = (peer,)
        if failed.failure == headers.SIM_UNANSWERED:
            limit = self._group.retry_limit(finder, peer)
            words = f"no acknowledgement from {other} after {limit} timeouts in a row"
        elif failed.failure == headers.SIM_CALLS_DIFFER:
            words, missing = f"{other} calls {peer_head}, {name} calls {local_head}", tuple(sorted({peer, finder}))
        elif failed.failure == headers.SIM_TOO_EARLY:
            words, missing = f"{other} is ahead of {name} by more than {EARLY_BYTES_MAX} bytes of messages", (finder,)
            words += f", the last of {peer_head}"
        elif failed.failure == headers.SIM_STUCK:
            functions = self._library.sa_execution_expects, self._library.sa_execution_leaving_to
            expected, leaving = ([rank for rank in range(self.workers) if ask(failed.stuck, rank)] for ask in functions)
            missing = tuple(expected or leaving)
            whom = f"waiting for {self._names(missing)}"
            if not expected:
                whom = f"waiting for its messages to {self._names(missing)} to leave"
            words = f"{local_head} has not moved for {failed.still_ns / 1e9:g} s on {name}, {whom}"
        else:
            words = f"{other} sends {name} a wrong message of {local_head}"
        return AggregationFailed(words, job=self._job, missing=missing)

    def receive_frame(self, _frame: object, _sender: int, _to: int) -> None:
        """The method is never called: frames stay in C."""
        raise AssertionError("a frame from C")

    def pump(self) -> None:
        """As of a MeshHost: send what calls have."""
        self._library.sa_sim_member_pump(self._handle)
