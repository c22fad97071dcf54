"""The methods as a rank sees them: opened once, then asked for one allreduce after the other, in place.

Everything that a real job sets up once (sessions, connections) is set up here, outside what is timed.
"""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from emulation.experiments.bench.allreduce.exact_inputs import tensors_of
from emulation.experiments.bench.allreduce.rank_messages import OpenMethod, RankPlace
from emulation.scenario.bounds import elements_of
from emulation.scenario.errors import RunFailed
from transport.group.group_opening import GroupOptions, open_group
from transport.links.link_kinds import LINKS
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

Array = NDArray[Any]
PORT = 29_700
CALL_TIMEOUT_S = 120.0
TOKEN = "known to all who read this"  # secret sums need one
QUEUE_SHARE_NS = 4_000_000  # of the link's rate: what a TCP sender may hold, half of the queue at 1 Gb/s


class Contestant(Protocol):
    """A method on a rank."""

    def allreduce(self, array: Array) -> None:
        """Sum over all ranks, in place; returns when it is done. It raises what the method raises."""

    def counters(self) -> dict[str, int]:
        """Counts of the method so far; `retransmitted` is among them where the method knows it."""

    def facts(self) -> dict[str, Any]:
        """Settings in use: congestion control, GSO."""

    def close(self) -> None: ...


class SwitchContestant:
    """Our own method: one session, one call per allreduce, as the process group makes them."""

    def __init__(self, order: OpenMethod, place: RankPlace) -> None:
        method, options, mtu_bytes = order.method, order.scenario.switch, order.scenario.topology.mtu_bytes
        self._method = method.method
        self._session = SwitchSession.join(
            order.switch,
            f"bench-{method.name}",
            place.rank,
            place.workers,
            JoinOptions(
                timeout_s=60.0,
                call_timeout_s=CALL_TIMEOUT_S,
                bind=place.addresses[place.rank],
                core=method.core,
                elements=elements_of(method.method, options.elements, mtu_bytes),
                link=method.carrier,
                streams=options.streams,
                window_slots=options.window_slots,
                segments_max=order.segments_max,
                **method.method.terms | {"codec": method.method.codec or JoinOptions.codec},
                via=place.via,
                verify=options.verify,
                token=TOKEN if method.method.secret else "",
            ),
        )

    def allreduce(self, array: Array) -> None:
        self._session.allreduce(array, tensors=tensors_of(self._method, array)).result(CALL_TIMEOUT_S)

    def counters(self) -> dict[str, int]:
        return self._session.counters

    def facts(self) -> dict[str, Any]:
        return {"elements": self._session.job.elements, "windows": [s.window_slots for s in self._session.job.streams]}

    def close(self) -> None:
        self._session.close()


class HostMethod:
    """A host method, or parameter servers beside the workers: a group, one call per allreduce."""

    def __init__(self, order: OpenMethod, place: RankPlace) -> None:
        method, buffer_bytes = order.method, tcp_buffer_bytes(order.scenario.topology.rate_bps)
        addresses = [(address, PORT + order.number) for address in place.addresses]
        chosen = LINKS[method.carrier].congestion_control
        over_tcp = {"congestion_control": method.variant, "buffer_bytes": buffer_bytes}
        codec, topology = method.method.codec, order.scenario.topology
        elements = elements_of(method.method, order.scenario.switch.elements, topology.mtu_bytes)
        self._method = method.method
        self._group = open_group(
            method.method.method,
            method.carrier,
            place.rank,
            addresses,
            job=f"bench-{method.name}",
            options=GroupOptions(
                60.0,
                CALL_TIMEOUT_S,
                more=over_tcp if chosen else {},
                codec=codec or None,
                codec_elements=elements if codec else None,
                verify=order.scenario.switch.verify,
            ),
        )
        self._details = {"link": method.carrier, **self._group.status()}
        if chosen:
            self._details["send_buffer_bytes"] = buffer_bytes
            if self._details["congestion_control"] != method.variant:
                self._group.close()
                raise RunFailed(f"{method.name}: the kernel chose {self._details['congestion_control']} instead")

    def allreduce(self, array: Array) -> None:
        self._group.allreduce(array, tensors=tensors_of(self._method, array)).result(CALL_TIMEOUT_S)

    def counters(self) -> dict[str, int]:
        return {}

    def facts(self) -> dict[str, Any]:
        return self._details

    def close(self) -> None:
        self._group.close()


def tcp_buffer_bytes(rate_bps: int) -> int:
    """Bytes that a ring's socket may hold: enough to keep the link busy, less than the queue that it would overflow."""
    return max(256 << 10, rate_bps * QUEUE_SHARE_NS // 8_000_000_000) if rate_bps else 4 << 20


def open_contestant(order: OpenMethod, place: RankPlace) -> Contestant:
    """Opens a method on this rank. It raises RunFailed, and what the method raises."""
    if order.method.method.method == "gloo":
        from emulation.experiments.bench.allreduce.gloo import Gloo  # torch takes a second to import

        return Gloo(order.method, place)
    return (SwitchContestant if order.method.method.is_switch else HostMethod)(order, place)
