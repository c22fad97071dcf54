"""The groups that the contract is tested on: each opens all its ranks in this process. A new one is one more entry in
KINDS."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroup

from switchagg.native import library
from tests.transport.contracts.meshes import free_addresses
from transport.group.group_opening import GroupOptions, open_group
from transport.group.ps_group import PsOptions, open_ps_server
from transport.links.link_kinds import LINKS
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.torch.process_group import TorchGroup
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

SOON_S = 120.0


def together(count: int, act: Callable[[int], Any]) -> list[Any]:
    """What `act` returns for each rank, each in a thread; raises what one raised."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(act, range(count)))


@contextmanager
def closed(groups: list[Any]) -> Iterator[list[Any]]:
    """All at once: members wait for each other's word of leaving."""
    try:
        yield groups
    finally:
        together(len(groups), lambda rank: groups[rank].close())


@contextmanager
def host(method: str, link: str, workers: int) -> Iterator[list[Any]]:
    addresses, how = free_addresses(workers), GroupOptions(SOON_S)
    opened = together(workers, lambda rank: open_group(method, link, rank, addresses, job="contract", options=how))
    with closed(opened) as groups:
        yield groups


@contextmanager
def with_servers(count: int, workers: int) -> Iterator[list[Any]]:
    places = free_addresses(workers + count)
    addresses, servers = places[:workers], places[workers:]

    def serve(number: int) -> None:
        running = open_ps_server("tcp", number, addresses, servers, job="contract", options=PsOptions(SOON_S))
        running.wait(3 * SOON_S)
        running.close()

    threads = [threading.Thread(target=serve, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()

    def join(rank: int) -> Any:
        how = GroupOptions(SOON_S)
        return open_group("ps", "tcp", rank, addresses, servers=servers, job="contract", options=how)

    with closed(together(workers, join)) as groups:
        yield groups
    for thread in threads:
        thread.join(SOON_S)


@contextmanager
def switch(link: str, workers: int, *, session: bool = False) -> Iterator[list[Any]]:
    # Over RDMA the switch has an address and its one port for itself: one of this process, as tests run side by side.
    host = f"127.{20 + os.getpid() % 50}.{os.getpid() // 50 % 250}.1" if link == "rdma" else "127.0.0.1"
    options = DaemonOptions("tcp://127.0.0.1:0", (host, LINKS[link].port or 0), slots=4096, link=link)
    with ExitStack() as stack:
        daemon = stack.enter_context(SwitchDaemon(options))
        told: dict[str, Any] = {"bind": "127.0.0.1", "window_slots": 64, "priorities": [0, 3, 7]}

        def join(rank: int) -> Any:
            if session:
                return SwitchSession.join(daemon.control_endpoint, "contract", rank, workers, JoinOptions(**told))
            how = GroupOptions(SOON_S, switch=daemon.control_endpoint, more=told)
            return open_group("switch", link, rank, [("", 0)] * workers, job="contract", options=how)

        yield stack.enter_context(closed(together(workers, join)))


@contextmanager
def gloo(workers: int) -> Iterator[list[Any]]:
    store = dist.HashStore()

    def join(rank: int) -> Any:
        backend = dist.ProcessGroupGloo(store, rank, workers, timedelta(seconds=3))
        group = ProcessGroup(store, rank, workers)
        group._set_default_backend(ProcessGroup.BackendType.GLOO)
        group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)
        return TorchGroup(group)

    with closed(together(workers, join)) as groups:
        yield groups


Open = Callable[[int], Any]
"""open(workers): a context manager that gives a group per rank."""

COLLECTIVES: dict[str, Open] = {
    "ring@tcp": lambda workers: host("ring", "tcp", workers),
    "halving_doubling@udp": lambda workers: host("halving_doubling", "udp", workers),
    "double_tree@zeromq": lambda workers: host("double_tree", "zeromq", workers),
    "hierarchical@rdma": lambda workers: host("hierarchical", "rdma", workers),
    "auto@tcp": lambda workers: host("auto", "tcp", workers),
    "ps@tcp": lambda workers: host("ps", "tcp", workers),
    "ps@tcp with 2 servers": lambda workers: with_servers(2, workers),
    "switch@udp": lambda workers: switch("udp", workers),
    "switch@zeromq": lambda workers: switch("zeromq", workers),
    **({} if library.missing() else {"switch@rdma": lambda workers: switch("rdma", workers)}),
}
"""Groups with all collectives."""

KINDS: dict[str, Open] = {
    **COLLECTIVES,
    "switch session": lambda workers: switch("udp", workers, session=True),
    "torch's gloo": gloo,
}
