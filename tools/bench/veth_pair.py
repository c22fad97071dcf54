"""Two network namespaces that veth pairs join, for benchmarks of what crosses a link."""

import os
import subprocess

from emulation.scenario.errors import RunFailed
from emulation.testbed import netns, patience
from emulation.testbed.resource import Resource

HOSTS = ("10.78.0.1", "10.78.0.2")
"""Addresses at the ends of a link that is the only one."""


class VethPair(Resource):
    """The namespaces and their links, which go with this process, however it ends. Raises RunFailed.

    links: how many; mtu: of each. names: of the interfaces, for each namespace by link.
    """

    def __init__(self, links: int = 1, mtu: int = 1500) -> None:
        self.names = [[f"sa{os.getpid()}{side}{number}" for number in range(links)] for side in "ab"]
        self._mtu = mtu
        self._holders: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        """A process in each namespace."""
        return [holder.pid for holder in self._holders]

    def _open(self) -> None:
        try:
            for _ in HOSTS:
                self._holders.append(self._namespace())
            here, there = self.pids
            for near, far in zip(*self.names, strict=True):
                link = ["ip", "link", "add", near, "mtu", str(self._mtu), "netns", str(here), "type", "veth"]
                link += ["peer", "name", far, "mtu", str(self._mtu), "netns", str(there)]
                patience.run(link, 20, check=True)
            for pid, names, host in zip(self.pids, self.names, HOSTS, strict=True):
                lines = [f"ip addr add {host}/24 dev {names[0]}"] if len(names) == 1 else []
                for name in names:
                    lines += [f"sysctl -qw net.ipv6.conf.{name}.disable_ipv6=1 || :", f"ip link set {name} up"]
                netns.run_script(pid, "\n".join([*lines, "ip link set lo up"]))
        except (subprocess.SubprocessError, OSError) as error:
            words = (getattr(error, "stderr", None) or "").strip()
            raise RunFailed(f"no veth pair can be had here: {words or error}") from error

    def _namespace(self) -> subprocess.Popen[bytes]:
        """A process in a namespace of its own, which ends when our end of its pipe closes."""
        holder = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        if not netns.wait_readable(holder.stdout.fileno(), 10.0) or not holder.stdout.readline():
            netns.end(holder)
            raise RunFailed("no network namespace can be made here: run it as root")
        return holder

    def close(self) -> None:
        for holder in self._holders:
            with holder:  # closes its pipes
                holder.kill()
        self._holders.clear()
