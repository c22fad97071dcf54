"""Joins of jobs whose sums are verified (C26): every bad token, disagreement or answer is one line on every rank."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from switchagg.errors import JobError
from switchagg.job import MAX_WORKERS
from switchagg.join import JobTerms, Join
from transport.control import control_messages
from transport.control.control_server import ControlServer
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

TOKEN, OTHER = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
REMEDY = "SWITCHAGG_TOKEN must be the same secret on all ranks, or be set on none"


@pytest.fixture
def daemon() -> Iterator[SwitchDaemon]:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=512, lease_s=1.5)) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_token_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SWITCHAGG_TOKEN", "SWITCHAGG_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)


def refusals(daemon: SwitchDaemon, *changes: dict[str, Any], timeout_s: float = 1.0) -> list[str]:
    """What each rank is told; none may join."""

    def join(rank: int) -> None:
        options = JoinOptions(**{"verify": "on", "window_slots": 8, "timeout_s": timeout_s, **changes[rank]})
        SwitchSession.join(daemon.control_endpoint, "train", rank, len(changes), options).close()

    def one(rank: int) -> str:
        with pytest.raises(JobError) as refused:
            join(rank)
        return str(refused.value)

    with ThreadPoolExecutor(len(changes)) as ranks:
        return list(ranks.map(one, range(len(changes))))


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"token": TOKEN}, {"token": OTHER}, "has another token than rank"),
        ({"token": TOKEN}, {}, "rank 1 has no token, rank 0 has one"),
        ({}, {"token": TOKEN}, "rank 0 has no token, rank 1 has one"),
    ],
)
def test_ranks_with_different_tokens_are_both_told_so(
    daemon: SwitchDaemon, first: dict[str, Any], second: dict[str, Any], words: str
) -> None:
    lines = refusals(daemon, first, second)
    for line in lines:
        assert words in line
        assert REMEDY in line
        assert "\n" not in line
        assert TOKEN not in line
        assert OTHER not in line


def test_ranks_that_differ_in_verifying_are_both_told_so(daemon: SwitchDaemon) -> None:
    for line in refusals(daemon, {}, {"verify": "off", "token": TOKEN}):
        assert "says verify is o" in line
        assert "all ranks must agree" in line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token": "hunter2"}, "option token: a token of 7 characters can be guessed; make one with `openssl rand"),
        ({"token_file": "/nowhere/token"}, "token file /nowhere/token: can't be read: "),
        ({"token": TOKEN, "token_file": "/nowhere/token"}, "a job has one token; leave one of them out"),
        ({"elements": 3}, "verified sums need more than 3 elements, not 3"),
        ({"elements": 4, "backups": 1}, "verified partial sums need more than 4 elements, not 4"),
        ({"verify": "perhaps"}, "verify 'perhaps' is unknown; allowed: auto, on, off"),
    ],
)
def test_what_can_not_be_verified_is_refused_on_every_rank(
    daemon: SwitchDaemon, changes: dict[str, Any], words: str
) -> None:
    assert [words in line for line in refusals(daemon, changes, changes)] == [True, True]


def test_a_token_file_that_others_may_read_is_refused(
    daemon: SwitchDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o644)
    monkeypatch.setenv("SWITCHAGG_TOKEN_FILE", str(path))
    assert refusals(daemon, {}) == [f"token file {path}: others may read it; run `chmod 600 {path}`"]
    path.chmod(0o600)
    with SwitchSession.join(daemon.control_endpoint, "train", 0, 1, JoinOptions(verify="on")) as session:
        assert session.status()["jobs"][0]["terms"]["key_check"]


def test_more_workers_than_tags_add_up_for_are_refused() -> None:
    terms = JobTerms(verify="on").resolved(360)
    join = Join(job="j", workers=2049, rank=0, address=("10.0.0.1", 9), incarnation=1, timeout_ns=1, **vars(terms))
    assert join.fault(4096, 360, MAX_WORKERS) == "verified sums of 2049 workers: 1 to 2048; verify=off goes without"
    assert replace(join, workers=2048).fault(4096, 360, MAX_WORKERS) == ""


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lambda answer: {"nonces": [nonce ^ 1 for nonce in answer.nonces]}, "with another nonce than the join's"),
        (lambda answer: {"nonces": answer.nonces[::-1]}, "with another nonce than the join's"),
        (lambda answer: {"nonces": []}, "answers the join of a job of 2 workers with another number of them"),
        (lambda answer: {"workers": 1}, "answers the join of a job of 2 workers with another number of them"),
        (
            lambda answer: {"terms": replace(answer.terms, verify="off")},
            "answers the join with another verify: off, not on",
        ),
    ],
)
def test_a_switch_that_changes_the_terms_or_repeats_an_answer_is_refused_by_every_rank(
    daemon: SwitchDaemon, monkeypatch: pytest.MonkeyPatch, lie: Any, words: str
) -> None:
    honest = ControlServer._admitted

    def admitted(*how: Any) -> control_messages.Admitted:
        answer = honest(*how)
        return msgspec.structs.replace(answer, **lie(answer))

    monkeypatch.setattr(ControlServer, "_admitted", admitted)
    for line in refusals(daemon, {}, {}):
        assert line.startswith(f"the switch at {daemon.control_endpoint} answers the join")
        assert words in line


def test_every_start_of_a_job_has_new_nonces(daemon: SwitchDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    fault = control_messages.Admitted.fault
    monkeypatch.setattr(
        control_messages.Admitted, "fault", lambda answer, join: answers.append(answer) or fault(answer, join)
    )
    for _ in range(2):
        SwitchSession.join(daemon.control_endpoint, "train", 0, 1, JoinOptions(verify="on")).close()
    assert answers[0].nonces != answers[1].nonces
    assert all(0 < nonce < 1 << 63 for answer in answers for nonce in answer.nonces)
