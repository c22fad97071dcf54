"""Who gets keys of packets: `authenticate` from join to packets, at one daemon with keys and in a tree (A1, A2)."""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulation.cli.daemons.switch_status import status_lines
from switchagg.calls.call_request import CallRequest
from switchagg.errors import JobError
from switchagg.native import library
from switchagg.priority import BEST_EFFORT
from transport.control.control_client import query_status
from transport.control.hop_secrets import HopSecrets
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession
from transport.zeromq.keys import Keys, load_keys, make_keys

OPTIONS = DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=512, dataplane="reference")
JOIN = JoinOptions(elements=8, streams=1, window_slots=8, timeout_s=3.0, core="python")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    folder: Path = tmp_path_factory.mktemp("keys")
    make_keys(folder)
    return load_keys(folder)


@contextmanager
def sessions(switch: str, options: Sequence[JoinOptions]) -> Iterator[list[SwitchSession]]:
    """One for each rank. Raises the first rank's error."""
    with ExitStack() as ending, ThreadPoolExecutor(len(options)) as threads:
        joins = [
            threads.submit(SwitchSession.join, switch, "job", rank, len(options), each)
            for rank, each in enumerate(options)
        ]
        failures = [join.exception() for join in joins]
        ranks = [join.result() for join, failure in zip(joins, failures, strict=True) if failure is None]
        for rank in ranks:
            ending.callback(rank.close)
        for failure in failures:
            if failure is not None:
                raise failure
        yield ranks


def add(ranks: Sequence[SwitchSession]) -> None:
    arrays = [np.arange(100, dtype=np.int32) + rank for rank in range(len(ranks))]
    want = np.sum(arrays, axis=0)
    for future in [rank.allreduce(array) for rank, array in zip(ranks, arrays, strict=True)]:
        assert np.array_equal(future.result(30), want)


@pytest.mark.parametrize(
    ("link", "said", "tags"), [("udp", "auto", True), ("udp", "off", False), ("zeromq", "on", False)]
)
def test_packets_have_tags_where_keys_are_and_the_link_needs_them(keys: Keys, link: str, said: str, tags: bool) -> None:
    with SwitchDaemon(replace(OPTIONS, link=link, keys=keys)) as daemon:
        join = replace(JOIN, link=link, keys=keys, authenticate=said)
        with sessions(daemon.control_endpoint, [join] * 2) as ranks:
            add(ranks)
            assert [rank.authenticated for rank in ranks] == [said != "off"] * 2
            assert ["drop_unauthenticated" in rank.counters for rank in ranks] == [tags] * 2
            (job,) = query_status(daemon.control_endpoint, keys=keys).jobs
            assert job.packets == (
                "a tag on each hop" if tags else "encrypted" if said == "on" else "not authenticated"
            )
            assert f"  packets: {job.packets}" in status_lines(query_status(daemon.control_endpoint, keys=keys))


def test_without_keys_packets_have_no_tags_and_on_is_refused(keys: Keys) -> None:
    with SwitchDaemon(OPTIONS) as daemon, sessions(daemon.control_endpoint, [JOIN] * 2) as ranks:
        add(ranks)
        assert not any(rank.authenticated for rank in ranks)
    with pytest.raises(JobError, match="authenticate 'on': it needs keys"):
        replace(JOIN, authenticate="on")
    with pytest.raises(JobError, match="over rdma packets have no room for tags"):
        replace(JOIN, authenticate="on", link="rdma", elements=0, keys=keys)


def test_ranks_that_differ_are_named(keys: Keys) -> None:
    with SwitchDaemon(replace(OPTIONS, keys=keys)) as daemon:
        joins = [replace(JOIN, keys=keys, authenticate=said) for said in ("on", "off")]
        with pytest.raises(JobError, match="authenticate"), sessions(daemon.control_endpoint, joins):
            pass


def test_a_switch_that_makes_no_tags_refuses_on(keys: Keys) -> None:
    with SwitchDaemon(replace(OPTIONS, keys=keys)) as daemon:
        daemon._server.hops = HopSecrets("the data plane xdp makes no tags; MACsec")
        with sessions(daemon.control_endpoint, [replace(JOIN, keys=keys)] * 2) as ranks:
            add(ranks)
            assert not any(rank.authenticated for rank in ranks)
        on = replace(JOIN, keys=keys, authenticate="on")
        with pytest.raises(JobError, match="packets would have no tags: the data plane xdp"):
            SwitchSession.join(daemon.control_endpoint, "job", 0, 1, on)


@pytest.mark.parametrize(("able", "said"), [(True, "on"), (False, "auto"), (False, "on")])
def test_each_switch_of_a_tree_has_a_secret_of_its_own(keys: Keys, able: bool, said: str, monkeypatch: Any) -> None:
    with ExitStack() as ending:
        root = ending.enter_context(SwitchDaemon(replace(OPTIONS, keys=keys)))
        with monkeypatch.context() as changed:
            if not able:
                changed.setattr(DaemonOptions, "tags_fault", "it makes none")
            below = replace(OPTIONS, keys=keys, parent=root.control_endpoint, name="rack")
            leaf = ending.enter_context(SwitchDaemon(below))
        joins = [replace(JOIN, keys=keys, authenticate=said, via=via) for via in ("", "rack", "rack")]
        if not able and said == "on":
            with (
                pytest.raises(JobError, match=r"switch 'rack' .* makes no tags"),
                sessions(root.control_endpoint, joins),
            ):
                pass
            return
        with sessions(root.control_endpoint, joins) as ranks:
            add(ranks)
            assert [rank.authenticated for rank in ranks] == [able] * 3
            for daemon in (root, leaf):
                assert bool(daemon._loop._hops) == able  # type: ignore[attr-defined]
                assert daemon._loop.counters()["drop_unauthenticated"] == 0


@pytest.mark.parametrize("core", ["python", "native"])
@pytest.mark.parametrize("backups", [0, 1])
def test_packets_of_all_kinds_have_tags(keys: Keys, core: str, backups: int) -> None:
    """Header-only packets, results to one, small calls, descriptions, partial sums and what asks to finalise them."""
    if core == "native" and library.missing():
        pytest.skip(f"needs the compiled core: {library.missing()}")
    plane = "native" if core == "native" else "reference"
    with SwitchDaemon(replace(OPTIONS, keys=keys, dataplane=plane)) as daemon:
        join = replace(JOIN, keys=keys, authenticate="on", core=core, backups=backups, elements=40)
        with sessions(daemon.control_endpoint, [join] * 3) as ranks:
            kinds = ("allreduce", "broadcast") if backups else ("allreduce", "reduce_scatter", "broadcast", "reduce")
            for kind, size in itertools.product(kinds, (3, 500)):
                root = 1 if kind in ("broadcast", "reduce") else 0
                arrays = [np.arange(size, dtype=np.float32) + rank for rank in range(3)]
                want = arrays[1].copy() if kind == "broadcast" else 3 * arrays[1]
                request = CallRequest(kind, root=root, priority=BEST_EFFORT)
                requests = [request._replace(signature=request.signature_of(array)) for array in arrays]
                calls = zip(ranks, arrays, requests, strict=True)
                for future in [rank.call(array, asked) for rank, array, asked in calls]:
                    future.result(30)
                if not backups:
                    part = slice(size // 3, 2 * size // 3) if kind == "reduce_scatter" else slice(None)
                    assert np.array_equal(arrays[1][part], want[part]), (kind, size)
            told = [daemon._loop.counters(), *(rank.counters for rank in ranks)]
            assert [counters["drop_unauthenticated"] for counters in told] == [0] * 4
