"""Parameter servers in real time: over TCP and ZeroMQ, separate and co-located; deaths, disagreements, the command."""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from rank_threads import outcomes
from typer.testing import CliRunner

from emulation.cli.main import app
from switchagg.calls.call_request import own_shard
from switchagg.errors import AggregationFailed, JobError
from tests.transport.contracts.meshes import free_addresses
from transport.group.group_opening import open_group
from transport.group.method_name import links_of
from transport.group.ps_group import (
    PsClient,
    PsGroup,
    PsOptions,
    PsServerHost,
    open_ps_client,
    open_ps_group,
    open_ps_server,
)
from transport.meshes.mesh_opening import bind_place
from transport.ps.config import ASP, BACKUP, SSP, PsConfig
from transport.zeromq.keys import make_keys

JOIN_S = 120.0
Act = Callable[[int, Any], Any]


def all_at_once(acts: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each returned or raised, each in a thread."""
    return outcomes(len(acts), lambda number: acts[number]())


class Job:
    """Workers and separate servers on this machine, a thread each."""

    def __init__(self, workers: int, servers: int, link: str = "tcp", opener: Any = open_ps_group) -> None:
        places = free_addresses(workers + servers)
        self.workers, self.servers = places[:workers], places[workers:]
        self.link, self.opener = link, opener
        self.hosts: SimpleQueue[PsServerHost] = SimpleQueue()
        self.log: list[str] = []

    def serve(self, number: int) -> tuple[str | None, dict[str, int]]:
        options = PsOptions(JOIN_S, log=self.log.append)
        host = open_ps_server(self.link, number, self.workers, self.servers, options=options)
        self.hosts.put(host)
        assert host.wait(JOIN_S)
        host.close()
        return host.failure, dict(host.counters)

    def work(self, rank: int, act: Act, config: PsConfig | None = None, **how: Any) -> Any:
        options = PsOptions(JOIN_S, **how)
        group = self.opener(self.link, rank, self.workers, self.servers, config=config, options=options)
        try:
            return act(rank, group)
        finally:
            group.close()

    def run(
        self, act: Act, configs: Sequence[PsConfig | None] | None = None, **how: Any
    ) -> tuple[list[Any], list[Any]]:
        """What the workers returned or raised, and how the servers ended."""
        configs = configs or [None] * len(self.workers)

        def working(rank: int) -> Callable[[], Any]:
            return lambda: self.work(rank, act, configs[rank], **how)

        def serving(number: int) -> Callable[[], Any]:
            return lambda: self.serve(number)

        found = all_at_once([*map(working, range(len(self.workers))), *map(serving, range(len(self.servers)))])
        return found[: len(self.workers)], found[len(self.workers) :]


@pytest.mark.parametrize("link", ["tcp", "zeromq"])
def test_means_over_a_link(link: str) -> None:
    workers, elements = 3, 100_003
    inputs = [np.random.default_rng(rank).standard_normal(elements).astype(np.float32) for rank in range(workers)]
    total = inputs[0] + inputs[1] + inputs[2]

    def act(rank: int, group: PsGroup) -> None:
        assert (group.rank, group.workers, group.method, group.link, group.matching) == (rank, 3, "ps", link, "key")
        array = inputs[rank].copy()
        mine = group.reduce_scatter(array, "avg").result(JOIN_S)
        assert mine.tobytes() == (own_shard(total, rank, 3) / np.float32(3)).tobytes()
        assert np.shares_memory(mine, array)
        gathered = group.all_gather(array).result(JOIN_S)
        assert gathered.tobytes() == (total / np.float32(3)).tobytes()
        with pytest.raises(ValueError, match="op 'product'"):
            group.allreduce(array, "product")

    done, ended = Job(workers, 2, link).run(act)
    assert done == [None] * 3
    assert [failure for failure, _ in ended] == [None, None]
    assert all(counters["bad_heads"] == 0 for _, counters in ended if "bad_heads" in counters)


@pytest.mark.parametrize("link", ["tcp", "zeromq"])
def test_staleness_bounded_training_on_colocated_servers(link: str) -> None:
    """One server beside each worker; the slowest ends with weights that hold everybody's gradients."""
    workers, rounds = 3, 8
    places = [bind_place(link, "127.0.0.1") for _ in range(workers)]
    addresses = [place.address for place in places]
    config = PsConfig(workers, mode=SSP, staleness=2, learning_rate=1.0, tensor_bytes=(40_000, 12, 400_000))

    def work(rank: int) -> list[float]:
        client = open_ps_client(
            link,
            rank,
            addresses,
            config=config,
            bound=places[rank],
            options=PsOptions(JOIN_S),
        )
        with client:
            tensors = [np.full(size // 4, 100, np.float32) for size in config.tensor_bytes]
            for key, tensor in enumerate(tensors):
                client.init(key, tensor).result(JOIN_S)
            for _ in range(rounds):
                calls = [
                    client.push_pull(key, np.ones_like(tensor), tensor, priority=key)
                    for key, tensor in enumerate(tensors)
                ]
                for call in calls:
                    call.result(JOIN_S)
            client.barrier().result(JOIN_S)
            return [float(client.pull(key, tensor).result(JOIN_S).max()) for key, tensor in enumerate(tensors)]

    assert (
        all_at_once([lambda rank=rank: work(rank) for rank in range(workers)])
        == [  # type: ignore[misc]
            [100.0 - workers * rounds] * 3
        ]
        * workers
    )


def test_the_group_of_the_method_ps_with_servers() -> None:
    """As scenarios and PyTorch open it: options of the servers come with the workers."""
    job = Job(3, 1)

    def act(rank: int) -> float:
        group = open_group(
            "ps",
            "tcp",
            rank,
            job.workers,
            servers=job.servers,
            job="ps",
            options={"ps": {"mode": BACKUP, "backups": 1}},
        )
        value = float(group.allreduce(np.ones(10, np.float32)).result(JOIN_S)[0])
        group.close()
        return value

    found = all_at_once([lambda rank=rank: act(rank) for rank in range(3)] + [lambda: job.serve(0)])  # type: ignore[misc]
    assert set(found[:3]) <= {2.0, 3.0}
    assert len(set(found[:3])) == 1
    assert found[3][0] is None


def test_wrong_options_are_refused() -> None:
    with pytest.raises(JobError, match=r"option ps: mode 'x' is unknown; allowed: bsp"):
        open_group("ps", "tcp", 0, [("h", 1)], servers=[("h", 2)], job="a", options={"ps": {"mode": "x"}})
    with pytest.raises(JobError, match=r"rank 4 of 1 workers"):
        open_ps_group("tcp", 4, [("h", 1)], [("h", 2)])
    with pytest.raises(JobError, match=r"server 3 of 1: 0 to 0"):
        open_ps_server("tcp", 3, [("h", 1)], [("h", 2)])


def test_a_worker_may_leave_a_job_that_needs_it_no_more() -> None:
    """Its server has answered everything that was requested; a later request fails and names the dead member."""
    places = free_addresses(3)

    def act(rank: int) -> Any:
        with open_ps_group("tcp", rank, places, options=PsOptions(JOIN_S)) as group:
            total = int(group.allreduce(np.ones(100_000, np.int32)).result(JOIN_S).sum())
            time.sleep(0.2 * (rank == 2))  # the others have left by then, but for their servers
            told = int(group.broadcast(np.full(50_000, rank, np.int32), 1).result(JOIN_S).sum())
            if rank == 2:
                with pytest.raises(AggregationFailed, match=r"(rank|server) [01]"):
                    group.barrier().result(JOIN_S)
            return total, told

    assert all_at_once([lambda rank=rank: act(rank) for rank in range(3)]) == [(300_000, 50_000)] * 3  # type: ignore[misc]


def test_a_worker_that_dies_is_named_everywhere() -> None:
    job = Job(3, 2)
    all_began = threading.Barrier(3)

    def act(rank: int, group: PsGroup) -> str:
        group.barrier().result(JOIN_S)
        all_began.wait(JOIN_S)  # one server's word of a death may overtake another's answer to the barrier
        if rank == 1:
            group._loop.close(0.0)  # as a process that ends: no word of leaving
            return ""
        with pytest.raises(AggregationFailed) as caught:
            group.allreduce(np.ones(100_000, np.float32)).result(JOIN_S)
        assert caught.value.missing == (1,)
        assert caught.value.job == "ps"
        with pytest.raises(AggregationFailed):
            group.barrier().result(JOIN_S)
        return str(caught.value)

    words, ended = job.run(act)
    place = f"rank 1 ({job.workers[1][0]}:{job.workers[1][1]})"
    assert all(f"{place} is lost" in words[rank] for rank in (0, 2)), words
    assert all(place in failure for failure, _ in ended)


def test_a_rank_that_dies_with_the_server_beside_it_is_named_everywhere() -> None:
    places = free_addresses(3)
    all_began = threading.Barrier(3)

    def act(rank: int) -> str:
        with open_ps_group("tcp", rank, places, options=PsOptions(JOIN_S)) as group:
            group.barrier().result(JOIN_S)
            all_began.wait(JOIN_S)
            if rank == 1:
                group._loop.close(0.0)  # as a process that ends: no word of leaving
                return ""
            with pytest.raises(AggregationFailed) as caught:
                group.allreduce(np.ones(100_000, np.float32)).result(JOIN_S)
            return str(caught.value)

    words = all_at_once([lambda rank=rank: act(rank) for rank in range(3)])  # type: ignore[misc]
    place = f"1 ({places[1][0]}:{places[1][1]})"
    assert all(f"{place} is lost" in words[rank] for rank in (0, 2)), words


def test_a_job_may_go_on_without_a_worker() -> None:
    job = Job(3, 2)
    all_began = threading.Barrier(3)

    def act(rank: int, group: PsGroup) -> Any:
        group.barrier().result(JOIN_S)
        all_began.wait(JOIN_S)
        if rank == 1:
            group._loop.close(0.0)
            return None
        array = np.full(100_000, 1 + rank, np.float32)
        total = group.allreduce(array.copy()).result(JOIN_S)
        mean = group.allreduce(array, "avg").result(JOIN_S)
        return set(total.tolist()), set(mean.tolist()), group.live_workers

    config = PsConfig(3, on_worker_loss="shrink")
    done, ended = job.run(act, [config] * 3)
    assert done[0] == done[2] == ({4.0}, {2.0}, 2)
    assert [failure for failure, _ in ended] == [None, None]
    assert sum("rank 1" in line for line in job.log) == 2


def test_a_server_that_is_stopped_is_named() -> None:
    job = Job(2, 1)
    all_began = threading.Barrier(2)

    def act(rank: int, group: PsGroup) -> str:
        group.barrier().result(JOIN_S)
        all_began.wait(JOIN_S)
        waiting = group.barrier() if rank == 0 else group.allreduce(np.ones(3, np.float32), key=7)
        if rank == 1:
            job.hosts.get(timeout=JOIN_S).stop("SIGTERM")  # it may have served us before it was put there
        with pytest.raises(AggregationFailed) as caught:
            waiting.result(JOIN_S)
        return str(caught.value)

    words, ended = job.run(act)
    assert all("server 0" in one and "was stopped: SIGTERM" in one for one in words)
    assert "was stopped" in ended[0][0]


def test_configurations_that_differ_end_the_job_at_once() -> None:
    def act(rank: int, group: PsClient) -> str:
        with pytest.raises(AggregationFailed) as caught:
            group.barrier().result(JOIN_S)
        return str(caught.value)

    job = Job(2, 1, opener=open_ps_client)
    words, _ = job.run(act, [PsConfig(2, mode=ASP), PsConfig(2, mode=SSP)])
    for one in words:
        assert "has mode asp" in one
        assert "has mode ssp" in one
        assert "rank 0 (" in one
        assert "rank 1 (" in one


# ---- the command


def start_server(job: Job, *more: str) -> subprocess.Popen[str]:
    def listed(places: Sequence[tuple[str, int]]) -> str:
        return ",".join(f"{host}:{port}" for host, port in places)

    command = [sys.executable, "-m", "emulation.cli.main", "server", "--link", job.link]
    command += ["--workers", listed(job.workers), "--servers", listed(job.servers), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def listens(process: subprocess.Popen[str], address: tuple[str, int]) -> None:
    """Waits until the server has bound its port, or has ended."""
    assert process.stdout is not None
    assert process.stdout.readline().startswith("switchagg server waiting"), process.communicate()
    deadline = time.monotonic() + JOIN_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(address, JOIN_S):
            return
        time.sleep(0.02)
    raise AssertionError(f"no server listens at {address}")


@pytest.mark.parametrize(
    ("blow", "link"), list(zip(cycle((signal.SIGKILL, signal.SIGSTOP)), links_of("ps"), strict=False))
)
def test_sums_go_on_at_the_other_servers_when_one_is_killed_or_stopped(link: str, blow: signal.Signals) -> None:
    """Three server processes, several calls under way; the second one is struck while megabytes are on their way, and
    what it had is asked of the others."""
    job, calls, elements = Job(2, 3, link), 20, 250_000
    struck = threading.Event()

    def work(rank: int, group: Any) -> list[int]:
        arrays = [np.full(elements, (rank + 1) << call % 20, np.int64) for call in range(calls)]
        futures = []
        for call, array in enumerate(arrays):
            if call == 10 and rank == 0:
                futures[4].result(JOIN_S)
                processes[1].send_signal(blow)
                struck.set()
            futures.append(group.allreduce(array, key=call if call < 5 else None))
        for future in futures:
            future.result(JOIN_S)
        group.barrier().result(JOIN_S)
        counted.append(group.counters["lost_servers"])
        return [call for call, array in enumerate(arrays) if not (array == 3 << call % 20).all()]

    counted: list[int] = []
    config = PsConfig(2, 3, on_server_loss="move", heartbeat_s=0.3, dead_after_s=0.5)
    processes = [start_server(job, "--number", str(number)) for number in range(3)]
    try:
        acts = [lambda rank=rank: job.work(rank, work, config) for rank in range(2)]  # type: ignore[misc]
        assert all_at_once(acts) == [[], []]
        assert struck.is_set()
        assert counted == [1, 1]
        assert [processes[number].wait(JOIN_S) for number in (0, 2)] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_the_server_command_ends_when_its_job_is_done() -> None:
    job = Job(2, 1)

    def work(_: int, group: Any) -> float:
        total: float = group.allreduce(np.ones(5)).result(JOIN_S)[0]
        metrics.append(urllib.request.urlopen(url, timeout=JOIN_S).read().decode())
        return total

    metrics: list[str] = []
    with start_server(job, "--metrics", "0") as process:
        assert process.stdout is not None
        head = [process.stdout.readline() for _ in range(2)]
        url = head[1].removeprefix("switchagg server metrics: ").strip()
        totals = all_at_once([lambda rank=rank: job.work(rank, work) for rank in range(2)])  # type: ignore[misc]
        out, err = process.communicate(timeout=JOIN_S)
    assert totals == [2.0, 2.0]
    assert process.returncode == 0, err
    assert head[0].startswith("switchagg server waiting: tcp 127.0.0.1:")
    assert 'switchagg_server_events_total{event="pushes",server="0"} 2.0' in metrics[0]
    assert out.splitlines()[0].startswith("switchagg server ready: server 0 at 127.0.0.1:")
    assert out.splitlines()[1] == "switchagg server done: mode bsp, 2 slices pushed, 0.0 MB in, 0.0 MB out"


def test_only_workers_with_keys_can_connect(tmp_path: Path) -> None:
    make_keys(tmp_path / "ours")
    make_keys(tmp_path / "others")
    job = Job(1, 1, "zeromq")
    with start_server(job, "--keys", str(tmp_path / "ours"), "--timeout", str(JOIN_S)) as process:
        with pytest.raises(JobError):
            open_ps_group(
                "zeromq",
                0,
                job.workers,
                job.servers,
                options=PsOptions(1.5, link={"keys": tmp_path / "others"}),
            )
        keys = {"keys": tmp_path / "ours"}
        total = job.work(0, lambda _, group: group.allreduce(np.ones(5)).result(JOIN_S)[0], link=keys)
        process.communicate(timeout=JOIN_S)
    assert total == 1.0
    assert process.returncode == 0


def test_a_server_s_token_is_in_a_file_and_a_worker_without_it_keeps_nobody_waiting(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("a secret of this job\n")
    secret.chmod(0o600)
    job = Job(1, 1)
    with start_server(job, "--token-file", str(secret), "--timeout", str(JOIN_S)) as process:
        listens(process, job.servers[0])
        with pytest.raises(JobError, match="that they have this job's token"):
            open_ps_group("tcp", 0, job.workers, job.servers, options=PsOptions(10.0, token="a secret of that job"))
        with open_ps_group(
            "tcp", 0, job.workers, job.servers, options=PsOptions(JOIN_S, token=secret.read_text())
        ) as group:
            assert group.allreduce(np.ones(5)).result(JOIN_S)[0] == 1.0
        _, err = process.communicate(timeout=JOIN_S)
    assert process.returncode == 0
    assert "secret" not in err


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (None, 0, "can't be read: "),
        ("", 0o600, "empty; make one with `openssl rand -hex 32 > "),
        ("a secret of this job", 0o644, "others may read it; run `chmod 600 "),
        ("short", 0o600, "a token of 5 characters can be guessed; make one with `openssl rand -hex 32`"),
    ],
)
def test_a_token_file_that_keeps_no_secret_is_refused(tmp_path: Path, text: str | None, mode: int, words: str) -> None:
    secret = tmp_path / "token"
    if text is not None:
        secret.write_text(text)
        secret.chmod(mode)
    arguments = ["server", "--workers", "h:1", "--servers", "h:2", "--token-file", str(secret)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_ctrl_c_ends_the_server_command_which_notifies_its_workers() -> None:
    job = Job(1, 1)
    with start_server(job) as process:

        def act(rank: int, group: PsGroup) -> str:
            group.barrier().result(JOIN_S)
            assert process.stdout is not None
            assert any(line.startswith("switchagg server ready") for line in process.stdout)  # it answers before that
            process.send_signal(signal.SIGINT)
            try:
                while True:
                    group.barrier().result(JOIN_S)
            except AggregationFailed as error:
                return str(error)

        words = job.work(0, act)
        _, err = process.communicate(timeout=JOIN_S)
    assert "was stopped: interrupted" in words
    assert process.returncode == 130
    assert err.splitlines()[-1] == "switchagg: interrupted; everything it had started is stopped"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "h:1", "--servers", "h"], "--servers h: not understood; allowed: HOST:PORT,HOST:PORT"),
        (["--workers", "h:1,h:1", "--servers", "h:2"], "h:1 is there twice"),
        (["--workers", "h:1", "--servers", "h:2", "-n", "1"], "--number 1: there are 1 servers"),
        (["--workers", "h:1", "--servers", "h:2", "--link", "ib"], "--link ib: unknown; allowed: zeromq, tcp"),
        (["--workers", "h:1", "--servers", "h:2", "--link", "tcp", "--keys", "k"], "--keys: only zeromq has keys"),
        (["--workers", "h:1", "--servers", "h:2", "--method", "ring"], "--method ring: unknown; allowed: ps"),
    ],
)
def test_the_server_command_refuses_invalid_options_in_one_line(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["server", *arguments])
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
