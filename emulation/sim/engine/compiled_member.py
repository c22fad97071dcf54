"""Members of host methods in C: messages, frames and timers that Python never sees."""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from emulation.sim.engine import library
from emulation.sim.engine.compiled_links import CompiledLink
from emulation.sim.engine.compiled_network import CompiledNetwork
from emulation.sim.network.link import Link
from switchagg.errors import AggregationFailed, JobError
from switchagg.native.codec import DTYPES
from switchagg.native.programs import CompiledProgram
from transport.collectives.collective import Task
from transport.collectives.execution import ProgramCache
from transport.collectives.native_execution import COMBINED
from transport.collectives.party import CALL_TIMEOUT_NS, EARLY_BYTES_MAX, Call, CollectiveParty, Finished
from transport.collectives.table import plan
from transport.meshes.reliable import ReliableConfig

CONFIG_OF = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)
CALL_BYTES = 36
"""Of a head: what describes the call. Its priority follows."""

CANCELED = -125
CALLS_DIFFER, TOO_EARLY, STUCK, UNANSWERED, WRONG_MESSAGE = range(1, 6)
"""`enum sim_failure`."""

CACHED_NODES = 12_000_000
"""Segments of compiled plans that are kept, about 60 bytes each: those of a ring of 1,024."""

_POINTER, _U32, _I32, _U64, _I64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64


class ReliableFacts(ctypes.Structure):
    """`struct sa_reliable_config`."""

    _fields_ = [
        *((name, _U32) for name in ("segment_bytes", "window_segments", "ack_every_segments", "retry_limit")),
        *((name, _I64) for name in ("rto_initial_ns", "rto_min_ns", "rto_max_ns", "delayed_ack_ns")),
    ]


class GroupFacts(ctypes.Structure):
    """`struct sim_group_facts`."""

    _fields_ = [("first", _U32), ("credit_bytes", _I64), ("call_timeout_ns", _I64), ("config_of", CONFIG_OF)]


class CallFacts(ctypes.Structure):
    """`struct sim_call_facts`."""

    _fields_ = [
        ("head", ctypes.c_uint8 * CALL_BYTES),
        ("priority", _I32),
        ("number", _U32),
        ("dtype", _U32),
        ("combine", _U32),
        ("program", _POINTER),
        ("array", _POINTER),
        ("scratch", _POINTER),
    ]


class Failed(ctypes.Structure):
    """`struct sim_failed`."""

    _fields_ = [
        *((name, _U32) for name in ("failure", "member", "peer")),
        ("still_ns", _I64),
        ("stuck", _POINTER),
        ("mine", ctypes.c_uint8 * CALL_BYTES),
        ("theirs", ctypes.c_uint8 * CALL_BYTES),
    ]


@lru_cache(maxsize=1)
def declared() -> ctypes.CDLL:
    """The library with the functions of members declared. Raises library.Missing."""
    found = library.engine()
    for name, result, arguments in (
        ("group", _POINTER, [_POINTER, ctypes.POINTER(GroupFacts)]),
        ("group_failed", ctypes.POINTER(Failed), [_POINTER]),
        ("member", _POINTER, [_POINTER, _POINTER, _U32, _U32, _U32]),
        ("member_submit", ctypes.c_int, [_POINTER, ctypes.POINTER(CallFacts)]),
        ("member_pump", None, [_POINTER]),
        ("member_ended", _I64, [_POINTER]),
        ("member_retransmissions", _U64, [_POINTER]),
        ("member_drop_checksum", _U64, [_POINTER]),
    ):
        function = getattr(found, f"sa_sim_{name}")
        function.restype = result
        function.argtypes = arguments
    return found


class CompiledGroup:
    """What the members of a job have in common. connections: as of a `MeshHost`; first: the first member's address."""

    def __init__(
        self,
        network: CompiledNetwork,
        connections: Callable[[int, int], ReliableConfig],
        first: int,
        credit_bytes: int | None,
        call_timeout_ns: int = CALL_TIMEOUT_NS,
    ) -> None:
        self.network = network
        self.programs: ProgramCache[CompiledProgram] = ProgramCache(CACHED_NODES)
        self._connections = connections
        self._configs: dict[ReliableConfig, ReliableFacts] = {}
        self._config_of = CONFIG_OF(self._address_of)
        credit = -1 if credit_bytes is None else credit_bytes
        facts = GroupFacts(first, credit, call_timeout_ns, self._config_of)
        self.handle = library.there(declared().sa_sim_group(network.time.handle, facts))
        self.failed: Failed = declared().sa_sim_group_failed(self.handle).contents

    def _address_of(self, member: int, to: int) -> int:
        each = self._connections(member, to)
        facts = self._configs.get(each)
        if facts is None:
            sizes = each.segment_bytes, each.window_segments, each.ack_every_segments, each.retry_limit
            times = each.rto_initial_ns, each.rto_min_ns, each.rto_max_ns, each.delayed_ack_ns
            facts = self._configs[each] = ReliableFacts(*sizes, *times)
        return ctypes.addressof(facts)

    def retry_limit(self, member: int, to: int) -> int:
        """Timeouts in a row after which a member gives another up."""
        return self._connections(member, to).retry_limit


class CompiledMember(CollectiveParty):
    """A member's calls, and the host that carries their messages: as a CollectiveParty on a `MeshHost`.

    at: its group, its uplink (a CompiledLink), and a notice, called when calls have ended or failed. Calls of values
    that C doesn't combine raise JobError.
    """

    def __init__(
        self,
        member: int,
        workers: int,
        at: tuple[CompiledGroup, Link, Callable[[int], None]],
        *,
        job: str,
        option: int,
        segment_bytes: int,
    ) -> None:
        super().__init__(member, workers, job=job, option=option, segment_bytes=segment_bytes)
        self._group, link, notice = at
        group = self._group
        self._library = declared()
        notices = group.network.time.notices
        uplink = cast(CompiledLink, link)
        made = self._library.sa_sim_member(group.handle, uplink.handle, member, len(notices), uplink.strict)
        self._handle = library.there(made)
        notices.append(lambda: notice(member))
        self._kept: dict[int, tuple[Any, ...]] = {}  # by the number of a call: what C uses of it

    def _prepare(self, call: Call, task: Task) -> None:
        key, array = (task, call.array.itemsize, self._segment_bytes), call.array
        program = self._group.programs.get(key)
        if program is None:
            made = plan(task)
            program = CompiledProgram(
                made.operations,
                members=made.members,
                elements=made.elements,
                scratch=made.scratch,
                itemsize=array.itemsize,
                segment_bytes=self._segment_bytes,
            )
            self._group.programs.put(key, program)
        combine, dtypes = COMBINED[call.op]
        facts = CallFacts(number=call.number, combine=combine, program=program.address)
        scratch: NDArray[Any] | None = None
        if not self._group.network.time.state.hollow:
            if not (array.flags.carray and array.dtype.isnative and (array.dtype in dtypes or not program.combines)):
                raise JobError(f"the engine in C has no {call.op} of {array.dtype}: ask for the one in Python")
            scratch = np.empty(program.scratch, array.dtype)
            facts.array, facts.scratch = array.ctypes.data, scratch.ctypes.data
            facts.dtype = DTYPES.index(array.dtype) if array.dtype in DTYPES else 0
        self._kept[call.number] = facts, program, scratch

    def _begin(self, call: Call, now_ns: int) -> None:
        self._calls[call.key] = call
        self._by_number[call.number] = call
        facts = self._kept[call.number][0]
        facts.head[:] = call.head[:CALL_BYTES]
        facts.priority = int.from_bytes(call.head[CALL_BYTES:], "big", signed=True)
        result = self._library.sa_sim_member_submit(self._handle, facts)
        if result and result != CANCELED:
            raise MemoryError("no memory for a call")

    def _take_early(self, key: bytes, now_ns: int) -> None:
        """C has."""

    def events(self) -> list[Finished]:
        """Calls that have ended since the last time. Raises AggregationFailed once a member's have failed."""
        if self._group.failed.failure:
            raise self._failed()
        ended = []
        number: int
        while (number := self._library.sa_sim_member_ended(self._handle)) >= 0:
            call = self._by_number.pop(number)
            del self._calls[call.key], self._kept[number]
            ended.append(Finished(call, None))
        return ended

    def _failed(self) -> AggregationFailed:
        failed = self._group.failed
        finder, peer = failed.member, failed.peer
        mine, theirs = (self._text(bytes(head)) for head in (failed.mine, failed.theirs))
        own, other = self._name(finder), self._name(peer)
        missing: tuple[int, ...] = (peer,)
        if failed.failure == UNANSWERED:
            limit = self._group.retry_limit(finder, peer)
            words = f"no acknowledgement from {other} after {limit} timeouts in a row"
        elif failed.failure == CALLS_DIFFER:
            words, missing = f"{other} calls {theirs}, {own} calls {mine}", tuple(sorted({peer, finder}))
        elif failed.failure == TOO_EARLY:
            words, missing = f"{other} is ahead of {own} by more than {EARLY_BYTES_MAX} bytes of messages", (finder,)
            words += f", the last of {theirs}"
        elif failed.failure == STUCK:
            asked = self._library.sa_execution_expects, self._library.sa_execution_leaving_to
            expected, leaving = ([one for one in range(self.workers) if ask(failed.stuck, one)] for ask in asked)
            missing = tuple(expected or leaving)
            whom = f"waiting for {self._names(missing)}"
            if not expected:
                whom = f"waiting for its messages to {self._names(missing)} to leave"
            words = f"{mine} has not moved for {failed.still_ns / 1e9:g} s on {own}, {whom}"
        else:
            words = f"{other} sends {own} a wrong message of {mine}"
        return AggregationFailed(words, job=self._job, missing=missing)

    def receive_frame(self, _frame: object, _sender: int, _to: int) -> None:
        """Not called: its frames stay in C."""
        raise AssertionError("a frame from C")

    def pump(self) -> None:
        """As of a MeshHost: send what calls have."""
        self._library.sa_sim_member_pump(self._handle)

    @property
    def retransmissions(self) -> int:
        """Frames sent again."""
        return cast(int, self._library.sa_sim_member_retransmissions(self._handle))

    @property
    def drop_checksum(self) -> int:
        """Damaged frames."""
        return cast(int, self._library.sa_sim_member_drop_checksum(self._handle))
