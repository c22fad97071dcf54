"""Steps and counts of virtual time have the bits of those of PyTorch, and need nothing of its compiler."""

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from emulation.workloads.fused_steps import FusedSteps
from emulation.workloads.operation_count import OperationCount
from emulation.workloads.workload import build_workload


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_steps_have_the_bits_of_pytorch(optimizer: str) -> None:
    """Sizes that don't fill a SIMD register, rates that change, a parameter without a gradient in some steps."""
    workload = build_workload("digits", 1, 0, 2, 8, optimizer=optimizer)
    generator = torch.Generator().manual_seed(3)
    start = [torch.randn(size, generator=generator) for size in ((3, 7), (1001,), (), (64, 33))]
    ours, theirs = ([value.clone().requires_grad_() for value in start] for _ in range(2))
    steps, oracle = workload.fused_steps_of(ours), workload.optimizer_of(theirs)
    assert isinstance(steps, FusedSteps)
    assert isinstance(oracle, torch.optim.Optimizer)
    for iteration in range(12):
        for place, (value, other) in enumerate(zip(ours, theirs, strict=True)):
            gradient = torch.randn(value.shape, generator=generator)
            value.grad, other.grad = (None, None) if place == iteration % 5 else (gradient, gradient.clone())
        steps.param_groups[0]["lr"] = oracle.param_groups[0]["lr"] = 0.1 / (1 + iteration)
        steps.step()
        oracle.step()
        assert all(torch.equal(value, other) for value, other in zip(ours, theirs, strict=True))
    steps.zero_grad()
    assert all(value.grad is None for value in ours)


@pytest.mark.parametrize("name", ["digits", "text"])
def test_operations_are_those_that_pytorch_counts(name: str) -> None:
    workload = build_workload(name, 1, 0, 2, 4)
    with OperationCount() as count:
        workload.loss(workload.model, 0).backward()
    with FlopCounterMode(display=False) as oracle:
        workload.loss(workload.model, 0).backward()
    assert count.total == oracle.get_total_flops() > 0


def test_virtual_ranks_train_without_the_compiler_of_pytorch() -> None:
    code = (
        "import sys; from emulation.workloads.replicas import Replicas; replicas = Replicas('digits', 1, 2, 8); "
        "replicas.apply(0, replicas.gradients(0)); replicas.evaluate(); print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "False\n"
