"""PyTorch over the switch: backend "switchagg" of torch.distributed, and a DDP communication hook.

`import transport.torch` registers the backend. Where switchagg is installed as a package even that isn't needed:
PyTorch finds it through the entry point group `torch.backends` at the end of `import torch` (TORCH_DEVICE_BACKEND_
AUTOLOAD=0 turns that off). It only enters a name in a table; ZeroMQ and the rest are imported by the first group.

    SWITCHAGG_SWITCH=tcp://10.0.0.9:5555 torchrun --nproc-per-node 2 train.py    # dist.init_process_group("switchagg")

Or without a switch, by a host method among the ranks: SWITCHAGG_METHOD=ring, halving_doubling, double_tree, …, auto,
with its link, as in ring@udp, or SWITCHAGG_LINK (tcp, udp, zeromq); SWITCHAGG_METHOD=gloo is PyTorch's own. A codec may
follow, switch~lanes8+ef, or be in SWITCHAGG_CODEC: see `switchagg.codecs.spec`, and `compress`, which DDP needs where a
codec has residuals for each parameter. The ranks find each other through PyTorch's store: each publishes the address
that faces MASTER_ADDR, or SWITCHAGG_BIND, or that of SWITCHAGG_INTERFACE. Ranks with different methods fail at once,
with one error that names both.

This table says which path a call takes. The path depends on operation, types and sizes alone, so it is the same on
every rank. n: ranks, D: bytes.

| collective                             | tensors (CPU and CUDA)            | path                                    |
|----------------------------------------|-----------------------------------|-----------------------------------------|
| allreduce, reduce, reduce-scatter: SUM | float32, float64, int16, 32, 64   | the group; float32 by its codec         |
| ... SUM                                | float16, bfloat16                 | the group as float32; rounded once      |
| allreduce: SUM, unnamed, from `least`  | float32, and what travels so      | with +ef: an error that says what to do |
| SUM, AVG of these with codec `exact`   | floats of 16, 32, 64 bits         | the group, rounded once; sparse: error  |
| ... SUM                                | 8 bit integers, bool              | the group; through a switch up to 64 KB |
| ... AVG                                | floats; integers towards zero     | the group; the sum divided by n         |
| ... PREMUL_SUM                         | the floats                        | the group, of the products              |
| ... MAX, MIN                           | all; through a switch not 64 bits | the group; MIN by MAX of opposites      |
| ... PRODUCT, bitwise, 64 bit MAX       | up to n D = 64 KB                 | gathered; every rank combines them      |
| ... anything larger, or sparse         |                                   | Gloo                                    |
| ... of what nothing combines           | uint16, 32, 64; 8 bit floats      | an error that says what works           |
| all-gather, broadcast                  | every type, bit by bit            | the group                               |
| barrier, and those of objects          |                                   | the group                               |
| all-to-all, gather, scatter            |                                   | Gloo                                    |
| send, recv                             |                                   | Gloo, not compared                      |

"The group" is the switch, or the host method; parameter servers only allreduce. Lists may have shards of several sizes:
a broadcast from each rank, a reduce to each. Small tensors of one coalesced allreduce share a call, floats in rows of
their own. Ranks whose collectives differ in kind, root, operation, type or size all get one error that names both
sides, also where one of them is Gloo's. `SwitchProcessGroup.traffic.counts()` has the calls of each path, and
docs/reference/backend.md each call's path, as a test measured it.

Without a codec, float sums have the error bound of `switchagg.codecs.fixed_point`. They don't depend on the order of
packets: all ranks hold the same bits. Integer sums wrap like PyTorch's.

A group of one worker, of more than 64, or for whose job the switch has no slots free uses Gloo for everything; all its
ranks take the same decision and rank 0 logs one warning. A switch that can't be reached is an error: for the default
group in init_process_group, for others at their first collective. Codec `exact` lets no sum go to Gloo: one worker
has a group then, too, and the other two are errors.

Calls may be made inside a callback on an earlier call's Future, as PowerSGD does. They travel as a job of their own, in
an order all ranks share, however many buckets are in flight; Gloo has no such order. Outside of DDP's communication
hooks this needs the callback to be attached before the earlier call is finished.

CUDA tensors go through pinned host memory on a stream of our own. `wait()` blocks the host until the network has
answered, then the current stream until the copy back is done. Gloo serves the other operations on them where it can.
A single group serves both device types: up to 2.13, PyTorch can't mix a backend in Python with others ("cpu:switchagg,
cuda:nccl"); for NCCL beside the switch use the hook.

When a call fails (a worker died, the switch has stopped), it and all later collectives of the group raise
torch.distributed.DistBackendError with the cause; tensors of failed calls hold undefined values.
"""

from typing import TYPE_CHECKING, Any

from transport.torch.registration import register

if TYPE_CHECKING:
    from transport.torch.backend import SwitchProcessGroup
    from transport.torch.hook import compress, switchagg_hook
    from transport.torch.rendezvous import SwitchOptions

__all__ = ["SwitchOptions", "SwitchProcessGroup", "compress", "register", "switchagg_hook"]

_HOMES = {"SwitchProcessGroup": "backend", "compress": "hook", "switchagg_hook": "hook", "SwitchOptions": "rendezvous"}


def __getattr__(name: str) -> Any:
    """Imported on first use: the package itself may be loaded by every `import torch`."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


register()
