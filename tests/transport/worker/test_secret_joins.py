"""Jobs whose sums are secret, live (X1, X4): noise travels, what comes is right, and what can't be is refused in one
line on every rank."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from numpy.typing import NDArray

from switchagg.dataplane.reference import ReferencePlane
from switchagg.errors import JobError
from switchagg.native.library import missing
from switchagg.wire import Bundle, payload
from transport.group.group_opening import open_group
from transport.meshes.job_key import mask_key, sum_key
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.torch.rendezvous import SwitchOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

TOKEN = "0123456789abcdef0123456789abcdef"
CORES = ["python"] if missing() else ["python", "native"]


@pytest.fixture
def daemon() -> Iterator[SwitchDaemon]:
    options = DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=512, lease_s=1.5, dataplane="reference")
    with SwitchDaemon(options) as running:
        yield running


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.int32]]:
    """Elements of data chunks as they come to the switch."""
    chunks: list[NDArray[np.int32]] = []
    process = ReferencePlane.process

    def watched(plane: ReferencePlane, bundle: Bundle, port: int) -> Any:
        if bundle.shape[1] > 20:
            chunks.append(payload(bundle)[:, :-3].copy())
        return process(plane, bundle, port)

    monkeypatch.setattr(ReferencePlane, "process", watched)
    return chunks


@pytest.fixture(autouse=True)
def _no_token_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SWITCHAGG_TOKEN", "SWITCHAGG_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)


def sessions(daemon: SwitchDaemon, work: Any, **options: Any) -> list[Any]:
    """What `work(session)` returns on each of two ranks."""

    def one(rank: int) -> Any:
        how = JoinOptions(**{"secret": "on", "token": TOKEN, "window_slots": 16, "timeout_s": 5, **options})
        with SwitchSession.join(daemon.control_endpoint, "train", rank, 2, how) as session:
            return work(session)

    with ThreadPoolExecutor(2) as ranks:
        return list(ranks.map(one, range(2)))


def refusals(daemon: SwitchDaemon, *changes: dict[str, Any]) -> list[str]:
    """What each rank is told; none may join."""

    def one(rank: int) -> str:
        options = {"secret": "on", "token": TOKEN, "window_slots": 8, "timeout_s": 1, **changes[rank]}
        with pytest.raises(JobError) as refused:
            SwitchSession.join(daemon.control_endpoint, "train", rank, len(changes), JoinOptions(**options)).close()
        return str(refused.value)

    with ThreadPoolExecutor(len(changes)) as ranks:
        return list(ranks.map(one, range(len(changes))))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("codec", ["fixed_point", "constant4", "exact", "lanes8"])
def test_a_secret_session_has_the_bits_of_an_open_one_and_its_switch_sees_noise(
    daemon: SwitchDaemon, seen: list[NDArray[np.int32]], core: str, codec: str
) -> None:
    """Floats and integers, long and short; of all elements that come to the switch in data chunks hardly two are alike,
    though both ranks have the same few values."""

    def work(session: SwitchSession) -> list[bytes]:
        arrays = [np.full(5000, 0.5, np.float32), np.ones(40, np.float32), np.full(3000, 7, np.int32)]
        for future in [session.allreduce(array) for array in arrays]:
            future.result(30)
        return [array.tobytes() for array in arrays]

    secret = sessions(daemon, work, core=core, codec=codec)
    hidden = np.concatenate([rows.reshape(-1) for rows in seen])
    seen.clear()
    in_clear = sessions(daemon, work, core=core, codec=codec, secret="off", verify="on")
    shown = np.concatenate([rows.reshape(-1) for rows in seen])
    assert secret == in_clear
    assert secret[0] == secret[1]
    assert len(np.unique(shown)) < 200
    assert len(np.unique(hidden)) > 8000


def test_keys_of_masks_are_fresh_and_others_than_those_of_tags() -> None:
    facts = (TOKEN, "train", 7, [11, (1 << 63) - 1])
    key = mask_key(*facts)
    assert len(key) == 32
    assert key.hex() == "a95ec735360773cecce007f95e93f96dfecda0fefe7f5a5c1e3eefe9d3065e3c"
    others = [
        mask_key(TOKEN, "train", 7, [10, (1 << 63) - 1]),
        mask_key(TOKEN, "train", 8, [11, (1 << 63) - 1]),
        mask_key(TOKEN[::-1], "train", 7, [11, (1 << 63) - 1]),
        sum_key(*facts) * 2,
    ]
    assert len({key, *others}) == 5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"token": ""},
            "secret sums need a token: set SWITCHAGG_TOKEN to the same secret on all ranks",
        ),
        ({"verify": "off"}, "secret sums need verify=on: "),
        ({"backups": 1}, "secret sums can't be partial: "),
        ({"close_after_ns": 10**6}, "secret sums can't be partial: "),
        ({"elements": 3}, "verified sums need more than 3 elements, not 3"),
        ({"secret": "yes"}, "secret 'yes' is unknown; allowed: off, on"),
    ],
)
def test_what_can_not_be_secret_is_refused_on_every_rank(
    daemon: SwitchDaemon, changes: dict[str, Any], words: str
) -> None:
    lines = refusals(daemon, changes, changes)
    assert [words in line for line in lines] == [True, True]
    assert not any("\n" in line or TOKEN in line for line in lines)


def test_ranks_that_differ_in_secrecy_are_both_told_so(daemon: SwitchDaemon) -> None:
    for line in refusals(daemon, {}, {"secret": "off", "verify": "on"}):
        assert "says secret is o" in line
        assert "all ranks must agree" in line


def test_a_maximum_of_values_is_refused_and_sums_go_on(daemon: SwitchDaemon) -> None:
    def work(session: SwitchSession) -> float:
        with pytest.raises(ValueError, match="op max of int32: a switch compares only what it can read; in a"):
            session.allreduce(np.ones(4, np.int32), "max")
        array = np.ones(4, np.float32)
        session.allreduce(array).result(30)
        return float(array.sum())

    assert sessions(daemon, work) == [8.0, 8.0]


@pytest.mark.parametrize("method", ["ring", "ps", "mlt", "halving_doubling"])
def test_other_methods_refuse_secret_sums_and_name_what_to_use(method: str) -> None:
    with pytest.raises(JobError, match=f"option secret: sums by {method} travel as they are; use method switch, or"):
        open_group(method, "tcp", 0, [("127.0.0.1", 1), ("127.0.0.1", 2)], job="j", options={"secret": "on"})


@pytest.mark.parametrize(("method", "distinct"), [("switch", 1), ("switch+secret", 900)])
def test_a_group_s_method_says_that_its_sums_are_secret(
    daemon: SwitchDaemon, seen: list[NDArray[np.int32]], method: str, distinct: int
) -> None:
    def one(rank: int) -> list[int]:
        options = {"switch": daemon.control_endpoint, "token": TOKEN, "timeout_s": 5}
        with open_group(method, "udp", rank, [("127.0.0.1", 1)] * 2, job="j", options=options) as group:
            array = np.full(1000, 7, np.int32)
            group.allreduce(array).result(30)
        return array.tolist()

    with ThreadPoolExecutor(2) as ranks:
        assert list(ranks.map(one, range(2))) == [[14] * 1000] * 2
    words = len(np.unique(np.concatenate([rows.reshape(-1) for rows in seen])))
    assert distinct <= words <= distinct * 10


def test_the_name_of_a_process_group_s_method_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is told by the name and one that is told by the variable agree."""
    by_name, by_variable = SwitchOptions(method="switch~exact+secret"), SwitchOptions(codec="exact", secret="on")
    assert by_name.name == by_variable.name
    assert by_name.alike() == by_variable.alike()
    assert [options.join_options(5).secret for options in (by_name, by_variable)] == ["on", "on"]
    assert SwitchOptions().join_options(5).secret == "off"
    monkeypatch.setenv("SWITCHAGG_METHOD", "ring+secret")
    with pytest.raises(
        dist.DistBackendError, match=r"SWITCHAGG_METHOD, .*: method ring\+secret: sums by ring travel as"
    ):
        _ = SwitchOptions.from_environment().name


def test_a_fallback_is_refused() -> None:
    options = {"secret": "on", "fallback": "ring", "switch": "tcp://127.0.0.1:1", "token": TOKEN}
    with pytest.raises(JobError, match="option fallback: sums by ring travel as they are"):
        open_group("switch", "udp", 0, [("127.0.0.1", 1), ("127.0.0.1", 2)], job="j", options=options)


@pytest.mark.parametrize("method", ["gloo", "ring", "ps"])
def test_process_groups_of_other_methods_are_refused(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setenv("SWITCHAGG_METHOD", method)
    monkeypatch.setenv("SWITCHAGG_SECRET", "on")
    with pytest.raises(dist.DistBackendError, match=f"SWITCHAGG_SECRET=on: sums by {method} travel as they are"):
        _ = SwitchOptions.from_environment().name
