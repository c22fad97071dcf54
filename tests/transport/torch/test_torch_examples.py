"""Every example of a framework, with two ranks as torchrun starts them and a switch: what one process would have
computed."""

import importlib.util
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from test_torch_launch import ROOT, ranks
from torch.nn.functional import mse_loss

from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions

pytestmark = pytest.mark.long

Batches = Callable[[], list[torch.Tensor]]


def one_process(batches: Batches) -> tuple[float, float]:
    """Loss of the last step, and the sum of the parameters' sizes, after training on the ranks' batches together."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in batches():
        optimizer.zero_grad()
        loss = mse_loss(model(batch), batch.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
    return loss.item(), sum(parameter.double().abs().sum().item() for parameter in model.parameters())


def shared_data() -> list[torch.Tensor]:
    """Of 256 samples each step takes 32, half of them on each rank."""
    return list(torch.randn(256, 16).split(32))


def data_of_each_rank() -> list[torch.Tensor]:
    generators = [torch.Generator().manual_seed(rank) for rank in range(2)]
    return [torch.cat([torch.randn(16, 16, generator=generator) for generator in generators]) for _ in range(8)]


@dataclass(frozen=True)
class Example:
    """calls: how many collectives go through the switch at least. needs: the package it shows. expected: see
    `one_process`; None: what the same ranks get over Gloo."""

    name: str
    calls: int
    needs: str = "torch"
    expected: Callable[[], tuple[float, float]] | None = None
    options: tuple[str, ...] = ()


EXAMPLES = (
    Example("lightning_trainer", 18, "lightning"),
    Example("lightning_fabric", 9, "lightning", lambda: one_process(shared_data)),
    Example("transformers_trainer", 9, "transformers"),
    Example("accelerate_ddp", 9, "accelerate", lambda: one_process(shared_data)),
    Example("fsdp2", 50, expected=lambda: one_process(data_of_each_rank)),
    Example("tensor_parallel", 8, expected=lambda: one_process(shared_data)),
    Example("pipeline", 8),
    Example("compiled_ddp", 9, expected=lambda: one_process(data_of_each_rank), options=("--compiler", "aot_eager")),
)


def results(example: Example, backend: str, switch: str) -> list[tuple[float, float]]:
    """What each rank printed: its loss, and the sum of its parameters."""
    command = (f"examples/{example.name}.py", "--backend", backend, *example.options)
    said = ranks(*command, SWITCHAGG_SWITCH=switch, HF_HUB_OFFLINE="1")
    found = re.findall(r"rank (\d): loss ([\d.nan]+), parameters ([\d.]+)", "".join(said))
    assert sorted(rank for rank, *_ in found) == ["0", "1"], said
    return [(float(loss), float(total)) for _, loss, total in sorted(found)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example(example: Example) -> None:
    if importlib.util.find_spec(example.needs) is None:
        pytest.skip(f"{example.needs} is not installed: make examples")
    said: list[str] = []
    switch = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=1024), log=said.append)
    switch.start()
    try:
        with ThreadPoolExecutor() as threads:
            over_gloo = threads.submit(results, example, "gloo", "") if example.expected is None else None
            ours = results(example, "switchagg", switch.control_endpoint)
            expected = over_gloo.result() if over_gloo else [example.expected()] * 2 if example.expected else []
    finally:
        switch.stop()
    calls = [int(count) for line in said for count in re.findall(r"left after (\d+) calls", line)]
    assert max(calls, default=0) >= example.calls, said
    assert ours[0] == ours[1] or example.name == "pipeline"  # where each rank has its own stage
    for rank, (loss, total) in enumerate(ours):
        assert loss == pytest.approx(expected[rank][0], rel=1e-3, nan_ok=True)
        assert total == pytest.approx(expected[rank][1], rel=1e-4)


def test_every_framework_example_is_listed() -> None:
    """In the guide, and above."""
    guide = (ROOT / "docs/training.md").read_text()
    scripts = {script.stem for script in (ROOT / "examples").glob("*.py")} - {
        "elastic_ddp",
        "exact_sums",
        "lying_switch",
        "train_ddp",
        "train_priority",
        "mininet_workers",
    }
    assert scripts == {example.name for example in EXAMPLES}
    assert all(f"examples/{name}.py" in guide for name in scripts)
