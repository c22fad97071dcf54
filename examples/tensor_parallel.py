"""Tensor parallelism on the switch: a layer's columns and rows on different ranks.

    torchrun --standalone --nproc-per-node 2 examples/tensor_parallel.py [--backend gloo]

Through the switch: the sum of what the ranks' rows give, in each forward pass, and at the end
gathering the parameters.
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="switchagg")
    dist.init_process_group(parser.parse_args().backend)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(8):
        inputs = torch.randn(32, 16)  # the same on all ranks
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
    total = sum(parameter.full_tensor().double().abs().sum() for parameter in model.parameters())
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}, parameters {total:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
