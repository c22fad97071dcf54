"""Lightning Fabric on the switch: DDPStrategy takes the backend's name.

    torchrun --standalone --nproc-per-node 2 examples/lightning_fabric.py [--backend gloo]

Through the switch: the gradients, and fabric.all_reduce. The rest is Gloo's.
"""

import argparse
import os

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="switchagg")
    backend = parser.parse_args().backend

    workers = int(os.environ["LOCAL_WORLD_SIZE"])
    nodes = int(os.environ["WORLD_SIZE"]) // workers
    strategy = DDPStrategy(process_group_backend=backend)
    fabric = Fabric(accelerator="cpu", devices=workers, num_nodes=nodes, strategy=strategy)
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model, optimizer = fabric.setup(layers, torch.optim.SGD(layers.parameters(), lr=0.05))
    inputs = torch.randn(256, 16)
    data = fabric.setup_dataloaders(DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16))
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        fabric.backward(loss)
        optimizer.step()
    mean = fabric.all_reduce(loss.detach(), reduce_op="mean")
    total = sum(parameter.double().abs().sum() for parameter in model.parameters())
    print(f"rank {fabric.global_rank}: loss {mean:.4f}, parameters {total:.6f}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
