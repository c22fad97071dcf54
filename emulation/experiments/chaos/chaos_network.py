"""The network of a chaos run: a namespace for each rank and switch, joined by a hub, with links that can be cut.

The namespaces live as long as a process of ours in each, which dies with us; the links end with the namespaces.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from emulation.scenario.errors import RunFailed
from emulation.testbed import netns, patience
from emulation.testbed.resource import Resource

SUBNET = "10.79.0"
HUB, STRANGER = "hub", "stranger"
"""The namespace that all links meet in, which has the store; one that is no part of the job, and sends bad packets."""

HUB_ADDRESS = f"{SUBNET}.254"
NEAR, FAR = "near", "far"
"""Which end of a node's link goes down: its own, whose routes go too, or the hub's, so that it only has no carrier."""

START_S = 20.0


class ChaosNode:
    """A namespace, as long as a process of ours lives in it."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "-n", "sleep", "infinity"], process_group=0
        )
        self.pid = self._process.pid

    def ready(self) -> bool:
        """Whether its namespace is there."""
        if self._process.poll() is not None:
            raise RunFailed(f"no network namespace: unshare -n ended with status {self._process.returncode}")
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/comm").read_text().strip() == "sleep"
        return False

    @property
    def namespace(self) -> int:
        """The number of its network namespace, by which leftovers are known."""
        return os.stat(f"/proc/{self.pid}/ns/net").st_ino

    def shell(self, script: str) -> str:
        """Runs shell lines in it. Raises RunFailed."""
        words = ["nsenter", f"--net=/proc/{self.pid}/ns/net", "sh", "-es"]
        try:
            return patience.run(words, START_S, input=script, check=True).stdout
        except subprocess.CalledProcessError as error:
            raise RunFailed(f"{self.name}: {script.strip().splitlines()[-1]}: {error.stderr.strip()}") from error

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class ChaosNetwork(Resource):
    """Ranks and switches as nodes of one subnet. A context manager."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.nodes = names, dict[str, ChaosNode]()
        self._cut: dict[str, str] = {}

    def _open(self) -> None:
        for number, name in enumerate((HUB, *self.names)):
            address = HUB_ADDRESS if name == HUB else f"{SUBNET}.{number}"
            self.nodes[name] = ChaosNode(name, address)
        end_s = time.monotonic() + START_S
        while not all(node.ready() for node in self.nodes.values()):
            if time.monotonic() > end_s:
                raise RunFailed(f"no network namespaces within {START_S:g} s")
            time.sleep(0.005)
        self.namespaces = {node.namespace: name for name, node in self.nodes.items()}
        self._link(self.names)

    def close(self) -> None:
        """Ends the namespaces, and with them their links. Idempotent."""
        for node in self.nodes.values():
            node.close()

    def pid(self, name: str) -> int:
        """A process in the node's namespace."""
        return self.nodes[name].pid

    def address(self, name: str) -> str:
        return self.nodes[name].address

    def port(self, name: str) -> str:
        """The interface of the hub that leads to the node."""
        return f"p{list(self.nodes).index(name)}"

    @property
    def links(self) -> tuple[str, ...]:
        """Names of the hub's links."""
        return ("br0", *(self.port(name) for name in self.nodes if name != HUB))

    def cut(self, name: str, end: str) -> None:
        """Takes the node's link down, at the end NEAR or FAR."""
        self._cut[name] = end
        self._set_link(name, end, "down")

    def restore(self, name: str) -> None:
        """Takes the node's link up again, if it is down."""
        if end := self._cut.pop(name, ""):
            self._set_link(name, end, "up")

    def _set_link(self, name: str, end: str, state: str) -> None:
        node, interface = (self.nodes[name], "eth0") if end == NEAR else (self.nodes[HUB], self.port(name))
        node.shell(f"ip link set {interface} {state}")

    def _link(self, names: Sequence[str]) -> None:
        lines = ["ip link set lo up", "ip link add br0 type bridge", f"ip addr add {HUB_ADDRESS}/24 dev br0"]
        lines += ["ip link set br0 up"]
        for name in names:
            port = self.port(name)
            lines.append(f"ip link add {port} type veth peer name eth0 netns {self.pid(name)}")
            lines.append(f"ip link set {port} master br0; ip link set {port} up")
        self.nodes[HUB].shell("\n".join(lines))
        for name in names:
            node = self.nodes[name]
            # frames of one packet each, as a wire has them: they are recorded and sent again
            plain = "ethtool -K eth0 gso off tso off tx-udp-segmentation off >/dev/null 2>&1 || true"
            node.shell(f"ip link set lo up\nip addr add {node.address}/24 dev eth0\nip link set eth0 up\n{plain}")


def require_namespaces() -> None:
    """Raises RunFailed with what is missing, and what to do without, if this process may not make networks."""
    netns.find_programs()
    if not netns.is_privileged():
        raise RunFailed(
            "network namespaces need root, or user namespaces that a plain user may make (unshare -Urnm): run it with "
            "sudo, or with --on loopback, which kills and stops processes and cuts no link"
        )


class LoopbackNetwork:
    """The same where there is no network of ours: all are processes of this host, and no link can be cut."""

    namespaces: ClassVar[dict[int, str]] = {}
    links: ClassVar[tuple[str, ...]] = ()

    def pid(self, _name: str) -> int:
        return 0

    def address(self, _name: str) -> str:
        return "127.0.0.1"

    def restore(self, _name: str) -> None:
        pass
