"""FSDP2 (fully_shard) on the switch: shards of the parameters are gathered, those of the gradients summed.

    torchrun --standalone --nproc-per-node 2 examples/fsdp2.py [--backend gloo]

The all-gathers of each layer, the reduce-scatters of its gradients and the allreduce of the loss go through the switch.
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="switchagg")
    dist.init_process_group(parser.parse_args().backend)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(8):
        inputs = torch.randn(16, 16, generator=generator)
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    total = sum(parameter.full_tensor().double().abs().sum() for parameter in model.parameters())
    print(f"rank {dist.get_rank()}: loss {mean:.4f}, parameters {total:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
