"""For Mininet's own command line, from any folder:

    sudo mn --custom emulation/mn_custom.py --topo switchagg,4 --switch switchagg --host switchagg \\
        --controller none --link tc,bw=100 --test pingall

topos `switchagg,WORKERS`, `switchagg_exercise,FOLDER` (one of the P4 tutorials); switches `switchagg[,dataplane=NAME]`
(bridge and switch daemon), `switchagg_bridge` (bridge alone), `switchagg_p4` (a P4 program, see P4Switch); hosts
`switchagg`. `mn` runs under the system's Python: this file needs nothing but Mininet, and starts the daemon with
`$SWITCHAGG_PYTHON`, else the repository's `.venv`. The switch refuses to start where the kernel did not set what
`--link tc,…` requests.

    sudo mn --custom emulation/mn_custom.py --topo single,2 --host switchagg --controller none \\
        --switch switchagg_p4,program=prog.p4,commands=entries.txt --test pingall

    sudo mn --custom emulation/mn_custom.py --topo switchagg_exercise,tutorials/exercises/basic,solution \\
        --switch switchagg_p4 --controller none
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FOLDER = Path((lambda: 0).__code__.co_filename).resolve().parent.parent  # `mn` executes this file without a __file__
sys.path.insert(0, str(_FOLDER))

from emulation.testbed import netns, patience  # noqa: E402
from emulation.testbed.mininet import emulated_network  # noqa: E402
from emulation.testbed.mininet.services import ServiceProcess, switchagg_command  # noqa: E402
from emulation.testbed.mininet.shaping import UnfitError  # noqa: E402
from emulation.testbed.mn_cli import mn_nodes, tutorial_exercise  # noqa: E402

emulated_network.keep_machine_settings()
emulated_network.Mininet.iperf = mn_nodes.iperf


def daemon_python() -> str:
    """The interpreter that has switchagg's dependencies."""
    chosen = os.environ.get("SWITCHAGG_PYTHON")
    if chosen:
        return chosen
    local = _FOLDER / ".venv/bin/python"
    return str(local) if local.exists() else sys.executable


class DaemonSwitch(mn_nodes.AggSwitch):
    """Switch node with the daemon: workers join at tcp://10.0.0.254:5555. `dataplane` as in `switchagg switch`."""

    def __init__(self, name: str, dataplane: str = "auto", **params: Any) -> None:
        at = ("--control", "tcp://0.0.0.0:5555", "--data", "0.0.0.0:5556")  # all that is its namespace's
        command = switchagg_command("switch", *at, "--dataplane", dataplane, python=daemon_python())
        self._dataplane = dataplane
        super().__init__(name, ServiceProcess(command, environment=_environment()), **params)

    def attach(self, intf: Any) -> None:
        """As the bridge does. Raises UnfitError also where the data plane would not see the port."""
        if self._dataplane == "xdp":
            raise UnfitError(f"{self.name}: data plane xdp is on the ports of its start; take native, or no attach")
        super().attach(intf)


class P4Switch(mn_nodes.AggSwitch):
    """A P4 program as a switch: Mininet's port numbers (s1-eth1 is 1) are the program's. Nothing else forwards.

    program: its file. commands, json (as the P4 tutorials' s1-runtime.json): files of entries, carried out at the
    start; pcap: folder for captures; log: file for what the switch writes, with log_msg. backend: auto, native, python.
    In all of them {name} is replaced by the switch's name. `s1.p4("table_dump t")` executes a command; from a shell:
    `switchagg p4 cli --control` with the value of `s1.control`. In Python: `net.addSwitch("s1", cls=P4Switch,
    program=…)`.
    """

    def __init__(
        self, name: str, program: str | None = None, log: str | None = None, backend: str = "auto", **params: Any
    ) -> None:
        if program is None:
            raise UnfitError("switchagg_p4 needs a program: --switch switchagg_p4,program=prog.p4")
        options = {"commands": "commands", "json": "runtime-json"}
        self._pcap = params.pop("pcap", None)
        self._attached = 0
        named = {option: params.pop(word, None) for word, option in options.items()}
        self._folder = tempfile.TemporaryDirectory(prefix="switchagg-")  # its user's alone
        self.control = os.path.join(self._folder.name, f"{name}.sock")
        self.command = switchagg_command("p4", python=daemon_python())
        self._words = ["run", _named(program, name), "--backend", backend, "--control", self.control]
        self._words += [f"--{option}={_named(value, name)}" for option, value in named.items() if value is not None]
        self._log = log
        super().__init__(name, **params)

    def start(self, controllers: Sequence[Any]) -> None:
        """Starts the program on all ports and waits for it. Raises UnfitError with its last output."""
        ports = [(number, interface.name) for interface, number in self.ports.items() if interface.name != "lo"]
        for _, interface in ports:
            netns.run_script(self.pid, _PORT.replace("@", interface))
        self._check_mn_links()
        words = [f"--interface={number}@{interface}" for number, interface in sorted(ports)]
        turn = f"-{self._attached}" if self._attached else ""  # what was captured and logged before stays
        log_path = None if self._log is None else Path(_named(self._log, self.name) + turn)
        words += ["--log"] * (log_path is not None)
        words += [f"--pcap={_named(self._pcap, self.name)}{turn}"] * (self._pcap is not None)
        self.data_plane = ServiceProcess(
            (*self.command, *self._words, *words), "Ctrl-C ends", log_path, environment=_environment()
        )
        self.start_process()

    def attach(self, intf: Any) -> None:
        """The program starts again, with this port, too: entries are those of its files, and registers are empty. The
        captures and the log continue in new files, `pcaps-1`, `s1.log-1` and so on; the earlier files stay."""
        self._mn_port(intf)
        self.end_process()
        self._attached += 1
        self.start(())

    def detach(self, intf: Any) -> None:
        raise UnfitError(f"{self.name}: a program keeps its ports; take the link down: net.configLinkStatus(…, 'down')")

    def p4(self, *commands: str) -> str:
        """The output of commands for the running switch."""
        words = [word for command in commands for word in ("-c", command)]
        done = patience.run([*self.command, "cli", "--control", self.control, *words], 60, env=_environment())
        return done.stdout + done.stderr


_PORT = """ip link set @ up
[ ! -e /proc/sys/net/ipv6/conf/@/disable_ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/@/disable_ipv6
ethtool -K @ tx off tso off gso off gro off > /dev/null 2>&1 || :
"""


def _named(text: str, name: str) -> str:
    return os.path.abspath(str(text).replace("{name}", name))


def _environment() -> dict[str, str]:
    engine = _FOLDER / "p4"
    folders = [_FOLDER, engine] if (engine / "p4vm").is_dir() else [_FOLDER]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}


def cleanup() -> None:
    """Stands in for `mn`'s own clean-up, which ends other people's programs by name and deletes their links.

    Nothing is left to clean: our nodes and the daemon die with `mn`, and their links with them.
    """


topos = {"switchagg": emulated_network.LinkedTopo, "switchagg_exercise": tutorial_exercise.ExerciseTopo}
switches = {"switchagg": DaemonSwitch, "switchagg_bridge": emulated_network.BridgeSwitch, "switchagg_p4": P4Switch}
hosts = {"switchagg": emulated_network.WorkerHost}
# a dict `links` is dropped by Mininet 2.3.0; any other name is set in `mn` itself, also that of its own dict
LINKS = {"default": emulated_network.Link, "tc": mn_nodes.FastLink}
