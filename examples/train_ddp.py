"""Data-parallel training with gradients summed by a switch: an ordinary DDP script but for one word.

    switchagg switch &      # on this host; for others: --control tcp://HOST:5555
    export SWITCHAGG_SWITCH=tcp://127.0.0.1:5555
    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py

`--backend gloo` trains the same without a switch; the losses agree. What a switch gains it with larger gradients:
`switchagg try examples/train_ddp.py --width 16000 --batch 256`. A GPU is used where there is one per worker.
"""

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def make_batch(step: int, rank: int, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(size, 64) points around ten centres, and their labels; different on every rank and step."""
    centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1 + step * 1000 + rank)
    labels = torch.randint(0, 10, (size,), generator=generator)
    points = centres[labels] + torch.randn(size, 64, generator=generator)
    return points.to(device), labels.to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description="DDP training over the switch")
    parser.add_argument("--backend", default="switchagg", choices=["switchagg", "gloo", "nccl"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    parser.add_argument("--width", type=int, default=256, help="hidden units; 16000 make 4.8 MB of gradients")
    arguments = parser.parse_args()

    # Installed as a package, switchagg is known to PyTorch; from a source tree, `import transport.torch` makes it so.
    dist.init_process_group(arguments.backend, timeout=timedelta(seconds=120))
    rank, local_rank = dist.get_rank(), int(os.environ.get("LOCAL_RANK", "0"))
    use_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cuda", local_rank) if use_gpu else torch.device("cpu")
    if use_gpu:
        torch.cuda.set_device(device)

    torch.manual_seed(0)
    width = arguments.width
    layers = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)).to(device)
    model = DistributedDataParallel(layers, device_ids=[local_rank] if use_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(arguments.steps):
        points, labels = make_batch(step, rank, arguments.batch, device)
        optimizer.zero_grad()
        loss = cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if rank == 0 and (step % 10 == 0 or step == arguments.steps - 1):
            print(f"step {step:4d}  loss {mean.item():.4f}", flush=True)
    del model  # first: a Gloo group that ends with DDP's reducer ends with the GIL held, for which its thread may wait
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
