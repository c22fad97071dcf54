"""The star of all host methods: a bridge in the middle, collectives between hosts over reliable connections."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulation.sim.network.hosts import Done
from emulation.sim.network.mesh import MeshHost
from emulation.sim.network.star import Star, StarConfig
from emulation.sim.network.switches import Bridge
from switchagg.priority import BEST_EFFORT
from transport.collectives.choice import SIZES_BYTES, Choice, fit, to_words
from transport.collectives.collective import Kind
from transport.collectives.party import HEAD_BYTES, Call, CollectiveParty
from transport.collectives.table import COLLECTIVES, fitting
from transport.group.coded_sums import RoundKeys


def senders_at_once(algorithm: str, workers: int) -> int:
    """How many members may send to the same one at the same time for long: they share its port."""
    if workers < 3:
        return 1
    return (workers - 1).bit_length() if algorithm == "auto" else COLLECTIVES[algorithm].meet(workers)


class HostStar(Star):
    """A collective by its name, or `auto`. Times out as real groups do: after `CALL_TIMEOUT_NS` without any message."""

    def __init__(self, config: StarConfig, method: str) -> None:
        super().__init__(config)
        self.method = method
        self.choice = _measured(config) if method == "auto" else None
        self.chosen: dict[int, str] = {}  # size in bytes -> what `auto` took, and why
        self.bridge = Bridge(self.network, self.downlinks, config.switch_latency_ns)
        self.hosts: list[MeshHost] = []
        self._parties: list[CollectiveParty] = []
        self._done: list[dict[int, Done]] = []
        self._keys = [RoundKeys() for _ in range(config.workers)]
        connections = config.connections(senders_at_once(method, config.workers))
        for member in range(config.workers):
            uplink = self._add_uplink(member, self.bridge.receive)
            segment_bytes = config.message_bytes - HEAD_BYTES
            option = config.group if method == "hierarchical" else 0
            party = CollectiveParty(member, config.workers, job=method, option=option, segment_bytes=segment_bytes)
            host = MeshHost(
                member,
                party,
                connections,
                uplink,
                self._settle,
                job=method,
                credit_bytes=config.credit_bytes,
                strict=config.strict_priority,
            )
            self._add_downlink(member, host.receive)
            self.hosts.append(host)
            self._parties.append(party)
            self._done.append({})

    def launch(
        self,
        rank: int,
        array: NDArray[Any],
        op: str,
        done: Done,
        priority: int | None = None,
        key: int | None = None,
        *,
        kind: Kind = "allreduce",
        root: int = 0,
    ) -> None:
        """As Star. Ranks may launch in different orders if they give keys. kind, root: any other collective."""
        begin = partial(self._begin, rank, priority=priority, kind=kind, root=root)
        if kind == "allreduce" and self.codes(array, op):
            self.in_rounds(array, done, self._keys[rank].first(key), begin)
        else:
            begin(array, op, done, key=key)

    def _begin(
        self,
        rank: int,
        array: NDArray[Any],
        op: str,
        done: Done,
        *,
        priority: int | None,
        key: int | None,
        kind: Kind,
        root: int,
    ) -> None:
        """Begin one collective as it is."""
        algorithm = self.method
        if kind != "allreduce":
            algorithm = fitting(kind, self.method, self.config.workers)
        elif self.choice is not None:
            algorithm = self.choice.algorithm(array.nbytes)
            if array.nbytes not in self.chosen:
                self.chosen[array.nbytes] = self.choice.words(array.nbytes)
        call = self._parties[rank].submit(
            kind,
            algorithm,
            array,
            "max" if op == "max" else "sum",
            now_ns=self.network.now_ns,
            key=key,
            priority=BEST_EFFORT if priority is None else priority,
            root=root,
        )
        self._done[rank][call.number] = done
        self._settle(rank)
        self.hosts[rank].pump()

    def _settle(self, member: int) -> None:
        for call, failure in self._parties[member].events():
            if failure is not None:
                raise failure
            self._finish(member, call)

    def _finish(self, member: int, call: Call) -> None:
        self._done[member].pop(call.number)()

    def notes(self) -> list[str]:
        return [words for _, words in sorted(self.chosen.items())]

    def retransmissions(self) -> int:
        return sum(host.retransmissions for host in self.hosts)

    def switch_counters(self) -> dict[str, int]:
        return {}

    def drop_checksum(self) -> int:
        return sum(host.drop_checksum for host in self.hosts)


def _measured(config: StarConfig) -> Choice:
    """What `auto` goes by: messages from one host to another, timed at the start on a star of the same links."""
    segment_bytes = config.message_bytes - HEAD_BYTES
    if config.workers == 1:
        return Choice(1, 0, 1, segment_bytes)
    alpha_ns, beta_fs_per_byte = to_words(fit([(size, _one_way_ns(config, size) / 1e9) for size in SIZES_BYTES]))
    return Choice(config.workers, alpha_ns, beta_fs_per_byte, segment_bytes)


def _one_way_ns(config: StarConfig, size_bytes: int) -> int:
    star = HostStar(replace(config, workers=2, trace=False), "ring")
    star.launch(0, np.zeros(size_bytes, np.uint8), "sum", lambda: None, kind="broadcast")
    star.launch(1, np.zeros(size_bytes, np.uint8), "sum", star.network.stop, kind="broadcast")
    star.run(f"a message of {size_bytes} bytes")
    return star.network.now_ns
