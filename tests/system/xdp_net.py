"""A small network for tests of the switch in the kernel: namespaces, veth, HTB, and processes in them."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from torch_forks import Forked

from emulation.testbed import netns
from emulation.testbed.mininet.services import switchagg_command

ROOT = Path(__file__).resolve().parents[2]
SWITCH = "10.77.0.254"
CONTROL = f"tcp://{SWITCH}:5555"
_numbers = itertools.count()


class Namespace:
    """A network namespace that lives as long as a process of ours in it. mounts: and a mount namespace."""

    def __init__(self, mounts: bool = False) -> None:
        self.holder = subprocess.Popen(["unshare", *(["-nm"] if mounts else ["-n"]), "sleep", "infinity"])
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{self.holder.pid}/ns/net") == own:
            time.sleep(0.005)
        while Path(f"/proc/{self.holder.pid}/comm").read_text().strip() != "sleep":
            time.sleep(0.005)
        self.processes: list[subprocess.Popen[str]] = []
        self.sh("ip link set lo up")

    def command(self, words: Sequence[str]) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", *words]

    def sh(self, script: str) -> str:
        done = subprocess.run(self.command(["sh", "-es"]), input=script, text=True, capture_output=True)
        assert done.returncode == 0, f"{script}\n{done.stderr}"
        return done.stdout

    def spawn(self, words: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
        options = {"cwd": ROOT, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        process: subprocess.Popen[str]
        if words[0] == sys.executable and words[1] != "-S":  # without site it starts at once by itself
            process = Forked([word for word in words if word != "-P"], inside=self.holder.pid, **options)
        else:
            process = subprocess.Popen(self.command(words), **options)
        self.processes.append(process)
        return process

    def python(self, code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        words = [sys.executable, "-c", code, *arguments]
        process = self.spawn(words)
        out, errors = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, out, errors)

    def close(self) -> None:
        for process in self.processes:
            netns.end(process, grace_s=2.0)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self.holder.kill()
        self.holder.wait()


class Star:
    """Workers' namespaces around the switch's, one veth each; the address of the switch is on a bridge over its ports.

    bridge False: one worker namespace only, whose workers share the switch's one port p0, which has the address.
    """

    def __init__(self, workers: int, *, mtu: int = 1500, bridge: bool = True, gro: bool = True) -> None:
        self.workers = workers
        self.switch = Namespace()
        self.nodes = [Namespace() for _ in range(workers if bridge else 1)]
        if bridge:
            self.switch.sh(
                f"ip link add br0 mtu {mtu} type bridge; ip addr add {SWITCH}/24 dev br0; ip link set br0 up"
            )
        for rank, node in enumerate(self.nodes):
            self.link(rank, mtu, bridge)
            node.sh(f"ethtool -K eth0 gro {'on' if gro else 'off'}")  # veth has none until it is asked for

    def link(self, rank: int, mtu: int, bridge: bool) -> None:
        """(Re)make the veth of a worker."""
        node = self.nodes[rank]
        self.switch.sh(
            f"ip link add p{rank} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {node.holder.pid}\n"
            + (f"ip link set p{rank} master br0\n" if bridge else f"ip addr add {SWITCH}/24 dev p{rank}\n")
            + f"ip link set p{rank} up"
        )
        node.sh(f"ip addr add 10.77.0.{rank + 1}/24 dev eth0; ip link set eth0 up")

    def shape(self, rate_mbit: int, burst: int = 65536) -> None:
        """HTB on both ends of every link."""
        for rank, node in enumerate(self.nodes):
            for where, name in ((node, "eth0"), (self.switch, f"p{rank}")):
                where.sh(
                    f"tc qdisc replace dev {name} root handle 1: htb default 1\n"
                    f"tc class replace dev {name} parent 1: classid 1:1 htb rate {rate_mbit}mbit ceil {rate_mbit}mbit "
                    f"burst {burst} cburst {burst} quantum 1514\n"
                    f"tc qdisc replace dev {name} parent 1:1 handle 10: bfifo limit 4194304"
                )

    def daemon(self, *options: str, plane: str = "xdp") -> "subprocess.Popen[str]":
        """The switch daemon, ready. Its log goes to its stderr."""
        words = ("switch", "--dataplane", plane, "--data", f"{SWITCH}:5556", "--control", CONTROL, *options)
        process = self.switch.spawn(switchagg_command(*words))
        assert process.stdout is not None
        line = process.stdout.readline()
        if "ready" not in line:
            _, errors = process.communicate()
            raise AssertionError(f"the switch didn't start: {errors}")
        return process

    def spawn(self, *options: str, node: int | None = None, ranks: tuple[int, ...] = (), **more: Any) -> list[Any]:
        """Workers: a process per rank in its namespace, or one process with these ranks in one namespace."""
        words = [sys.executable, "-m", "tests.system.xdp_worker", "--switch", CONTROL, "--workers", str(self.workers)]
        places = [(node, ranks)] if node is not None else [(r % len(self.nodes), (r,)) for r in range(self.workers)]
        return [
            self.nodes[place].spawn([*words, *options, "--ranks", *map(str, whose)], **more) for place, whose in places
        ]

    def run(self, *options: str) -> list[dict[str, Any]]:
        """Waits for all workers; their output, by rank."""
        return self.finish(self.spawn(*options))

    @staticmethod
    def finish(processes: list[Any]) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []
        for process in processes:
            out, errors = process.communicate()
            assert process.returncode == 0, errors
            said += json.loads(out.splitlines()[-1])
        return sorted(said, key=lambda one: int(one["rank"]))

    def status(self) -> dict[str, Any]:
        """The daemon's status."""
        process = self.switch.spawn(switchagg_command("status", CONTROL, "--json"))
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        return dict(json.loads(out))

    def attached(self) -> dict[str, list[str]]:
        """Programs attached to each port of the switch, by name, as the kernel lists them."""
        code = (
            "import json,sys; from switchagg.native import bpf\n"
            "at = {name: bpf.interface_index(name) for name in sys.argv[1:]}\n"
            "print(json.dumps({n: [bpf.attached(i), *bpf.at_ingress(i)] for n, i in at.items()}))"
        )
        names = [f"p{rank}" for rank in range(len(self.nodes))]
        done = self.switch.python(code, *names)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def close(self) -> None:
        for node in (*self.nodes, self.switch):
            node.close()

    def __enter__(self) -> "Star":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def star(workers: int, **options: Any) -> Iterator[Star]:
    with contextlib.closing(Star(workers, **options)) as made:
        yield made
