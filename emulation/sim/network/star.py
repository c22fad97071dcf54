"""The star of every scenario: n hosts, each with one full-duplex link to the middle; one class per method.

A star knows `launch(rank, array, op, done)` and `run()`; what the middle and the ends do is the method's.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from emulation.sim.network.hosts import AggregationHost, Done
from emulation.sim.network.link import Link, LinkConfig
from emulation.sim.network.network import Action, Network
from emulation.sim.network.strict_link import StrictLink
from emulation.sim.network.switches import AggregationSwitch
from switchagg.call import rounds_of
from switchagg.codecs import codec_named
from switchagg.dataplane.table import DATAPLANES
from switchagg.endpoint import StreamFailed
from switchagg.errors import AggregationFailed
from switchagg.job import JobConfig, StreamConfig
from switchagg.priority import BEST_EFFORT
from transport.meshes.reliable import ReliableConfig

MESSAGE_BYTES = 45 * 1448  # 65,160: whole frames of MTU 1500
HOST_QUEUE_BYTES = 1 << 18  # credit of an uplink, two jumbo frames, and acknowledgements


@dataclass(frozen=True)
class StarConfig:
    """workers: 1 … 64. link: both directions of every port, each with faults of its own drawn from seed.

    switch_latency_ns: from a frame's last bit in to its place in the output queue. elements, window_slots, streams,
    dataplane: of the switch method; priorities, windows: class and window of each of its streams, where they differ.
    codec: of sums of floats, a name of switchagg.codecs; "": as they are, through a switch in fixed point.
    strict_priority: links serve priority classes strictly (`StrictLink`), else all frames in order. reliable,
    message_bytes (with its head), credit_bytes (taken from a host's queue and not yet on its link), servers (of `ps`;
    0: one on every worker), group (ranks per group of `hierarchical`; 0: chosen): of host methods. trace: hash all
    events.

    rto_min_ns, retry_limit: of both methods, so that neither waits longer than the other for the same loss. The floor
    is below that of real hosts (5 ms here, 200 ms in Linux's TCP), which must stay above a scheduler's tick: in
    virtual time there is none.
    """

    workers: int
    link: LinkConfig
    switch_latency_ns: int = 0
    seed: int = 1
    elements: int = 360
    window_slots: int = 256
    streams: int = 2
    dataplane: str = "batched"
    rto_min_ns: int = 1_000_000
    retry_limit: int = 30
    reliable: ReliableConfig = field(default_factory=ReliableConfig)
    message_bytes: int = MESSAGE_BYTES
    credit_bytes: int | None = 1 << 20
    servers: int = 0
    group: int = 0
    trace: bool = False
    priorities: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    strict_priority: bool = False
    codec: str = ""

    def job(self) -> JobConfig:
        """The one job of the star: streams side by side from slot 0."""
        windows = self.windows or (self.window_slots,) * self.streams
        priorities = self.priorities or (BEST_EFFORT,) * self.streams
        assert len(windows) == len(priorities) == self.streams, "one window and one priority for each stream"
        streams = tuple(map(StreamConfig, itertools.accumulate(windows, initial=0), windows, priorities))
        return JobConfig(
            job_id=1,
            generation=1,
            workers=self.workers,
            elements=self.elements,
            streams=streams,
            rto_initial_ns=self.rto_initial_ns,
            rto_min_ns=self.rto_min_ns,
            rto_max_ns=self.rto_max_ns,
            retry_limit=self.retry_limit,
        )

    def connections(self, together: int = 1) -> ReliableConfig:
        """Connections of a host method, with the timeouts of the star, of which so many send to one host at once.

        Only the window limits a connection, so those that share a port share what the port's queue or the
        way holds: what congestion control would settle on. Otherwise the queue would overflow for as long as they send.
        """
        window_bytes, rto_min_ns = self.reliable.window_bytes, self.rto_min_ns
        if together > 1:
            way_bytes = self.link.rate_bps * self._round_trip_ns // 8_000_000_000
            queue_bytes = self.link.queue_bytes * 9 // 10
            burst_bytes = queue_bytes * together // (together - 1)  # all at once, of which one share leaves meanwhile
            share_bytes = max(min(queue_bytes + way_bytes, burst_bytes), way_bytes) // together
            window_bytes = max(min(window_bytes, share_bytes), 2 * self.reliable.segment_bytes)
            # What meets others' segments in a queue may suddenly take as long as the queue is.
            rto_min_ns = max(rto_min_ns, self.link.queue_bytes * 8_000_000_000 // self.link.rate_bps)
        return replace(
            self.reliable,
            window_bytes=window_bytes,
            rto_initial_ns=max(self.rto_initial_ns, rto_min_ns),
            rto_min_ns=rto_min_ns,
            rto_max_ns=max(self.rto_max_ns, rto_min_ns),
            retry_limit=self.retry_limit,
        )

    @property
    def rto_initial_ns(self) -> int:
        """200 ms, or more on links so long or slow that a first round trip takes as much."""
        return max(200_000_000, 3 * self._round_trip_ns, self.rto_min_ns)

    @property
    def rto_max_ns(self) -> int:
        return max(1_000_000_000, 10 * self._round_trip_ns, self.rto_min_ns)

    @property
    def _round_trip_ns(self) -> int:
        """Without queues, of frames of MTU 1500: there and back over two links each."""
        frame_ns = 1514 * 8_000_000_000 // self.link.rate_bps
        return 4 * (self.link.delay_ns + frame_ns) + 2 * self.switch_latency_ns


class Star(ABC):
    """Network and links. A method's subclass puts the middle and the hosts in; `uplinks` and `downlinks` go by rank."""

    def __init__(self, config: StarConfig) -> None:
        self.config = config
        self.network = Network(trace=config.trace)
        self._link_type = StrictLink if config.strict_priority else Link
        self.uplinks: list[Link] = []
        self.downlinks: list[Link] = []

    def codes(self, array: NDArray[Any], op: str) -> bool:
        """Whether a host method sums this array by the rounds of a codec."""
        return bool(self.config.codec) and op == "sum" and array.dtype in codec_named(self.config.codec).dtypes

    def in_rounds(self, array: NDArray[Any], done: Done, key: int, begin: Callable[..., None]) -> None:
        """Sum an array in place by the codec's plain reductions; `begin(words, op, done, key=)` begins each of them.

        key: of the first, the others follow it.
        """
        rounds = rounds_of(array, self.config.elements, self.config.workers, codec_named(self.config.codec))

        def step(key: int) -> None:
            words, op = next(rounds, (None, ""))
            if words is None:
                done()
            else:
                begin(words, op, partial(step, key + 1), key=key)

        step(key)

    def _add_uplink(self, rank: int, middle: Action) -> Link:
        """The link from a rank's host to the middle. A host never overflows its own queue: `Uplink` waits instead."""
        config = replace(self.config.link, queue_bytes=max(self.config.link.queue_bytes, HOST_QUEUE_BYTES))
        link = self._link_type(self.network, config, middle, f"{self.config.seed} up {rank}")
        self.uplinks.append(link)
        return link

    def _add_downlink(self, rank: int, host: Action) -> None:
        """The link from the middle to a rank's host."""
        self.downlinks.append(self._link_type(self.network, self.config.link, host, f"{self.config.seed} down {rank}"))

    @abstractmethod
    def launch(
        self,
        rank: int,
        array: NDArray[Any],
        op: str,
        done: Done,
        priority: int | None = None,
        key: int | None = None,
    ) -> None:
        """Rank begins an allreduce now, in place. priority: lower is more urgent; None: as urgent as any.

        All ranks launch the same ones: in the same order, or, by host methods, with the same keys.
        """

    @abstractmethod
    def retransmissions(self) -> int:
        """Frames sent again by all hosts."""

    @abstractmethod
    def switch_counters(self) -> dict[str, int]:
        """What the data plane counted, and frames that failed their checksum; empty if nothing aggregates."""

    @abstractmethod
    def drop_checksum(self) -> int:
        """Damaged frames that a receiver found and dropped."""

    def run(self, waiting_for: str) -> None:
        """Let virtual time pass until `network.stop()`. AggregationFailed if a call is given up."""
        self.network.run(waiting_for)

    def wire_tx_bytes(self) -> list[int]:
        """Bytes each worker's host has put on its link so far, framing included."""
        return [link.sent_bytes for link in self.uplinks[: self.config.workers]]

    def wire_rx_bytes(self) -> list[int]:
        """Bytes that reached each worker's host so far, or are on their way."""
        return [link.delivered_bytes for link in self.downlinks[: self.config.workers]]

    def notes(self) -> list[str]:
        """The method's choices with their reasons, one sentence each."""
        return []

    def faults(self) -> dict[str, int]:
        """What the links did to frames, summed over all of them."""
        links = self.uplinks + self.downlinks
        return {name: sum(link.faults[name] for link in links) for name in links[0].faults}


class SwitchStar(Star):
    """Method `switch`: an aggregating data plane in the middle."""

    def __init__(self, config: StarConfig) -> None:
        super().__init__(config)
        self.job = config.job()
        dataplane = DATAPLANES[config.dataplane](self.job.slots[1], config.elements)
        dataplane.admit(self.job, range(config.workers))
        self.switch = AggregationSwitch(self.network, self.downlinks, config.switch_latency_ns, dataplane)
        self.hosts: list[AggregationHost] = []
        for rank in range(config.workers):
            uplink = self._add_uplink(rank, self.switch.receive)
            host = AggregationHost(self.network, rank, self.job, uplink, self._failed, config.codec)
            self._add_downlink(rank, host.receive)
            self.hosts.append(host)

    def _failed(self, rank: int, event: StreamFailed) -> None:
        seen = self.switch.dataplane.seen(event.slot, event.version).ranks
        raise AggregationFailed(
            f"rank {rank} had no result after {event.timeouts} timeouts in a row",
            job=self.job.job_id,
            generation=self.job.generation,
            stream=event.stream,
            slot=event.slot,
            chunk=event.chunk,
            missing=tuple(r for r in range(self.config.workers) if r not in seen),
        )

    def launch(
        self,
        rank: int,
        array: NDArray[Any],
        op: str,
        done: Done,
        priority: int | None = None,
        key: int | None = None,
    ) -> None:
        self.hosts[rank].launch(array, op, done, priority)

    def retransmissions(self) -> int:
        return sum(host.endpoint.counters["retransmitted"] for host in self.hosts)

    def switch_counters(self) -> dict[str, int]:
        return {**self.switch.dataplane.counters, "drop_checksum": self.switch.drop_checksum}

    def drop_checksum(self) -> int:
        return self.switch.drop_checksum + sum(host.drop_checksum for host in self.hosts)
