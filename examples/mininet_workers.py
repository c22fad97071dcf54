"""Real training in Mininet hosts, from Mininet's Python API: workers h1 … hn around s1, which sums their gradients.

    sudo .venv/bin/python examples/mininet_workers.py --workers 2 --bw 100

A host runs torchrun with one worker; in the end the switch's counters are printed. Your own network needs only
`cls=DaemonSwitch` and `cls=WorkerHost`.
"""

import argparse
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from emulation.mn_custom import DaemonSwitch
from emulation.testbed.mininet.emulated_network import UnfitError, WorkerHost, require_mininet  # finds Debian's Mininet
from emulation.testbed.mn_cli.mn_nodes import FastLink

# isort: split
from mininet.net import Mininet
from mininet.topo import Topo

SWITCH = "tcp://10.0.0.254:5555"


class Star(Topo):
    """workers: hosts. bw: of each link, both ways, in Mb/s."""

    def build(self, workers: int = 2, bw: float = 100) -> None:
        self.addSwitch("s1", cls=DaemonSwitch)
        for number in range(1, workers + 1):
            self.addHost(f"h{number}", cls=WorkerHost, ip=f"10.0.0.{number}/24")
            self.addLink(f"h{number}", "s1", bw=bw)


def start(host: Any, rank: int, workers: int, program: list[str]) -> "subprocess.Popen[bytes]":
    """Start a worker by torchrun, in the host's namespaces."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(workers), "--node-rank", str(rank)]
    command += ["--nproc-per-node", "1", "--master-addr", "10.0.0.1", "--master-port", "29500", *program]
    settings = {"SWITCHAGG_SWITCH": SWITCH, "OMP_NUM_THREADS": "1"}
    process: subprocess.Popen[bytes] = host.popen(command, env={**os.environ, **settings}, stdout=None, stderr=None)
    return process


def end(process: "subprocess.Popen[bytes]") -> None:
    """End torchrun by its id; it ends its workers."""
    if process.poll() is None:
        process.terminate()
    process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="Training in Mininet hosts, through the switch")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bw", type=float, default=100, help="of each link, Mb/s")
    parser.add_argument("program", nargs="*", help="your script and its arguments, after --  [default: train_ddp.py]")
    arguments = parser.parse_args()
    program = arguments.program or [str(Path(__file__).with_name("train_ddp.py"))]
    try:
        require_mininet()
        net = Mininet(topo=Star(arguments.workers, bw=arguments.bw), link=FastLink, controller=None)
        with ExitStack() as ending:  # in reverse: the workers, then the network, whatever happens
            ending.callback(net.stop)
            net.start()  # refuses a link that isn't what was asked for
            workers = []
            for rank in range(arguments.workers):
                workers.append(start(net.get(f"h{rank + 1}"), rank, arguments.workers, program))
                ending.callback(end, workers[-1])
            statuses = [worker.wait() for worker in workers]
            print(net.get("s1").cmd(f"{sys.executable} -P -m emulation.cli.main status {SWITCH}"), end="")
    except UnfitError as error:
        sys.exit(f"mininet_workers: {error}")
    return max(map(abs, statuses))


if __name__ == "__main__":
    sys.exit(main())
