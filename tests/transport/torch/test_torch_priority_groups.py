"""The priority wrapper over real groups: Gloo, host methods, a parameter server, the switch; and the example."""

import re
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fake_groups import FakeNetwork, run_ranks
from test_torch_launch import ranks
from test_torch_priority import assert_same_bits, mlp, ordinary, sgd, trained
from torch.distributed.distributed_c10d import ProcessGroup

from switchagg.errors import AggregationFailed
from transport.group.group_opening import open_group
from transport.group.switch_group import SwitchGroup
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.torch.backend import SwitchProcessGroup
from transport.torch.priority import handle as priority
from transport.torch.rendezvous import SwitchOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

WORKERS = 2
"""Two numbers have one sum, in whichever order and pieces they are added."""

Open = Callable[[int], Any]


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    network = FakeNetwork(WORKERS)
    found = trained(network, ordinary, None)[0]
    network.stop()
    return {name: tensor for name, tensor in found.items() if "/" not in name}


@pytest.fixture(scope="module")
def switch() -> Iterator[SwitchDaemon]:
    daemon = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=8192, lease_s=4.0))
    daemon.start()
    yield daemon
    daemon.stop()


def scheduled(
    open_one: Open, schedule: str, end: Callable[[int, Any], None] = lambda *_: None
) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    models = [mlp() for _ in range(WORKERS)]

    def program(rank: int) -> dict[str, torch.Tensor]:
        group, model = open_one(rank), models[rank]
        optimizer = sgd(model)
        with priority.attach(model, optimizer, group, schedule) as handle:
            ordinary(rank, model, optimizer, handle)
            end(rank, handle)
        for name in ("close", "shutdown"):
            getattr(group, name, lambda: None)()
        return dict(model.state_dict())

    found: list[dict[str, torch.Tensor]] = run_ranks(program, WORKERS)
    return found


def gloo() -> Open:
    store = dist.HashStore()

    def open_one(rank: int) -> ProcessGroup:
        backend = dist.ProcessGroupGloo(store, rank, WORKERS, timedelta(seconds=30))
        group = ProcessGroup(store, rank, WORKERS)
        group._set_default_backend(ProcessGroup.BackendType.GLOO)
        group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)
        return group

    return open_one


def addresses() -> list[tuple[str, int]]:
    sockets = [socket.socket() for _ in range(WORKERS)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    found = [each.getsockname() for each in sockets]
    for each in sockets:
        each.close()
    return found


@pytest.mark.parametrize("schedule", ["bsp", "mg_wfbp", "bytescheduler:partition=1kB,credit=2kB"])
def test_over_gloo(schedule: str, expected: dict[str, torch.Tensor]) -> None:
    assert_same_bits(scheduled(gloo(), schedule), [expected] * WORKERS)


@pytest.mark.parametrize("method", ["ring", "halving_doubling", "tree", "ps"])
def test_over_host_methods(method: str, expected: dict[str, torch.Tensor]) -> None:
    places = addresses()
    found = scheduled(
        lambda rank: open_group(method, "tcp", rank, places, job=f"priority {method}"),
        "bytescheduler:partition=1kB,credit=2kB",
    )
    assert_same_bits(found, [expected] * WORKERS)


@pytest.mark.parametrize("classes", [[], [0, 3, 7]], ids=["one class", "classes"])
@pytest.mark.parametrize("join", [SwitchSession.join, SwitchGroup.join], ids=["session", "group"])
def test_over_the_switch(
    switch: SwitchDaemon, join: Any, classes: list[int], expected: dict[str, torch.Tensor]
) -> None:
    """Its sums are fixed point: the same on all ranks, and near those of floats."""
    job = f"{join.__qualname__} {classes}"
    found = scheduled(
        lambda rank: join(switch.control_endpoint, job, rank, WORKERS, JoinOptions(priorities=classes)), "p3:slice=100"
    )
    assert_same_bits(found[:1], found[1:])
    assert all(torch.allclose(found[0][name], expected[name], atol=1e-5) for name in expected)


@pytest.mark.parametrize("method", ["switch", "ring", "torch"])
def test_slices_keep_what_they_lost(switch: SwitchDaemon, method: str, expected: dict[str, torch.Tensor]) -> None:
    """By the parameter and the place of a slice, also from before there were slices."""
    places, codec, kept = addresses(), "lanes8:least=0+ef", {}

    def open_one(rank: int) -> Any:
        if method == "torch":
            return SwitchProcessGroup(
                store, rank, WORKERS, timedelta(seconds=30), SwitchOptions(method=f"ring~{codec}", bind="127.0.0.1")
            )
        if method == "ring":
            return open_group(method, "tcp", rank, places, job="coded", options={"codec": codec})
        options = JoinOptions(priorities=[0, 7], codec=codec)
        return SwitchGroup.join(switch.control_endpoint, "coded", rank, WORKERS, options)

    def keep(rank: int, handle: priority.PriorityHandle) -> None:
        kept[rank] = handle.codec_state()["kept"]["residual"]

    store = dist.HashStore()
    found = scheduled(open_one, "p3:slice=100", keep)
    assert_same_bits(found[:1], found[1:])
    assert all(torch.allclose(found[0][name], expected[name], atol=0.01) for name in expected)
    for residual in kept.values():
        sizes = {name: len(values) for name, values in residual.items()}
        assert max(sizes.values()) == 100
        assert sum(sizes.values()) == sum(tensor.numel() for tensor in expected.values())
        assert sizes["2.weight[1600:1650]"] == 50


def test_a_rank_that_leaves_ends_the_others(switch: SwitchDaemon) -> None:
    torch.manual_seed(1)
    models = [mlp() for _ in range(WORKERS)]

    def program(rank: int) -> str:
        model = models[rank]
        session = SwitchSession.join(switch.control_endpoint, "leaver", rank, WORKERS, JoinOptions(priorities=[0, 7]))
        optimizer = sgd(model)
        handle = priority.attach(model, optimizer, session, "p3")
        try:
            for step in range(1000):
                if rank == 1 and step == 5:
                    return ""
                ordinary(rank, model, optimizer, handle)
        except AggregationFailed as error:
            handle.close()
            return str(error)
        finally:
            session.close()
        return "never"

    told = run_ranks(program, WORKERS)
    assert told[1] == ""
    assert re.search("missing ranks: 1|left after", told[0])


def test_the_example_program_runs() -> None:
    """Processes, and torch's default group."""
    told = ranks("examples/train_priority.py", "--steps", "12")
    found = re.findall(r"rank \d: parameters (\w{16})", "".join(told))
    assert len(found) == 2
    assert len(set(found)) == 1
