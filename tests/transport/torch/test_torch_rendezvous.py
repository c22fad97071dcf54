"""The ranks' common decision whether to use the switch; ranks are threads."""

import itertools
import logging
import re
import socket
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fake_switch import FakeSwitch
from waiting import until

from switchagg.controller.admission import Controller
from switchagg.errors import JobError
from switchagg.join import Join
from switchagg.membership import JoinRefused
from transport.contracts import torch_version
from transport.group.switch_group import SwitchGroup
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.torch import registration, rendezvous
from transport.torch.alike import compare_with_first
from transport.torch.backend import create
from transport.torch.rendezvous import Rendezvous, SwitchOptions, start_name
from transport.worker.join_options import JoinOptions

NO_ROOM = "job 'x' could not start within 1 s: 512 slots in a row are needed and 0 of 64 are free"


def decide(
    switch: FakeSwitch, workers: int = 3, absent: tuple[int, ...] = (), lane: int = 0, timeout_s: float = 10.0
) -> list[Any]:
    """What each rank gets: a session, None, or the exception."""
    store = dist.HashStore()
    options = SwitchOptions(switch="tcp://fake:1", streams=3, segments_max=41, join_timeout_s=5.0, split_calls=1)

    def one(rank: int) -> Any:
        if rank in absent:
            return "absent"
        try:
            return Rendezvous(store, rank, workers, "job", options, timeout_s, switch.join).open(lane)
        except dist.DistBackendError as error:
            return error

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(one, range(workers), timeout=60))


@pytest.fixture
def switch() -> Any:
    fake = FakeSwitch()
    yield fake
    fake.stop()


def test_a_start_has_a_name_of_its_own_on_a_store_that_outlived_another() -> None:
    store = dist.HashStore()
    names = []
    for late in (0, 1, 2):  # whoever comes last finds what the ranks before it said in an earlier start

        def start(rank: int, last: int = late) -> str:
            time.sleep(0.1 if rank == last else 0.0)
            return start_name(store, rank, 3, 10.0)

        with ThreadPoolExecutor(3) as threads:
            (name,) = set(threads.map(start, range(3), timeout=60))
        names.append(name)
    assert len(set(names)) == 3
    with pytest.raises(dist.DistBackendError, match=r"rank 1, 2 of 3 did not come to start the group within 0\.1 s"):
        start_name(store, 0, 3, 0.1)
    with pytest.raises(dist.DistBackendError, match="rank 0 of 3 did not come to start the group with rank 1"):
        start_name(store, 1, 3, 0.1)


def test_ranks_that_have_their_name_still_hear_that_settings_differ() -> None:
    """They would else wait for Gloo's start, to its time-out, for the rank that refused."""
    store, like = dist.HashStore(), SwitchOptions(switch="tcp://fake:1", bind="127.0.0.1")
    compare_with_first(store, 0, 3, like.alike())
    with ThreadPoolExecutor(2) as threads:
        starts = [threads.submit(start_name, store, rank, 3, 30.0) for rank in (0, 1)]
        until(lambda: store.num_keys() == 4)  # settings, rank 1's token, the name, and that rank 1 has it
        with pytest.raises(dist.DistBackendError, match="rank 0 has SWITCHAGG_ELASTIC=0, rank 2 of 3 has 1"):
            compare_with_first(store, 2, 3, replace(like, elastic=1).alike())
        for start in starts:
            with pytest.raises(dist.DistBackendError, match="rank 0 has SWITCHAGG_ELASTIC=0, rank 2 of 3 has 1"):
                start.result(60)


def test_a_pytorch_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")
    root = Path(__file__).resolve().parents[3]
    with pytest.raises(RuntimeError, match=r"backend switchagg: PyTorch 2\.10\.1\+cu128 is older than 2\.11, which"):
        registration._create(None, None)
    assert torch_version.too_old("2.11.0a0+git1234567") == torch_version.too_old("3.0") == ""
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"torch>={'.'.join(map(str, torch_version.LEAST))}" in extras["torch"]


def test_all_join(switch: FakeSwitch) -> None:
    sessions = decide(switch)
    assert [session.rank for session in sessions] == [0, 1, 2]
    assert not any(session.closed for session in sessions)
    sparing = {"slots_least": 8, "sparing": True}
    wish = JoinOptions(streams=3, segments_max=41, split_calls=True, timeout_s=5.0, call_timeout_s=1e6, **sparing)
    place = {"switch": "tcp://fake:1", "job": "job/0", "rank": switch.joined[0]["rank"], "workers": 3}
    (token,) = {joined["token"] for joined in switch.joined}
    assert len(token) == 64
    assert switch.joined[0] == {**place, **vars(wish), "token": token, "group_timeout_s": 10.0}
    assert (wish.packet_elements, wish.windows) == (360, (256, 256, 256))


def test_a_token_of_the_options_goes_to_the_switch_s_job_and_each_group_has_another_without(
    switch: FakeSwitch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(switch)
    decide(switch)
    assert len({joined["token"] for joined in switch.joined}) == 2
    secret = tmp_path / "token"
    secret.write_text("t" * 32)
    secret.chmod(0o600)
    monkeypatch.setenv("SWITCHAGG_SWITCH", "tcp://fake:1")
    monkeypatch.setenv("SWITCHAGG_TOKEN_FILE", str(secret))
    options = SwitchOptions.from_environment()
    Rendezvous(dist.HashStore(), 0, 1, "job", options, 10.0, switch.join).open(0)
    assert (switch.joined[-1]["token"], switch.joined[-1]["token_file"]) == ("t" * 32, "")
    secret.chmod(0o644)
    with pytest.raises(dist.DistBackendError, match=r"could not join switch .*: others may read it; run `chmod 600"):
        Rendezvous(dist.HashStore(), 0, 1, "job", options, 10.0, switch.join).open(0)


def test_if_one_rank_finds_no_room_all_use_gloo(switch: FakeSwitch, caplog: pytest.LogCaptureFixture) -> None:
    switch.refusals[2] = NO_ROOM
    made: list[Any] = []
    join = switch.join
    switch.join = lambda *how, **more: made.append(join(*how, **more)) or made[-1]  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        assert decide(switch) == [None, None, None]
    assert len(made) == 2
    assert all(session.closed for session in made)
    (record,) = caplog.records
    assert record.getMessage() == f"switchagg: using Gloo instead of switch tcp://fake:1: {NO_ROOM}"


def test_any_other_refusal_is_an_error_for_all(switch: FakeSwitch) -> None:
    switch.refusals.update({1: "no answer from tcp://fake:1", 2: NO_ROOM})
    for error in decide(switch):
        assert isinstance(error, dist.DistBackendError)
        assert "rank 1 of 3 could not join switch tcp://fake:1: no answer from tcp://fake:1" in str(error)


def test_packets_that_the_link_cannot_carry_are_refused_not_changed(switch: FakeSwitch) -> None:
    options = SwitchOptions(switch="tcp://fake:1", method="switch@rdma", elements=360)
    with pytest.raises(dist.DistBackendError, match=r"elements 360: over RDMA .* 251 \(MTU 1024\)"):
        Rendezvous(dist.HashStore(), 0, 1, "job", options, 10.0, switch.join).open(0)
    assert not switch.joined


def test_options_of_bounded_loss_are_refused_with_the_switch(switch: FakeSwitch) -> None:
    options = SwitchOptions(switch="tcp://fake:1", bounded="tolerance=0.1")
    with pytest.raises(dist.DistBackendError, match="SWITCHAGG_BOUNDED: switch loses nothing; leave it out"):
        Rendezvous(dist.HashStore(), 0, 1, "job", options, 10.0, switch.join).open(0)
    assert not switch.joined


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"backups": 1}, "SWITCHAGG_BACKUPS, SWITCHAGG_CLOSE_AFTER_NS: ring has none; leave them out"),
        ({"bounded": "tolerance=0.1"}, "option bounded: method ring without servers has none"),
        ({"method": "mlt", "bounded": "tolerance"}, "'tolerance': as in tolerance=0.02,priorities=0"),
        ({"method": "mlt", "bounded": "tolerance=2"}, "option bounded: .*tolerance"),
    ],
)
def test_options_that_a_host_method_has_not_are_refused(switch: FakeSwitch, wish: dict[str, Any], words: str) -> None:
    options = SwitchOptions(**{"method": "ring", "bind": "127.0.0.1", **wish})
    with pytest.raises(dist.DistBackendError, match=words):
        Rendezvous(dist.HashStore(), 0, 1, "job", options, 10.0, switch.join).open(0)


def test_calls_in_callbacks_do_not_fall_back_to_gloo(switch: FakeSwitch) -> None:
    switch.refusals[0] = NO_ROOM
    assert all("rank 0 of 3 could not join" in str(error) for error in decide(switch, lane=1))


def test_a_rank_that_does_not_come_is_named(switch: FakeSwitch) -> None:
    first, *_, second = decide(switch, absent=(1,), timeout_s=0.2)
    for error in (first, second):
        assert "rank 1 of 3 did not come to join switch tcp://fake:1 within 0.2 s" in str(error)
    assert not switch.joined


@pytest.mark.parametrize("odd_rank", [0, 1, 2])
@pytest.mark.parametrize(
    ("odd", "values"),
    [
        ({"elastic": 1}, "has SWITCHAGG_ELASTIC=[01], rank . of 3 has [01]: set it alike"),
        (
            {"elastic": 1, "method": "ring"},
            "uses method (switch|ring), rank . of 3 uses (switch|ring): set SWITCHAGG_ME",
        ),
        ({"fallback": "ring"}, "has SWITCHAGG_FALLBACK='(ring)?', rank . of 3 has '(ring)?': set it alike"),
    ],
)
def test_a_group_whose_ranks_have_unlike_settings_begins_on_none(
    odd: dict[str, Any], values: str, odd_rank: int
) -> None:
    """Wherever a rank waits for the others, elastic or not."""
    like, store = SwitchOptions(switch="tcp://fake:1", bind="127.0.0.1"), dist.HashStore()

    def begin(rank: int) -> str:
        options = SimpleNamespace(store=store, group_rank=rank, group_size=3, global_ranks_in_group=[], group_id="0")
        options.timeout = timedelta(seconds=1000)
        with pytest.raises(dist.DistBackendError) as raised:
            create(options, replace(like, **odd) if rank == odd_rank else like)
        return str(raised.value)

    with ThreadPoolExecutor(3) as threads:
        said = set(threads.map(begin, range(3), timeout=30))
    assert len(said) == 1, said
    assert re.search(f"rank .? *{values}", line := said.pop()), line
    assert f"rank {odd_rank}" in line


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"elements": 128}, "rank 0 has SWITCHAGG_ELEMENTS=360, rank 2 of 3 has 128"),
        ({"window_slots": 7}, "rank 0 has SWITCHAGG_WINDOW_SLOTS=0, rank 2 of 3 has 7"),
        ({"priorities": (0, 7)}, "rank 0 has SWITCHAGG_PRIORITIES=, rank 2 of 3 has 0,7"),
        ({"fallback": "ring"}, "rank 0 has SWITCHAGG_FALLBACK='', rank 2 of 3 has 'ring'"),
        ({"backups": 1}, "rank 0 has SWITCHAGG_BACKUPS=0, rank 2 of 3 has 1"),
        ({"congestion": "none"}, "rank 0 has SWITCHAGG_CONGESTION='friendly', rank 2 of 3 has 'none'"),
        ({"keys": "keys"}, "rank 0 has SWITCHAGG_KEYS=none, rank 2 of 3 has a value"),
        ({"verify": "off"}, "rank 0 has SWITCHAGG_VERIFY='auto', rank 2 of 3 has 'off'"),
        ({"token": "t" * 32}, "rank 0 has SWITCHAGG_TOKEN=none, rank 2 of 3 has a value"),
        ({"token_file": "token"}, "rank 0 has SWITCHAGG_TOKEN=none, rank 2 of 3 has a value"),
        ({"switch": ""}, "rank 0 has SWITCHAGG_SWITCH=a value, rank 2 of 3 has none"),
        ({"switch": "tcp://other:7"}, ""),
        ({"switch": "tcp://fake:1, tcp://b:2"}, "SWITCHAGG_SWITCH=a value, rank 2 of 3 has 'tcp://fake:1,tcp://b:2'"),
        ({"method": "ring"}, "rank 0 uses method switch, rank 2 of 3 uses ring"),
        ({"elements": 360, "via": "rack", "segments_max": 1, "join_timeout_s": 9.0, "codec_seed": 5}, ""),
    ],
)
def test_options_that_contradict_another_rank_are_refused_at_once(odd: dict[str, Any], words: str) -> None:
    options, store = SwitchOptions(switch="tcp://fake:1"), dist.HashStore()

    def one(rank: int) -> str:
        told = replace(options, **odd) if rank == 2 else options
        try:
            Rendezvous(store, rank, 3, "job", told, 1000.0, FakeSwitch().join).agree()
        except dist.DistBackendError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(3) as threads:
        for said in threads.map(one, range(3), timeout=30):
            assert words in said
            assert bool(said) == bool(words), said


def test_a_rank_that_could_not_join_ends_the_others_joins(switch: FakeSwitch) -> None:
    store, options = dist.HashStore(), SwitchOptions(switch="tcp://fake:1", join_timeout_s=1000.0)

    def join(switch: str, job: str, rank: int, workers: int, wish: Any, cancelled: threading.Event) -> Any:
        assert rank == 1 or not cancelled.wait(500)
        raise JobError("it waits no longer" if rank != 1 else "no such key here")

    def one(rank: int) -> str:
        with pytest.raises(dist.DistBackendError) as error:
            Rendezvous(store, rank, 3, "job", options, 1000.0, join).open(0)
        return str(error.value)

    with ThreadPoolExecutor(3) as threads:
        for said in threads.map(one, range(3), timeout=60):
            assert said == "switchagg: rank 1 of 3 could not join switch tcp://fake:1: no such key here"


def test_joining_takes_no_longer_than_the_group_s_own_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = SwitchOptions(switch=f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        began_s = time.monotonic()
        with pytest.raises(dist.DistBackendError, match=r"rank 0 .*: timed out after 1 s: .*no answer from switch"):
            Rendezvous(dist.HashStore(), 0, 1, "job", options, 1.0, SwitchGroup.join).open(0)
        assert time.monotonic() - began_s < 15


def test_closing_the_group_ends_the_wait(switch: FakeSwitch) -> None:
    options = SwitchOptions(switch="tcp://fake:1")
    alone = Rendezvous(dist.HashStore(), 0, 2, "job", options, 1000.0, switch.join)
    threading.Timer(0.1, alone.cancelled.set).start()
    with pytest.raises(dist.DistBackendError, match="shut down"):
        alone.open(0)


def test_the_controllers_refusals_for_lack_of_slots_are_recognised() -> None:
    controller = Controller(slots=64, elements_max=360, draw_generation=partial(next, itertools.count()))

    def refusals(window_slots: int, job: str, until_ns: int, ranks: int = 2, elements: int = 360) -> list[bool]:
        for rank in range(ranks):
            place = ("127.0.0.1", 1000 + rank)
            request = Join(
                job=job,
                rank=rank,
                workers=2,
                elements=elements,
                streams=1,
                window_slots=window_slots,
                address=place,
                incarnation=hash((job, rank)) % 2**60,
                timeout_ns=10**9,
            )
            controller.join(request, 0)
        controller.handle_timer(until_ns)
        refused = []
        while (event := controller.next_event()) is not None:
            if isinstance(event, JoinRefused):
                refused.append(event.lacks_room)
        return refused

    assert refusals(64, "holds all slots", 1) == []
    assert refusals(8, "finds none", 10**9 + 1) == [True]
    assert refusals(65, "wants more than there are", 10**9 + 2) == [True, True]
    assert refusals(65, "too large in two ways", 10**9 + 3, elements=361) == [False, False]
    assert refusals(8, "lacks a rank", 2 * 10**9 + 3, ranks=1) == [False]
    controller.stop("the switch stops")
    assert refusals(65, "comes too late", 2 * 10**9 + 4) == [False, False]


def test_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("SWITCH", "tcp://h:1"), ("ELEMENTS", "128"), ("JOIN_TIMEOUT_S", "2.5"), ("STREAMS", "")):
        monkeypatch.setenv(f"SWITCHAGG_{name}", text)
    assert SwitchOptions.from_environment() == SwitchOptions("tcp://h:1", elements=128, join_timeout_s=2.5)
    monkeypatch.setenv("SWITCHAGG_WINDOW_SLOTS", "a few")
    with pytest.raises(ValueError, match=r"SWITCHAGG_WINDOW_SLOTS='a few': not a number \(int\)"):
        SwitchOptions.from_environment()
    monkeypatch.delenv("SWITCHAGG_WINDOW_SLOTS")
    monkeypatch.setenv("SWITCHAGG_PRIORITIES", "0, 3,7")
    assert SwitchOptions.from_environment().priorities == (0, 3, 7)
    monkeypatch.setenv("SWITCHAGG_PRIORITIES", "urgent")
    with pytest.raises(ValueError, match="SWITCHAGG_PRIORITIES='urgent': not numbers with commas between"):
        SwitchOptions.from_environment()
    with pytest.raises(dist.DistBackendError, match=f"{rendezvous.SWITCH_VARIABLE} is not set"):
        SwitchOptions().require_switch()


def linked(options: SwitchOptions, is_later: bool = False) -> list[Any]:
    """The link by which each of two ranks has summed, and how often their job moved to a switch."""
    store = dist.HashStore()

    def one(rank: int) -> Any:
        group = Rendezvous(store, rank, 2, "job", options, 30.0, FakeSwitch().join, is_later=is_later).open(0)
        assert group is not None
        with group:
            assert group.allreduce(np.full(5, rank + 0.5, np.float32)).result(30).tolist() == [2.0] * 5
            return group.link, group.counters["moves_to_switch"]

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(one, range(2), timeout=60))


def test_a_job_with_a_fallback_begins_without_a_switch_that_is_full() -> None:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=32)) as daemon:
        options = SwitchOptions(
            daemon.control_endpoint, fallback="ring", bind="127.0.0.1", codec_seed=3, slots_least=33
        )
        assert linked(options) == 2 * [("tcp", 0)]


def test_ranks_begin_at_the_first_switch_that_answers_or_a_later_generation_without_any() -> None:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0))) as gone:
        dead = gone.control_endpoint
    options = SwitchOptions(dead, fallback="ring", bind="127.0.0.1", codec_seed=3, join_timeout_s=3.0)
    assert linked(options, is_later=True) == 2 * [("tcp", 0)]
    with pytest.raises(dist.DistBackendError, match="no answer from switch"):
        linked(options)
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0))) as daemon:
        assert linked(replace(options, switch=f"{dead},{daemon.control_endpoint}")) == 2 * [("udp", 0)]
