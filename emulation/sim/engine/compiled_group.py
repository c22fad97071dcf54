"""The shared state of a job's members on links in C: their connections, and the functions of `sim/member.h`."""

import ctypes
from collections.abc import Callable
from functools import lru_cache

from emulation.sim.engine import engine_library
from emulation.sim.engine.compiled_clock import CompiledClock
from emulation.sim.host_costs import HostCosts
from switchagg.native.programs import COMBINE_ELSEWHERE, CompiledProgram
from transport.collectives.collective_party import CALL_TIMEOUT_NS
from transport.collectives.execution import ProgramCache
from transport.meshes.reliable import ReliableConfig

CONFIG_OF = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)
MEMBER_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64)

CALL_BYTES = 36
"""The bytes of a head that describe the call. The priority follows."""

CANCELED = -125
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

    _fields_ = [
        ("first", _U32),
        ("credit_bytes", _I64),
        ("call_timeout_ns", _I64),
        ("config_of", CONFIG_OF),
        ("report", MEMBER_CALLBACK),
    ]


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
        ("combine_elsewhere", COMBINE_ELSEWHERE),
    ]


class MemberFailure(ctypes.Structure):
    """`struct sim_failed`."""

    _fields_ = [
        *((name, _U32) for name in ("failure", "member", "peer")),
        ("still_ns", _I64),
        ("stuck", _POINTER),
        ("local_call", ctypes.c_uint8 * CALL_BYTES),
        ("remote_call", ctypes.c_uint8 * CALL_BYTES),
    ]


@lru_cache(maxsize=1)
def declared() -> ctypes.CDLL:
    """The library with the functions of members declared. Raises engine_library.CoreMissing."""
    library = engine_library.engine()
    for name, result, arguments in (
        ("group", _POINTER, [_POINTER, ctypes.POINTER(GroupFacts)]),
        ("group_failed", ctypes.POINTER(MemberFailure), [_POINTER]),
        ("member", _POINTER, [_POINTER, _POINTER, _U32, _U32, _U32]),
        ("member_submit", ctypes.c_int, [_POINTER, ctypes.POINTER(CallFacts)]),
        ("group_costs", None, [_POINTER, _I64, _U64]),
        ("member_push", ctypes.c_int, [_POINTER, _U64, _U32, _I32, _POINTER, _U32, _U32, _POINTER, _U64]),
        ("member_pump", None, [_POINTER]),
        ("member_ended", _I64, [_POINTER]),
        ("member_retransmissions", _U64, [_POINTER]),
        ("member_drop_checksum", _U64, [_POINTER]),
    ):
        function = getattr(library, f"sa_sim_{name}")
        function.restype = result
        function.argtypes = arguments
    return library


class CompiledGroup:
    """The shared state of a job's members. connections: as of a `MeshHost`; first: the first member's address.

    told: what parties in Python are told, by member; without, calls are C's.
    """

    def __init__(
        self,
        clock: CompiledClock,
        connections: Callable[[int, int], ReliableConfig],
        first: int,
        credit_bytes: int | None,
        callback: Callable[[int, int, int, int], int] | None = None,
    ) -> None:
        self.clock = clock
        self.programs: ProgramCache[CompiledProgram] = ProgramCache(CACHED_NODES)
        self._connections = connections
        self._configs: dict[ReliableConfig, ReliableFacts] = {}
        self._config_of = CONFIG_OF(self._address_of)
        credit = -1 if credit_bytes is None else credit_bytes
        self._callback = MEMBER_CALLBACK(callback) if callback else MEMBER_CALLBACK()
        facts = GroupFacts(first, credit, CALL_TIMEOUT_NS, self._config_of, self._callback)
        self.handle = engine_library.there(declared().sa_sim_group(clock.handle, facts))
        self.failed: MemberFailure = declared().sa_sim_group_failed(self.handle).contents

    def has_costs(self, costs: HostCosts) -> None:
        """From the start."""
        declared().sa_sim_group_costs(self.handle, costs.transfer_ns, costs.flow_bps)

    def _address_of(self, member: int, to: int) -> int:
        connection = self._connections(member, to)
        facts = self._configs.get(connection)
        if facts is None:
            sizes = (
                connection.segment_bytes,
                connection.window_segments,
                connection.ack_every_segments,
                connection.retry_limit,
            )
            times = connection.rto_initial_ns, connection.rto_min_ns, connection.rto_max_ns, connection.delayed_ack_ns
            facts = self._configs[connection] = ReliableFacts(*sizes, *times)
        return ctypes.addressof(facts)

    def retry_limit(self, member: int, to: int) -> int:
        """Timeouts in a row after which a member gives another up."""
        return self._connections(member, to).retry_limit
