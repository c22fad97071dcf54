"""Machines that are network namespaces, joined by a bridge: the guides' commands as pasted, and what faults say."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch_forks import Forked

from emulation.testbed import netns
from tests.system.xdp_net import Namespace

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("requires_mininet")]

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
START_S = 40.0
GUIDE = "docs/attach.md"


def pasted(page: str, word: str) -> list[str]:
    """The commands of a page that have this word."""
    blocks = "".join(CONSOLE.findall((ROOT / page).read_text(encoding="utf-8")))
    return [line[2:] for line in blocks.splitlines() if line.startswith("$ ") and word in line]


class Machine(Namespace):
    """A namespace with names and a file system of its own, and what runs in it."""

    def __init__(self, names: Path) -> None:
        super().__init__(mounts=True)
        netns.run_script(self.holder.pid, f"mount --bind {names} /etc/hosts; mount --bind /dev/null /etc/resolv.conf")

    def run(self, command: str, **settings: str) -> "subprocess.Popen[str]":
        """Start a line of a shell's; `torchrun` finds PyTorch loaded."""
        words = shlex.split(command)
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            settings[name] = value
        options: dict[str, Any] = {"env": {**os.environ, "OMP_NUM_THREADS": "1", **settings}, "text": True}
        options |= {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        if words[0] == "torchrun":
            program = [sys.executable, str(ROOT / "tests/shared/as_torchrun.py"), *words[1:]]
            process: subprocess.Popen[str] = Forked(program, inside=self.holder.pid, cwd=ROOT, **options)
        else:
            words = [str(BIN / words[0]) if words[0] in ("switchagg", "python") else words[0], *words[1:]]
            process = netns.spawn(self.holder.pid, words, cwd=ROOT, **options)
        self.processes.append(process)
        return process


class Network:
    """Machines by name, each with eth0, at ports of a bridge in a namespace of its own."""

    def __init__(self, places: dict[str, str], folder: Path) -> None:
        names = folder / "hosts"
        names.write_text("127.0.0.1 localhost\n" + "".join(f"{at} {name}\n" for name, at in places.items()))
        self.bridge, self.machines = Namespace(), dict[str, Machine]()
        try:
            self.bridge.sh(
                "ip link add br0 type bridge; ip link set br0 up; ip link add void type veth peer name void2"
            )
            for name, address in places.items():
                machine = self.machines[name] = Machine(names)
                self.bridge.sh(
                    f"ip link add p-{name} type veth peer name eth0 netns {machine.holder.pid}\n"
                    f"ip link set p-{name} master br0; ip link set p-{name} up"
                )
                machine.sh(
                    f"ip addr add {address}/24 dev eth0; ip link set eth0 up; "
                    "ethtool -K eth0 gso off tx-udp-segmentation off"
                )
        except BaseException:
            self.close()
            raise

    def drop(self, name: str, protocol: int, port: int) -> None:
        """What the machine sends to a port gets lost on the way."""
        self.bridge.sh(
            f"tc qdisc add dev p-{name} clsact\n"
            f"tc filter add dev p-{name} ingress protocol ip u32 match ip protocol {protocol} 0xff "
            f"match ip dport {port} 0xffff action mirred egress redirect dev void"
        )

    def close(self) -> None:
        for machine in self.machines.values():
            machine.close()
        self.bridge.close()


Networks = Callable[[dict[str, str]], Network]


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Networks]:
    made: list[Network] = []

    def make(places: dict[str, str]) -> Network:
        made.append(Network(places, tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.close()


def wait_for(process: "subprocess.Popen[str]", words: str) -> None:
    """Until it has written them."""
    assert process.stdout is not None
    said = ""
    while words not in said and netns.wait_readable(process.stdout.fileno(), START_S):
        more = os.read(process.stdout.fileno(), 4096).decode()
        assert more, f"it ended: {said}"
        said += more
    assert words in said


def output(process: "subprocess.Popen[str]") -> str:
    said, _ = process.communicate(timeout=START_S)
    assert process.returncode == 0, said
    return said


def packets(machine: Machine, command: str) -> int:
    """That the switch has counted, by its status."""
    said = output(machine.run(command))
    found = re.search(r"data plane: .*?broadcast (\d+)", said)
    assert found, said
    return int(found[1])


def test_the_guide_of_several_machines(network: Networks) -> None:
    net = network({"switch": "10.0.0.9", "one": "10.0.0.1", "two": "10.0.0.2"})
    machines = net.machines
    (serve,), trainings = pasted(GUIDE, "switch --control"), pasted(GUIDE, "--nnodes")
    wait_for(machines["switch"].run(serve), "switchagg switch ready: control tcp://10.0.0.9:5555 data 10.0.0.9:5556")
    for ping in pasted(GUIDE, "ping -M do"):
        assert " 0% packet loss" in output(machines["one"].run(ping))
    ranks = [machines[name].run(line) for name, line in zip(("one", "two"), trainings, strict=True)]
    said = [output(rank) for rank in ranks]
    assert re.search(r"step   49  loss 0\.\d+", said[0])
    assert packets(machines["switch"], "switchagg status tcp://10.0.0.9:5555") > 1000


def test_the_compose_file(network: Networks) -> None:
    """Its services' commands, names and settings, with a namespace for each container."""
    services = yaml.safe_load((ROOT / "examples/deploy/compose.yaml").read_text(encoding="utf-8"))["services"]
    net = network({name: f"10.0.0.{number}" for number, name in enumerate(services, 1)})
    started = {}
    for name, service in services.items():
        command = service["command"].replace("train_ddp.py", "examples/train_ddp.py --steps 2")
        line = command if name != "switch" else f"switchagg {command}"
        started[name] = net.machines[name].run(line, **service.get("environment", {}))
        if name == "switch":
            wait_for(started[name], "switchagg switch ready")
            _, *probe = service["healthcheck"]["test"]
            assert "0 of 4096 slots" in output(net.machines[name].run(shlex.join(probe)))
    said = [output(started[name]) for name in services if name != "switch"]
    assert "step    1  loss" in said[0]


WORKER = """
import sys, time, numpy
from transport.worker import path_diagnosis, session
path_diagnosis.STALL_S, path_diagnosis.STALL_CHECK_S = 1.0, 0.5
try:
    options = session.JoinOptions(timeout_s=2)
    with session.SwitchSession.join(sys.argv[1], sys.argv[2], 0, 1, options) as worker:
        array = numpy.arange(20_000, dtype=numpy.int32)
        print(int(worker.allreduce(array).result(60).sum()), flush=True)
        time.sleep(1.2)
except Exception as error:
    print(error)
"""
FAULTS = {
    "port": (
        "10.0.0.9:5555",
        ("no packet gets through between this rank at 10.0.0.1:", "that drops UDP 5556, or an MTU"),
    ),
    "mtu": ("10.0.0.9:5555", ("no packet gets through", "or an MTU below 1488, which 360 elements")),
    "control": ("10.0.0.9:5555", ("nothing comes back from 10.0.0.9: ", "open TCP 5555 in the firewalls")),
    "loopback": ("10.0.0.9:5557", ("10.0.0.9 refuses TCP 5557: start it there: `switchagg switch --control tcp:",)),
    "nobody": ("10.0.0.77:5555", ("No route to host: correct the address",)),
    "short": (
        "10.0.0.9:5555",
        ("packets are lost between", "packets go to the kernel one by one", "raise the MTU there"),
    ),
}


def test_what_faults_on_the_way_say(network: Networks) -> None:
    """All at once: each machine has a job, and a fault, of its own. A fault that the guide doesn't name isn't here."""
    places = {name: f"10.0.0.{number}" for number, name in enumerate(FAULTS, 1)}
    net = network({"switch": "10.0.0.9", **places})
    (serve,) = pasted(GUIDE, "switch --control")
    wait_for(net.machines["switch"].run(serve), "switchagg switch ready")
    net.drop("port", 17, 5556)
    net.drop("control", 6, 5555)
    net.bridge.sh("ip link set p-mtu mtu 1400")
    net.machines["short"].sh("ip link set eth0 mtu 1400")
    workers = {
        name: net.machines[name].run(shlex.join(["python", "-c", WORKER, f"tcp://{at}", name]))
        for name, (at, _) in FAULTS.items()
    }
    said = {name: output(worker) for name, worker in workers.items()}
    guide = (ROOT / GUIDE).read_text(encoding="utf-8").replace("`", "")
    for name, (_, words) in FAULTS.items():
        for one in words:
            assert one in said[name], f"{name}: {said[name]}"
            assert re.sub(r" at [\d.]+:$|^10.0.0.9 | 5557.*", "", one.replace("`", "")) in guide
