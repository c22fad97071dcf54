"""D-PSGD: gossip on a ring. A rank averages with its two neighbours, in every step, and with no other rank.

    w_i <- (w_{i-1} + w_i + w_{i+1}) / 3 - step(g_i)

with the gradients of w_i itself, so parameters travel while gradients are computed. With two ranks both weigh a half.
Parameters go from host to host: a switch adds up what all ranks send and tells all of them, but here no two ranks get
the same sum; over a switch each of the n sums would be a call of its own. Lian et al., *Can Decentralized Algorithms
Outperform Centralized Algorithms?*, NeurIPS 2017.
"""

from dataclasses import dataclass

import torch.distributed as dist

from transport.torch.training.flat_tensors import FlatTensors
from transport.torch.training.replica import PendingCollectives, Replica, named
from transport.torch.training.training_method import AttachedMethod, TrainingMethod


@dataclass(frozen=True)
class DPsgd(TrainingMethod):
    """This method has no options."""

    name = "dpsgd"
    label = "D-PSGD"
    summary = "each rank averages with its neighbours on a ring"
    allreduces = False
    coded = False
    exactly = "it sends parameters, from rank to rank, which must not be rounded"

    def begin(self, replica: Replica) -> AttachedMethod:
        return _Gossip(self, replica)


class _Gossip(AttachedMethod):
    def __init__(self, method: DPsgd, replica: Replica) -> None:
        super().__init__(method, replica)
        n, rank = replica.workers, replica.rank
        self._neighbours = sorted({(rank - 1) % n, (rank + 1) % n} - {rank})
        self._local = FlatTensors(replica.parameters)
        self._received = [FlatTensors(replica.parameters) for _ in self._neighbours]
        self._flight: PendingCollectives | None = None

    def _exchange(self) -> PendingCollectives:
        self._local.read(self._replica.parameters)
        group, calls = self._replica.group, []
        for neighbour, flat in zip(self._neighbours, self._received, strict=True):
            for tag, (piece, received) in enumerate(zip(self._local.pieces(), flat.pieces(), strict=True)):
                calls.append(dist.P2POp(dist.isend, piece, group=group, tag=tag, group_peer=neighbour))
                calls.append(dist.P2POp(dist.irecv, received, group=group, tag=tag, group_peer=neighbour))
        with named(self._replica.what):
            works = dist.batch_isend_irecv(calls) if calls else []
        return PendingCollectives(self._local, works, self._replica)

    def after_step(self, step: int) -> None:
        self._flight = self._exchange()

    def before_step(self, step: int) -> None:
        local = (self._flight or self._exchange()).wait()
        self._flight = None
        for flat in self._received:
            for array, received in zip(local.arrays, flat.arrays, strict=True):
                array.add_(received)
        for array in local.arrays:
            array.div_(1 + len(self._neighbours))
        local.write(self._replica.parameters)

    def _drop(self) -> None:
        """Drop the exchange in flight: its parameters are about to be replaced."""
        if self._flight is not None:
            self._flight.wait()
            self._flight = None

    def complete(self) -> None:
        self._drop()
        self._replica.average(self._replica.parameters)

    def load(self, state: object) -> None:
        self._drop()
