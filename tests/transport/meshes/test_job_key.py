"""A job's token and the keys that follow from it (M1, C26): where it comes from, what is refused, golden digests."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchagg.errors import JobError
from transport.meshes.job_key import job_key, job_token, key_check, sum_key

TOKEN, OTHER = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"


def secret_file(folder: Path, text: str = f"{OTHER}\n", mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture(autouse=True)
def _no_token_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SWITCHAGG_TOKEN", "SWITCHAGG_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)


def test_a_token_is_the_option_s_or_the_file_s_or_the_environment_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = secret_file(tmp_path)
    assert job_token() == ""
    monkeypatch.setenv("SWITCHAGG_TOKEN_FILE", str(path))
    assert job_token() == OTHER
    assert job_token(f" {TOKEN}\n") == TOKEN
    monkeypatch.delenv("SWITCHAGG_TOKEN_FILE")
    monkeypatch.setenv("SWITCHAGG_TOKEN", TOKEN)
    assert job_token() == TOKEN
    assert job_token(file=path) == OTHER


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (None, 0, "can't be read: .*No such file"),
        ("", 0o600, "empty; make one with `openssl rand -hex 32 > "),
        (OTHER, 0o640, "others may read it; run `chmod 600 "),
        (OTHER, 0o604, "others may read it; run `chmod 600 "),
        ("hunter2", 0o600, "a token of 7 characters can be guessed; make one with `openssl rand -hex 32`"),
        ("\udcff" * 20, 0o600, "can't be read"),
    ],
)
def test_a_file_that_keeps_no_secret_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, mode: int, words: str
) -> None:
    path = tmp_path / "token"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
        path.chmod(mode)
    with pytest.raises(JobError, match=rf"^token file {path}: {words}") as refused:
        job_token(file=path)
    assert not text or text not in str(refused.value)
    monkeypatch.setenv("SWITCHAGG_TOKEN_FILE", str(path))
    with pytest.raises(JobError, match=rf"^token file {path}: {words}"):
        job_token()


def test_short_tokens_and_two_sources_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError, match=r"^option token: a token of 15 characters can be guessed; make one with"):
        job_token(TOKEN[:15])
    path = secret_file(tmp_path)
    with pytest.raises(JobError, match=f"^option token and token file {path}: a job has one token; leave one of them"):
        job_token(TOKEN, path)
    monkeypatch.setenv("SWITCHAGG_TOKEN", TOKEN)
    monkeypatch.setenv("SWITCHAGG_TOKEN_FILE", str(path))
    with pytest.raises(JobError, match=r"^SWITCHAGG_TOKEN and SWITCHAGG_TOKEN_FILE are both set: unset one of them$"):
        job_token()


def test_golden_digests() -> None:
    fresh = bytes.fromhex("00000007 000000000000000b 7fffffffffffffff")
    key = hashlib.blake2b(TOKEN.encode(), digest_size=32, person=b"sa token").digest()
    check = hashlib.blake2b(b"train", digest_size=4, key=key, person=b"sa check").hexdigest()
    assert job_key(TOKEN, "train") == key
    assert key_check(TOKEN, "train") == int(check, 16) == 0x51B10614
    assert hashlib.blake2b(fresh, digest_size=16, key=key, person=b"sa sums").digest() == sum_key(
        TOKEN, "train", 7, [11, (1 << 63) - 1]
    )
    assert sum_key(TOKEN, "train", 7, [11, (1 << 63) - 1]).hex() == "5f69ae733dda31129d99d885f967fe88"
    assert sum_key("", "train", 7, [11, 0]).hex() == "696437f389ef5f55e87ddcf0f1cdadc8"


@given(
    st.lists(st.integers(0, (1 << 63) - 1), min_size=2, max_size=5, unique=True),
    st.integers(0, (1 << 32) - 2),
    st.data(),
)
def test_another_nonce_generation_order_token_or_name_is_another_key(
    nonces: list[int], generation: int, data: st.DataObject
) -> None:
    key = sum_key("", "train", generation, nonces)
    rank = data.draw(st.integers(0, len(nonces) - 1))
    fresh = [nonce ^ (place == rank) for place, nonce in enumerate(nonces)]
    others = [
        sum_key("", "train", generation, fresh),
        sum_key("", "train", generation + 1, nonces),
        sum_key("", "train", generation, nonces[::-1]),
        sum_key("", "train", generation, nonces[:-1]),
        sum_key("", "other", generation, nonces),
        sum_key(TOKEN, "train", generation, nonces),
    ]
    assert len({key, *others}) == 7


def test_a_check_tells_tokens_and_jobs_apart_and_no_rank_without_a_token() -> None:
    assert key_check("", "train") == 0
    assert len({key_check(TOKEN, "train"), key_check(OTHER, "train"), key_check(TOKEN, "other"), 0}) == 4
