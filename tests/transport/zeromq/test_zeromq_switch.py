"""The switch over ZeroMQ, and its control plane with keys."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_threads import outcomes
from typer.testing import CliRunner
from waiting import until

from emulation.cli.main import app
from switchagg.errors import AggregationFailed, JobError, SwitchaggError
from switchagg.native import library
from transport.control.control_client import query_status
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.switch.impairments import parse_impairments
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession
from transport.zeromq.keys import Keys, load_keys, make_keys
from transport.zeromq.zmq_link import ZeroMqLink

LIVENESS_S = 120.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("keys")
    make_keys(made)
    return made


def switch(keys: Keys | None = None, link: str = "zeromq", **how: Any) -> SwitchDaemon:
    return SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), link=link, keys=keys, **how))


@pytest.mark.parametrize("plane", ["reference", "auto"])
@pytest.mark.parametrize("with_keys", [False, True], ids=["open", "keys"])
def test_sums_are_exact(folder: Path, tmp_path: Path, plane: str, with_keys: bool) -> None:
    keys = load_keys(folder) if with_keys else None
    for name in ("server.key", "client.key_secret"):  # all that a worker needs
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text((folder / name).read_text())
    numbers = [np.random.default_rng(rank).integers(-1000, 1000, 20_011, np.int32) for rank in range(3)]

    with switch(keys, dataplane=plane) as daemon:

        def work(rank: int) -> list[Any]:
            where, core = tmp_path if with_keys else None, "python" if rank == 2 else "auto"
            with SwitchSession.join(
                daemon.control_endpoint, "job", rank, 3, JoinOptions(link="zeromq", keys=where, core=core)
            ) as session:
                assert session.core == ("python" if rank == 2 or library.missing() else "native")
                arrays = [numbers[rank] * factor for factor in (1, 2, 3)]
                for future in [session.allreduce(array) for array in arrays]:
                    future.result(LIVENESS_S)
                assert session.counters["link_received_datagrams"] > 0
                return arrays

        for found in outcomes(3, work):
            assert not isinstance(found, Exception), found
            for factor, array in zip((1, 2, 3), found, strict=True):
                assert np.array_equal(array, sum(numbers) * factor)


def test_a_worker_that_dies_is_named() -> None:
    with switch(lease_s=1.0) as daemon:

        def work(rank: int) -> Any:
            with SwitchSession.join(daemon.control_endpoint, "job", rank, 2, JoinOptions(link="zeromq")) as session:
                if rank:
                    return None
                session.allreduce(np.zeros(5000, np.int32)).result(LIVENESS_S)

        failure = outcomes(2, work)[0]
    assert isinstance(failure, AggregationFailed)
    assert failure.missing == (1,)


@pytest.mark.parametrize("with_keys", [False, True], ids=["open", "keys"])
def test_c15_who_names_a_members_port_gets_none_of_its_results(tmp_path: Path, with_keys: bool) -> None:
    """With an allowed key of its own, too, and from the same host, after the member's contribution."""
    make_keys(tmp_path, ["member", "other"])
    member, other = (load_keys(tmp_path, name) if with_keys else None for name in ("member", "other"))
    with switch(member) as daemon, ThreadPoolExecutor(2) as pool:
        options = JoinOptions(link="zeromq", keys=member)
        joined = [pool.submit(SwitchSession.join, daemon.control_endpoint, "job", rank, 2, options) for rank in (0, 1)]
        victim, late = (future.result(LIVENESS_S) for future in joined)
        attacker = ZeroMqLink(("127.0.0.1", 0), keys=other, listening=False)
        attacker._address = victim._diagnosis.address
        try:
            arrays = [np.full(1000, rank + 1, np.int32) for rank in range(2)]
            first = victim.allreduce(arrays[0])
            until(
                lambda: [slot.ranks for slot in query_status(daemon.control_endpoint, "job", keys=member).jobs[0].slots]
            )
            before = daemon._loop.counters()["link_received_bundles"]
            attacker.send(np.zeros((1, 100), np.uint8), daemon.data_address)
            until(lambda: daemon._loop.counters()["link_received_bundles"] > before)
            for future in (first, late.allreduce(arrays[1])):
                assert set(future.result(LIVENESS_S)) == {3}
            attacker.wait(0.2)
            assert attacker.receive() == []
            assert daemon._loop.counters()["drop_unknown_sender"] == 1
        finally:
            attacker.close()
            victim.close()
            late.close()


@pytest.mark.parametrize(("served", "wanted"), [("zeromq", "udp"), ("udp", "zeromq")])
def test_different_links_are_refused_at_once_naming_both(served: str, wanted: str) -> None:
    words = f"switch carries packets over {served}, rank 0 over {wanted}"
    with switch(link=served) as daemon, pytest.raises(JobError, match=words):
        SwitchSession.join(daemon.control_endpoint, "job", 0, 1, JoinOptions(link=wanted, timeout_s=LIVENESS_S))


@pytest.mark.parametrize("wrong", ["none", "client", "server"])
def test_a_worker_with_wrong_keys_ends_within_its_timeout_and_is_named_in_the_log(
    folder: Path, tmp_path: Path, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_keys(tmp_path)
    (tmp_path / "server.key_secret").unlink()
    others = load_keys(tmp_path)
    odd, reason = {
        "none": (None, "it uses no keys (CURVE), this side does: give it"),
        "client": (
            replace(others, server_public=load_keys(folder).server_public),
            f"its key {others.client_public.decode()} is none of the 1 in",
        ),
        "server": (
            replace(load_keys(folder), server_public=others.server_public),
            "its keys and ours don't belong together (CURVE): both sides need the same server.key",
        ),
    }[wrong]
    with switch(load_keys(folder)) as daemon:
        with pytest.raises(JobError, match=r"no answer from switch .* within 0.5 s.*keys"):
            SwitchSession.join(
                daemon.control_endpoint, "job", 0, 1, JoinOptions(link="zeromq", keys=odd, timeout_s=0.5)
            )
        with pytest.raises(JobError, match=r"no answer .* keys"):
            query_status(daemon.control_endpoint, timeout_s=0.3, keys=odd)
        assert query_status(daemon.control_endpoint, keys=load_keys(folder)).jobs == []
    assert f"control plane {daemon.control_endpoint}: refused 127.0.0.1: {reason}" in caplog.text


def test_a_worker_without_a_secret_ends_with_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "server.key").write_text((folder / "server.key").read_text())
    with switch(load_keys(folder)) as daemon, pytest.raises(JobError) as caught:
        SwitchSession.join(daemon.control_endpoint, "job", 0, 1, JoinOptions(keys=tmp_path, timeout_s=LIVENESS_S))
    reason = f"keys in {tmp_path}: no NAME.key_secret of a client, which a connecting side needs; copy one there"
    assert str(caught.value) == reason


def test_options_that_zeromq_lacks_are_refused(folder: Path, tmp_path: Path) -> None:
    for how in ({"dataplane": "xdp"}, {"impairments": parse_impairments("loss=1%")}):
        with pytest.raises(SwitchaggError, match="the link zeromq has no"):
            switch(**how)  # type: ignore[arg-type]
    make_keys(tmp_path)
    (tmp_path / "server.key_secret").unlink()
    for link in ("udp", "zeromq"):
        with pytest.raises(SwitchaggError, match=r"server\.key_secret is missing"):
            switch(load_keys(tmp_path), link)
    with pytest.raises(JobError, match="link 'pigeon'"):
        SwitchSession.join("tcp://127.0.0.1:1", "job", 0, 1, JoinOptions(link="pigeon"))


@pytest.mark.parametrize("link", ["udp", "zeromq"])
def test_a_side_that_only_listens_needs_no_choice_among_clients(tmp_path: Path, link: str) -> None:
    make_keys(tmp_path, ["alice", "bob"])
    keys, alice = load_keys(tmp_path), load_keys(tmp_path, "alice")
    with switch(keys, link) as daemon:
        with SwitchSession.join(daemon.control_endpoint, "job", 0, 1, JoinOptions(link=link, keys=alice)) as session:
            assert session.allreduce(np.ones(4, np.int32)).result(LIVENESS_S).tolist() == [1] * 4
        several = r"several clients \(alice, bob\); leave one NAME.key_secret there"
        with pytest.raises(JobError, match=several):
            SwitchSession.join(daemon.control_endpoint, "job", 0, 1, JoinOptions(link=link, keys=tmp_path))
        with pytest.raises(JobError, match=several):
            query_status(daemon.control_endpoint, keys=keys)
        with pytest.raises(SwitchaggError, match=several):
            switch(keys, "udp", parent=daemon.control_endpoint)


def test_the_keys_command_makes_keys_or_reports_why_not(tmp_path: Path) -> None:
    runner = CliRunner()
    made = runner.invoke(app, ["keys", str(tmp_path / "k"), "--client", "a", "--client", "b"])
    assert made.exit_code == 0
    assert len(made.output.split()) == 6
    assert sorted(load_keys(tmp_path / "k", "a").allowed.values()) == ["a", "b"]
    again = runner.invoke(app, ["keys", str(tmp_path / "k"), "--client", "a"])
    assert again.exit_code == 1
    assert "already" in again.output
