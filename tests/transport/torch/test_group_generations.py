"""A group whose ranks change: it is aborted from any thread, and formed again of fewer ranks and of more."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from waiting import comes

from transport.group.moving_session import MovingSession
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.torch.backend import SwitchProcessGroup
from transport.torch.rendezvous import SwitchOptions

METHODS = ("switch", "ring", "halving_doubling@udp", "gloo~exact", "ps", "gloo")
WORKERS = 3


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Iterator[SwitchDaemon]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("SWITCHAGG_BIND", "127.0.0.1")
    daemon = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=2048, lease_s=1.0))
    daemon.start()
    yield daemon
    daemon.stop()


class Ranks:
    """Ranks as threads; each has its group, of one store."""

    def __init__(self, switch: SwitchDaemon, method: str, forms: bool = True, **more: Any) -> None:
        self._pool, self._store = ThreadPoolExecutor(WORKERS), dist.HashStore()
        options = SwitchOptions(switch=switch.control_endpoint, method=method, bind="127.0.0.1", **more)

        def make(rank: int) -> SwitchProcessGroup:
            limit = timedelta(seconds=30)
            return SwitchProcessGroup(self._store, rank, WORKERS, limit, options, name="g", forms=forms)

        self.groups: list[SwitchProcessGroup] = []
        self.groups = self.on(make)

    def on(self, act: Callable[[int], Any], ranks: tuple[int, ...] = tuple(range(WORKERS))) -> list[Any]:
        """What `act(rank)` returned or raised on each of these."""
        calls = [self._pool.submit(act, rank) for rank in ranks]
        return [call.exception(60) or call.result() for call in calls]

    def reconfigure(self, uuid: int, *ranks: int) -> list[Any]:
        handles = [self.groups[rank].get_reconfigure_handle() for rank in ranks]
        wish = SimpleNamespace(uuid=uuid, handles=handles, timeout=timedelta(seconds=10))
        return self.on(lambda rank: self.groups[rank].reconfigure(wish).wait(), ranks)

    def sums(self, *ranks: int) -> list[Any]:
        """The sum of rank + 1 over these, as each of them has it."""

        def total(rank: int) -> Any:
            values = torch.full((1000,), float(rank + 1))
            self.groups[rank].allreduce([values]).wait()
            return values[0].item() if (values == values[0]).all() else values

        return self.on(total, ranks)

    def close(self) -> None:
        self.on(lambda rank: self.groups[rank].shutdown())
        self._pool.shutdown()


@pytest.fixture
def open_ranks(switch: SwitchDaemon) -> Iterator[Callable[..., Ranks]]:
    opened: list[Ranks] = []

    def ranks(method: str, **how: Any) -> Ranks:
        opened.append(Ranks(switch, method, **how))
        return opened[-1]

    yield ranks
    for group in opened:
        group.close()


@pytest.mark.parametrize("method", METHODS)
def test_a_group_is_formed_again_of_fewer_ranks_and_of_more(open_ranks: Callable[..., Ranks], method: str) -> None:
    ranks = open_ranks(method)
    assert ranks.sums(0, 1, 2) == [6.0] * 3
    late = ranks.groups[0].allreduce([torch.ones(1000)]) if method not in ("gloo", "ps") else None
    assert ranks.reconfigure(1, 2, 0) == [True, True]
    if late is not None:
        with pytest.raises(dist.DistBackendError, match="aborted the group"):
            late.wait()
    assert [(ranks.groups[rank].rank(), ranks.groups[rank].size()) for rank in (2, 0)] == [(0, 2), (1, 2)]
    assert ranks.sums(2, 0) == [4.0] * 2
    assert ranks.reconfigure(2, 1) == [True]
    assert ranks.sums(1) == [2.0]
    shard = torch.zeros(2)
    assert ranks.groups[1].reduce_scatter([shard], [[torch.ones(2)]]).get_future().wait()[0] is shard
    assert shard.tolist() == [1.0, 1.0]
    assert ranks.reconfigure(3, 0, 1, 2) == [True] * 3
    assert ranks.sums(0, 1, 2) == [6.0] * 3
    assert all(group.errored() is None for group in ranks.groups)
    if method == "switch":
        session: Any = ranks.groups[0].reducer._lanes[0].session
        (job,) = session.status()["jobs"]
        assert job["name"].startswith(ranks.groups[0].rendezvous.job)


@pytest.mark.parametrize("method", ["switch", "ring", "gloo~exact"])
def test_abort_ends_pending_calls_at_once_from_any_thread(open_ranks: Callable[..., Ranks], method: str) -> None:
    ranks = open_ranks(method)
    ranks.sums(0, 1, 2)
    pending = [ranks.groups[rank].allreduce([torch.ones(1000)]) for rank in (0, 1)]  # rank 2 doesn't come
    aborter = threading.Thread(target=ranks.groups[0].abort)
    aborter.start()
    aborter.join(5)
    assert not aborter.is_alive()
    words = r"switchagg group g \(job torch-\w+, rank 0 of 3\): allreduce .*aborted the group"
    with pytest.raises(dist.DistBackendError, match=words):
        pending[0].wait()
    for begin in (lambda: ranks.groups[0].allreduce([torch.ones(4)]), ranks.groups[0].barrier):
        with pytest.raises(dist.DistBackendError, match="aborted the group"):
            begin().wait()
    assert "aborted" in str(ranks.groups[0].errored())
    assert ranks.groups[0].get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
    if method != "gloo~exact":  # Gloo says nothing to other ranks before its connections end
        with pytest.raises(dist.DistBackendError, match="rank 1 of 3"):
            pending[1].wait(timedelta(seconds=10))
        assert ranks.groups[1].errored() is not None
        assert ranks.groups[1].get_error() == torch._C._distributed_c10d.ErrorType.COMM_ERROR
    ranks.groups[1].abort()
    ranks.groups[2].abort()
    assert ranks.reconfigure(1, 0, 1, 2) == [True] * 3
    assert ranks.sums(0, 1, 2) == [6.0] * 3


@pytest.mark.parametrize("act", ["abort", "shutdown"])
def test_a_group_ends_while_its_job_recovers_from_a_lost_switch(
    open_ranks: Callable[..., Ranks], switch: SwitchDaemon, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """Rank 1 stands still, so that the others wait for it."""
    reached, end, opens = threading.Event(), threading.Event(), MovingSession._open_hosts

    def waits_on_rank_1(session: MovingSession, *arguments: Any) -> None:
        if session.rank == 1 and not end.is_set():
            reached.set()
            end.wait(60)
        opens(session, *arguments)

    monkeypatch.setattr(MovingSession, "_open_hosts", waits_on_rank_1)
    ranks = open_ranks("switch", fallback="ring")
    assert ranks.sums(0, 1, 2) == [6.0] * 3
    pending = [ranks.groups[rank].allreduce([torch.ones(1000)]) for rank in (0, 2)]
    switch._server.run_once = time.sleep  # type: ignore[method-assign]
    assert reached.wait(60)
    time.sleep(0.3)  # the others wait by then
    ender = threading.Thread(target=getattr(ranks.groups[0], act))
    ender.start()
    ender.join(15)
    assert not ender.is_alive()
    words = "aborted the group" if act == "abort" else "shut down"
    with pytest.raises(dist.DistBackendError, match=words):
        pending[0].wait()
    with pytest.raises(dist.DistBackendError, match="has not answered"):
        pending[1].wait()
    end.set()
    del switch._server.run_once  # it answers again
    if act == "abort":
        assert ranks.reconfigure(1, 0, 2) == [True] * 2
        assert ranks.sums(0, 2) == [4.0] * 2


def test_nothing_is_left_of_earlier_generations(open_ranks: Callable[..., Ranks]) -> None:
    ranks = open_ranks("switch")
    ranks.sums(0, 1, 2)

    def threads() -> set[str]:
        names = {thread.name for thread in threading.enumerate()}
        return {name for name in names if not name.startswith(("ThreadPool", "switchagg-completion"))}

    ranks.reconfigure(0, 0, 1, 2)
    before = len(threads())
    for uuid in range(1, 5):
        ranks.reconfigure(uuid, 0, 1, 2)
        ranks.sums(0, 1, 2)
    assert comes(lambda: len(threads()) <= before), threads()


def test_a_group_may_wait_for_its_ranks(open_ranks: Callable[..., Ranks]) -> None:
    ranks = open_ranks("ring", forms=False)
    assert [(group.rank(), group.size()) for group in ranks.groups] == [(0, 3), (1, 3), (2, 3)]
    (error,) = ranks.sums(1)
    assert "call reconfigure() first" in str(error)
    assert ranks.reconfigure(1, 0, 1, 2) == [True] * 3
    assert ranks.sums(0, 1, 2) == [6.0] * 3


def test_handles_and_uuids_that_can_t_be_are_refused(open_ranks: Callable[..., Ranks]) -> None:
    ranks = open_ranks("ring")
    group = ranks.groups[0]
    handle = group.get_reconfigure_handle()

    def error(uuid: int, handles: Any) -> str:
        with pytest.raises((RuntimeError, ValueError)) as raised:
            group.reconfigure(SimpleNamespace(uuid=uuid, handles=handles, timeout=timedelta(0)))
        return str(raised.value)

    assert "'gloo:1' is no handle of backend switchagg" in error(5, [handle, "gloo:1"])
    assert "needs the handle of this rank" in error(5, {ranks.groups[1].get_reconfigure_handle()})
    assert "each only once" in error(5, [handle, handle])
    assert ranks.sums(0, 1, 2) == [6.0] * 3  # nothing was changed
    assert ranks.reconfigure(5, 0) == [True]
    assert "uuid 5 was already used" in error(5, [handle])


def test_ranks_that_don_t_come_are_named_and_the_group_can_be_formed_anew(open_ranks: Callable[..., Ranks]) -> None:
    ranks = open_ranks("ring")
    group, other = ranks.groups[:2]
    wish = SimpleNamespace(uuid=7, handles=[group.get_reconfigure_handle(), other.get_reconfigure_handle()])
    wish.timeout = timedelta(seconds=0.3)
    with pytest.raises(dist.DistBackendError, match="rank 1 of 2 did not come"):
        group.reconfigure(wish)
    assert group.errored() is not None
    assert ranks.reconfigure(8, 0, 1) == [True] * 2
    assert ranks.sums(0, 1) == [3.0] * 2
