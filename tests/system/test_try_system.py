"""`switchagg try` from end to end: in Mininet, and on machines that are namespaces joined by a bridge."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from emulation.testbed import netns
from tests.system.test_machines import Network

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.usefixtures("requires_mininet")]

COMMAND = [sys.executable, "-P", "-m", "emulation.cli.main", "try", "--steps", "17"]
SCRIPT = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
model = DistributedDataParallel(torch.nn.Linear(160, 160))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    loss = model(torch.randn(8, 160)).square().mean()
    loss.backward()
    optimizer.step()
    if sys.argv[1:] == [str(dist.get_rank())] and step == 7:
        os.kill(os.getpid(), 9)
"""
LIMIT_S = 240


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_in_mininet_the_switch_sends_less_and_learns_the_same(script: Path, tmp_path: Path) -> None:
    words = [*COMMAND, "--links", "20Mb/s", "--json", "--out", "out", str(script)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode in (0, 3), done.stderr  # 3: this machine is busy with other tests
    document = json.loads(done.stdout)
    gloo, switch = document["methods"]
    assert switch["sent_bytes"] < 0.9 * gloo["sent_bytes"]
    assert switch["forecast_ns"] < gloo["forecast_ns"]
    assert gloo["step"]["median_ns"] > 0.95 * gloo["least_exchange_ns"], "a shaped link doesn't carry more"
    (both,) = document["comparisons"]
    assert both["losses"]["steps"] == 17
    assert both["losses"]["largest"] < 1e-5
    assert (done.returncode == 3) == (not (gloo["certificate"]["valid"] and switch["certificate"]["valid"]))
    assert (tmp_path / "out" / "try.html").stat().st_size > 10_000


def test_machines_meet_and_a_rank_that_dies_ends_all(script: Path, tmp_path: Path) -> None:
    """The job of three dies at step 8 of the recording: its rank 2, on node 2."""
    net = Network({f"node{number}": f"10.0.0.{number + 1}" for number in range(3)}, tmp_path)
    nodes = []
    try:
        for number in range(3):
            (folder := tmp_path / f"node{number}").mkdir()
            words = [*COMMAND, "--nnodes", "3", "--node-rank", str(number), "--rendezvous", "10.0.0.1"]
            nodes.append(
                netns.spawn(
                    net.machines[f"node{number}"].holder.pid,
                    [*words, str(script), "2"],
                    cwd=folder,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    **{"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True},
                )
            )
        said = [node.communicate(timeout=LIMIT_S)[1] for node in nodes]
    finally:
        for node in nodes:
            netns.end(node)
        net.close()
    assert [node.returncode for node in nodes] == [1, 1, 1]
    assert "recording: rank 2 (node 2) was killed by SIGKILL" in said[0]
    assert "node 0 has ended: recording: rank 2 (node 2) was killed by SIGKILL" in said[1]
    assert "node 2: recording: rank 2 starts" in said[2]


def test_ctrl_c_ends_all_at_once(script: Path, tmp_path: Path) -> None:
    words = [*COMMAND, "--links", "20Mb/s", str(script)]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("recording"):
                running.send_signal(signal.SIGINT)
                break
        assert running.wait(LIMIT_S) == 130
        assert "interrupted; everything it had started is stopped" in running.stderr.read()
