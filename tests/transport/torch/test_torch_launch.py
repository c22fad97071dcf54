"""How programs come to the backend: by `import torch` alone, under torchrun, on GPUs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_torch_backend import Launch, free_port, launch, switch  # noqa: F401  # fixtures
from torch_forks import Forked

from transport.switch.daemon import SwitchDaemon

ROOT = Path(__file__).parents[3]
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


def ranks(*command: str, **variables: str) -> list[str]:
    """What two ranks of a program wrote, with the variables of torchrun and without its processes."""
    of_torchrun = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "ranks"}
    of_torchrun |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    environment = {**os.environ, **LOCAL, **of_torchrun, **variables}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [
        Forked(
            [sys.executable, *command],
            env={**environment, "RANK": rank, "LOCAL_RANK": rank},
            cwd=ROOT,
            text=True,
            **streams,
        )
        for rank in ("0", "1")
    ]
    try:
        said = [rank.communicate(timeout=300) for rank in started]
    finally:
        for rank in started:
            rank.kill()
            rank.wait()
    for rank, (_, errors) in zip(started, said, strict=True):
        assert rank.returncode == 0, errors
    return [output for output, _ in said]


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
needless = ("transport.collectives.collective_table", "transport.schedule", "transport.meshes.reliable",
    "transport.switch", "switchagg.controller", "switchagg.aggregator", "torch._dynamo.eval_frame")
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


def test_torchrun_starts_again_after_a_rank_died(switch: SwitchDaemon) -> None:  # noqa: F811
    place = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    elastic = ("--nnodes", "1:4", *place, "--rdzv-conf", "last_call_timeout=1", "--max-restarts", "3")
    torchrun = ("-m", "torch.distributed.run", *elastic, "--nproc-per-node", "2")
    variables = {"SWITCHAGG_SWITCH": switch.control_endpoint, "SWITCHAGG_METHOD": "switch"}
    done = run(*torchrun, "tests/shared/torch_method_programs.py", "restarted", **variables, **LOCAL)
    assert done.returncode == 0, done.stderr
    assert len(set(line for line in done.stdout.splitlines() if line.startswith("attempt 1: "))) == 1
    assert "attempt 0" not in done.stdout
    assert done.stdout.count("DONE") == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: pinned staging, streams, DDP on a GPU")
def test_cuda(launch: Launch, switch: SwitchDaemon) -> None:  # noqa: F811
    launch("cuda", 2, switch.control_endpoint)
    launch.done()
