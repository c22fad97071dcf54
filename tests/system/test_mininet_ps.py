"""Parameter servers with hosts of their own in Mininet: real sums, bytes of all links, and who is named if one dies."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from emulation.results.results import summary
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario, parse
from emulation.testbed.mininet import mininet_run
from emulation.testbed.mininet.mininet_run import run_method
from transport.group.method_name import parse as parse_method

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("requires_mininet")]
METHOD = parse_method("ps@tcp")


def scenario(
    servers: int, mode: str = "bsp", backups: int = 0, more: Mapping[str, str | int] = MappingProxyType({})
) -> Scenario:
    text = (
        'name = "servers"\ntitle = "Servers"\n[methods]\nmininet = ["ps@tcp"]\n'
        "[topology]\nworkers = 3\nrate_bps = 200_000_000\n"
        "[workload]\niterations = 4\nwarmup_iterations = 2\nbatch_per_worker = 4\nevaluate_every = 4\n"
    )
    return parse(text, "servers.toml", {"ps.servers": servers, "ps.mode": mode, "ps.backups": backups, **more})


def own_servers() -> list[Path]:
    """The folders in /proc of this process's children that are parameter servers, by their numbers."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    commands = {Path(f"/proc/{child}"): Path(f"/proc/{child}/cmdline").read_bytes() for child in listed}
    servers = {path: words for path, words in commands.items() if b"emulation.cli.main\0server\0" in words}
    return sorted(servers, key=lambda path: servers[path].partition(b"--number\0")[2])


@pytest.mark.parametrize(("servers", "mode", "backups"), [(2, "bsp", 0), (1, "backup", 1)])
def test_training_with_servers_ends_alike_on_all_ranks_and_is_counted(
    servers: int, mode: str, backups: int, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="training needs torch")
    given = scenario(servers, mode, backups)
    found = run_method(given, METHOD, tmp_path, lambda *_: None)
    assert len(set(found.parameter_hash_per_rank)) == 1
    assert len(found.environment["network"]["ports"]) == 2 * (3 + servers), "each is read back"
    assert found.certificate is not None
    assert found.certificate.measures["departures"] > 1000
    assert len(found.wire_tx_bytes_per_rank) == 3
    assert len(found.wire_tx_bytes_per_server) == len(found.wire_rx_bytes_per_server) == servers
    numbers = summary(given, found)
    assert numbers["bound"]["traffic_factor"] == (3 - backups) / servers
    assert 0.95 < numbers["wire_rx_bytes_per_rank_iteration"] / numbers["bound"]["wire_bytes_per_rank"] < 1.2
    # nobody waits for a backup: what it sends or gets last may come after the counters have been read
    least = 0.95 - backups / (3 - backups) / found.wire_iterations
    for counted in ("wire_tx_bytes_per_server_iteration", "wire_rx_bytes_per_server_iteration"):
        assert least < numbers[counted] / numbers["bound_wire_bytes_per_server"] < 1.2
    for number in range(servers):
        assert f"switchagg server done: mode {mode}, " in (tmp_path / f"server-{number}.log").read_text()
    assert not own_servers()


@pytest.mark.parametrize(("servers", "codec"), [(0, ""), (2, "~lanes8+ef")])
def test_servers_that_keep_the_weights_train_and_are_counted(servers: int, codec: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs torch")
    given = scenario(servers, "ssp", 0, {"ps.staleness": 1, "workload.optimizer": "sgd", "workload.evaluate_every": 2})
    found = run_method(given, parse_method(f"ps@tcp{codec}"), tmp_path, lambda *_: None)
    assert len(set(found.parameter_hash_per_rank)) == 1
    assert 0 < found.environment["gradient_delay_mean"] <= found.environment["gradient_delay_most"] <= 2 * 3
    assert [score.iteration for score in found.evaluations] == [1, 3]
    last = found.iterations[-1]
    assert found.evaluations[0].time_ns < last.start_ns + last.duration_ns
    numbers = summary(given, found)
    assert 0.95 < numbers["wire_tx_bytes_per_rank_iteration"] / numbers["bound"]["wire_bytes_per_rank"] < 1.2
    if codec:
        assert numbers["codec"]["bits_per_value"] == 8
        received = numbers["wire_rx_bytes_per_rank_iteration"]
        assert 0.95 < received / numbers["bound"]["wire_rx_bytes_per_rank"] < 1.2
        assert 3.5 < received / numbers["wire_tx_bytes_per_rank_iteration"] < 4.1, "weights in float32"
    for number in range(servers):
        assert "switchagg server done: mode ssp, " in (tmp_path / f"server-{number}.log").read_text()
    assert not own_servers()


def test_a_server_that_dies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mininet_run, "TRAINER", "fake_trainer")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("FAKE_TRAINER", "silent 0")

    def kill_the_second(done: int, _total: int, _note: str) -> None:
        if done == 1:
            os.kill(int(own_servers()[1].name), signal.SIGKILL)

    with pytest.raises(RunFailed, match=r"^ps@tcp: server 1 was killed by SIGKILL .*server-1\.log\)$"):
        run_method(scenario(2), METHOD, tmp_path, kill_the_second)
    assert not own_servers()
