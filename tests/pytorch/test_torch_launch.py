"""How programs come to the backend: by `import torch` alone, under torchrun, on GPUs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_torch_backend import Launch, launch, switch  # noqa: F401  # fixtures

from transport.switch.daemon import SwitchDaemon

ROOT = Path(__file__).parents[2]
GLOO_ABORTS = "terminate called without an active exception"
"""PyTorch's Gloo alone, with nothing of ours loaded, does so in one end of thirty, after all is done."""

LOCAL = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def run(*command: str, timeout_s: float = 100, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_import_torch_is_enough_and_stays_light() -> None:
    program = """
import sys, torch
assert torch.distributed.Backend.SWITCHAGG == "switchagg"
heavy = [name for name in sys.modules if name.split(".")[0] in ("zmq", "msgspec", "switchagg")]
ours = sorted(name for name in sys.modules if name.startswith("transport"))
print(heavy, ours)
import transport.torch
from transport.torch import switchagg_hook, SwitchOptions
assert SwitchOptions().name.is_switch
import transport.torch.backend, transport.worker.session  # all that a group through a switch needs
needless = ("transport.collectives.table", "transport.schedule", "transport.meshes.reliable", "transport.switch",
    "switchagg.controller", "switchagg.aggregator", "torch._dynamo.eval_frame")
print([name for name in sys.modules if name.startswith(needless)])
"""
    done = run("-c", program)
    assert done.returncode == 0, done.stderr
    at_import, at_start = done.stdout.splitlines()
    assert at_import == "[] ['transport', 'transport.torch', 'transport.torch.registration']"
    assert at_start == "[]"
    assert (
        "SWITCHAGG"
        not in run(
            "-c", "import torch; print(dir(torch.distributed.Backend))", TORCH_DEVICE_BACKEND_AUTOLOAD="0"
        ).stdout
    )


def test_torchrun(switch: SwitchDaemon) -> None:  # noqa: F811
    common = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "examples/train_ddp.py")
    variables = {"SWITCHAGG_SWITCH": switch.control_endpoint, **LOCAL}
    losses = []
    for backend in ("switchagg", "gloo"):
        done = run(*common, "--backend", backend, "--steps", "12", **variables)
        assert done.returncode == 0 or (backend == "gloo" and GLOO_ABORTS in done.stderr), done.stderr
        losses.append(done.stdout)
    assert losses[0] == losses[1]
    assert "step   11  loss" in losses[0]


@pytest.mark.parametrize(("method", "dies_by"), [("switch", "SIGKILL"), ("ring", "os._exit")])
def test_torchrun_starts_again_after_a_rank_died(switch: SwitchDaemon, method: str, dies_by: str) -> None:  # noqa: F811
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    variables = {"SWITCHAGG_SWITCH": switch.control_endpoint, "SWITCHAGG_METHOD": method, "DIES_BY": dies_by}
    done = run(*torchrun, "tests/torch_method_programs.py", "restarted", **variables, **LOCAL)
    assert done.returncode == 0, done.stderr
    assert len(set(line for line in done.stdout.splitlines() if line.startswith("attempt 1: "))) == 1
    assert "attempt 0" not in done.stdout
    assert done.stdout.count("DONE") == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: pinned staging, streams, DDP on a GPU")
def test_cuda(launch: Launch, switch: SwitchDaemon) -> None:  # noqa: F811
    launch("cuda", 2, switch.control_endpoint)
    launch.done()
