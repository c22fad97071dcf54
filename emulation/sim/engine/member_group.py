"""The shared state of a job's members on links in C: their connections, and the functions of `native/member.h`."""

import ctypes
from collections.abc import Callable
from typing import Any, cast

from emulation.sim.engine import engine_library
from emulation.sim.engine.packet_clock import PacketClock
from emulation.sim.host_costs import HostCosts
from switchagg.native import headers
from switchagg.native.library import load
from transport.collectives.collective_party import CALL_TIMEOUT_NS
from transport.collectives.programs import ProgramCache
from transport.meshes.reliable import ReliableConfig

CANCELED = -125
CACHED_NODES = 12_000_000
"""Segments of compiled plans that are kept, about 60 bytes each: those of a ring of 1,024."""

_ReliableConfig = headers.struct("sa_reliable_config")


Connections = Callable[[int, int], ReliableConfig]
"""The configuration of the connection from a member to another."""


class MemberCounters:
    """The counters of the member in C that `_handle` is."""

    _library: Any
    _handle: int

    @property
    def retransmissions(self) -> int:
        """Frames sent again."""
        return cast(int, self._library.sa_sim_member_retransmissions(self._handle))

    @property
    def drop_checksum(self) -> int:
        """Damaged frames."""
        return cast(int, self._library.sa_sim_member_drop_checksum(self._handle))


class MemberGroup:
    """The shared state of a job's members. connections: as of a `MeshHost`; first: the first member's address.

    told: what parties in Python are told, by member; without, calls are C's.
    """

    def __init__(
        self,
        clock: PacketClock,
        connections: Connections,
        first: int,
        credit_bytes: int | None,
        callback: Callable[[int, int, int, int], int] | None = None,
    ) -> None:
        self.clock = clock
        self.programs: ProgramCache = ProgramCache(CACHED_NODES)
        self._connections = connections
        self._configs: dict[ReliableConfig, Any] = {}
        self._config_of = headers.callback("sim_config_of")(self._address_of)
        credit = -1 if credit_bytes is None else credit_bytes
        tell = headers.callback("sim_tell")
        self._callback = tell(callback) if callback else tell()
        facts = headers.struct("sim_group_facts")(first, credit, CALL_TIMEOUT_NS, self._config_of, self._callback)
        self.handle = engine_library.there(load().sa_sim_group(clock.handle, ctypes.byref(facts)))
        self.failed = headers.struct("sim_failed").from_address(load().sa_sim_group_failed(self.handle))

    def has_costs(self, costs: HostCosts) -> None:
        """From the start."""
        load().sa_sim_group_costs(self.handle, costs.transfer_ns, costs.flow_bps)

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
            facts = self._configs[connection] = _ReliableConfig(*sizes, *times)
        return ctypes.addressof(facts)

    def retry_limit(self, member: int, to: int) -> int:
        """Timeouts in a row after which a member gives another up."""
        return self._connections(member, to).retry_limit
