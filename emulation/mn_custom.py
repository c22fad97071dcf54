"""For Mininet's own command line, from any folder:

    sudo mn --custom emulation/mn_custom.py --topo switchagg,4 --switch switchagg --host switchagg \\
        --controller none --link tc,bw=100 --test pingall

topos `switchagg,WORKERS`; switches `switchagg[,dataplane=NAME]` (bridge and switch daemon) and `switchagg_bridge`
(bridge alone); hosts `switchagg`. `mn` runs under the system's Python: this file needs nothing but Mininet, and starts
the daemon with `$SWITCHAGG_PYTHON`, else the repository's `.venv`. What `--link tc,…` was asked for and the kernel did
not do is refused when the switch starts.
"""

import inspect
import os
import sys
from pathlib import Path

# `mn` executes this file without a __file__
_FOLDER = Path(inspect.currentframe().f_code.co_filename).resolve().parent.parent
sys.path.insert(0, str(_FOLDER))

from emulation import topology  # noqa: E402

topology.keep_machine_settings()


def daemon_python() -> str:
    """The interpreter that has switchagg's dependencies."""
    chosen = os.environ.get("SWITCHAGG_PYTHON")
    if chosen:
        return chosen
    local = _FOLDER / ".venv/bin/python"
    return str(local) if local.exists() else sys.executable


class DaemonSwitch(topology.AggSwitch):
    """Switch node with the daemon: workers join at tcp://10.0.0.254:5555. `dataplane` as in `switchagg switch`."""

    def __init__(self, name, dataplane="auto", **params):
        command = (daemon_python(), "-P", "-m", "emulation.cli", "switch", "--dataplane", dataplane)
        environment = {**os.environ, "PYTHONPATH": str(_FOLDER)}
        super().__init__(name, topology.DataPlaneProcess(command, environment=environment), **params)


def cleanup():
    """Stands in for `mn`'s own clean-up, which ends other people's programs by name and deletes their links.

    Nothing is left to clean: our nodes and the daemon die with `mn`, and their links with them.
    """


topos = {"switchagg": topology.StarTopo}
switches = {"switchagg": DaemonSwitch, "switchagg_bridge": topology.BridgeSwitch}
hosts = {"switchagg": topology.WorkerHost}
# a dict `links` is dropped by Mininet 2.3.0; any other name is set in `mn` itself, also that of its own dict
LINKS = {"default": topology.Link, "tc": topology.HandLink}
