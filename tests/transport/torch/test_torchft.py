"""The process group for torchft: its contract, with a stand-in for torchft and with torchft itself where that is
installed; and training under torchft's managers, of which one dies and comes back."""

import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from transport.torch.rendezvous import SwitchOptions

ADAPTER = "transport.torch.elastic.torchft_group"
INSTALL = "pip install 'switchagg[torchft]'"
PLACE = {"quorum_id": 1, "group_rank": 0, "group_world_size": 1, "global_ranks": [0]}
"""What a manager says besides."""


class Wrapper(dist.ProcessGroup):
    """As torchft's ProcessGroupWrapper of 0.2.0, as far as the adapter uses it."""

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]  # stub lacks this constructor
        self._timeout, self._pg = timeout, None

    def configure(
        self, store_addr: str, replica_id: str, rank: int, world_size: int, quorum_id: int | None = None, **place: Any
    ) -> None:
        self.abort(errored=False)
        address, _, prefix = store_addr.partition("/")
        host, _, port = address.rpartition(":")
        c10d: Any = dist
        store = c10d.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=self._timeout)
        self._pg = self._create_pg(PrefixStore(prefix, store), rank, world_size)  # type: ignore[attr-defined]

    def abort(self, errored: bool = True) -> None:
        if self._pg is not None:
            self._pg.abort()
            self._pg = None

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @property
    def parent(self) -> Any:
        assert self._pg is not None, "process group not initialized"
        return self._pg

    def size(self) -> int:
        return int(self.parent.size())

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        return self.parent.recv(tensors, source, tag)


class DummyWork(dist.Work):
    def __init__(self) -> None:
        super().__init__()
        self.future_: torch.futures.Future[None] = torch.futures.Future()
        self.future_.set_result(None)

    def get_future(self) -> Any:
        return self.future_


class Manager:
    """As torchft's, without a quorum: after an error it sums nothing."""

    def __init__(self, pg: Any) -> None:
        self._pg, self.failed = pg, False

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False) -> Any:
        assert not should_quantize, "its kernels need CUDA"
        return DummyWork() if self.failed else self._pg.allreduce([tensor], dist.AllreduceOptions())


@pytest.fixture(params=["stand-in", "torchft"])
def adapter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The adapter's module, over a stand-in or torchft."""
    if request.param == "torchft":
        pytest.importorskip("torchft", reason=INSTALL)
    else:
        contents = {"process_group": {"ProcessGroupWrapper": Wrapper}, "manager": {"Manager": Manager}}
        for name, members in {"": {}, **contents, "work": {"_DummyWork": DummyWork}}.items():
            module = ModuleType(f"torchft.{name}".rstrip("."))
            vars(module).update(members)
            monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, ADAPTER, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    yield importlib.import_module(ADAPTER)
    sys.modules.pop(ADAPTER, None)


class Replicas:
    """Ranks as threads, each with its group, of one store."""

    def __init__(self, adapter: Any, count: int, **how: Any) -> None:
        c10d: Any = dist
        self.store = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        options = SwitchOptions(method="ring", bind="127.0.0.1")
        self.groups = [
            adapter.ProcessGroupSwitchagg(timeout=timedelta(seconds=20), options=options, **how) for _ in range(count)
        ]
        self._pool = ThreadPoolExecutor(count)

    def on(self, act: Callable[[int], Any], *ranks: int) -> list[Any]:
        """What `act(rank)` returned or raised on each of these."""
        calls = [self._pool.submit(act, rank) for rank in ranks]
        return [call.exception(60) or call.result() for call in calls]

    def configure(self, generation: int, *ranks: int) -> None:
        address = f"127.0.0.1:{self.store.port}/torchft/{generation}/0"
        assert self.on(
            lambda rank: self.groups[rank].configure(address, "0", ranks.index(rank), len(ranks), **PLACE), *ranks
        ) == [None] * len(ranks)

    def sums(self, *ranks: int) -> list[Any]:
        def total(rank: int) -> Any:
            values = torch.full((5000,), float(rank + 1))
            work = self.groups[rank].allreduce([values], dist.AllreduceOptions())
            return values.unique().item() if work.wait() and work.get_future().done() else False

        return self.on(total, *ranks)

    def close(self) -> None:
        for group in self.groups:
            group.shutdown()
        self._pool.shutdown()


@pytest.fixture
def replicas(adapter: Any) -> Iterator[Callable[..., Replicas]]:
    opened: list[Replicas] = []

    def make(count: int, **how: Any) -> Replicas:
        opened.append(Replicas(adapter, count, **how))
        return opened[-1]

    yield make
    for some in opened:
        some.close()


def test_a_death_is_told_by_errored_and_the_next_generation_works(replicas: Callable[..., Replicas]) -> None:
    """A sum that failed raises nothing, on whose error DDP of torchft 0.2 would end; what a checkpoint needs raises."""
    some = replicas(3)
    some.configure(1, 0, 1, 2)
    assert some.sums(0, 1, 2) == [6.0] * 3
    assert [(group.rank(), group.size()) for group in some.groups] == [(0, 3), (1, 3), (2, 3)]
    some.groups[2].shutdown()
    assert some.sums(0, 1) == [False, False]
    for group in some.groups[:2]:
        with pytest.raises(RuntimeError, match=r"process group was aborted: .*rank 2"):
            raise group.errored()
    (error,) = some.on(lambda rank: some.groups[rank].recv([torch.ones(1)], 1, 0).wait(), 0)
    assert isinstance(error, RuntimeError)
    some.configure(2, 1, 0)
    assert some.sums(0, 1) == [3.0] * 2
    assert [group.errored() for group in some.groups[:2]] == [None, None]
    some.groups[0].abort()
    assert "by this rank" in str(some.groups[0].errored())
    some.configure(3, 0, 1, 2)
    assert some.sums(0, 1, 2) == [6.0] * 3
    some.configure(4, 1)
    assert some.sums(1) == [2.0]


def test_a_generation_that_does_not_come_about_is_told_to_a_manager_by_errored(
    replicas: Callable[..., Replicas],
) -> None:
    some = replicas(2)
    lonely = some.groups[0]
    some.configure(1, 0, 1)
    lonely.set_timeout(timedelta(seconds=0.2))
    address = f"127.0.0.1:{some.store.port}/torchft/2/0"
    with pytest.raises(RuntimeError, match="rank 1 of 2 did not come"):
        lonely.configure(address, "0", 0, 2)
    lonely.configure(address + "/again", "0", 0, 2, **PLACE)
    assert "rank 1 of 2 did not come" in str(lonely.errored())
    assert some.sums(0) == [False]
    lonely.set_timeout(timedelta(seconds=20))
    some.configure(3, 0, 1)
    assert some.sums(0, 1) == [3.0] * 2


@pytest.mark.parametrize("adapter", ["stand-in"], indirect=True)
def test_should_quantize_sums_by_a_codec(adapter: Any, replicas: Callable[..., Replicas]) -> None:
    some = replicas(2, quantized="lanes8")
    managers = [adapter.SwitchaggManager(group) for group in some.groups]
    values = torch.linspace(-1, 1, 5000)

    def total(rank: int, quantized: bool) -> Any:
        tensor = values.clone()
        assert managers[rank].allreduce(tensor, should_quantize=quantized).wait()
        return tensor

    for generation in (1, 2):
        some.configure(generation, 0, 1)
        exact, coded = (some.on(lambda rank, how=how: total(rank, how), 0, 1) for how in (False, True))
        assert all(torch.equal(tensor, 2 * values) for tensor in exact)
        assert torch.equal(*coded)
        assert 0 < (coded[0] - 2 * values).abs().max() <= 2 / 63  # each of two ranks rounds to one of 63 steps
    managers[0].failed = True
    future = managers[0].allreduce(values).get_future()
    assert future._fut.done()  # as the hook of torchft's DDP asks


def test_a_codec_that_cannot_quantize_is_refused_in_a_line(adapter: Any) -> None:
    options = SwitchOptions(method="ring", bind="127.0.0.1")
    group = adapter.ProcessGroupSwitchagg
    with pytest.raises(dist.DistBackendError, match=r"no names of parameters.*leave \+ef and warmup out"):
        group(options=options, quantized="lanes8+ef")
    with pytest.raises(dist.DistBackendError, match="lanes9"):
        group(options=options, quantized="lanes9")
    manager = object.__new__(adapter.SwitchaggManager)
    for pg, words in ((group(options=options), "no codec is named"), (None, "not NoneType")):
        manager._pg = pg
        with pytest.raises(ValueError, match=f"should_quantize: .*{words}"):
            manager.allreduce(torch.ones(1), should_quantize=True)


def train(adapter: Any, lighthouse: Any, number: int, dies_at: int, stop: threading.Event, steps: list[Any]) -> None:
    """One replica in training under torchft, until its step is `dies_at`, or `stop`. steps: for each that was made its
    number, how many replicas took part, the parameters, and a quantized mean."""
    import torchft

    c10d: Any = dist
    store = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    options = SwitchOptions(method="ring", bind="127.0.0.1")
    group = adapter.ProcessGroupSwitchagg(timeout=timedelta(seconds=20), options=options, quantized="lanes8")
    model = torch.nn.Linear(4, 3)  # other values on each replica, until it is healed
    manager = adapter.SwitchaggManager(
        pg=group,
        min_replica_size=1,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        replica_id=f"replica_{number}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse.address(),
        hostname="127.0.0.1",
        timeout=timedelta(seconds=20),
        use_async_quorum=False,
    )
    wrapped = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, torch.optim.SGD(wrapped.parameters(), 0.1))
    try:
        while manager.current_step() < dies_at and not stop.is_set():
            optimizer.zero_grad()
            wrapped(torch.full((2, 4), number + 1.0)).square().mean().backward()
            mean = torch.linspace(-1, 1, 5000)
            manager.allreduce(mean, should_quantize=True).wait()
            before = manager.current_step()
            optimizer.step()
            if manager.current_step() > before:
                parameters = torch.cat([values.detach().flatten() for values in model.parameters()])
                steps.append((before, manager.num_participants(), parameters.clone(), mean))
    finally:
        manager.shutdown(wait=False)
        group.shutdown()


@pytest.mark.parametrize("adapter", ["torchft"], indirect=True)
def test_training_under_torchft_goes_on_without_a_replica_and_takes_it_back(adapter: Any) -> None:
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=200, quorum_tick_ms=50, heartbeat_timeout_ms=1000
    )
    steps: list[list[Any]] = [[], [], []]  # of the one that lives, the one that dies, and the one that comes
    stop = threading.Event()
    try:
        with ThreadPoolExecutor(3) as pool:
            lives = pool.submit(train, adapter, lighthouse, 0, 10**6, stop, steps[0])
            pool.submit(train, adapter, lighthouse, 1, 6, stop, steps[1]).result(120)
            wait_for(lambda: steps[0][-1][1] == 1, lives)
            comes = pool.submit(train, adapter, lighthouse, 1, 10**6, stop, steps[2])
            wait_for(lambda: len(steps[2]) > 3 and steps[0][-1][1] == 2, lives, comes)
            stop.set()
            for replica in (lives, comes):
                replica.result(60)
    finally:
        stop.set()
        lighthouse.shutdown()
    living = {step: values for step, _, *values in steps[0]}
    for others in steps[1:]:
        together = [step for step in others if step[1] == 2 and step[0] in living]
        assert together
        for step, _, parameters, mean in together:
            assert torch.equal(parameters, living[step][0]), f"step {step}"
            assert 0 < (mean - torch.linspace(-1, 1, 5000)).abs().max() <= 1 / 63
    assert steps[2][0][0] > steps[1][-1][0]


def wait_for(condition: Callable[[], bool], *replicas: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        assert not any(replica.done() and replica.result() for replica in replicas)
        time.sleep(0.05)
