"""Training scripts recorded from outside, two ranks: DDP over Gloo and over a ring, FSDP2, scripts that end early."""

import sys
from pathlib import Path

import pytest
from test_torch_launch import ranks
from typer.testing import CliRunner

from emulation.cli.main import app
from emulation.cli.runs import profile as command
from emulation.experiments.whatif.recorded_run import read
from emulation.scenario.profiles.model_profile import load
from emulation.scenario.profiles.torch_trace import record
from transport.torch.recording.__main__ import main

RECORDING = ("-m", "transport.torch.recording", "--stem")
DDP = ("examples/train_ddp.py", "--steps")


@pytest.mark.parametrize("backend", ["gloo", "switchagg"])
def test_a_ddp_script_becomes_a_profile(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the command, but for torchrun: 64 x 256 and 256 x 10 weights; stopped long before its 100,000 steps."""
    heard: list[str] = []

    def run(given: list[str]) -> int:
        heard.extend(ranks(*given[given.index("-m", given.index("-m") + 1) :], SWITCHAGG_METHOD="ring"))
        return 0

    monkeypatch.setattr(command, "run_to_end", run)
    path = tmp_path / "digits.toml"
    options = ["--stop", "--warmup", "2", "--iterations", "4", "--out", str(path)]
    done = CliRunner().invoke(app, ["profile", *options, *DDP, "100000", "--backend", backend])
    assert done.exit_code == 0, done.output
    assert "2 of 2 ranks, 4 iterations" in done.output
    assert "step    0  loss" in heard[0]
    model = load(path)
    assert [(layer.name, list(layer.tensors.values())) for layer in model.layers] == [
        ("0", [64 * 256, 256]),
        ("2", [256 * 10, 10]),
    ]
    assert all(layer.forward_ns and layer.backward_ns for layer in model.layers)
    assert model.sent_bytes == (4 * model.elements,)
    assert model.jitter > 0
    assert len(model.skew) == 2
    assert "1 small collectives outside" in model.source["notes"]  # the mean of the loss
    assert read([str(path)]).collectives == read(sorted(map(str, tmp_path.glob("*.gz")))).collectives


def test_fsdp_keeps_its_collectives(tmp_path: Path) -> None:
    script = tmp_path / "sharded.py"
    script.write_text(
        """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 16))
mesh = init_device_mesh("cpu", (2,))
for layer in model:
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.SGD(fully_shard(model, mesh=mesh).parameters())
for _ in range(6):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
    )
    ranks(*RECORDING, str(tmp_path / "run"), "--warmup", "2", "--iterations", "3", str(script))
    found = record(tmp_path / "run.rank1.json.gz")
    assert (found.rank, found.workers, found.data_parallel) == (1, 2, False)
    sums = [each.size_bytes for each in found.like.collectives if each.kind == "reduce_scatter"]
    assert sums == [4 * (64 * 16 + 16), 4 * (8 * 64 + 64)]
    run = read([str(tmp_path / f"run.rank{rank}.json.gz") for rank in range(2)], 16)
    assert {each.ranks for each in run.collectives} == {16}


def test_a_script_that_ends_too_early_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "short.py"
    script.write_text(
        "import torch\nlayer = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(layer.parameters())\n"
        "for _ in range(8):\n    layer(torch.ones(2)).sum().backward()\n    optimizer.step()\n"
    )
    monkeypatch.setattr(sys, "argv", ["recording", "--stem", str(tmp_path / "run"), str(script)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "rank 0 ended after 8 steps of its optimizer; 16 are needed" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["short.py"]
