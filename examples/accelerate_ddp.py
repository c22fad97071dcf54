"""Accelerate on the switch: it uses the process group that is there already, by whatever backend.

    torchrun --standalone --nproc-per-node 2 examples/accelerate_ddp.py [--backend gloo]

Through the switch: the gradients, and accelerator.reduce. The rest is Gloo's.
"""

import argparse

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="switchagg")
    dist.init_process_group(parser.parse_args().backend)  # before Accelerator, which would choose Gloo
    accelerator = Accelerator(cpu=True)

    set_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    inputs = torch.randn(256, 16)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16)
    model, optimizer, data = accelerator.prepare(layers, torch.optim.SGD(layers.parameters(), lr=0.05), loader)
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
    mean = accelerator.reduce(loss.detach(), "mean")
    total = sum(parameter.double().abs().sum() for parameter in model.parameters())
    print(f"rank {accelerator.process_index}: loss {mean:.4f}, parameters {total:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
