"""Pipeline parallelism with the switch as backend: a stage of the model on each rank.

    torchrun --standalone --nproc-per-node 2 examples/pipeline.py [--backend gloo]

Gloo sends activations and their gradients from rank to rank. The norm of all gradients goes through the switch, an
allreduce of one number in each step.
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import mse_loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="switchagg")
    dist.init_process_group(parser.parse_args().backend)
    rank, stages = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(stages - 1)]
    module = [*layers, torch.nn.Linear(16, 1)][rank]
    stage = PipelineStage(module, rank, stages, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    losses: list[torch.Tensor] = []
    for _ in range(8):
        inputs = torch.randn(32, 16)  # all ranks have the same
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(inputs)
        elif rank == stages - 1:
            losses.clear()
            schedule.step(target=inputs.sum(1, keepdim=True), losses=losses)
        else:
            schedule.step()
        square = sum(parameter.grad.square().sum() for parameter in module.parameters() if parameter.grad is not None)
        assert isinstance(square, torch.Tensor)
        dist.all_reduce(square)  # over all stages, as for clipping
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(torch.clamp(1.0 / square.sqrt(), max=1.0))
        optimizer.step()
    loss = sum(losses).item() / len(losses) if losses else float("nan")
    total = sum(parameter.double().abs().sum() for parameter in module.parameters())
    print(f"rank {rank}: loss {loss:.4f}, parameters {total:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
