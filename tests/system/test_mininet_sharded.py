"""FSDP2 and tensor parallelism in Mininet, with a small model: the same parameters everywhere, all by the method, and
the bytes of the bound."""

from pathlib import Path

import pytest

from emulation.results.results import summary
from emulation.scenario.scenario import parse
from emulation.testbed.mininet import mininet_run
from emulation.testbed.mininet.mininet_run import run_method
from emulation.testbed.trainers.trainer import read_config
from emulation.testbed.trainers.trainer_messages import TrainerConfig
from transport.group.method_name import parse as parse_method

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("requires_mininet")]

SMALL = """
from dataclasses import replace
from emulation.scenario.workload_kinds import WORKLOADS
from emulation.workloads.tasks.text import Gpt
from emulation.workloads.tasks.text_tensor import SharedBlock, TensorTextTask
class Small(TensorTextTask):
    def build_model(self):
        return Gpt(256, self.context, 64, heads=2, blocks=2, block=SharedBlock)
for name in ("fsdp", "tp"):
    WORKLOADS[name] = replace(WORKLOADS[name], make=Small)
from emulation.testbed.trainers.trainer import prepare, run_rank
"""


@pytest.mark.parametrize(
    ("workload", "kinds"), [("fsdp", {"all_gather", "reduce_scatter"}), ("tp", {"allreduce"})], ids=["fsdp", "tp"]
)
def test_a_model_that_ranks_share_trains_through_the_switch(
    workload: str, kinds: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="training needs torch")
    (tmp_path / "small_trainer.py").write_text(SMALL)
    monkeypatch.setattr(mininet_run, "TRAINER", "small_trainer")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    scenario = parse(
        f'name = "{workload}"\ntitle = "Small"\n[methods]\nmininet = ["switch"]\n'
        "[topology]\nworkers = 2\nrate_bps = 500_000_000\n"
        f'[workload]\nname = "{workload}"\niterations = 4\nwarmup_iterations = 2\nbatch_per_worker = 4\n',
        "small.toml",
    )
    found = run_method(scenario, parse_method("switch"), tmp_path, lambda *_: None)
    assert len(set(found.parameter_hash_per_rank)) == 1
    assert set(found.collective_bytes) == kinds
    assert [score.iteration for score in found.evaluations] == [3]
    assert {path for kind in kinds for path in found.call_paths[kind]} == {"switch"}
    assert found.certificate is not None
    assert found.certificate.measures["departures"] > 100
    numbers = summary(scenario, found)
    assert 0.8 < numbers["wire_rx_bytes_per_rank_iteration"] / numbers["bound"]["wire_bytes_per_rank"] < 1.4
    config: TrainerConfig = read_config(tmp_path / "rank-0.json")
    assert config.segments_max == 20, "what a burst holds at 500 Mb/s"
