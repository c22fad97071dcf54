"""BoundedGroup: a group whose sums of float32 may lack what was lost (`transport.bounded`); all else is exact."""

from typing import Any

from transport.bounded.bounded_calls import COUNTED, BoundedJob, loss_of
from transport.bounded.bounded_packets import HEADER_BYTES, MAGIC, PathConfig
from transport.bounded.bounded_party import BoundedParty
from transport.bounded.bounded_table import BOUNDED
from transport.bounded.group_party import BoundedGroupParty
from transport.collectives.collective_party import CollectiveParty
from transport.group.host_group import HostGroup
from transport.meshes.udp_mesh import UdpMesh


class BoundedGroup(HostGroup):
    """options: fields of the method's own (`BOUNDED`), the same on all ranks. Raises TypeError, ValueError for others.

    Made by `open_group`. A call's values are known by their tensors' names, or its key, from iteration to iteration.
    """

    def __init__(
        self, mesh: UdpMesh, exact: CollectiveParty, options: Any, *, call_timeout_s: float, **kwargs: Any
    ) -> None:
        config = mesh.config
        kind, workers, method, job = BOUNDED[kwargs["method"]], kwargs["workers"], kwargs["method"], kwargs["job"]
        path = PathConfig(
            block_bytes=(mesh.packet_bytes_max - HEADER_BYTES) // 4 * 4,
            window_bytes=config.window_bytes,
            ack_every=config.ack_every_segments,
            rto_initial_ns=config.rto_initial_ns,
            rto_min_ns=config.rto_min_ns,
            rto_max_ns=config.rto_max_ns,
            retry_limit=config.retry_limit,
        )
        lossy = BoundedParty(
            mesh.member,
            workers,
            kind.make(options, workers),
            job=BoundedJob(job, mesh.start, round(call_timeout_s * 1e9)),
            path=path,
            terms=f"{method} {options}",
        )
        mesh.carry_packets(lossy, MAGIC.to_bytes(2, "big"))
        party = BoundedGroupParty(exact, lossy)
        super().__init__(mesh, party, party.submit, **kwargs)

    def gradient_loss(self) -> dict[str, float]:
        """The data that this rank has lost for good, as `results_schema.md` has it."""
        counted = self.counters
        return loss_of({name: counted[f"packets_{name}"] for name in COUNTED})
