"""The backend by host methods, end to end: ranks are processes on the loopback; no switch is there."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from test_torch_backend import Launch

from switchagg.calls.array_calls import rounds_of
from switchagg.codecs import FIXED_POINT, CallShape
from switchagg.errors import JobError
from transport.group.method_name import MethodName, parse
from transport.meshes.mesh_opening import bind_place, connect_mesh
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.torch.rendezvous import Rendezvous, SwitchOptions, interface_address
from transport.worker.session import SwitchSession

PROGRAMS = Path(__file__).parents[2] / "shared/torch_method_programs.py"


@pytest.fixture
def launch() -> Iterator[Launch]:
    launched = Launch(PROGRAMS)
    yield launched
    launched.stop()


@pytest.mark.parametrize(("method", "program"), [("ring@tcp", "a_rank_dies"), ("halving_doubling@udp", "training")])
def test_programs_run_over_host_methods(launch: Launch, method: str, program: str) -> None:
    """When rank 1 dies the others are told."""
    launch(program, 3, None, SWITCHAGG_METHOD=method)
    ranks = launch.finish()
    ends = [0, 17, 0] if program == "a_rank_dies" else [0, 0, 0]
    assert [rank.code for rank in ranks] == ends, [rank.output for rank in ranks]
    for rank, code in zip(ranks, ends, strict=True):
        assert ("DONE" in rank.output) == (code == 0), rank.output


def test_ranks_with_different_codecs_are_refused_at_once(launch: Launch) -> None:
    """By the method's word on one, by its variable on the other."""
    launch.of_rank[0] = {"SWITCHAGG_METHOD": "ring~lanes8+ef"}
    launch.of_rank[1] = {"SWITCHAGG_METHOD": "ring", "SWITCHAGG_CODEC": "lanes8"}
    launch("differing_codecs", 2, None)
    launch.done()


def test_compiled_programs_run(launch: Launch) -> None:
    """torch.compile leaves the group's methods as they are."""
    launch("compiled", 2, None, SWITCHAGG_METHOD="ring")
    ranks = launch.finish()
    assert [rank.code for rank in ranks] == [0, 0], [rank.output for rank in ranks]
    assert all("DONE" in rank.output for rank in ranks)


@pytest.mark.parametrize("method", ["ring", "switch"])
def test_what_ends_a_rank_is_told_to_the_others(launch: Launch, method: str) -> None:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=8192)) as daemon:
        launch("a_rank_raises", 2, daemon.control_endpoint if method == "switch" else None, SWITCHAGG_METHOD=method)
        ranks = launch.finish()
    assert [rank.code for rank in ranks] == [0, 1], [rank.output for rank in ranks]


def test_what_runs_on_gloo_runs_here(launch: Launch) -> None:
    """A hook in C++; a Work that only C++ holds, in DDP.join; expanded tensors; the profiler's record."""
    launch("beside_gloo", 2, None, SWITCHAGG_METHOD="ring")
    launch.done()


def test_groups_that_nobody_destroys_hold_as_much_as_those_of_gloo(launch: Launch) -> None:
    launch("dropped_groups", 2, None, SWITCHAGG_METHOD="ring")
    launch.done()


def test_ranks_whose_calls_differ_are_told_so() -> None:
    """W12; in the heads of messages for host methods. Both at once: what Gloo has begun takes seconds to end."""
    by_switch, by_hosts = Launch(PROGRAMS), Launch(PROGRAMS)
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=8192)) as daemon:
        try:
            by_switch("differing", 3, daemon.control_endpoint, SWITCHAGG_METHOD="switch")
            by_hosts("differing", 3, None, SWITCHAGG_METHOD="auto")
            by_switch.done()
            by_hosts.done()
        finally:
            by_switch.stop()
            by_hosts.stop()


def meet(options: list[SwitchOptions], timeout_s: float = 10.0) -> list[Any]:
    """What each rank gets, ranks being threads: a group, or the exception."""
    store = dist.HashStore()

    def one(rank: int) -> Any:
        rendezvous = Rendezvous(store, rank, len(options), "job", options[rank], timeout_s, SwitchSession.join)
        try:
            rendezvous.agree()
            return rendezvous.open(0)
        except dist.DistBackendError as error:
            return error

    with ThreadPoolExecutor(len(options)) as threads:
        return list(threads.map(one, range(len(options)), timeout=60))


@pytest.mark.parametrize("name", ["ring@tcp", "tree@udp", "recursive_doubling@zeromq", "auto"])
def test_ranks_find_each_other_through_the_store(name: str) -> None:
    groups = meet([SwitchOptions(method=name, bind="127.0.0.1")] * 3)
    futures = [group.allreduce(np.full(1000, rank)) for rank, group in enumerate(groups)]
    assert [int(future.result(20)[-1]) for future in futures] == [3, 3, 3]
    for group in groups:
        group.close()


def test_ranks_have_one_token_the_option_s_or_the_store_s(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[str] = []

    def noting(*where: Any, **how: Any) -> Any:
        tokens.append(how["token"])
        return connect_mesh(*where, **how)

    monkeypatch.setattr("transport.group.group_opening.connect_mesh", noting)
    plain, closed = (SwitchOptions(method="ring", bind="127.0.0.1", token=token) for token in ("", "t" * 32))
    for group in (*meet([plain] * 3), *meet([plain] * 2), *meet([closed] * 2)):
        group.close()
    first, second, option = set(tokens[:3]), set(tokens[3:5]), set(tokens[5:])
    assert len(first) == len(second) == 1
    assert first != second
    assert len(first.pop()) == 64
    assert option == {"t" * 32}
    assert "t" * 32 not in repr(closed)


@pytest.mark.parametrize("having", [0, 1])
def test_a_token_that_not_all_ranks_have_is_one_error_on_all(having: int) -> None:
    options = [SwitchOptions(method="ring", bind="127.0.0.1", token="t" * 32 * (rank == having)) for rank in (0, 1)]
    for error in meet(options):
        assert isinstance(error, dist.DistBackendError)
        assert re.search(r"rank 0 has SWITCHAGG_TOKEN.*rank 1 of 2.*: set it alike for every rank", str(error))
        assert "tttt" not in str(error)


def test_a_codec_s_sums_have_its_exact_bits() -> None:
    """Those of the layout that a switch of as many elements sends."""
    given = [np.random.default_rng(rank).standard_normal(1000).astype(np.float32) for rank in range(3)]
    layouts = [rounds_of(array.copy(), 32, 3, FIXED_POINT) for array in given]
    codes, _ = zip(*[next(one) for one in layouts], strict=True)
    for code in codes:
        code[:] = np.max(codes, axis=0)
    words, _ = zip(*[next(one) for one in layouts], strict=True)
    shape = CallShape(np.dtype(np.float32), 32, 32, 3)
    coding = FIXED_POINT.begin(shape)
    coding.agree(0, codes[0])
    expected = coding.decode(np.sum(words, axis=0, dtype=np.int32).reshape(32, 32), slice(0, 32)).reshape(-1)[:1000]
    groups = meet([SwitchOptions(method="tree", bind="127.0.0.1", codec="fixed_point", elements=32)] * 3)
    futures = [group.allreduce(array) for group, array in zip(groups, given, strict=True)]
    assert [future.result(20).tobytes() for future in futures] == [expected.tobytes()] * 3
    for group in groups:
        group.close()


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (SwitchOptions(method="tree", bind="127.0.0.1"), "rank 0 uses method ring, rank 1 of 3 uses tree"),
        (SwitchOptions(), "rank 0 uses method ring, rank 1 of 3 uses switch"),
        (SwitchOptions(method="ring@udp"), "rank 0 uses method ring, rank 1 of 3 uses ring@udp"),
        (
            SwitchOptions(method="ring", codec="fixed_point"),
            "rank 0 uses method ring, rank 1 of 3 uses ring~fixed_point",
        ),
        (SwitchOptions(method="ring", interface="moon0"), "rank 1 of 3 could not meet .* interface moon0 has no IPv4"),
    ],
)
def test_different_methods_are_one_error_on_all_ranks_that_names_both(odd: SwitchOptions, words: str) -> None:
    ring = SwitchOptions(method="ring", bind="127.0.0.1")
    for error in meet([ring, odd, ring]):
        assert isinstance(error, dist.DistBackendError)
        assert re.search(words, str(error)), error


def test_an_address_that_others_cannot_reach_is_named() -> None:
    ring = SwitchOptions(method="ring", bind="127.0.0.1")
    told = ["127.0.1.1 5", "10.0.0.7 5"]
    here = Rendezvous(dist.HashStore(), 1, 2, "job", ring, 1.0, SwitchSession.join)
    place = bind_place("tcp", "127.0.0.1")
    outcome, group = here._try_host_group(0, place, told)
    assert group is None
    assert "rank 0 is at 127.0.1.1, where other hosts can't reach it: set SWITCHAGG_BIND" in outcome


def test_the_method_is_read_from_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SwitchOptions().name == MethodName("switch", "udp")
    assert SwitchOptions(method="ring").name == MethodName("ring", "tcp")
    assert SwitchOptions(method="ring@udp", link="zeromq").name == MethodName("ring", "zeromq")
    with pytest.raises(dist.DistBackendError, match=r"SWITCHAGG_METHOD.*'rnig' is unknown; allowed: switch"):
        _ = SwitchOptions(method="rnig").name
    assert SwitchOptions(method="switch~lanes8+ef").name == MethodName("switch", "udp", codec="lanes8+ef")
    assert SwitchOptions(codec="lanes8:least=1024+ef", link="rdma").name == parse("switch@rdma~lanes8+ef")
    assert SwitchOptions(method="ring@udp~lanes8", codec="lanes8").name == parse("ring@udp~lanes8")
    words = "SWITCHAGG_METHOD=ring~lanes8 names codec lanes8, SWITCHAGG_CODEC=lanes8+ef names lanes8+ef: leave one"
    with pytest.raises(dist.DistBackendError, match=re.escape(words)):
        _ = SwitchOptions(method="ring~lanes8", codec="lanes8+ef").name
    with pytest.raises(dist.DistBackendError, match=r"SWITCHAGG_CODEC: codec 'lanes9' is unknown; allowed: "):
        _ = SwitchOptions(codec="lanes9").name
    for name, value in (("METHOD", "auto"), ("LINK", "udp"), ("BIND", "127.0.0.1")):
        monkeypatch.setenv(f"SWITCHAGG_{name}", value)
    read = SwitchOptions.from_environment()
    assert (read.name, read.local_address()) == (MethodName("auto", "udp"), "127.0.0.1")


def test_a_rank_finds_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert SwitchOptions().local_address() == "127.0.0.1"
    assert SwitchOptions(interface="lo").local_address() == interface_address("lo") == "127.0.0.1"
    with pytest.raises(JobError, match="interface moon0 has no IPv4 address"):
        SwitchOptions(interface="moon0").local_address()
    with pytest.raises(JobError, match="no IPv4 address"):
        SwitchOptions(bind="nowhere.invalid").local_address()
