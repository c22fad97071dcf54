"""`open_group`: a rank's place among the workers of a job, by any method over any link.

Imports every kind of group; ZeroMQ and the parameter server only when they are used.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, cast

from switchagg.calls.call_request import CallRequest
from switchagg.codecs.spec import CodecSpec, parse_sums
from switchagg.description import Kind
from switchagg.errors import JobError
from switchagg.job import ELEMENTS_MTU_1500, MAX_ELEMENTS, PacketTerms
from switchagg.join import CALL_TIMEOUT_S, JobTerms
from switchagg.native.library import require
from switchagg.option_syntax import choices
from transport.collectives.auto import AutoParty
from transport.collectives.collective_party import CollectiveCall, CollectiveParty
from transport.collectives.collective_table import COLLECTIVES, fitting
from transport.collectives.execution import Runner
from transport.collectives.programs import SEGMENT_BYTES
from transport.contracts.group_contract import Array, Group
from transport.group.host_group import HostGroup, Submit
from transport.group.method_name import METHODS, SECRET, host_methods, not_secret, parse
from transport.links.link import Address
from transport.links.link_kinds import LINKS, links_with
from transport.meshes.hello import Meeting
from transport.meshes.job_key import job_token
from transport.meshes.mesh import Mesh
from transport.meshes.mesh_loop import CREDIT_BYTES
from transport.meshes.mesh_opening import BoundPlace, connect_mesh
from transport.meshes.tcp_gathering import listen

if TYPE_CHECKING:
    from transport.worker.join_options import JoinOptions
    from transport.worker.session import Stay, SwitchSession

logger = logging.getLogger(__name__)


LONG_SEGMENT_BYTES = 4 * SEGMENT_BYTES
"""Most data of a message, by default: a quarter of the cost per byte in Python, and still 2 ms at 1 Gb/s."""

SEGMENT_BYTES_MAX = 1 << 24
"""Every link carries so much in one message."""

_OPTIONS_OF: dict[str, Callable[[str, bool], bool]] = {
    "segment_bytes": lambda method, servers: method not in ("ps", "switch"),
    "ranks_per_group": lambda method, servers: _option_of(method) == "ranks_per_group",
    "ps": lambda method, servers: method == "ps",
    "switch": lambda method, servers: method == "switch",
    "codec_elements": lambda method, servers: method != "switch",
    "fallback": lambda method, servers: method == "switch",
    "bounded": lambda method, servers: METHODS[method].loses,
}
"""Options of methods, and whether a method, with dedicated servers or without, has them."""


def _option_of(method: str) -> str:
    """The name of the one number that a method's collective takes, or ""."""
    option = COLLECTIVES[method].option if method in COLLECTIVES else None
    return option.name if option else ""


@dataclass(frozen=True)
class GroupOptions:
    """How a group is opened, the same on every rank. An option that the method doesn't have is refused.

    timeout_s: within which all must have met. call_timeout_s: how long a call may stand still. credit_bytes: how much
    may lie in the queues below the one that knows priorities; None: any amount. segment_bytes: most data of a message.
    ranks_per_group: of "hierarchical". ps: fields of PsConfig. switch: its control address. codec: how sums of floats
    travel, as `switchagg.codecs.spec` reads it; default: as they are, on a switch "fixed_point". codec_elements: with a
    codec, E of the switch whose bits a host method shall give; default 360. codec_seed: of codecs with random numbers.
    fallback: of a switch: the host method that calls take while it has no room for the job
    (`transport.group.moving_session`). bounded: options of a method with bounded loss, by name, as {"tolerance": 0.02}
    (`transport.bounded.bounded_table`). token, token_file: the job's secret, or a file with it: host methods' members
    know each other by it, and sums of a switch are verified with it; default: the environment's SWITCHAGG_TOKEN or
    SWITCHAGG_TOKEN_FILE. verify: whether sums of the switch, or, with a codec, of the switch whose bits a host method
    shall give, are verified: "on", "off" or "auto". sleeper_s, cancelled: as of `Meeting`. more: what else JoinOptions
    has, or what the link takes (`transport.meshes.mesh_opening.connect_mesh`); of both, priorities: the classes there
    are.
    """

    timeout_s: float = 30.0
    call_timeout_s: float = CALL_TIMEOUT_S
    credit_bytes: int | None = CREDIT_BYTES
    segment_bytes: int | None = None
    ranks_per_group: int | None = None
    ps: Mapping[str, Any] | None = None
    switch: str | None = None
    codec: str | None = None
    codec_elements: int | None = None
    codec_seed: int = 0
    fallback: str | None = None
    bounded: Mapping[str, Any] | None = None
    token: str = field(default="", repr=False)
    token_file: str = ""
    verify: str = PacketTerms.verify
    sleeper_s: float = 0.0
    cancelled: threading.Event | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "GroupOptions":
        """From plain values by name, those of `more` among them."""
        known = {option.name for option in fields(cls)} - {"more"}
        options = {name: value for name, value in values.items() if name in known}
        return cls(**options, more={name: value for name, value in values.items() if name not in known})

    @property
    def job_token(self) -> str:
        """The job's token, or "" without one. Raises JobError."""
        return job_token(self.token, self.token_file)

    def check(self, method: str, servers: bool) -> None:
        """Raise JobError for an option that this method hasn't."""
        options = {"segment_bytes": self.segment_bytes, "ranks_per_group": self.ranks_per_group, "ps": self.ps,
                 "switch": self.switch, "codec_elements": self.codec_elements, "fallback": self.fallback,
                 "bounded": self.bounded}  # fmt: skip
        for name, value in options.items():
            if value is not None and not _OPTIONS_OF[name](method, servers):
                raise JobError(f"option {name}: method {method} {'with' if servers else 'without'} servers has none")


@dataclass(frozen=True)
class _Opening:
    """The arguments of `open_group`."""

    method: str
    link: str
    rank: int
    addresses: Sequence[Address]
    servers: Sequence[Address]
    job: str
    how: GroupOptions
    bound: BoundPlace | None

    @property
    def workers(self) -> int:
        return len(self.addresses)

    @property
    def codec(self) -> tuple[CodecSpec, int] | None:
        """The codec and the elements of a row, or None. Raises JobError."""
        elements = _number("codec_elements", self.how.codec_elements, ELEMENTS_MTU_1500, 3, MAX_ELEMENTS)
        if self.how.codec is None:
            return None
        try:
            spec = parse_sums(self.how.codec)
            spec.for_workers(self.workers)
        except ValueError as error:
            raise JobError(f"option codec: {error}") from None
        terms = JobTerms(elements=elements, verify=self.how.verify)
        if fault := terms.terms_fault():
            raise JobError(f"option {fault}")
        return spec, terms.resolved(elements, self.workers).room

    @property
    def codec_text(self) -> str:
        """The codec as ranks send it to each other for comparison."""
        if (codec := self.codec) is None:
            return ""
        return f"codec {codec[0].agreed_text(self.how.codec_seed)} of {codec[1]} elements"

    @property
    def group_facts(self) -> dict[str, Any]:
        """What every host group is told of itself."""
        credit_bytes = self.how.credit_bytes
        return {"workers": self.workers, "method": self.method, "job": self.job, "credit_bytes": credit_bytes}

    def connect(self, terms: str) -> Mesh:
        """Meet the other ranks. terms: what all must say alike of their method."""
        how = self.how
        meeting = Meeting(self.job, terms, how.job_token, how.timeout_s, how.sleeper_s, how.cancelled)
        options, bound = how.more, self.bound
        return connect_mesh(self.link, self.rank, self.addresses, options=options, bound=bound, **vars(meeting))

    def coded(self, group: HostGroup) -> HostGroup:
        """The group, with the codec if there is one."""
        if (codec := self.codec) is not None:
            group.use_codec(*codec, self.how.codec_seed)
        return group


def open_group(
    method: str,
    link: str,
    rank: int,
    addresses: Sequence[Address],
    *,
    job: str,
    servers: Sequence[Address] = (),
    options: GroupOptions | Mapping[str, Any] = GroupOptions(),  # the class is frozen
    bound: BoundPlace | None = None,
) -> Group:
    """Meet the other ranks, and the servers if there are any, within options.timeout_s.

    method, link: names as in transport/group/method_name.py, `switch+secret` among them. addresses: a (host, port) per
    rank; servers: of dedicated parameter servers. job: the same name on all. options: or a mapping of the same names.
    bound: our own place, where its port had to be known before (`meshes.bind_place`).

    Raises JobError: which members are missing, what doesn't fit (naming both sides), or what this method or link can't.
    """
    try:
        how = options if isinstance(options, GroupOptions) else GroupOptions.of(options)
        if method.endswith(SECRET):
            method, how = method.removesuffix(SECRET), replace(how, more={**how.more, "secret": "on"})
        if servers and method != "ps":
            raise JobError(f"method {method} has no servers")
        if method in METHODS and METHODS[method].virtual:
            raise JobError(f"method {method} exists in virtual time only: switchagg compare SCENARIO --on sim")
        if method not in METHODS or not METHODS[method].end:
            raise JobError(f"method '{method}' is no group of ours")
        how.check(method, bool(servers))
        opening = _Opening(method, link, rank, addresses, servers, job, how, bound)
        if method == "switch":
            return _open_switch_group(opening)
        if how.more.get("secret", PacketTerms.secret) != PacketTerms.secret:
            raise JobError(f"option secret: {not_secret(method)}")
        if not 0 <= rank < len(addresses):
            raise JobError(f"rank {rank} of {len(addresses)} workers: 0 to {len(addresses) - 1}")
        if method == "ps":
            return _open_ps_group(opening)
        return _open_bounded_group(opening) if METHODS[method].loses else _open_host_group(opening)
    except BaseException:
        if bound is not None:
            bound.close()
        raise


def open_fallback_group(
    switch: str,
    job: str,
    rank: int,
    addresses: Sequence[Address],
    options: "JoinOptions",
    fallback: str,
    bound: BoundPlace | None = None,
    closing: threading.Event | None = None,
) -> Group:
    """Join a job on a switch, to go on by a host method while it has no room, or is lost. switch: or several, with
    commas between: the job goes to the next where one is lost; after a leading comma it begins without any. addresses:
    of the host method, a (host, port) per rank. fallback: its name, perhaps with a link. bound: our own place there.
    closing: once it is set, the group waits for nothing more. Raises JobError."""
    from transport.group.moving_session import MovingSession, SessionPaths
    from transport.group.switch_group import SwitchGroup
    from transport.worker.session import SwitchSession as Session  # pulls in ZeroMQ

    try:
        name = parse(fallback)
    except ValueError as error:
        raise JobError(f"option fallback: {error}") from None
    if name.method not in host_methods() or name.codec or name.schedule:
        allowed = choices(fallback, host_methods(), "allowed, perhaps with a link")
        raise JobError(f"option fallback '{fallback}' is unknown{allowed}")
    if options.secret == "on":
        raise JobError(f"option fallback: {not_secret(name.method)}")
    if options.partial:
        raise JobError(f"option fallback: no sums that lack ranks by {name.method}; leave out backups, close_after_ns")
    if options.keys and not LINKS[name.link].keys:
        raise JobError(
            f"option fallback: {name.link} does not encrypt and the switch has keys; use {name.method}@zeromq"
        )
    workers, switches = len(addresses), switch_list(switch)
    if not (answers := bool(switches[0])):
        del switches[0]
    has_kernel = name.link == "tcp"  # which answers for a process that is stopped, from now on
    if bound is None and has_kernel:
        bound = BoundPlace(addresses[rank], listen(addresses[rank]))

    def join(at: str, stay: "Stay", how: "JoinOptions", cancelled: threading.Event) -> "SwitchSession":
        return Session.join(at, job, rank, workers, how, cancelled, stay)

    def meet(timeout_s: float, sleeper_s: float, cancelled: threading.Event) -> Group:
        how = GroupOptions(
            timeout_s=timeout_s,
            sleeper_s=sleeper_s,
            cancelled=cancelled,
            call_timeout_s=options.call_timeout_s,
            token=options.job_token,
            more={"keys": options.keys} if options.keys else {},
        )
        return open_group(name.method, name.link, rank, addresses, job=job, options=how, bound=bound)

    paths = SessionPaths(switches, join, meet, fallback, bound, answers, options.sleeper_limit_s if has_kernel else 0.0)
    try:
        return SwitchGroup(MovingSession(paths, job, rank, workers, options, closing))
    except BaseException:
        if bound is not None:
            bound.close()
        raise


def switch_list(switch: str) -> list[str]:
    """The control addresses that a text names, with commas between. Raises JobError for one that stands there twice."""
    switches = [address.strip() for address in switch.split(",")]
    if twice := next((address for address in switches if switches.count(address) > 1), ""):
        raise JobError(f"the list of switches has {twice} twice: name each once")
    return switches


def _open_switch_group(opening: _Opening) -> Group:
    from transport.group.switch_group import SwitchGroup  # pulls in ZeroMQ: only for those who use the switch
    from transport.worker.join_options import JoinOptions

    how, place = opening.how, (opening.how.switch or "", opening.job, opening.rank)
    try:
        options = JoinOptions(
            timeout_s=how.timeout_s,
            call_timeout_s=how.call_timeout_s,
            link=opening.link or JoinOptions.link,
            codec=how.codec or JoinOptions.codec,
            codec_seed=how.codec_seed,
            token=how.token,
            token_file=how.token_file,
            verify=how.verify,
            **how.more,
        )
    except TypeError as error:
        raise JobError(f"method switch: {error}") from error
    if how.fallback is not None:
        return open_fallback_group(*place, opening.addresses, options, how.fallback, opening.bound)
    if len(switch_list(place[0])) > 1:
        raise JobError(
            f"option switch: several, {place[0]}; to go from one to the next a job needs a fallback, as ring"
        )
    return SwitchGroup.join(*place, opening.workers, options)


def _open_ps_group(opening: _Opening) -> Group:
    from transport.group.ps_group import PsOptions, open_ps_group
    from transport.ps.config import PsConfig  # only for those who use servers

    how, workers, servers = opening.how, opening.addresses, opening.servers
    named = {"call_timeout_s": how.call_timeout_s, "codec": opening.codec_text, **(how.ps or {})}
    try:
        config = PsConfig(len(workers), len(servers) or len(workers), **named)
    except (TypeError, ValueError) as error:
        raise JobError(f"option ps: {error}") from error
    options = PsOptions(timeout_s=how.timeout_s, credit_bytes=how.credit_bytes, token=how.job_token, link=how.more)
    named = {"config": config, "job": opening.job, "options": options, "bound": opening.bound}
    return opening.coded(open_ps_group(opening.link, opening.rank, workers, servers, **named))


def _open_host_group(opening: _Opening) -> Group:
    method, how, workers = opening.method, opening.how, opening.workers
    require(f"method {method}")
    ranks_per_group = _number("ranks_per_group", how.ranks_per_group, 0, 0, workers)
    pipelined = method in COLLECTIVES and COLLECTIVES[method].pipelined  # short pieces fill a pipeline sooner
    segment_bytes = SEGMENT_BYTES if pipelined else LONG_SEGMENT_BYTES
    segment_bytes = _number("segment_bytes", how.segment_bytes, segment_bytes, 1, SEGMENT_BYTES_MAX)
    mesh = opening.connect(", ".join(filter(None, (method, opening.codec_text))))
    try:
        party = CollectiveParty(
            opening.rank,
            workers,
            job=opening.job,
            call_timeout_ns=round(how.call_timeout_s * 1e9),
            option=ranks_per_group,
            segment_bytes=segment_bytes,
            classes=mesh.classes,
        )
        party.runner = mesh if isinstance(mesh, Runner) else None
        if method == "auto":
            auto = AutoParty(party, segment_bytes, logger.info if opening.rank == 0 else lambda line: None)
            return opening.coded(HostGroup(mesh, auto, auto.submit, **opening.group_facts))
        return opening.coded(HostGroup(mesh, party, _submit_by(party, method, workers), **opening.group_facts))
    except BaseException:
        mesh.close(0.0)
        raise


def _open_bounded_group(opening: _Opening) -> Group:
    from transport.bounded.bounded_table import BOUNDED  # only for those who may lose
    from transport.group.bounded_group import BoundedGroup
    from transport.meshes.udp_mesh import UdpMesh

    method, link, how = opening.method, opening.link, opening.how
    if how.codec is not None:
        raise JobError(f"option codec {how.codec}: method {method} sends float32 and loses some of it; leave it out")
    if link not in links_with("packets"):
        raise JobError(
            f"link {link}: method {method} needs packets that may be lost: {', '.join(links_with('packets'))}"
        )
    try:
        options = BOUNDED[method].options(**(how.bounded or {}))
    except (TypeError, ValueError) as error:
        raise JobError(f"option bounded: {error}") from error
    require(f"method {method}")
    mesh, timeout_s = opening.connect(f"{method} {options}"), how.call_timeout_s
    times = {"call_timeout_ns": round(timeout_s * 1e9), "segment_bytes": LONG_SEGMENT_BYTES}
    try:
        assert isinstance(mesh, UdpMesh)
        exact = CollectiveParty(opening.rank, opening.workers, job=opening.job, classes=mesh.classes, **times)
        return BoundedGroup(mesh, exact, options, call_timeout_s=timeout_s, **opening.group_facts)
    except BaseException:
        mesh.close(0.0)
        raise


def _number(name: str, value: int | None, default: int, low: int, high: int) -> int:
    number = default if value is None else value
    if type(number) is not int or not low <= number <= high:
        raise JobError(f"option {name} {value}: {low} to {high}")
    return number


def _submit_by(party: CollectiveParty, method: str, workers: int) -> Submit:
    """Calls of a party by the algorithm that belongs to the method."""

    def submit(request: CallRequest, array: Array, *, now_ns: int) -> CollectiveCall:
        algorithm = fitting(cast(Kind, request.kind), method, workers)
        return party.submit(request, algorithm, array, now_ns=now_ns)

    return submit
