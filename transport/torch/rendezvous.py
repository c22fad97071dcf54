"""How the ranks of a group agree on the method, on whether they use the switch, and under which job name.

All ranks must decide alike, or some would wait on the switch for others that went to Gloo. So each publishes the
outcome of its own join in the group's store, and all apply the same rule to the same outcomes. For a host method each
binds a port first and publishes where it is.
"""

import fcntl
import json
import logging
import math
import os
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from switchagg.codecs import FIXED_POINT
from switchagg.errors import JobError
from switchagg.job import ELEMENTS_MTU_1500, MAX_CHILDREN, MAX_SLOTS
from switchagg.join import JobTerms, LocalOptions, MemberOptions
from switchagg.option_syntax.option_fields import integer, numbers_of, shared_fields
from transport.contracts.group_contract import Group
from transport.environment import fault_of_variables
from transport.group.method_name import MethodName, not_secret, parse
from transport.links.addresses import facing, parse_endpoint, resolve_host
from transport.links.link_kinds import LINKS, links_with
from transport.meshes.job_key import job_token, new_token
from transport.metrics.worker_metrics import watched
from transport.torch.alike import CODEC_VARIABLE, METHOD_VARIABLE, difference, raise_unlike

if TYPE_CHECKING:
    from transport.meshes.mesh_opening import BoundPlace
    from transport.worker.join_options import JoinOptions

logger = logging.getLogger(__name__)

SWITCH_VARIABLE = "SWITCHAGG_SWITCH"
_SIOCGIFADDR = 0x8915
POLL_S = 0.02
LOOK_S = 0.1
"""How often a rank that joins looks whether another has failed to."""

GRACE_S = 10.0
"""How much longer than a join may take we wait, at most, for the outcomes of the others' joins."""

CALLS_S = 1e6
"""How long a call of the groups below may take: its deadline, which can be set anew, is the process group's."""

JOINED, NO_SLOTS, FAILED, STOPPED = "joined", "no slots", "failed", "stopped, since another rank had failed"

SLOTS_LEAST = 8
"""By default: of each of two streams four packets in flight, enough to go on while one of them is sent again."""

ALIKE_OF_HOSTS = ("SWITCHAGG_BOUNDED", "SWITCHAGG_CODEC_SEED", "SWITCHAGG_ELASTIC")
METHODS_TERMS = ("codec", "secret", "sparing", "can_fall_back")
"""Terms of a job that follow from the method and its fallback."""


@dataclass(frozen=True)
class SwitchOptions(JobTerms, MemberOptions, LocalOptions):
    """How a group uses the switch: `pg_options` of init_process_group and new_group, or else the environment.

    A field's variable is SWITCHAGG_ and its name in capitals, for example SWITCHAGG_SWITCH=tcp://10.0.0.9:5555. Without
    a token rank 0 makes one for each group, and other ranks read it in the group's store: it is as secret as the store.
    """

    switch: str = ""
    """The switch's control address, tcp://host:port. A job with a fallback may list several, with commas between."""
    _: KW_ONLY
    join_timeout_s: float = 30.0
    """Seconds that joining the switch may take once all ranks are there, at most the group's own time-out."""
    method: str = "switch"
    """The method, with or without a link and a codec: `ring`, `ring@udp`, `switch~lanes8+ef`, `gloo`."""
    link: str = ""
    """The link that carries the method: the one in the method's name, or else the method's default."""
    interface: str = ""
    """The interface whose address host methods use, in place of `bind`."""
    bounded: str = ""
    """Options of a method with bounded loss, as in SWITCHAGG_BOUNDED=tolerance=0.02,priorities=0."""
    slots_least: int = integer(
        SLOTS_LEAST, 0, MAX_SLOTS, "slots", "Fewest slots with which the job begins; 0: all its windows"
    )
    """By default a group leaves room for more groups, too."""
    fallback: str = ""
    """The host method, like `ring`, that calls take, with the same bits, while the switch has no slots or is lost. "":
    a job without slots uses Gloo, and a lost switch ends it."""

    elastic: int = integer(
        0,
        0,
        MAX_CHILDREN,
        "ranks",
        "Fewest ranks with which training goes on after a death; 0: a death ends it",
    )

    @classmethod
    def from_environment(cls, **defaults: Any) -> "SwitchOptions":
        """Options of the variables that are set, else `defaults`. Raises ValueError naming the variable whose text
        isn't a number, or numbers with commas between, or whose name only looks like that of a variable."""
        if fault := fault_of_variables():
            raise ValueError(fault)
        values = dict(defaults)
        for option in fields(cls):
            variable = f"SWITCHAGG_{option.name.upper()}"
            if (text := os.environ.get(variable, "").strip()) and not option.metadata.get("derived"):
                kind: Any = type(option.default)
                try:
                    listed = kind is tuple or (option.name == "window_slots" and "," in text)
                    values[option.name] = tuple(map(int, text.split(","))) if listed else kind(text)
                except ValueError:
                    raise ValueError(f"{variable}={text!r}: not {numbers_of(option, listed)}") from None
        return cls(**values)

    @property
    def name(self) -> MethodName:
        """The method, its link, codec and secrecy. Raises DistBackendError that lists what is allowed."""
        try:
            name = parse(self.method)
            secret = name.secret or self.secret == "on"
            if self.link:
                name = replace(name, link=parse(f"{name.method}@{self.link}").link)
            codec = parse(f"{name.method}~{self.codec}").codec if self.codec else name.codec
        except ValueError as error:
            raise dist.DistBackendError(f"{METHOD_VARIABLE}, SWITCHAGG_LINK, {CODEC_VARIABLE}: {error}") from None
        if name.codec not in ("", codec):
            raise dist.DistBackendError(
                f"{METHOD_VARIABLE}={self.method} names codec {name.codec}, {CODEC_VARIABLE}={self.codec} names "
                f"{codec}: leave one of them out"
            )
        if self.secret != JobTerms.secret and not name.is_switch:
            raise dist.DistBackendError(f"SWITCHAGG_SECRET={self.secret}: {not_secret(name.method)}")
        return replace(name, codec=codec, secret=secret)

    @property
    def link_keys(self) -> dict[str, str]:
        """The keys of a host method's link, as one of its options. Raises JobError where they would go unused."""
        name = self.name
        if self.keys and not LINKS[name.link].keys:
            able = links_with("keys")[0]
            raise JobError(
                f"SWITCHAGG_KEYS: only {LINKS[able].label} encrypts; use {name.method}@{able}, or leave it out"
            )
        return {"keys": self.keys} if self.keys else {}

    def alike(self) -> dict[str, Any]:
        """What the ranks must have alike, by name of variable: the method, and of the options that it reads."""
        name = self.name
        options = {option.name for option in fields(JobTerms)}.difference(METHODS_TERMS) | {
            "fallback",
            "bounded",
            "elastic",
        }
        variables = {f"SWITCHAGG_{option.upper()}": getattr(self, option) for option in sorted(options)}
        coded = name.codec not in ("", FIXED_POINT.name)
        if not name.is_switch:
            variables = {variable: variables[variable] for variable in ALIKE_OF_HOSTS}
        if name.method == "gloo" or not coded:
            del variables["SWITCHAGG_CODEC_SEED"]
        if name.is_switch or name.codec:
            variables["SWITCHAGG_ELEMENTS"] = self.elements or (
                LINKS[name.link].elements if name.is_switch else ELEMENTS_MTU_1500
            )
        if name.is_switch:
            variables["SWITCHAGG_STREAMS"] = len(self.priorities) or self.stream_count
            variables["SWITCHAGG_KEYS"] = bool(self.keys)
            # Ranks may reach one switch by different addresses, but must count those of a list alike.
            variables[SWITCH_VARIABLE] = self.switch.replace(" ", "") if "," in self.switch else bool(self.switch)
        if name.codec and not name.is_switch:
            variables["SWITCHAGG_VERIFY"] = self.verify
        if name.method != "gloo":
            variables["SWITCHAGG_TOKEN"] = bool(self.token or self.token_file)
        return {METHOD_VARIABLE: str(name), **variables}

    def local_address(self) -> str:
        """Where other ranks reach this one. Raises JobError with what to do."""
        if self.bind:
            return resolve_host(self.bind)
        if self.interface:
            return interface_address(self.interface)
        master = os.environ.get("MASTER_ADDR", "").strip() or socket.gethostname()
        try:
            return facing(resolve_host(master), 9)  # nothing is sent
        except JobError as error:
            raise JobError(f"{error}; set SWITCHAGG_BIND to this host's address, or SWITCHAGG_INTERFACE") from error

    def network_address(self) -> str:
        """This rank's address towards the switch, or `local_address` where no switch is used. Raises JobError."""
        if not (self.switch and self.name.is_switch) or self.bind or self.interface:
            return self.local_address()
        host, port = parse_endpoint(self.switch.partition(",")[0])
        return facing(resolve_host(host), port)

    def join_options(self, timeout_s: float, call_timeout_s: float = CALLS_S) -> "JoinOptions":
        """Options of a session with the switch, joined within timeout_s. Raises JobError for what can't be together,
        DistBackendError as `name`."""
        from transport.worker.join_options import JoinOptions  # pulls in ZeroMQ: only for those who use the switch

        name = self.name
        if self.bounded:
            raise JobError(
                f"SWITCHAGG_BOUNDED: {name} loses nothing; leave it out, or choose a method that does, as mlt"
            )
        options = JoinOptions(
            **shared_fields(self, JobTerms)
            | shared_fields(self, MemberOptions)
            | shared_fields(self, LocalOptions)
            | name.terms
            | {"link": name.link, "codec": name.codec or JoinOptions.codec, "slots_least": 0, "bind": ""}
            | {"streams": 0 if self.priorities else self.streams},
            timeout_s=timeout_s,
            call_timeout_s=call_timeout_s,
        )
        if self.slots_least != SLOTS_LEAST:
            return replace(options, slots_least=self.slots_least)
        least = min(max(SLOTS_LEAST, options.stream_count), options.requested_slots)
        return replace(options, slots_least=least, sparing=not self.fallback)

    def require_elastic(self) -> None:
        """Raise DistBackendError, in a line, if an elastic group can't have these options."""
        refused = {"backups": self.backups, "close_after_ns": self.close_after_ns, "secret": self.name.secret}
        if option := next((name for name, value in refused.items() if value), ""):
            what = "secret sums" if option == "secret" else "partial sums"
            raise dist.DistBackendError(
                f"SWITCHAGG_ELASTIC={self.elastic}: not with {what}: leave SWITCHAGG_{option.upper()} out, or elastic"
            )

    def require_switch(self) -> None:
        """Raise DistBackendError, with what to do, if no switch was named."""
        if not self.switch:
            raise dist.DistBackendError(
                f"{SWITCH_VARIABLE} is not set: start a switch on a host that all workers reach with `switchagg "
                "switch --control tcp://HOST:5555 --data HOST:5556`, and set "
                f"{SWITCH_VARIABLE}=tcp://HOST:5555 for every worker; or go without a switch: SWITCHAGG_METHOD=ring"
            )


def start_name(store: Store, rank: int, workers: int, timeout_s: float) -> str:
    """A job name that rank 0 makes unique, and gives to the ranks of this start alone.

    A store may outlive its processes: torchrun --max-restarts gives new ranks the store of dead ones, so a rank's key
    may hold a dead rank's value. Therefore each rank writes a random token under its key, rank 0 writes the name under
    that token, and goes on when every rank has confirmed this name. (TORCHELASTIC_RESTART_COUNT wouldn't do: it counts
    a node's own failures.) Raises DistBackendError for ranks that don't come within timeout_s, or have other settings.
    """
    token = uuid.uuid4().hex
    if rank == 0:
        run = "".join(c for c in os.environ.get("TORCHELASTIC_RUN_ID", "torch") if c.isalnum() or c in "-_")
        name = f"{run[:16]}-{token[:12]}"
        tokens: dict[int, str] = {}
        missing = set(range(1, workers))

        def everyone_has_it() -> bool:
            raise_unlike(store)
            for other in [other for other in missing if store.check([f"start/{other}"])]:
                rank_token = store.get(f"start/{other}").decode()
                if tokens.get(other) != rank_token:
                    tokens[other] = rank_token
                    store.set(f"start/{rank_token}", name)
                if store.check([f"{name}/{other}"]):
                    missing.discard(other)
            return not missing

        if not _comes(everyone_has_it, timeout_s):
            ranks = ", ".join(map(str, sorted(missing)))
            raise dist.DistBackendError(
                f"switchagg: timed out: rank {ranks} of {workers} did not come to start the group within "
                f"{timeout_s:g} s"
            )
        store.set(f"{name}/all", "")
        return name
    store.set(f"start/{rank}", token)

    def is_set(key: str) -> bool:
        raise_unlike(store)
        return store.check([key])

    if not _comes(partial(is_set, f"start/{token}"), timeout_s):
        raise dist.DistBackendError(
            f"switchagg: timed out: rank 0 of {workers} did not come to start the group with rank {rank} within "
            f"{timeout_s:g} s"
        )
    name = store.get(f"start/{token}").decode()
    store.set(f"{name}/{rank}", "")
    # What comes next, Gloo's start, hears nothing from a rank that refuses to begin.
    if not _comes(partial(is_set, f"{name}/all"), timeout_s):
        raise dist.DistBackendError(
            f"switchagg: timed out: not all {workers} ranks came to start the group with rank {rank} within "
            f"{timeout_s:g} s"
        )
    return name


def _comes(condition: Callable[[], bool], timeout_s: float, cancelled: threading.Event | None = None) -> bool:
    """Whether the condition, polled at growing intervals, held within that time. A blocking wait would lock the store
    for Gloo's threads. Raises DistBackendError when cancelled."""
    deadline = time.monotonic() + timeout_s
    pause_s = POLL_S / 16
    cancelled = cancelled or threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        if cancelled.wait(pause_s):
            raise dist.DistBackendError("it was shut down while it waited for other ranks")
        pause_s = min(2 * pause_s, POLL_S)
    return True


def interface_with(address: str) -> str:
    """The interface that has this address; "" if none has."""
    for _, name in socket.if_nameindex():
        with suppress(JobError):  # the interface is down, or has IPv6 alone
            if interface_address(name) == address:
                return name
    return "lo" if address.startswith("127.") else ""


def interface_address(name: str) -> str:
    """The IPv4 address of a network interface. Raises JobError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            raise JobError(f"interface {name} has no IPv4 address here: {error.strerror}") from error
    return socket.inet_ntoa(answer[20:24])


Join = Callable[..., Group]
"""`SwitchGroup.join`, or its replacement in a test."""


@dataclass(frozen=True)
class Rendezvous:
    """Joins the switch for one group, or opens its host method's. Every rank of it calls `agree`, and `open` for the
    same lane, at about the same time."""

    store: Store
    rank: int
    workers: int
    job: str
    options: SwitchOptions
    timeout_s: float
    """The process group's timeout: how long one rank may keep the others waiting."""
    join: Join
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set when the group ends: no rank needs to be waited for any more."""
    is_later: bool = False
    """Whether the group had an earlier generation: then a job with one switch and a fallback begins without, too."""

    @property
    def method(self) -> MethodName:
        """The method that this rank shall use."""
        return self.options.name

    def agree(self) -> None:
        """Raise DistBackendError, on all ranks, that names both sides if their methods or options differ."""
        settings = json.dumps(self.options.alike())
        published = [json.loads(text) for text in self._exchange(f"{self.job}/method", settings, self.timeout_s)]
        for rank, other in enumerate(published):
            if words := difference(0, published[0], rank, other, self.workers):
                raise dist.DistBackendError(words)

    def open(self, lane: int) -> Group | None:
        """Join the switch, or connect to the other ranks. If the switch has no slots for the job, all ranks get None
        and rank 0 warns.

        Raises DistBackendError, on all ranks, if any couldn't join for another reason, or didn't come within the
        group's timeout; it names the rank.
        """
        options, by_gloo = self.options, self.method.method == "gloo"
        token = "" if self.rank or options.token or options.token_file else new_token()
        no_place = by_gloo or (self.method.is_switch and not options.fallback)
        place, here = (None, token) if no_place else self._bind(token)
        # The switch's patience is short, the group's is not: a rank may legitimately come here minutes later.
        try:
            places = self._exchange(f"{self.job}/{lane}/here", here, self.timeout_s)
        except BaseException:
            if place is not None:
                place.close()
            raise
        outcomes_key, began_s = f"{self.job}/{lane}/outcome", time.monotonic()
        with self._watch_peers(outcomes_key) as peer_failed:
            if self.method.is_switch:
                outcome, session = self._try(lane, place, places, peer_failed)
            elif by_gloo:
                outcome, session = JOINED, self._gloo_group(lane)
            else:
                outcome, session = self._try_host_group(lane, place, places)
        left_s = self._join_limit_s - (time.monotonic() - began_s)
        if left_s <= 0 and outcome.startswith(FAILED):
            outcome = outcome.replace(": ", f": timed out after {self._join_limit_s:g} s: ", 1)
        try:
            left_s = max(0.0, left_s) + min(GRACE_S, self.timeout_s)
            outcomes = self._exchange(outcomes_key, outcome, left_s)
        except BaseException:
            if session is not None:
                session.close()
            raise
        troubles = {rank: trouble for rank, trouble in enumerate(outcomes) if trouble != JOINED}
        if not troubles:
            return watched(session)
        if session is not None:
            session.close()
        first = min(troubles, key=lambda rank: (troubles[rank] == STOPPED, rank))
        reason = troubles[first].partition(": ")[2] or troubles[first]
        exact = self.method.spec is not None and self.method.spec.exact
        if (
            lane == 0
            and not exact
            and all(trouble.startswith(NO_SLOTS) for trouble in troubles.values() if trouble != STOPPED)
        ):
            if self.rank == 0:
                logger.warning("switchagg: using Gloo instead of switch %s: %s", self.options.switch, reason)
            return None
        raise dist.DistBackendError(f"switchagg: rank {first} of {self.workers} could not {self._aim}: {reason}")

    @property
    def _aim(self) -> str:
        return f"join switch {self.options.switch}" if self.method.is_switch else f"meet for method {self.method}"

    @property
    def _join_limit_s(self) -> float:
        return min(self.options.join_timeout_s, self.timeout_s)

    @contextmanager
    def _watch_peers(self, outcomes_key: str) -> Iterator[threading.Event]:
        """Within it, an event that is set once another rank couldn't join, or the group has ended."""
        failed, over = threading.Event(), threading.Event()

        def look() -> None:
            unknown = {f"{outcomes_key}/{rank}" for rank in range(self.workers) if rank != self.rank}
            while not over.wait(LOOK_S) and not failed.is_set():
                known = {key for key in unknown if self.store.check([key])}
                unknown -= known
                if self.cancelled.is_set() or any(self.store.get(key).decode() != JOINED for key in known):
                    failed.set()

        looks = threading.Thread(target=look, name=f"outcomes-{self.job}", daemon=True)
        looks.start()
        try:
            yield failed
        finally:
            over.set()
            looks.join()

    def _try(
        self, lane: int, place: "BoundPlace | None", places: list[str], peer_failed: threading.Event
    ) -> tuple[str, Group | None]:
        options = self.options
        try:
            join_options = options.join_options(self._join_limit_s)
            token = self._token(places)
            sleeper_s = 0.0 if options.elastic else math.inf  # an elastic job goes on without it
            join_options = replace(
                join_options, token=token, token_file="", group_timeout_s=self.timeout_s, sleeper_s=sleeper_s
            )
            job = f"{self.job}/{lane}"
            if "," in options.switch and not options.fallback:
                raise JobError(
                    f"{SWITCH_VARIABLE} has several switches: to go from one to the next a job needs a fallback, "
                    "SWITCHAGG_FALLBACK=ring"
                )
            if options.fallback:
                from transport.group.group_opening import (
                    open_fallback_group,  # every host method: only where one may be used
                    switch_list,
                )

                addresses, first = _addresses(places), int(places[0].split(" ")[2])
                switches = switch_list(options.switch)
                order = [*switches[first:], *switches[:first]] if first >= 0 else ["", *switches]
                session = open_fallback_group(
                    ",".join(order), job, self.rank, addresses, join_options, options.fallback, place, peer_failed
                )
            else:
                session = self.join(options.switch, job, self.rank, self.workers, join_options, peer_failed)
        except (JobError, OSError, ValueError, AssertionError) as error:
            if place is not None:
                place.close()
            if peer_failed.is_set():
                return STOPPED, None
            if isinstance(error, JobError):
                return f"{NO_SLOTS if error.lacks_room else FAILED}: {error}", None
            return f"{FAILED}: {type(error).__name__}: {error}", None
        return JOINED, session

    def _bind(self, token: str) -> "tuple[BoundPlace | None, str]":
        """A port of this rank, and the text to publish: its address and the token, or why there is no port."""
        from transport.meshes.mesh_opening import bind_place

        try:
            link = parse(self.options.fallback).link if self.method.is_switch else self.method.link
            first = self._first_switch()
            place = bind_place(link, self.options.local_address())
        except (JobError, OSError, ValueError) as error:
            return None, f"{FAILED}: {error}"
        return place, f"{place.address[0]} {place.address[1]} {first} {token}"

    def _first_switch(self) -> int:
        """Of rank 0: the place in the list of the first switch that answers, -1: none does. All begin there."""
        is_alone = "," not in self.options.switch and not self.is_later
        if self.rank or not self.method.is_switch or is_alone:
            return 0
        from transport.group.group_opening import switch_list
        from transport.group.way_back import answers  # pulls in ZeroMQ

        switches = switch_list(self.options.switch)
        keys = self.options.join_options(self._join_limit_s).keys
        return next((place for place, switch in enumerate(switches) if answers(switch, keys)), -1)

    def _try_host_group(self, lane: int, place: "BoundPlace | None", places: list[str]) -> tuple[str, Group | None]:
        if any(words.startswith(FAILED) for words in places):
            if place is not None:
                place.close()
            return JOINED if place is not None else places[self.rank], None
        assert place is not None
        try:
            if self.options.backups or self.options.close_after_ns:
                raise JobError(f"SWITCHAGG_BACKUPS, SWITCHAGG_CLOSE_AFTER_NS: {self.method} has none; leave them out")
            addresses = _addresses(places)
            from transport.group.group_opening import GroupOptions, open_group  # only host methods need it

            codec, elements = self.method.codec or None, self.options.elements or None
            times = self._join_limit_s, self.timeout_s if self.method.method == "ps" else CALLS_S
            coded: dict[str, Any] = {
                "codec": codec,
                "codec_elements": elements if codec else None,
                "verify": self.options.verify,
                "codec_seed": self.options.codec_seed,
            }
            if self.options.bounded:
                from transport.bounded.bounded_table import options_in

                coded["bounded"] = options_in(self.options.bounded)
            coded |= {"timeout_s": times[0], "call_timeout_s": times[1], "token": self._token(places)}
            how = GroupOptions.of({**coded, **self.options.link_keys})
            name, job = self.method, f"{self.job}/{lane}"
            session = open_group(name.method, name.link, self.rank, addresses, job=job, options=how, bound=place)
        except (JobError, OSError, ValueError) as error:
            place.close()
            return f"{FAILED}: {error}", None
        return JOINED, session

    def _gloo_group(self, lane: int) -> Group:
        """A Gloo of this lane's own, on which the codec's sums are in an order of their own."""
        from transport.torch.gloo import GlooGroup, gloo_devices, make_gloo

        store, spec = PrefixStore(f"{self.job}/{lane}/gloo", self.store), self.method.spec
        assert spec is not None
        devices = gloo_devices(self.options.network_address) if self.workers > 1 else []
        gloo = make_gloo(store, self.rank, self.workers, timedelta(seconds=self.timeout_s), devices)
        return GlooGroup(gloo, f"{self.job}/{lane}", spec)

    def _token(self, places: list[str]) -> str:
        """The job's secret: the option's, or the token that rank 0 has published. Raises JobError."""
        options = self.options
        if options.token or options.token_file:
            return job_token(options.token, options.token_file)
        return places[0].rpartition(" ")[2]

    def _exchange(self, prefix: str, words: str, timeout_s: float) -> list[str]:
        """The texts that all ranks have published under this prefix."""
        keys = [f"{prefix}/{rank}" for rank in range(self.workers)]
        self.store.set(keys[self.rank], words)
        if not _comes(lambda: self.store.check(keys), timeout_s, self.cancelled):
            missing = [str(rank) for rank, key in enumerate(keys) if not self.store.check([key])]
            raise dist.DistBackendError(
                f"switchagg: timed out: rank {', '.join(missing)} of {self.workers} did not come to {self._aim} "
                f"within {timeout_s:g} s"
            )
        return [self.store.get(key).decode() for key in keys]


def _addresses(places: list[str]) -> list[tuple[str, int]]:
    """The addresses that ranks have published. Raises JobError for an address that can't be reached."""
    if faults := [words.partition(": ")[2] for words in places if words.startswith(FAILED)]:
        raise JobError(faults[0])
    addresses = [(host, int(port)) for host, port, *_ in (words.split(" ") for words in places)]
    inner = [rank for rank, (host, _) in enumerate(addresses) if host.startswith("127.")]
    if inner and len(inner) < len(addresses):
        raise JobError(
            f"rank {inner[0]} is at {addresses[inner[0]][0]}, where other hosts can't reach it: set "
            "SWITCHAGG_BIND there to its address, or SWITCHAGG_INTERFACE"
        )
    return addresses
