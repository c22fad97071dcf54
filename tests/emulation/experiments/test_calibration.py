"""What packets cost hosts: from CPU times to [hosts], the file, and what predictions make of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from emulation.experiments.bench import calibration, time_fidelity
from emulation.experiments.bench.calibration import FAST_BPS, SLOW_BPS, CpuTime, PathCosts
from emulation.scenario.errors import ScenarioError
from emulation.scenario.scenario_tables import HostOptions
from emulation.sim.host_costs import PacketCosts
from transport.group.method_name import parse

MEASURED = {path: PathCosts(PacketCosts(1000, 0, 2000, 2), (0.1, 0.25)) for path in calibration.PROBES}


def test_every_method_of_fidelity_has_a_path() -> None:
    paths = {name: calibration.path_of(parse(name)) for name in time_fidelity.every()}
    assert set(paths.values()) == calibration.PROBES.keys()
    assert paths["gloo"] == "tcp"
    assert paths["ring@udp"] == paths["ps@udp"] == "udp"
    assert (paths["switch"], paths["switch@rdma"], paths["mlt"]) == ("switch", "switch@rdma", "mlt")


def test_costs_are_per_packet_and_pause_of_virtual_time() -> None:
    method = parse("switch")
    hosts, switch, _ = calibration.counted(method, FAST_BPS)
    *_, pauses = calibration.counted(method, SLOW_BPS)
    assert hosts == switch >= 2 * calibration.WORKERS * calibration.SIZE_BYTES / 1500
    assert 0 < pauses <= hosts
    fast = CpuTime(hosts * 3_000, switch * 500, 0.1)
    slow = CpuTime(fast.workers_ns + pauses * 7_000, fast.switch_ns, 0.2)
    found = calibration.costs_of(method, fast, slow)
    assert replace(found.costs, cpus=0) == PacketCosts(3_000, 500, 7_000)
    assert found.spreads == (0.1, 0.2)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(calibration.text_of(MEASURED), encoding="utf-8")
    assert calibration.load(path) == dict.fromkeys(
        calibration.PROBES, HostOptions(packet_ns=1000, wake_ns=2000, cpus=2)
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("packet_ns = 1_000", "packet_ns = -1", "packet_ns"),
        ("packet_ns = 1_000", "transfer_ns = 1_000", "run switchagg calibrate again"),
        ('[hosts."tcp"]', '[hosts."ipx"]', "run switchagg calibrate again"),
        ("cpus = 2", "cpus =", "writes such a file"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused_in_a_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(calibration.text_of(MEASURED).replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ScenarioError, match=words) as refused:
        calibration.load(path)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="No such file"):
        calibration.load(tmp_path / "hosts.toml")
