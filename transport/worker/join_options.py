"""JoinOptions: how a worker joins a job on a switch; checked once, when made."""

import math
from dataclasses import dataclass, fields, replace

from switchagg.codecs import FIXED_POINT
from switchagg.codecs.spec import CodecSpec, parse_sums
from switchagg.errors import JobError
from switchagg.job import JobConfig
from switchagg.join import CALL_TIMEOUT_S, TIMEOUT_NS_MAX, JobTerms, LocalOptions, MemberOptions
from switchagg.option_syntax import choices
from transport.contracts.timeouts import short_for_fallback, switch_patience_s
from transport.links.link_kind import LinkKind
from transport.links.link_kinds import LINKS, links_with
from transport.meshes.job_key import SET_ONE, job_token, key_check
from transport.rdma.provider import RdmaOptions

CREDIT_BYTES = 1 << 17
"""A job with priority classes has at most so much in the kernel, by default: 1 ms at 1 Gb/s, so that a loop that is
called a little late finds the link still at work; 5 ms at 200 Mb/s, which an urgent call waits in a queue without
classes."""

RETRY_LIMIT_MAX = 1 << 31
"""Most retries that a JobConfig can say."""


@dataclass(frozen=True, kw_only=True)
class JoinOptions(JobTerms, MemberOptions, LocalOptions):
    """How a rank joins: the terms of the job, alike on every rank, and what the rank chooses for itself.

    Raises JobError for what can't be.
    """

    codec: str = FIXED_POINT.name
    timeout_s: float = 30.0
    """How long the rank waits for the others."""
    call_timeout_s: float = CALL_TIMEOUT_S
    """How long a call waits for ranks that are alive."""
    group_timeout_s: float = math.inf
    """The time-out of a group above, as PyTorch's, that ends calls sooner."""
    sleeper_s: float = math.inf
    """How long a job that has lost its switch waits for a rank whose process was stopped, if its calls do."""
    retry_limit: int | None = None
    """In place of call_timeout_s: timeouts in a row."""
    rdma: RdmaOptions | None = None
    """Options of the link rdma alone."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, list):
                object.__setattr__(self, entry.name, tuple(value))
            elif isinstance(value, bool) and entry.metadata.get("kind") is int:
                object.__setattr__(self, entry.name, int(value))
            elif value is None:
                object.__setattr__(self, entry.name, entry.default)
        if self.link not in links_with("switch"):
            raise JobError(f"link '{self.link}' is unknown{choices(self.link, links_with('switch'))}")
        if self.elements:
            self.kind.check_elements(self.elements)
        self._check_times()
        _ = self.codec_spec  # or it raises
        if fault := self.terms_fault():
            raise JobError(fault)
        if self.partial:
            self._check_partial()
        if self.authenticate == "on":
            self._check_authenticate()

    def _check_times(self) -> None:
        """Raise JobError for time-outs that can't be, or can't be together."""
        if not 0 < self.timeout_s * 1e9 <= TIMEOUT_NS_MAX:
            raise JobError(f"timeout_s {self.timeout_s:g}: more than 0, at most {TIMEOUT_NS_MAX / 1e9:g}")
        if not 1 <= self.retries <= RETRY_LIMIT_MAX:
            raise JobError(f"retry_limit {self.retry_limit}: 1 to {RETRY_LIMIT_MAX}")
        if self.can_fall_back and (fault := short_for_fallback(self._limit_s)):
            raise JobError(fault)

    def _check_authenticate(self) -> None:
        """Raise JobError where packets can't be authenticated (A1)."""
        if not (self.kind.tags or self.kind.keys):
            raise JobError(f"authenticate 'on': over {self.link} packets have no room for tags (R1); take the link udp")
        if not self.keys:
            raise JobError("authenticate 'on': it needs keys, as of `switchagg keys`, on every rank and at the switch")

    def _check_partial(self) -> None:
        """Raise JobError for what can't go with sums that lack some ranks."""
        spec = self.codec_spec
        for wrong, what in (
            (
                not self.kind.header_only,
                f"link {self.link}: its packets are all of one size; take {_links_with_header_only()}",
            ),
            (spec.row_codec is None, f"codec {self.codec}: it needs all ranks; take one of rows, as fixed_point"),
            (spec.feedback == "ef21", f"codec {self.codec}: its totals need every rank's difference; take +ef"),
        ):
            if wrong:
                raise JobError(f"backups, close_after_ns: no partial sums with {what}")

    @property
    def kind(self) -> LinkKind:
        """The link's description."""
        return LINKS[self.link]

    @property
    def codec_spec(self) -> CodecSpec:
        """The codec of that name, with what surrounds it. Raises JobError for one that a switch can't serve."""
        try:
            return parse_sums(self.codec)
        except ValueError as error:
            raise JobError(str(error)) from None

    def resolved_terms(self, job: str, workers: int) -> JobTerms:
        """The terms as the join says them, without defaults. Raises JobError for a token that can't be one."""
        codec = self.codec_spec.agreed_text(self.codec_seed)
        terms = replace(self.terms, codec=codec, codec_seed=0).resolved(self.kind.elements, workers)
        token = self.job_token
        if fault := terms.secret_fault:
            raise JobError(fault)
        if terms.secret == "on" and not token:
            raise JobError(f"secret sums need a token: {SET_ONE}")
        return replace(terms, key_check=key_check(token, job)) if terms.verify == "on" else terms

    @property
    def job_token(self) -> str:
        """The job's token, or "" without one. Raises JobError."""
        return job_token(self.token, self.token_file)

    @property
    def packet_elements(self) -> int:
        """`elements`, or the link's own."""
        return self.elements or self.kind.elements

    @property
    def retries(self) -> int:
        """`retry_limit`, or what fills call_timeout_s."""
        return retry_limit_for(self.call_timeout_s) if self.retry_limit is None else self.retry_limit

    @property
    def switch_patience_s(self) -> float:
        """How long the switch may be silent, if that is less than its lease: a job with a fallback leaves in time."""
        return switch_patience_s(self._limit_s) if self.can_fall_back else math.inf

    @property
    def sleeper_limit_s(self) -> float:
        """`sleeper_s`, or the time-out that ends calls before."""
        return min(self.sleeper_s, self._limit_s)

    @property
    def _limit_s(self) -> float:
        return min(self.call_timeout_s, self.group_timeout_s)

    @property
    def credit(self) -> int | None:
        """`credit_bytes`, or its default."""
        return self.credit_bytes or (CREDIT_BYTES if self.priorities else None)


def _links_with_header_only() -> str:
    return " or ".join(name for name in links_with("switch") if LINKS[name].header_only)


def retry_limit_for(
    call_timeout_s: float, rto_min_ns: int = JobConfig.rto_min_ns, rto_max_ns: int = JobConfig.rto_max_ns
) -> int:
    """Timeouts in a row that fill call_timeout_s: at worst they double from rto_min_ns up to rto_max_ns (W7)."""
    if not call_timeout_s > 0:
        raise JobError(f"call_timeout_s {call_timeout_s:g}: more than 0")
    at_most = min(call_timeout_s * 1e9 / rto_max_ns, RETRY_LIMIT_MAX)  # also of a timeout that is infinite
    return min(RETRY_LIMIT_MAX, math.ceil(at_most) + math.ceil(math.log2(rto_max_ns / rto_min_ns)))
