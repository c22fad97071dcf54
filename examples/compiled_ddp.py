"""torch.compile around DDP, on the switch.

    torchrun --standalone --nproc-per-node 2 examples/compiled_ddp.py [--backend gloo] [--compiler inductor]

Through the switch: the gradients, bucket by bucket as the compiled backward pass makes them. The rest is Gloo's.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="switchagg")
    parser.add_argument("--compiler", default="inductor", help="torch.compile's backend; inductor needs a C++ compiler")
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)

    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model = torch.compile(DistributedDataParallel(layers), backend=arguments.compiler)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(8):
        inputs = torch.randn(16, 16, generator=generator)
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    total = sum(parameter.double().abs().sum() for parameter in layers.parameters())
    print(f"rank {dist.get_rank()}: loss {mean:.4f}, parameters {total:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
