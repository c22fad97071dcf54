"""How a method is written: `method[@link][~codec[:options][+ef|+ef21]][+schedule][+secret]`, for example `ring`,
`ring@zeromq`, `switch@rdma+p3`, `switch~lanes8+ef+p3`, `ring~topk:ratio=0.01+ef`, `switch~exact+secret`.

The same names are used in scenarios, on command lines, in environment variables and in reports.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from switchagg.option_syntax import choices
from transport.collectives.collective import MethodStyle
from transport.links.link_kinds import links_with

if TYPE_CHECKING:
    from fractions import Fraction

    from switchagg.codecs.spec import CodecSpec
    from switchagg.description import Kind


@dataclass(frozen=True)
class Method:
    """A way to allreduce. link: what carries it unless said otherwise. end: the end of a link that it needs; "": it
    brings its own. bounded_by: the collective whose traffic bounds that of long arrays; "": the switch, which sends
    everything once. does: kinds of call that it does by another one. packets: whether it sends the switch's, each with
    so many bytes behind it as trailer_bytes says. servers: on hosts of their own, however it is used. virtual: it
    exists in virtual time only. loses: whether sums of float32 may lack what was lost (`transport.bounded`); differ:
    and by other values on each rank.
    """

    look: MethodStyle
    link: str = "tcp"
    end: str = "mesh"
    bounded_by: str = "ring"
    does: "Mapping[Kind, Kind]" = field(default_factory=dict)
    packets: bool = False
    trailer_bytes: int = 0
    servers: int = 0
    virtual: bool = False
    loses: bool = False
    differ: bool = False


@cache
def host_methods() -> Mapping[str, Method]:
    """Collectives among the workers alone, by name."""
    from transport.collectives.collective_table import COLLECTIVES  # every algorithm: not for those who use a switch

    return {
        name: Method(collective.look, bounded_by=name) for name, collective in COLLECTIVES.items() if collective.look
    }


_BUILT_IN = {
    "switch": Method(
        MethodStyle(
            "switch",
            "every worker sends its gradients once to the switch, which adds them up and sends the sum back to all",
            "#0072B2",
            "o",
        ),
        link="udp",
        end="switch",
        bounded_by="",
        packets=True,
    ),
    "gloo": Method(
        MethodStyle(
            "Gloo",
            "PyTorch's own host allreduce, unchanged, over TCP{control}, on the same links; the switch only forwards",
            "#E69F00",
            "^",
            article="",
        ),
        link="",
        end="",
        does={"reduce_scatter": "allreduce"},  # and each rank keeps its shard
    ),
    "ps": Method(
        MethodStyle(
            "parameter server",
            "parameter servers sum slices and answer each as soon as it is complete",
            "#009E73",
            "P",
        ),
        link="zeromq",
        bounded_by="direct",  # without servers of its own it has one on every worker
    ),
    "atp": Method(
        MethodStyle(
            "ATP",
            "switches sum what finds a free aggregator, found by a hash; a parameter server adds the rest and answers",
            "#882255",
            "*",
            article="",
        ),
        link="",
        end="",
        bounded_by="",
        packets=True,
        trailer_bytes=12,
        servers=1,
        virtual=True,
    ),
    "esa": Method(
        MethodStyle(
            "ESA",
            "as ATP, but more urgent jobs take aggregators from less urgent ones, whose partial sums go to the server",
            "#AA4499",
            "h",
            article="",
        ),
        link="",
        end="",
        bounded_by="",
        packets=True,
        trailer_bytes=12,
        servers=1,
        virtual=True,
    ),
    "auto": Method(
        MethodStyle(
            "auto",
            "the host method that the cost model, fitted at the start, takes for the fastest at each size",
            "#000000",
            ".",
            article="",
        ),
    ),
}


def _losing(look: MethodStyle, differ: bool) -> Method:
    return Method(look, link="udp", end="packets", bounded_by="direct", loses=True, differ=differ)


_BUILT_IN |= {
    "mlt": _losing(
        MethodStyle(
            "MLT", "all exchange shards; a receiver stops its sender when all but a share is there", "#8C564B", "v", ""
        ),
        differ=True,
    ),
    "dgt": _losing(
        MethodStyle("DGT", "all exchange shards; blocks that contribute little are sent once only", "#7F7F7F", "<", ""),
        differ=False,
    ),
    "ltp": _losing(
        MethodStyle(
            "LTP", "all exchange shards; who sums closes transfers early, then sends reliably", "#BCBD22", ">", ""
        ),
        differ=False,
    ),
    "optireduce": _losing(
        MethodStyle(
            "OptiReduce", "all exchange shards, and wait no longer than most exchanges took", "#17BECF", "X", ""
        ),
        differ=True,
    ),
}


class _Methods(Mapping[str, Method]):
    """The methods above, and between them the host methods, which are loaded at their first use."""

    def __getitem__(self, name: str) -> Method:
        return _BUILT_IN[name] if name in _BUILT_IN else host_methods()[name]

    def __iter__(self) -> Iterator[str]:
        first, second, *losing = _BUILT_IN
        return iter((first, second, *host_methods(), *losing))

    def __len__(self) -> int:
        return len(_BUILT_IN) + len(host_methods())


METHODS = _Methods()
"""All methods, by name."""


def traffic(method: str, workers: int, servers: int = 0) -> float:
    """How often each byte of a long array must cross the busiest link of a member, in its busier direction.

    servers: of `ps`, on nodes of their own, each of which carries its share n times.
    """
    from transport.collectives.cost import traffic_factor

    if servers:
        return max(1.0, workers / servers)
    collective = METHODS[method].bounded_by
    return float(traffic_factor(collective, workers)) if collective else 1.0


GROUPED = ("hierarchical", "multi_ring")
"""Methods that take how many consecutive ranks are near each other."""

SWITCH = -1
"""Among members: the switch that aggregates."""


def flows(
    method: str, workers: int, servers: int = 0, kind: "Kind" = "allreduce", option: int = 0
) -> "Mapping[tuple[int, int], Fraction]":
    """The data that each member sends to each other for a long array, in arrays, by (sender, receiver).

    servers: as in `traffic`; they are the members after the workers. kind: reduce-scatter and all-gather cut the array
    into n shards; through a switch a rank's own shard doesn't leave it. option: of the method's collective.
    """
    from fractions import Fraction

    from transport.collectives.collective_table import fitting
    from transport.collectives.cost import traffic_matrix

    collective = METHODS[method].bounded_by
    if collective and not servers:
        kind = METHODS[method].does.get(kind, kind)
        name = fitting(kind, collective, workers)
        return traffic_matrix(name, workers, option if name == collective else 0, kind)
    shard = Fraction(1, workers)
    up, down = {"reduce_scatter": (1 - shard, shard), "all_gather": (shard, 1 - shard)}.get(kind, (1, 1))
    servers_or_switch = range(workers, workers + servers) if servers else (SWITCH,)
    shares = {(rank, other): (up, down) for rank in range(workers) for other in servers_or_switch}
    return {
        pair: Fraction(share) / (servers or 1)
        for (rank, other), both in shares.items()
        for pair, share in zip(((rank, other), (other, rank)), both, strict=True)
    }


def links_of(method: str) -> tuple[str, ...]:
    """The links that can carry a method in real time, the default first. Gloo brings its own TCP."""
    first, end = METHODS[method].link, METHODS[method].end
    return (first, *(link for link in links_with(end) if link != first)) if end else ()


def not_secret(method: str) -> str:
    """What to tell who asks a method other than the switch for secret sums."""
    return f"sums by {method} travel as they are; use method switch, or have a link encrypt: @zeromq with keys"


GLOO_CODECS = ("bf16", "fp16")
"""PyTorch's own compress hooks as codecs of `gloo~`: they have Gloo sum 16-bit floats. It also takes codecs whose sums
are exact."""


SECRET = "+secret"
"""Ends the name of a switch whose sums are secret (X1), as by the term secret="on"."""


@dataclass(frozen=True)
class MethodName:
    """A method, what carries it, its schedule and its codec. link: "" for gloo. schedule: "" for DDP's own; may hold
    options. codec: of sums of floats, as `switchagg.codecs.spec` writes it, or of GLOO_CODECS; "": as they are, through
    a switch in fixed point. secret: whether ranks mask what they send."""

    method: str
    link: str
    schedule: str = ""
    codec: str = ""
    secret: bool = False

    def __str__(self) -> str:
        """As it is written; a default link is left out."""
        links = links_of(self.method)
        at = f"@{self.link}" if links and self.link != links[0] else ""
        coded, scheduled = (f"{sign}{word}" if word else "" for sign, word in (("~", self.codec), ("+", self.schedule)))
        return self.method + at + coded + scheduled + SECRET * self.secret

    @property
    def spec(self) -> "CodecSpec | None":
        """The codec and what surrounds it; None without one, and for PyTorch's own hooks."""
        from switchagg.codecs.spec import parse_codec  # every codec: not for those who use none

        return parse_codec(self.codec) if self.codec and not self.is_hook else None

    @property
    def is_hook(self) -> bool:
        """Whether it is Gloo with a hook of PyTorch's own: it codes what DDP sums."""
        return self.method == "gloo" and self.codec in GLOO_CODECS

    @property
    def is_torch(self) -> bool:
        """Whether PyTorch's own process group carries all of it."""
        return self.method == "gloo" and self.spec is None

    @property
    def terms(self) -> dict[str, Any]:
        """The terms of a job (`switchagg.join.JobTerms`) that the name says."""
        return {"codec": self.codec} | ({"secret": "on"} if self.secret else {})

    @property
    def look(self) -> MethodStyle:
        """How reports name and draw the method."""
        return METHODS[self.method].look

    @property
    def policy(self) -> str:
        """The schedule without its options."""
        return self.schedule.partition(":")[0]

    @property
    def slug(self) -> str:
        """Fit for a file's name."""
        return "".join(c if c.isalnum() or c in "_-." else "-" for c in str(self))

    @property
    def in_packets(self) -> bool:
        """Whether it sends the switch's packets, whose values a codec codes chunk by chunk."""
        return METHODS[self.method].packets

    @property
    def is_switch(self) -> bool:
        return self.method == "switch"


def parse(text: str, *, virtual: bool = False) -> MethodName:
    """The method that `text` names. virtual: also those that exist in virtual time only. Raises ValueError, in one line
    that lists what is allowed."""
    in_clear = text.removesuffix(SECRET)
    secret = in_clear != text
    carried, tilde, coded = in_clear.partition("~")
    carried, plus, schedule = carried.partition("+")
    method, at, link = carried.partition("@")
    if method not in METHODS:
        raise ValueError(f"method '{_shortened(method)}' is unknown{choices(method, METHODS)}")
    if METHODS[method].virtual and not virtual:
        raise ValueError(f"method {method} exists in virtual time only: in [methods] sim of a scenario, with --on sim")
    if secret and method != "switch":
        raise ValueError(f"method {method}{SECRET}: {not_secret(method)}")
    links = links_of(method)
    if at and link not in links:
        allowed = choices(link, links) if links else "; it brings its own"
        raise ValueError(f"method {method}: link '{_shortened(link)}' can't carry it{allowed}")
    codec = ""
    if tilde:
        if plus:
            raise ValueError(
                f"method {method}: '~{_shortened(coded)}' stands before the schedule: {carried}~CODEC+SCHEDULE"
            )
        codec, plus, schedule = _codec(method, coded)
    if plus:
        from transport.schedule.schedule_table import parse_policy

        parse_policy(schedule)
    return MethodName(method, link or (links[0] if links else ""), schedule, codec, secret)


def _codec(method: str, text: str) -> tuple[str, str, str]:
    """The codec as it is written, "+" where a schedule follows, and that. Raises ValueError."""
    from switchagg.codecs.spec import FEEDBACK, parse_codec

    if METHODS[method].loses:
        raise ValueError(f"method {method} sends float32 and loses some of it: it takes no codec")
    codec, plus, rest = text.partition("+")
    if method == "gloo":
        from switchagg.codecs import ARRAY_CODECS

        exact = [name for name, array_codec in ARRAY_CODECS.items() if not array_codec.lossy]
        if text not in (*GLOO_CODECS, *exact):
            hooks = f"PyTorch's own hooks: {', '.join(GLOO_CODECS)}"
            words = f"{', '.join(exact)}, or {hooks}, without feedback and schedule"
            raise ValueError(f"method gloo: codec '{_shortened(text)}' is none of its; allowed: {words}")
        return codec, plus, rest
    if plus and rest.partition("+")[0] in FEEDBACK:
        feedback, plus, rest = rest.partition("+")
        codec = f"{codec}+{feedback}"
    return str(parse_codec(codec)), plus, rest


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"
