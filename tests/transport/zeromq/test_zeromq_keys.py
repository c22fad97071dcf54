"""CURVE keys: files, which peers are allowed, and the error that a refused one gets."""

import logging
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchagg.errors import JobError
from tests.transport.contracts.meshes import MeshKind, connect_all, free_addresses, received, send_over_tcp, turn
from transport.meshes.mesh import MessageReceived
from transport.zeromq.keys import Keys, load_keys, make_keys
from transport.zeromq.zmq_link import ZeroMqLink
from transport.zeromq.zmq_mesh import ZeroMqMesh

KIND = MeshKind(ZeroMqMesh.connect, send_over_tcp)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("keys")
    make_keys(made)
    return made


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of somebody else."""
    made = tmp_path_factory.mktemp("others")
    make_keys(made)
    return made


# ---- files


def test_keys_are_written_for_their_owner_alone_and_read_again(tmp_path: Path) -> None:
    written = make_keys(tmp_path / "new", ["alice", "bob"])
    names = sorted(str(path.relative_to(tmp_path / "new")) for path in written)
    assert names == [
        "alice.key_secret",
        "bob.key_secret",
        "clients/alice.key",
        "clients/bob.key",
        "server.key",
        "server.key_secret",
    ]
    for path in written:
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if path.suffix == ".key_secret" else 0o644)
    alice, bob = (load_keys(tmp_path / "new", name) for name in ("alice", "bob"))
    assert alice.server_public == bob.server_public
    assert alice.allowed == {alice.client_public: "alice", bob.client_public: "bob"}
    for secret in (alice.client_secret, alice.server_secret):
        assert secret is not None
        assert secret.decode() not in repr(alice)


def test_a_client_is_added_to_an_existing_folder_of_keys(tmp_path: Path) -> None:
    make_keys(tmp_path)
    before = load_keys(tmp_path)
    assert len(make_keys(tmp_path, ["bob"])) == 2
    after = load_keys(tmp_path)  # of several, the one named client
    assert (after.server_secret, after.client_secret) == (before.server_secret, before.client_secret)
    assert sorted(after.allowed.values()) == ["bob", "client"]
    with pytest.raises(JobError, match=r"'bob' are in .* already"):
        make_keys(tmp_path, ["bob"])


@pytest.mark.parametrize("name", ["", "server", "../x", "a b"])
def test_a_client_s_name_has_only_plain_characters(tmp_path: Path, name: str) -> None:
    with pytest.raises(JobError, match="a name is"):
        make_keys(tmp_path, [name])
    assert list(tmp_path.iterdir()) == []


def test_a_side_needs_only_its_own_secret(folder: Path, tmp_path: Path) -> None:
    for name in ("server.key", "client.key_secret"):
        (tmp_path / name).write_text((folder / name).read_text())
        (tmp_path / name).chmod(0o600)
    worker = load_keys(tmp_path)
    assert worker.server_secret is None
    with pytest.raises(JobError, match=r"server\.key_secret is missing"):
        ZeroMqLink(("127.0.0.1", 0), keys=worker)


FAULTS = {
    "no folder": (None, lambda path: None, "no folder of keys"),
    "missing": ("server.key", Path.unlink, r"server\.key is missing"),
    "readable": ("client.key_secret", lambda path: path.chmod(0o644), "chmod 600"),
    "short": ("server.key", lambda path: path.write_text('curve\n    public-key = "abc"\n'), "is damaged"),
    "not Z85": ("server.key", lambda path: path.write_text(f'curve\n    public-key = "{"~" * 40}"\n'), "is damaged"),
    "not text": ("clients/client.key", lambda path: path.write_bytes(bytes(range(256))), "is damaged"),
    "no secret": ("client.key_secret", lambda path: path.write_text("curve\n"), "is damaged"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_that_says_how_to_fix_it(tmp_path: Path, fault: str) -> None:
    name, act, words = FAULTS[fault]
    if name is not None:
        make_keys(tmp_path)
        act(tmp_path / name)
    with pytest.raises(JobError, match=words) as raised:
        load_keys(tmp_path if name is not None else tmp_path / "nowhere")
    assert "\n" not in str(raised.value)
    assert "switchagg keys" in str(raised.value) or "chmod" in str(raised.value)


def test_a_public_key_of_another_pair_is_refused(folder: Path, others: Path, tmp_path: Path) -> None:
    make_keys(tmp_path)
    (tmp_path / "server.key").write_text((others / "server.key").read_text())
    with pytest.raises(JobError, match="don't belong together"):
        load_keys(tmp_path)


# ---- which peers are allowed


def mixed(mine: Path, theirs: Path, tmp_path: Path, swapped: str) -> Keys:
    """The keys in `mine`, but one of theirs."""
    for name in ("server.key", "server.key_secret", "client.key_secret"):
        source = theirs if name.startswith(swapped) else mine
        (tmp_path / name).write_text((source / name).read_text())
        (tmp_path / name).chmod(0o600)
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "client.key").write_text((mine / "clients" / "client.key").read_text())
    return load_keys(tmp_path)


def test_members_with_the_same_keys_connect_and_exchange_messages(folder: Path) -> None:
    found = connect_all(KIND, free_addresses(3), [{"job": "a", "keys": load_keys(folder)}] * 3)
    try:
        data = bytes(range(256)) * 1000
        for ticket, size in enumerate((0, 10, 100_000, len(data))):
            found[0].send(1, b"h", data[:size], ticket)
        events = turn(found, lambda seen: sum(isinstance(event, MessageReceived) for event in seen[1]) == 4)
        assert received(events[1]) == [(0, b"h", data[:size]) for size in (0, 10, 100_000, len(data))]
    finally:
        for mesh in found:
            mesh.close(0.0)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, "switchagg.zeromq"):
        yield caplog


@pytest.mark.parametrize(
    ("kind", "words", "logged"),
    [
        ("client", "refuses our key", "is none of the 1 in"),
        ("server", "other keys|don't belong together", "speaks another protocol|don't belong together|other keys"),
        ("none", "keys", "no keys|other keys than ours, or none"),
    ],
)
def test_a_peer_with_a_wrong_key_is_refused_and_logged(
    folder: Path, others: Path, tmp_path: Path, log: pytest.LogCaptureFixture, kind: str, words: str, logged: str
) -> None:
    """Both sides end within their timeouts, and name the member."""
    odd = None if kind == "none" else mixed(folder, others, tmp_path, kind)
    how: list[dict[str, Any]] = [{"job": "a", "timeout_s": 1.0, "keys": keys} for keys in (load_keys(folder), odd)]
    found = connect_all(KIND, free_addresses(2), how)
    for error in found:
        assert isinstance(error, JobError), error
    assert "member 1 at" in str(found[0])
    assert "member 0 at" in str(found[1])
    assert re.search(words, str(found[1])), found[1]
    lines = [record.getMessage() for record in log.records]
    who = "refused 127.0.0.1" if kind == "client" else "refused "  # a connection that is gone already has no address
    assert any(who in line for line in lines), lines
    assert any(re.search(logged, line) for line in lines), lines
    assert len(lines) == len(set(lines)) < 8  # said once, however often it tries


def test_a_link_takes_bundles_only_from_peers_with_allowed_keys(folder: Path, log: pytest.LogCaptureFixture) -> None:
    keys = load_keys(folder)
    switch, worker, unknown_sender = (ZeroMqLink(("127.0.0.1", 0), keys=one) for one in (keys, keys, None))
    try:
        rows = np.arange(300, dtype=np.uint8).reshape(3, 100)
        unknown_sender.send(rows, switch.address)
        worker.send(rows, switch.address)
        end = time.monotonic() + 20
        arrived: list[Any] = []
        while not arrived:
            assert time.monotonic() < end
            switch.wait(0.1)
            arrived = switch.receive()
        assert [(bundle.tobytes(), sender) for bundle, sender, _ in arrived] == [(rows.tobytes(), worker.address)]
        while not switch.counters["refused"]:
            assert time.monotonic() < end
            switch.wait(0.05)
        assert switch.receive() == []
        assert "no keys" in log.text or "keys than ours, or none" in log.text
    finally:
        for link in (switch, worker, unknown_sender):
            link.close()
