"""The same bits everywhere: how many elements of a sum change when the same addends are summed in another way.

    switchagg switch &
    SWITCHAGG_SWITCH=tcp://127.0.0.1:5555 torchrun --standalone --nproc-per-node 5 examples/exact_sums.py

Four ranks have partial logits of a tensor-parallel layer, and gradients of their micro-batches; the fifth adds zeros.
With codec `exact` a result depends on its own addends alone; with floats it depends on where an element lies among
others, on which rank has which addend, and on how many ranks there are.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from transport.torch.rendezvous import SwitchOptions

METHODS = ("gloo", "switch", "gloo~exact", "ring~exact", "switch~exact")
RANKS, ROWS, WIDTH = 4, 48, 1000


def addends() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The partial logits of four ranks, (ROWS, WIDTH), and the gradients of four micro-batches, all parameters flat."""
    torch.manual_seed(0)
    inputs, weights = torch.randn(ROWS, 512), torch.randn(512, WIDTH)
    logits = [part @ rows for part, rows in zip(inputs.chunk(RANKS, 1), weights.chunk(RANKS), strict=True)]
    model = torch.nn.Sequential(torch.nn.Linear(512, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
    gradients = []
    for batch in torch.randn(RANKS, 16, 512):
        model.zero_grad()
        cross_entropy(model(batch), torch.randint(0, 10, (16,))).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    return logits, gradients


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logits, gradients = addends()
    for method in METHODS:
        options = SwitchOptions.from_environment(method=method)
        four, five = (dist.new_group(range(n), backend="switchagg", pg_options=options) for n in (RANKS, RANKS + 1))

        def total(parts, group=four, op=dist.ReduceOp.SUM):
            """The sum of this rank's part and the others'."""
            tensor = parts[rank].clone() if rank < RANKS else torch.zeros_like(parts[0])
            if rank < dist.get_world_size(group):  # it is in the group
                dist.all_reduce(tensor, op, group=group)
            return tensor

        def cut(parts, size, **how):
            """The same, in pieces of so many elements."""
            pieces = zip(*(part.flatten().split(size) for part in parts), strict=True)
            return torch.cat([total(list(piece), **how) for piece in pieces])

        halves, mean = [part.bfloat16() for part in logits], {"op": dist.ReduceOp.AVG}
        ways = {
            "logits of a batch, row by row": (total(logits), cut(logits, WIDTH)),
            "in bfloat16": (total(halves), cut(halves, WIDTH)),
            "ranks in another order": (total(logits), total([logits[n] for n in (2, 0, 3, 1)])),
            "a fifth rank adds zeros": (total(logits), total(logits, five)),
            "gradients in buckets of 16 kB": (total(gradients, **mean), cut(gradients, 4096, **mean)),
        }
        if rank == 0:
            if method == METHODS[0]:
                print(f"{'elements that differ, %':14}", *(f"{way:>{len(way)}}" for way in ways), sep=" | ")
            shares = {w: (one.flatten() != other.flatten()).double().mean() * 100 for w, (one, other) in ways.items()}
            print(f"{method:23}", *(f"{share:{len(way)}.2f}" for way, share in shares.items()), sep=" | ", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
