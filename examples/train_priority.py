"""Data-parallel training whose next forward pass begins when its first layers' gradients are summed.

    torchrun --standalone --nproc-per-node 2 examples/train_priority.py                        # over Gloo
    torchrun --standalone --nproc-per-node 2 examples/train_priority.py --method ring --schedule p3
    SWITCHAGG_SWITCH=tcp://127.0.0.1:5555 torchrun … examples/train_priority.py --method switch

The loop is an ordinary one; one line attaches the schedule. `--plain` trains without it, with one allreduce for each
gradient after the backward pass: with two workers the last line is the same to the bit, over Gloo and host methods (a
switch rounds to its fixed-point numbers).
"""

import argparse
import hashlib
import os
import secrets
import socket
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from transport.group import GroupOptions, open_group
from transport.torch import priority


def make_batch(step: int, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(size, 64) points around ten centres, and their labels; different on every rank and step."""
    centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1 + step * 1000 + rank)
    labels = torch.randint(0, 10, (size,), generator=generator)
    return centres[labels] + torch.randn(size, 64, generator=generator), labels


def join(method: str, rank: int, workers: int) -> Any:
    """The group of a method's name; None is torch's own. Ranks on one machine, that meet through torch.distributed."""
    if method == "gloo":
        return None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    members: list[Any] = [None] * workers
    dist.all_gather_object(members, (address, secrets.token_hex(32)))
    addresses, tokens = zip(*members, strict=True)
    job = f"priority-{addresses[0][1]}"
    if method != "switch":
        return open_group(method, "tcp", rank, addresses, job=job, options=GroupOptions(token=tokens[0]))
    options = GroupOptions(switch=os.environ["SWITCHAGG_SWITCH"], more={"priorities": [0, 2, 4, 7]})
    return open_group("switch", "udp", rank, addresses, job=job, options=options)


def main() -> None:
    parser = argparse.ArgumentParser(description="training with priorities")
    parser.add_argument("--method", default="gloo", help="gloo, switch, or one of the host methods, such as ring")
    parser.add_argument("--schedule", default="bytescheduler:partition=256kB,credit=1MB")
    parser.add_argument("--plain", action="store_true", help="no schedule, for comparison")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
    group = None if arguments.plain else join(arguments.method, rank, workers)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    handle = None if arguments.plain else priority.attach(model, optimizer, group, arguments.schedule)
    for step in range(arguments.steps):
        points, labels = make_batch(step, rank, arguments.batch)
        optimizer.zero_grad()
        loss = cross_entropy(model(points), labels)
        loss.backward()
        if handle is None:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= workers
        optimizer.step()
        if rank == 0 and (step % 10 == 0 or step == arguments.steps - 1):
            print(f"step {step:4d}  loss {loss.item():.4f}", flush=True)
    if handle is not None:
        handle.close()  # the last steps are done now
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print(f"rank {rank}: parameters {hashlib.sha256(weights).hexdigest()[:16]}", flush=True)
    dist.barrier()
    if group is not None:
        group.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
