"""The switch's end of a link: a data plane and the loop that hosts it, bound, as `transport.links.link_kinds` names
them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.native import NativePlane
from switchagg.dataplane.p4.bmv2_plane import Bmv2Plane
from switchagg.dataplane.p4.p4_plane import P4Plane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.dataplane.self_test import Choice, fastest
from switchagg.errors import JobError, SwitchaggError
from switchagg.job import Address
from switchagg.native.multicast import Multicast
from switchagg.wire import frame_bytes
from transport.contracts.switch_host import QueuePairHost, RunningHost
from transport.links.link import Link
from transport.links.udp_link import UdpLink
from transport.switch.daemon_options import AUTO, XDP, DaemonOptions
from transport.switch.native_switch_loop import NativeSwitchLoop
from transport.switch.switch_loop import SwitchLoop
from transport.switch.xdp import XdpOptions, XdpSwitch
from transport.zeromq.zmq_link import ZeroMqLink

LinkT = TypeVar("LinkT", bound=Link)
Log = Callable[[str], None]
OnFailure = Callable[[BaseException], None]
"""Told the unexpected exception that ended the loop."""


@dataclass(frozen=True)
class SwitchEndpoint:
    """host: not started yet. address: of the data plane, bound. choice: the data plane, and why nothing faster.
    slowness: as of a `Link`. packets_held: of so many elements, as of a UdpLink. queue_pairs: `host` again, if
    its jobs come by queue pairs."""

    host: RunningHost
    address: Address
    choice: Choice
    slowness: Callable[[], str] = str
    queue_pairs: QueuePairHost | None = None
    packets_held: Callable[[int], int] = lambda elements: 0


class ChosenPlane(NamedTuple):
    """A data plane, and how it was chosen."""

    choice: Choice
    plane: DataPlane


def plane_of(options: DaemonOptions) -> ChosenPlane:
    """The data plane in user space that the options ask for, ready for jobs. Raises JobError."""
    slots, elements = options.slots, options.slot_elements
    choice = fastest(slots, elements) if options.plane == AUTO else Choice(options.plane, {})
    plane = DATAPLANES[choice.name](slots, elements)
    if isinstance(plane, P4Plane | Bmv2Plane):
        plane.prepare()
    return ChosenPlane(choice, plane)


def bound(make: Callable[[], LinkT], remedy: str = "; choose another with --data HOST:PORT") -> LinkT:
    """Open a link at the data address, or raise SwitchaggError with the remedy."""
    try:
        return make()
    except JobError as error:
        raise SwitchaggError(f"data address: {error}{remedy}") from error


def endpoint_of(link: Link, chosen: ChosenPlane, on_failure: OnFailure) -> SwitchEndpoint:
    """Any data plane on any link."""
    host = SwitchLoop(link, chosen.plane, on_failure=on_failure)
    return SwitchEndpoint(host, link.address, chosen.choice, link.slowness, packets_held=_packets_held(link))


def open_link(options: DaemonOptions, log: Log, on_failure: OnFailure) -> SwitchEndpoint:
    """The end of a link that needs only an address."""
    plane = plane_of(options)
    link: Link = bound(partial(options.kind.opener("link"), options.bind_data))
    return endpoint_of(link, plane, on_failure)


def open_zeromq(options: DaemonOptions, log: Log, on_failure: OnFailure) -> SwitchEndpoint:
    """The end of a ZeroMqLink."""
    plane = plane_of(options)
    return endpoint_of(bound(partial(ZeroMqLink, options.bind_data, keys=options.keys), remedy=""), plane, on_failure)


def open_udp(options: DaemonOptions, log: Log, on_failure: OnFailure) -> SwitchEndpoint:
    """The end of a UdpLink, with the loop in C where the data plane is; or the switch in the kernel."""
    if options.plane == XDP:
        kernel = XdpSwitch(
            options.bind_data,
            options.slots,
            options.slot_elements,
            XdpOptions(tuple(options.interfaces), options.impairments),
            log=log,
            on_failure=on_failure,
        )
        log(f"data plane {XDP}: {kernel.mode}")
        return SwitchEndpoint(kernel, kernel.address, Choice(XDP, {}))
    chosen = plane_of(options)
    link: UdpLink = bound(partial(options.kind.opener("link"), options.bind_data, segments_max=options.segments_max))
    if not isinstance(chosen.plane, NativePlane):
        return endpoint_of(link, chosen, on_failure)
    host = NativeSwitchLoop(
        link,
        chosen.plane,
        impairments=options.impairments,
        multicast=_multicast(options.multicast, link, log),
        log=log,
        on_failure=on_failure,
    )
    return SwitchEndpoint(host, link.address, chosen.choice, link.slowness, packets_held=_packets_held(link))


def _multicast(interface: str, link: UdpLink, log: Log) -> Multicast | None:
    """Multicast on the interface, or None with the reason in the log."""
    try:
        return Multicast(interface, link.fileno(), link.address[1]) if interface else None
    except (SwitchaggError, OSError) as error:
        log(f"no multicast, results go to each worker by itself: {error}")
        return None


def _packets_held(link: Link) -> Callable[[int], int]:
    return lambda elements: link.packets_held(frame_bytes(elements)) if isinstance(link, UdpLink) else 0
