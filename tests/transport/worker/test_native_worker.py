"""The native worker loop on real sockets: lossy networks, few slots, refusals of the kernel, every way to stop it."""

import ast
import gc
import os
import shutil
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from udp_relay import UdpRelay

import transport.worker.worker_loop
from switchagg.calls.array_calls import array_call
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import AggregationFailed, JobError
from switchagg.job import JobConfig, StreamConfig
from switchagg.native import library
from transport.links import udp_link
from transport.links.link import Address
from transport.links.udp_link import UdpLink
from transport.switch.native_switch_loop import NativeSwitchLoop
from transport.switch.switch_loop import SwitchLoop
from transport.worker.native_worker_loop import NativeWorkerLoop
from transport.worker.worker_loop import CallLoop, WorkerLoop

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"native worker loop: {library.missing()}")

LOOPBACK = ("127.0.0.1", 0)
LIVENESS_S = 120.0
SO_NO_CHECK = 11
NEVER_NS = 100_000_000_000


def job_of(workers: int, window: int = 64, streams: int = 2, elements: int = 32, **options: int) -> JobConfig:
    shares = tuple(StreamConfig(index * window, window) for index in range(streams))
    return JobConfig(job_id=7, generation=3, workers=workers, elements=elements, streams=shares, **options)


class Net:
    """A switch, native workers, and, if faults are asked for, a relay between them."""

    def __init__(
        self,
        job: JobConfig,
        *,
        loops: tuple[type[CallLoop], ...] = (NativeWorkerLoop,),
        native_switch: bool = False,
        faults: dict[str, Any] | None = None,
        **of_links: Any,
    ) -> None:
        self.job = job
        self.relay: UdpRelay | None = None
        self.links = [UdpLink(LOOPBACK, **of_links) for _ in range(job.workers)]
        switch_link = UdpLink(LOOPBACK, **of_links)
        slots = sum(stream.window_slots for stream in job.streams)
        made = NativeSwitchLoop if native_switch else SwitchLoop
        self.switch = made(switch_link, DATAPLANES["native"](slots, job.elements))
        self.switch.start()
        addresses: list[Address] = [link.address for link in self.links]
        targets = [switch_link.address] * job.workers
        if faults is not None:
            self.relay = UdpRelay(addresses, switch_link.address, **faults)
            addresses, targets = self.relay.seen_as, self.relay.towards_switch
        self.switch.admit(job, addresses)
        self.workers = [
            loops[rank % len(loops)](link, job, rank, targets[rank]) for rank, link in enumerate(self.links)
        ]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        if self.relay is not None:
            self.relay.close()
        self.switch.stop()

    def submit(self, rank: int, array: np.ndarray, stream: int = 0) -> Future[Any]:
        return self.workers[rank].submit(stream, array_call(array, "sum", self.job), array)

    def check_sums(self, calls: int, length: int, seed: int = 0) -> None:
        """Many calls at once, over all streams; every rank must end with the exact sum."""
        random = np.random.default_rng(seed)
        running = []
        for number in range(calls):
            arrays = [random.integers(-(1 << 31), 1 << 31, length + number).astype(np.int32) for _ in self.workers]
            expected = np.sum(np.stack(arrays).astype(np.int64), axis=0).astype(np.int32)  # wraps as the switch does
            stream = number % len(self.job.streams)
            running.append((arrays, expected, [self.submit(rank, array, stream) for rank, array in enumerate(arrays)]))
        for arrays, expected, futures in running:
            for future in futures:
                future.result(LIVENESS_S)
            for array in arrays:
                np.testing.assert_array_equal(array, expected)


@pytest.fixture
def net() -> Iterator[Callable[..., Net]]:
    made: list[Net] = []

    def maker(*args: Any, **options: Any) -> Net:
        made.append(Net(*args, **options))
        return made[-1]

    yield maker
    for one in made:
        one.close()


@pytest.fixture(autouse=True)
def no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that sleeps too long isn't helped by its look once a second."""
    monkeypatch.setattr(transport.worker.worker_loop, "IDLE_S", 3600.0)


# ---- sums


@pytest.mark.parametrize("window", [2, 3, 4])
@pytest.mark.parametrize("native_switch", [False, True])
def test_four_workers_on_few_slots_keep_exact_sums_on_a_lossy_network(
    net: Callable[..., Net], window: int, native_switch: bool
) -> None:
    faults = {"seed": window, "loss": 0.01, "duplicate": 0.05, "reorder": 0.1, "depth": 16}
    job = job_of(4, window, rto_initial_ns=20_000_000)
    one = net(job, native_switch=native_switch, faults=faults)
    one.check_sums(calls=12, length=1500, seed=window)
    assert one.relay is not None
    for kind in ("lost", "duplicated", "reordered"):
        assert getattr(one.relay, kind) > 0, kind
    assert sum(worker.counters["retransmitted"] for worker in one.workers) > 0


@pytest.mark.parametrize("loop", [NativeWorkerLoop, WorkerLoop])
def test_a_rank_that_flushes_subnormal_numbers_gets_the_same_bits(
    net: Callable[..., Net], loop: type[CallLoop]
) -> None:
    """F7: the setting belongs to a thread, and those it makes."""
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor can't")
    try:
        one = net(job_of(2, rto_initial_ns=NEVER_NS, rto_min_ns=NEVER_NS, rto_max_ns=NEVER_NS), loops=(loop,))
    finally:
        torch.set_flush_denormal(False)
    arrays = [np.full(100, 3e-40, np.float32) for _ in one.workers]
    for future in [one.submit(rank, array) for rank, array in enumerate(arrays)]:
        future.result(LIVENESS_S)
    for array in arrays:
        assert (array == np.float32(3e-40) + np.float32(3e-40)).all()


def test_python_and_native_workers_share_a_job(net: Callable[..., Net]) -> None:
    job = job_of(4, rto_initial_ns=20_000_000)
    one = net(job, loops=(NativeWorkerLoop, WorkerLoop), faults={"seed": 9, "loss": 0.005, "reorder": 0.05})
    one.check_sums(calls=6, length=5000)
    arrays = [np.linspace(-1, 1, 5000, dtype=np.float32) * (rank + 1) for rank in range(4)]
    for future in [one.submit(rank, array) for rank, array in enumerate(arrays)]:
        future.result(LIVENESS_S)
    assert all((array == arrays[0]).all() for array in arrays)
    np.testing.assert_allclose(arrays[0], np.linspace(-10, 10, 5000), atol=1e-5)


@pytest.mark.parametrize("segments_max", [1, 16, 64])
@pytest.mark.parametrize("gso", [None, False])
def test_with_and_without_segmentation(net: Callable[..., Net], gso: bool | None, segments_max: int) -> None:
    one = net(job_of(2, elements=360), gso=gso, segments_max=segments_max)
    one.check_sums(calls=4, length=50_000)
    counters = one.workers[0].counters
    assert counters["link_sent_datagrams"] == counters["sent"] + counters["retransmitted"]
    in_one_call = counters["link_sent_datagrams"] / counters["link_sent_bundles"]
    assert in_one_call <= segments_max
    assert (in_one_call > 2) == (gso is None and segments_max > 1)


def test_segmentation_is_tried_once_if_the_kernel_refuses_it(net: Callable[..., Net]) -> None:
    one = net(job_of(2, elements=360, rto_initial_ns=NEVER_NS, rto_min_ns=NEVER_NS, rto_max_ns=NEVER_NS))
    if not one.links[0].gso:
        pytest.skip("this kernel has no UDP_SEGMENT")
    one.links[0]._socket.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)  # then the kernel won't segment
    one.check_sums(calls=2, length=50_000)
    counters = one.workers[0].counters
    assert counters["link_gso_fallbacks"] == 1
    assert counters["link_sent_bundles"] == counters["link_sent_datagrams"]
    assert counters["link_send_errors"] == counters["retransmitted"] == 0
    assert not one.links[0].gso
    assert "Invalid argument" in one.links[0].gso_fallback
    assert one.workers[1].counters["link_gso_fallbacks"] == 0


def test_a_kernel_that_refused_segmentation_is_asked_again(
    net: Callable[..., Net], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp_link, "GSO_RETRY_NS", 1)
    one = net(job_of(2, elements=360, rto_initial_ns=NEVER_NS, rto_min_ns=NEVER_NS, rto_max_ns=NEVER_NS))
    if not one.links[0].gso:
        pytest.skip("this kernel has no UDP_SEGMENT")
    one.links[0]._socket.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
    one.check_sums(calls=2, length=50_000)
    assert one.workers[0].counters["link_gso_fallbacks"] > 1


HELPERS = os.pathsep.join(str(Path(__file__).parents[3] / folder) for folder in ("", "tests/shared"))

IN_A_NETWORK_OF_ITS_OWN = """
import sys
sys.path.insert(0, {tests!r})
from test_native_worker import NEVER_NS, Net, job_of
job = job_of(2, elements=360, rto_initial_ns=NEVER_NS, rto_min_ns=NEVER_NS, rto_max_ns=NEVER_NS)
net = Net(job, **{of_links!r})
net.check_sums(calls=2, length=20_000)
counters = net.workers[0].counters
net.close()
print((counters, net.links[0].gso_fallback))
"""


def counters_behind(setup: str, **of_links: int) -> tuple[dict[str, int], str]:
    """Run sums in a network namespace whose loopback `setup` has changed: counters and gso_fallback of rank 0."""
    program = IN_A_NETWORK_OF_ITS_OWN.format(tests=str(Path(__file__).parent), of_links=of_links)
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", f'{setup} && exec "$0" -c "$1"', sys.executable, program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": HELPERS},
    )
    assert done.returncode == 0, done.stderr
    said: tuple[dict[str, int], str] = ast.literal_eval(done.stdout)
    return said


@pytest.mark.system
def test_a_small_path_mtu_ends_segmentation_but_no_call(requires_root_namespaces: None) -> None:
    counters, fallback = counters_behind("ip link set lo mtu 1280 up")
    assert counters["link_gso_fallbacks"] == 1
    assert counters["link_send_errors"] == 0
    assert fallback.startswith("sending ")


@pytest.mark.system
def test_a_full_socket_delays_packets_and_loses_none(requires_root_namespaces: None) -> None:
    if shutil.which("tc") is None:
        pytest.skip("needs tc (package iproute2)")
    slow = "ip link set lo up && tc qdisc add dev lo root tbf rate 20mbit burst 32kb limit 10mb"
    counters, _ = counters_behind(slow, send_buffer_bytes=16_384)
    assert counters["link_send_would_block"] > 0
    assert counters["link_send_errors"] == 0
    assert counters["retransmitted"] == 0
    assert counters["link_sent_datagrams"] == counters["sent"]


@pytest.mark.parametrize(("bind", "level", "option"), [("127.0.0.1", 0, 1), ("::1", 41, 67)])
def test_a_link_has_the_tos_it_was_given(bind: str, level: int, option: int) -> None:
    link = UdpLink((bind, 0), tos=0xBA)
    assert link._socket.getsockopt(level, option) == 0xBA
    link.close()
    with pytest.raises(ValueError, match="tos 256"):
        UdpLink((bind, 0), tos=256)


def test_ipv6() -> None:
    link, switch_link = UdpLink(("::1", 0)), UdpLink(("::1", 0))
    job = job_of(1)
    switch = SwitchLoop(switch_link, DATAPLANES["native"](128, job.elements))
    address = switch_link.address
    switch.start()
    switch.admit(job, [link.address])
    worker = NativeWorkerLoop(link, job, 0, address)
    array = np.arange(5000, dtype=np.int32)
    worker.submit(0, array_call(array, "sum", job)).result(LIVENESS_S)
    assert (array == np.arange(5000)).all()
    assert worker.counters["drop_unknown_sender"] == 0
    worker.close()
    switch.stop()


# ---- turning


def processor_and_wakings(thread: threading.Thread) -> tuple[int, int]:
    """Clock ticks the thread has worked, and how often it went to sleep."""
    task = Path(f"/proc/self/task/{thread.native_id}")
    stat = (task / "stat").read_text().rsplit(") ", 1)[1].split()
    status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
    return int(stat[11]) + int(stat[12]), int(status["voluntary_ctxt_switches"])


def test_an_idle_loop_sleeps(net: Callable[..., Net]) -> None:
    one = net(job_of(1))
    one.check_sums(calls=3, length=1000)
    pause = threading.Event()
    pause.wait(0.1)
    before = processor_and_wakings(one.workers[0]._thread)
    pause.wait(0.5)
    after = processor_and_wakings(one.workers[0]._thread)
    assert after[0] - before[0] <= 2
    assert after[1] - before[1] <= 4
    one.check_sums(calls=1, length=1000)


def test_no_call_is_lost_between_two_sleeps(net: Callable[..., Net]) -> None:
    """Calls without packets, each as the loop goes to sleep after the one before: only its own wake-up can end that."""
    one = net(job_of(1))
    nothing = np.zeros(0, np.int32)
    for _ in range(20_000):
        assert one.submit(0, nothing).result(LIVENESS_S) is nothing


def test_calls_of_many_threads_all_end(net: Callable[..., Net]) -> None:
    one = net(job_of(1, streams=4))
    done = [0] * 4

    def caller(stream: int) -> None:
        for value in range(500):
            array = np.full(3, value, np.int32)
            one.submit(0, array, stream).result(LIVENESS_S)
            done[stream] += array.tolist() == [value] * 3

    threads = [threading.Thread(target=caller, args=(stream,)) for stream in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [500] * 4


def test_a_storm_of_wakes_changes_nothing(net: Callable[..., Net]) -> None:
    one = net(job_of(2))
    end = threading.Event()

    def storm() -> None:
        while not end.is_set():
            for worker, link in zip(one.workers, one.links, strict=True):
                link.wake()
                with worker._lock:
                    worker._interrupt()

    stormers = [threading.Thread(target=storm) for _ in range(3)]
    for stormer in stormers:
        stormer.start()
    try:
        one.check_sums(calls=10, length=20_000)
    finally:
        end.set()
        for stormer in stormers:
            stormer.join()


# ---- ends


def test_close_during_a_call_releases_every_array(net: Callable[..., Net]) -> None:
    one = net(job_of(2, window=512))
    references, futures = [], []
    for rank in range(2):
        for stream in range(2):
            array = np.ones(4_000_000, np.float32)
            references.append(weakref.ref(array))
            futures.append(one.submit(rank, array, stream))
            del array
    while one.workers[0].counters["results"] < 5000:
        assert one.workers[0].failure is None
    assert not futures[0].done()
    assert references[0]() is not None  # nobody but the loop holds it
    one.workers[0].close()
    assert isinstance(futures[0].exception(0), AggregationFailed)
    assert isinstance(futures[1].exception(0), AggregationFailed)
    assert isinstance(one.submit(0, np.ones(5, np.float32)).exception(0), AggregationFailed)
    assert one.workers[0].counters["results"] >= 5000
    gc.collect()
    assert [reference() is None for reference in references] == [True, True, False, False]


def test_an_array_is_not_written_after_its_call_has_failed(net: Callable[..., Net]) -> None:
    one = net(job_of(2, window=512))
    arrays = [np.ones(2_000_000, np.int32) for _ in range(2)]
    futures = [one.submit(rank, array) for rank, array in enumerate(arrays)]
    while one.workers[0].counters["results"] < 3000:
        assert one.workers[0].failure is None
    seen: list[np.ndarray] = []
    futures[0].add_done_callback(lambda future: seen.append(arrays[0].copy()))
    one.workers[0].fail(RuntimeError("enough"))
    assert str(futures[0].exception(LIVENESS_S)) == "enough"
    one.workers[0].close()
    assert (seen[0] == arrays[0]).all()
    assert 3000 * 32 <= (arrays[0] == 2).sum() < arrays[0].size


def test_a_callback_may_close_the_loop_while_other_calls_are_in_flight(net: Callable[..., Net]) -> None:
    one = net(job_of(2))
    closed = threading.Event()

    def close(future: Future[Any]) -> None:
        one.workers[0].close()
        closed.set()

    long = [one.submit(rank, np.ones(3_000_000, np.int32), 1) for rank in range(2)]
    short = [one.submit(rank, np.ones(10, np.int32), 0) for rank in range(2)]
    short[0].add_done_callback(close)
    assert closed.wait(LIVENESS_S)
    one.workers[0].close()
    assert isinstance(long[0].exception(LIVENESS_S), AggregationFailed)


def test_a_dead_switch_fails_the_calls(net: Callable[..., Net]) -> None:
    """Its port answers with ICMP refusals: on a connected socket they are errors of send and receive."""
    gone = UdpLink(LOOPBACK)
    address = gone.address
    gone.close()
    job = job_of(1, rto_initial_ns=5_000_000, rto_min_ns=2_000_000, rto_max_ns=10_000_000, retry_limit=5)
    link = UdpLink(LOOPBACK)
    link._socket.connect(address)
    worker = NativeWorkerLoop(link, job, 0, address)
    error = worker.submit(0, array_call(np.ones(500, np.int32), "sum", job)).exception(LIVENESS_S)
    assert isinstance(error, AggregationFailed)
    counters = worker.counters
    assert counters["timeouts"] > 5
    assert counters["link_receive_errors"] + counters["link_send_errors"] > 0
    assert "Connection refused" in link.last_error
    worker.close()


def test_another_link_is_refused() -> None:
    class Other:
        def resolve(self, address: Address) -> Address:
            return address

    with pytest.raises(JobError, match="needs a UDP link, not Other"):
        NativeWorkerLoop(Other(), job_of(1), 0, LOOPBACK)  # type: ignore[arg-type]


def test_the_interpreter_exits_with_a_call_in_flight() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_native_worker import *\n"
        "net = Net(job_of(2, window=512))\n"
        "futures = [net.submit(rank, np.ones(4_000_000, np.float32)) for rank in range(2)]\n"
        "while net.workers[0].counters['results'] < 2000: pass\n"
        "print('over')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": HELPERS},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")
