"""A switch that lies: it changes a bit of a value in each hundredth sum. Start it in place of `switchagg switch`.

    python examples/lying_switch.py &
    export SWITCHAGG_SWITCH=tcp://127.0.0.1:5555
    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py

Every rank ends with an error that names the chunk, and no gradient has a wrong value. With SWITCHAGG_VERIFY=off nobody
notices: the training ends as ever, on gradients that are wrong.
"""

from dataclasses import replace

import numpy as np

from switchagg.dataplane.contract import Output
from switchagg.dataplane.plane_kinds import DATAPLANES, PlaneKind
from switchagg.dataplane.reference import ReferencePlane
from switchagg.wire import Bundle, Op, decode, encode
from transport.switch.daemon import run_switch
from transport.switch.daemon_options import DaemonOptions


class LyingPlane(ReferencePlane):
    """The reference switch, but for what it adds to its results."""

    name = "lying"

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        """See `DataPlane`."""
        return [Output(_lie(output.bundle), output.ports) for output in super().process(bundle, port)]


def _lie(result: Bundle) -> Bundle:
    """The result, (1, size), with a wrong value, if it is a sum and its turn."""
    packet = decode(result.tobytes(), header_only=True)
    if packet.op is not Op.SUM or packet.chunk % 100 != 99 or not packet.values.size:
        return result
    values = packet.values.copy()
    values[7] ^= 1 << 29
    return np.frombuffer(encode(replace(packet, values=values)), np.uint8)[np.newaxis, :]


if __name__ == "__main__":
    DATAPLANES[LyingPlane.name] = PlaneKind(LyingPlane.name, LyingPlane, "adds wrongly")
    raise SystemExit(run_switch(DaemonOptions(dataplane=LyingPlane.name)))
