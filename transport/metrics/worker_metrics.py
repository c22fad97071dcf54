"""Metrics of a process that has groups: SWITCHAGG_METRICS=HOST:PORT, where rank r takes PORT + r.

Groups name their counters as they like; each is an event here, with its name as a label, and those that end in
`_bytes` count bytes.
"""

import itertools
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakKeyDictionary

from switchagg.errors import SwitchaggError
from transport.metrics.metrics_server import MetricsServer, is_open, metrics_address

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

logger = logging.getLogger(__name__)

VARIABLE = "SWITCHAGG_METRICS"
BYTES = "_bytes"


class CountedGroup(Protocol):
    """What a group says of itself, as of `AllreduceGroup`."""

    @property
    def rank(self) -> int: ...

    @property
    def workers(self) -> int: ...

    @property
    def method(self) -> str: ...

    @property
    def link(self) -> str: ...

    @property
    def core(self) -> str: ...

    @property
    def counters(self) -> Mapping[str, int]: ...

    @property
    def failure(self) -> BaseException | None: ...


G = TypeVar("G", bound=CountedGroup | None)

_lock = threading.Lock()
_groups: WeakKeyDictionary[CountedGroup, int] = WeakKeyDictionary()
_numbers = itertools.count()
_servers: dict[int, MetricsServer | None] = {}  # by process: a forked child has none of its parent's threads


def watched(group: G) -> G:
    """The group. Serve a group's counters, if SWITCHAGG_METRICS asks for that, as long as the group exists.

    The first group of a process opens its port; its own rank, or RANK as torchrun sets it, is added to PORT. What goes
    wrong is a warning: no training ends for want of metrics.
    """
    if group is not None and (text := os.environ.get(VARIABLE, "").strip()):
        _watch(group, text)
    return group


def _watch(group: CountedGroup, text: str) -> None:
    with _lock:
        _groups.setdefault(group, next(_numbers))
        if os.getpid() in _servers:
            return
        _servers[os.getpid()] = None
        try:
            host, port = metrics_address(text, VARIABLE)
            rank = os.environ.get("RANK", "")
            port += (int(rank) if rank.isdecimal() else group.rank) if port else 0
            server = MetricsServer((host, port), lambda: group_families(dict(_groups)), VARIABLE)
        except SwitchaggError as error:
            logger.warning("switchagg: no metrics of rank %d: %s", group.rank, error)
            return
        _servers[os.getpid()] = server
    logger.info("switchagg: metrics of rank %d at %s", group.rank, server.url)
    if is_open(host):
        logger.warning("switchagg: %s is open to the network: whoever reaches it reads counters", server.url)


def metrics_url() -> str:
    """Where this process serves metrics, or ""."""
    server = _servers.get(os.getpid())
    return "" if server is None else server.url


def stop_serving() -> None:
    """Serve nothing more in this process, until the next group is watched."""
    global _numbers
    with _lock:
        server = _servers.pop(os.getpid(), None)
        _groups.clear()
        _numbers = itertools.count()
    if server is not None:
        server.close()


def group_families(groups: Mapping[CountedGroup, int]) -> "Iterator[Metric]":
    """The metrics of a process's groups, each with its number."""
    from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily

    labels = ("group", "rank")
    info = InfoMetricFamily("switchagg_group", "Groups of this process", labels=labels)
    failed = GaugeMetricFamily("switchagg_group_failed", "1: the group works no more", labels=labels)
    counts = _Counts("group", labels)
    for group, number in groups.items():
        place = str(number), str(group.rank)
        failed.add_metric(place, group.failure is not None)
        facts = {"method": group.method, "link": group.link, "core": group.core, "workers": str(group.workers)}
        info.add_metric(place, facts)
        counts.add(place, group.counters)
    yield from (info, failed, *counts.families)


def server_families(number: int, counters: Mapping[str, int]) -> "Iterator[Metric]":
    """The metrics of a parameter server."""
    counts = _Counts("server", ("server",))
    counts.add((str(number),), counters)
    yield from counts.families


class _Counts:
    """Counters of any names as two metrics. what: "group" or "server"."""

    def __init__(self, what: str, labels: Sequence[str]) -> None:
        from prometheus_client.metrics_core import CounterMetricFamily

        self._events = CounterMetricFamily(
            f"switchagg_{what}_events", f"Counters of a {what}", labels=(*labels, "event")
        )
        self._volumes = CounterMetricFamily(
            f"switchagg_{what}_bytes", f"Bytes that a {what} counts", labels=(*labels, "kind")
        )

    @property
    def families(self) -> "tuple[Metric, ...]":
        return self._events, self._volumes

    def add(self, place: tuple[str, ...], counters: Mapping[str, int]) -> None:
        for name, count in sorted(counters.items()):
            is_volume = name.endswith(BYTES)
            family = self._volumes if is_volume else self._events
            family.add_metric((*place, name.removesuffix(BYTES)), count)
