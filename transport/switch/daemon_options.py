"""DaemonOptions: the options of a switch, for command line, programs and tests; checked once, when made."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from switchagg.controller.quota import PeerQuota
from switchagg.dataplane.plane_kinds import DATAPLANES, check_parent
from switchagg.errors import SwitchaggError
from switchagg.job import MAX_ELEMENTS, MAX_SLOTS, Address
from switchagg.join import SEGMENTS_MAX
from switchagg.option_syntax import choices
from transport.contracts.timeouts import LEASE_LEAST_S
from transport.links.addresses import parse_endpoint
from transport.links.link_kind import LinkKind
from transport.links.link_kinds import LINKS, links_with
from transport.links.udp_link import SEGMENTS_HARD_MAX
from transport.metrics.metrics_server import is_open
from transport.rdma.places import PACKETS_DEFAULT
from transport.switch.impairments import Impairments
from transport.zeromq.keys import Keys

LOOPBACK, ANY = "127.0.0.1", "0.0.0.0"
CONTROL_PORT, DATA_PORT = 5555, 5556

AUTO = "auto"
"""In place of a data plane's name: the fastest that passes its self-test at start."""

NATIVE = "native"

XDP = "xdp"
"""The switch in the kernel, on interfaces of this host."""

WILDCARDS = ("0.0.0.0", "::")

SLOTS = 4096
"""Room for eight jobs of two streams of 256; 360 elements make it 12 MB."""


@dataclass(frozen=True)
class DaemonOptions:
    """A switch on this host. Raises SwitchaggError for what can't be."""

    bind_control: str = f"tcp://{LOOPBACK}:{CONTROL_PORT}"
    """\"tcp://host:port"; port 0 takes any."""
    bind_data: Address = (LOOPBACK, DATA_PORT)
    """(host, port); port 0 takes any. Over "rdma" an address of this host itself, with port 4791."""
    dataplane: str = AUTO
    """AUTO or a name of DATAPLANES."""
    slots: int = SLOTS
    elements: int | None = None
    """int32 values of a slot; None: the default of the link's jobs, or the data plane's most."""
    advertise: Address | None = None
    """Data address for the workers; None: the bound one, or if that is 0.0.0.0 the host of the control address."""
    lease_s: float = 4.0
    """A worker that is silent for so long is dead."""
    drain_s: float = 5.0
    """How long jobs may take to leave a switch that is to stop (C27); 0: it stops at once."""
    interfaces: Sequence[str] = ()
    """For XDP, by name; (): those that have the data address."""
    impairments: Impairments | None = None
    """Links of an emulated switch; only NATIVE has them (XDP loss alone), so AUTO then means NATIVE."""
    link: str = "udp"
    """A name of `transport.links.link_kinds`."""
    packets: int = PACKETS_DEFAULT
    """Most packets of an RDMA message of results."""
    keys: Keys | None = None
    """They encrypt the control plane, and packets over a link that has keys; only clients that they allow get in."""
    peer_quota: PeerQuota | None = None
    """Most jobs and slots of one address (C16); None: the default."""
    segments_max: int = SEGMENTS_MAX
    """As of a UdpLink."""
    multicast: str = ""
    """Interface where the kernel copies results for all workers of a job (`switchagg.native.multicast`); "": none."""
    parent: str = ""
    """Control address of the switch above this one (H1); "": none."""
    name: str = ""
    """The name below a parent, by which workers say that they send to this switch."""
    any_control_port: bool = False
    """Whether to take a free port where the control port is taken."""
    any_data_port: bool = False
    metrics: Address | None = None
    """Where Prometheus finds metrics over HTTP; port 0 takes any. None: nowhere."""
    metrics_names: bool = False
    """Whether the names of jobs are among them: whoever reaches that address may read them then (C14)."""

    def __post_init__(self) -> None:
        parse_endpoint(self.bind_control, "control address")
        planes = (AUTO, *DATAPLANES)
        if self.dataplane not in planes:
            raise SwitchaggError(f"data plane {self.dataplane!r} is unknown{choices(self.dataplane, planes)}")
        if self.interfaces and self.dataplane != XDP:
            raise SwitchaggError(
                f"interfaces are for the data plane {XDP}; {self.dataplane} serves its address on all of them: add "
                f"--dataplane {XDP}, or leave --interface out"
            )
        if not 1 <= self.slots <= MAX_SLOTS:
            raise SwitchaggError(f"slots {self.slots}: 1 to {MAX_SLOTS}")
        if not LEASE_LEAST_S <= self.lease_s <= 3600:
            raise SwitchaggError(f"lease {self.lease_s:g} s: 1 to 3600; an outage may last half a second less")
        if not 0 <= self.drain_s <= 3600:
            raise SwitchaggError(f"drain {self.drain_s:g} s: 0 to 3600; 0 stops without waiting for jobs to leave")
        if not 1 <= self.segments_max <= SEGMENTS_HARD_MAX:
            raise SwitchaggError(f"segments {self.segments_max}: 1 to {SEGMENTS_HARD_MAX} packets per send")
        if self.multicast and (self.plane not in (AUTO, NATIVE) or self.link != "udp" or self.impairments is not None):
            raise SwitchaggError(f"multicast needs the data plane {NATIVE} over UDP, without impairments")
        self._check_link()
        self._check_parent()
        if self.elements is not None:
            self._check_elements(self.elements)
        if self.impairments is not None and self.dataplane not in (AUTO, NATIVE, XDP):
            raise SwitchaggError(f"impairments need the data plane {NATIVE} or {XDP}; {self.dataplane} has none")

    def _check_link(self) -> None:
        """Raise SwitchaggError for what this link can't do."""
        if self.link not in links_with("switch"):
            raise SwitchaggError(f"link {self.link!r} is unknown{choices(self.link, links_with('switch'))}")
        kind = self.kind
        if self.dataplane != AUTO and not kind.takes_plane(self.dataplane):
            wanted = f"needs the data plane {kind.only_plane}, not" if kind.only_plane else "has no data plane"
            raise SwitchaggError(f"the link {self.link} {wanted} {self.dataplane}; or use the link udp")
        if self.impairments is not None and not kind.impairments:
            raise SwitchaggError(
                f"the link {self.link} has no impairments of its own; shape the interfaces, or use the link udp"
            )
        if kind.own_address and self.bind_data[0] in WILDCARDS:
            raise SwitchaggError(
                f"over {self.link} the switch needs an address of its own, which every packet's ICRC covers: give "
                f"--data HOST:{kind.port}"
            )

    def _check_parent(self) -> None:
        """Raise SwitchaggError for a switch that can't be below another."""
        if self.name and not self.parent:
            raise SwitchaggError(f"name {self.name!r}: only a switch below another has one; give its --parent, too")
        if not self.parent:
            return
        parent = parse_endpoint(self.parent, "parent")
        if parent == parse_endpoint(self.bind_control):
            raise SwitchaggError(f"parent {self.parent}: that is this switch itself; name the switch above it")
        if self.keys is not None:
            self.keys.check_client()
        if self.advertise is not None:
            raise SwitchaggError("a switch below another is told by the address it sends from: leave --advertise out")
        if not self.kind.trees:
            raise SwitchaggError(f"the link {self.link} has no switches below others; use {', '.join(_with_trees())}")
        if self.dataplane != AUTO:
            check_parent(self.dataplane, self.parent)

    def _check_elements(self, elements: int) -> None:
        """Raise SwitchaggError if the link's packets or the data plane can't hold so many."""
        if not 1 <= elements <= MAX_ELEMENTS:
            raise SwitchaggError(f"elements {elements}: 1 to {MAX_ELEMENTS}")
        self.kind.check_elements(elements)
        if elements > (most := self._fitting(elements)):
            raise SwitchaggError(
                f"elements {elements}: the data plane {self.dataplane} holds at most {most}: give --elements {most} or "
                "less, or another --dataplane"
            )

    @property
    def exposure(self) -> str:
        """The consequence of addresses that other hosts reach, in one line; "" if nobody without a key can."""
        control, data = parse_endpoint(self.bind_control)[0], self.bind_data[0]
        means = []
        if self.keys is None and not _is_loopback(control):
            means.append(f"whoever reaches {self.bind_control} may join jobs (--keys closes it)")
        if self.tags_fault and not self.encrypted and not _is_loopback(data):
            means.append(
                f"whoever can send to {data}:{self.bind_data[1]} from a worker's address may forge packets: "
                f"{self.tags_fault}"
            )
        if self.metrics is not None and is_open(self.metrics[0]):
            what = "counters and names of jobs" if self.metrics_names else "counters"
            means.append(f"whoever reaches {self.metrics[0]}:{self.metrics[1]} reads {what}")
        return f"open to the network: {'; '.join(means)}" if means else ""

    @property
    def encrypted(self) -> bool:
        """Whether the link itself keeps out all but holders of keys."""
        return self.keys is not None and self.kind.keys

    @property
    def tags_fault(self) -> str:
        """Why packets have no tags (A1), and what protects them instead (A6); "" if they can have some."""
        below = "MACsec, IPsec or WireGuard below it protects them, or"
        if not self.kind.tags and not self.kind.keys:
            return f"over {self.link} they have no room for tags; {below} --link udp"
        if self.dataplane != AUTO and DATAPLANES[self.dataplane].in_kernel:
            return f"the data plane {self.dataplane} makes no tags; {below} --dataplane {NATIVE}"
        return "" if self.keys else "without keys they have no tags (--keys closes it)"

    @property
    def kind(self) -> LinkKind:
        """The link's description."""
        return LINKS[self.link]

    @property
    def slot_elements(self) -> int:
        """Most values of a packet that the switch takes."""
        return self.elements or self._fitting(self.kind.elements)

    def _fitting(self, elements: int) -> int:
        """The number of elements, at most as many as the data plane holds."""
        return elements if self.dataplane == AUTO else DATAPLANES[self.dataplane].fitting(elements)

    @property
    def plane(self) -> str:
        """`dataplane`, where no choice is left."""
        if self.dataplane != AUTO:
            return self.dataplane
        return NATIVE if self.impairments is not None else self.kind.only_plane or AUTO


def default_addresses(dataplane: str, link: str, keys: Keys | None, control: str | None = None) -> tuple[str, Address]:
    """Control and data address where none is named: of this host alone, unless keys close the control plane. Data go by
    the host of a control address that is named; the switch in the kernel serves those of its interfaces."""
    host = ANY if keys else LOOPBACK
    if control is not None:
        host = parse_endpoint(control, "control address")[0]
        if not _is_ipv4(host):  # It is an interface, or a name.
            host = LOOPBACK if _is_loopback(host) else ANY
    port = LINKS[link].port or DATA_PORT
    return control or f"tcp://{host}:{CONTROL_PORT}", (ANY if dataplane == XDP else host, port)


def _with_trees() -> tuple[str, ...]:
    return tuple(name for name, kind in LINKS.items() if kind.trees)


def _is_ipv4(host: str) -> bool:
    try:
        return ip_address(host).version == 4
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
