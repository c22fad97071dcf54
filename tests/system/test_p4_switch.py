"""P4 programs as switches on real interfaces: veth in namespaces of our own, and under Mininet."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emulation.testbed.mininet.services import switchagg_command
from p4vm.host import pcap
from tests.system.xdp_net import ROOT, Namespace

pytestmark = pytest.mark.system

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
struct headers_t { ethernet_t ethernet; }
struct meta_t { }
parser MyParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.ethernet); transition accept; }
}
control Nothing(inout headers_t hdr, inout meta_t meta) { apply { } }
control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    register<bit<32>>(4) seen;
    action drop() { mark_to_drop(standard); }
    action forward(bit<9> port) { standard.egress_spec = port; }
    action multicast(bit<16> group) { standard.mcast_grp = group; }
    table cross {
        key = { standard.ingress_port: exact; }
        actions = { forward; multicast; drop; }
        default_action = drop();
    }
    apply {
        bit<32> count;
        seen.read(count, (bit<32>) standard.ingress_port);
        seen.write((bit<32>) standard.ingress_port, count + 1);
        cross.apply();
    }
}
control MyEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    apply {
        log_msg("{} to {}", { standard.ingress_port, standard.egress_port });
        if (hdr.ethernet.type == 0x9999) { hdr.ethernet.src = (bit<48>) standard.enq_qdepth; }
    }
}
control MyDeparser(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.ethernet); } }
V1Switch(MyParser(), Nothing(), MyIngress(), MyEgress(), Nothing(), MyDeparser()) main;
"""
ENTRIES = "table_add cross forward 1 => 2\ntable_add cross forward 2 => 1\n"

STATION = """
import socket, sys
station = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
station.setsockopt(263, 23, 1)
station.setsockopt(263, 8, 1)
station.bind(("eth0", 3))
station.settimeout(10)
print("up", flush=True)
for line in sys.stdin:
    word, _, data = line.strip().partition(" ")
    if word == "send":
        station.send(bytes.fromhex(data))
    else:
        got, about, _, _ = station.recvmsg(4096, 64)
        tag = about[0][2][16:18][::-1].hex() if about and about[0][2][0] & 16 else ""
        print(got.hex(), tag, flush=True)
"""
"""A host: sends frames and prints what it receives, and the VLAN tag that the kernel took out of it."""


class Station:
    """A namespace with one interface to the switch."""

    def __init__(self, switch: Namespace, port: str) -> None:
        self.node = Namespace()
        switch.sh(
            f"ip link add {port} type veth peer name eth0 netns {self.node.holder.pid}\n"
            f"echo 1 > /proc/sys/net/ipv6/conf/{port}/disable_ipv6; ip link set {port} up\n"
            f"ethtool -K {port} tx off tso off gso off gro off"
        )
        self.node.sh("echo 1 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6; ip link set eth0 up")
        self.process = self.node.spawn([sys.executable, "-S", "-c", STATION], stdin=subprocess.PIPE)
        self.say("")

    def say(self, line: str) -> list[str]:
        """What it answers; "" waits for its start."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if line:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        return [] if line.startswith("send") else self.process.stdout.readline().split()

    def send(self, *frames: str) -> None:
        for frame in frames:
            self.say(f"send {frame}")

    def receive(self) -> str:
        return self.say("receive")[0]


class Net:
    """A P4 switch with two stations at ports 1 and 2."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.control = str(folder / "control.sock")
        (folder / "prog.p4").write_text(PROGRAM)
        (folder / "entries.txt").write_text(ENTRIES)
        self.switch = Namespace()
        self.stations = [Station(self.switch, f"p{number}") for number in (1, 2)]

    def start(self, *options: str) -> "subprocess.Popen[str]":
        """The switch, taking packets."""
        words = ("run", str(self.folder / "prog.p4"), "-i", "1@p1", "-i", "2@p2", "--control", self.control)
        process = self.switch.spawn(switchagg_command("p4", *words, *options))
        assert process.stdout is not None
        for line in process.stdout:
            if "Ctrl-C ends" in line:
                return process
        raise AssertionError(process.communicate(timeout=20)[1])

    def cli(self, *commands: str) -> str:
        words = [word for command in commands for word in ("-c", command)]
        command = switchagg_command("p4", "cli", "--control", self.control, *words)
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False).stdout

    def close(self) -> None:
        for node in (self.switch, *(station.node for station in self.stations)):
            node.close()


@pytest.fixture
def net(tmp_path: Path, requires_root_namespaces: None) -> Iterator[Net]:
    made = Net(tmp_path)
    try:
        yield made
    finally:
        made.close()


def frame(number: int, kind: str = "1234", size: int = 46) -> str:
    return f"ffffffffffff 0200000000{number:02x} {kind} ".replace(" ", "") + f"{number:02x}" * size


def ended(process: "subprocess.Popen[str]") -> str:
    """Its output at Ctrl-C."""
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    return output


def captured(folder: Path, name: str) -> list[str]:
    return [data.hex() for _, data in pcap.read(folder / f"{name}.pcap")]


def test_packets_commands_captures_and_the_end(net: Net, tmp_path: Path) -> None:
    from p4vm.native.build import compiler

    backends = ["python", "native"] if compiler() is not None else ["python"]
    for backend in backends:
        folder = tmp_path / backend
        process = net.start(
            "--backend", backend, "--commands", str(net.folder / "entries.txt"), "--pcap", str(folder), "--log"
        )
        first, second = net.stations
        frames = [frame(number) for number in range(40)]
        first.send(*frames)
        assert [second.receive() for _ in frames] == frames
        second.send(frame(77, size=1500))
        assert first.receive() == frame(77, size=1500)

        tagged = f"ffffffffffff0200000000018100200508{'00' * 47}"
        first.send(tagged)
        data, tag = second.say("receive")
        assert (data[:24] + f"8100{tag}" + data[24:], tag) == (tagged, "2005"), "a VLAN tag comes through"

        printed = net.cli(
            "register_read seen", "mc_mgrp_create 5", "mc_node_create 0 1 2", "mc_node_associate 5 0", "no"
        )
        assert printed.startswith("seen= 0, 41, 1, 0\nCreating multicast group 5\n")
        assert printed.endswith("Error: Unknown command: no; see help\n")
        assert "p2" in net.cli("table_modify cross multicast 0 5", "show_ports").split()
        first.send(frame(7))
        assert (first.receive(), second.receive()) == (frame(7), frame(7))

        up = "for i in $(seq 100); do ip link show p2 | grep -q 'state UP' && break; sleep 0.01; done; sleep 0.1"
        net.switch.sh(f"ip link set p2 down; ip link set p2 up; {up}")
        second.send(frame(8))
        assert first.receive() == frame(8)

        output = ended(process)
        assert output.splitlines()[:2] == ["1 to 2", "1 to 2"]
        assert "port 1 p1: received 42, sent 3\nport 2 p2: received 2, sent 42\n" in output
        assert "program: received 44, sent 45" in output
        assert captured(folder, "p1_in") == [*frames, tagged, frame(7)]
        assert captured(folder, "p1_out") == [frame(77, size=1500), frame(7), frame(8)]
        assert captured(folder, "p2_out") == [*frames, tagged, frame(7)]
        assert not Path(net.control).exists()


def test_a_queue_fills_and_the_program_sees_its_depth(net: Net) -> None:
    (net.folder / "entries.txt").write_text(f"{ENTRIES}set_queue_depth 3\nset_queue_rate 1 2\n")
    process = net.start("--commands", str(net.folder / "entries.txt"))
    first, second = net.stations
    first.send(*[frame(number, "9999") for number in range(30)])
    second.send(frame(99))
    assert first.receive() == frame(99), "the other port's queue is its own"
    assert second.receive()[12:24] == "0" * 12
    net.cli("set_queue_rate 0")
    depths = [int(second.receive()[12:24], 16) for _ in range(3)]
    assert set(depths) <= {0, 1, 2, 3}
    output = ended(process)
    port = next(line for line in output.splitlines() if line.startswith("port 2"))
    sent, full = (int(port.partition(word)[2].split(",")[0]) for word in (", sent ", "queue full "))
    assert sent + full == 30
    assert 4 <= sent <= 6, "one at once, three that waited, and what a second may add"


def test_warns_of_what_would_mislead_a_program(net: Net) -> None:
    net.switch.sh("ethtool -K p1 tso on gso on tx on; echo 0 > /proc/sys/net/ipv6/conf/p2/disable_ipv6")
    process = net.start("--backend", "python")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert "warning: p1: TSO, GSO on: packets may come or go in bundles; at both ends: ethtool -K p1 tso off" in errors
    assert "warning: p2: IPv6 is on" in errors


def test_says_why_it_can_not_start(net: Net) -> None:
    def refused(*options: str) -> Any:
        words = switchagg_command("p4", "run", str(net.folder / "prog.p4"), "--backend", "python", *options)
        done = subprocess.run(
            net.switch.command(words), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1
        return done.stderr

    net.switch.sh("ip link set p2 down")
    assert "p4vm: there is no interface p9; there are: lo, p1, p2\n" in refused("-i", "1@p9")
    assert "p4vm: interface p2 is down; ip link set p2 up\n" in refused("-i", "1@p1", "-i", "2@p2")


def test_a_controller_over_p4runtime(net: Net) -> None:
    from test_p4runtime import INSERT, Controller, action, pb

    address = f"unix:{net.folder}/p4runtime.sock"
    process = net.start("--p4runtime", address, "--cpu-port", "510", "--device-id", "3")
    controller = Controller(address, device=3)
    assert controller.arbitrate() == 0
    info = controller.stub.GetForwardingPipelineConfig(pb.GetForwardingPipelineConfigRequest(device_id=3)).config.p4info
    ids = {part.preamble.alias: part.preamble.id for part in [*info.tables, *info.actions]}
    for port, out in ((1, 2), (2, 510), (510, 1)):
        match = pb.FieldMatch(field_id=1, exact=pb.FieldMatch.Exact(value=port.to_bytes(2, "big")))
        entry = pb.TableEntry(table_id=ids["cross"], match=[match], action=action(ids["forward"], out))
        controller.write(INSERT, table_entry=entry)
    first, second = net.stations
    first.send(frame(7))
    assert second.receive() == frame(7)
    second.send(frame(8))
    assert next(controller.stream).packet.payload.hex() == frame(8)
    sent = pb.StreamMessageRequest()
    sent.packet.payload = bytes.fromhex(frame(9))
    controller.requests.put(sent)
    assert first.receive() == frame(9)
    output = ended(process)
    assert "port 510 cpu: received 1, sent 1\n" in output
    controller.close()


# ---- Mininet


def mn(*arguments: str) -> str:
    program = shutil.which("mn")
    if program is None:
        pytest.skip("needs Mininet's command mn")
    command = [program, "--custom", str(ROOT / "emulation/mn_custom.py"), "--topo", "single,2", "--host", "switchagg"]
    done = subprocess.run(
        [*command, "--controller", "none", *arguments], capture_output=True, text=True, timeout=90, cwd="/", check=False
    )
    return done.stdout + done.stderr


@pytest.mark.usefixtures("requires_mininet")
def test_a_program_under_mininet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHAGG_PYTHON", sys.executable)
    (tmp_path / "prog.p4").write_text(PROGRAM)
    (tmp_path / "s1.txt").write_text(ENTRIES)
    script = tmp_path / "script"
    added = ['net.addHost("h3")', 'net.addLink(s1, net.get("h3"))', 's1.attach("s1-eth3")', 's1.p4("show_ports")']
    script.write_text("".join(f"py {line}\n" for line in ['s1.p4("register_read seen 0")', *added]))
    options = f"program={tmp_path}/prog.p4,commands={tmp_path}/{{name}}.txt,pcap={tmp_path}/pcaps,backend=python"
    options += f",log={tmp_path}/{{name}}.log"
    output = mn("--switch", f"switchagg_p4,{options}", "--test", "pingall", "--post", str(script))
    assert "Results: 0% dropped (2/2 received)" in output
    assert "seen[0]= 0" in output
    assert "s1-eth3" in output.partition("seen[0]= 0")[2], output
    assert captured(tmp_path / "pcaps", "s1-eth1_in")
    assert "2 to 1" in (tmp_path / "s1.log").read_text()
    output = mn("--switch", f"switchagg_p4,program={tmp_path}/none.p4", "--test", "none")
    assert "the data plane ended at its start (its last line: p4vm: " in output
    assert "none.p4: can't read it: No such file or directory" in output


# ---- an exercise as the P4 tutorials have it

LIFTED = PROGRAM.replace(
    "apply {\n        log_msg",
    """register<bit<19>>(1) deepest;
    apply {
        bit<19> before;
        deepest.read(before, 0);
        if (standard.enq_qdepth > before) { deepest.write(0, standard.enq_qdepth); }
        log_msg""",
)
CROSS: dict[str, Any] = {
    "target": "bmv2",
    "p4info": "build/cross.p4.p4info.txtpb",
    "bmv2_json": "build/cross.json",
    "table_entries": [
        {
            "table": "MyIngress.cross",
            "match": {"standard.ingress_port": a},
            "action_name": "MyIngress.forward",
            "action_params": {"port": 3 - a},
        }
        for a in (1, 2)
    ],
}
TOPOLOGY: dict[str, Any] = {
    "hosts": {
        "h1": {"ip": "10.0.1.1/24", "mac": "08:00:00:00:01:11", "commands": ["ip route add 10.9.0.0/16 dev eth0"]},
        "h2": {"ip": "10.0.1.2/24", "mac": "08:00:00:00:02:22"},
    },
    "switches": {
        "s1": {"runtime_json": "net/entries.json", "program": "build/lifted.json"},
        "s2": {"runtime_json": "net/entries.json"},
    },
    "links": [["h1", "s1-p1"], ["s2-p1", "h2"], ["s1-p2", "s2-p2", "0", 1]],
}


def exercise_folder(folder: Path, topology: Any = None, **changed: Any) -> Path:
    """Makefile, topology.json and programs; in `solution` the program that forwards."""
    (folder / "net").mkdir()
    (folder / "solution").mkdir()
    (folder / "Makefile").write_text(
        "TOPO = net/topology.json\nDEFAULT_PROG = cross.p4\ninclude ../../utils/Makefile\n"
    )
    (folder / "net/topology.json").write_text(json.dumps({**TOPOLOGY, **changed} if topology is None else topology))
    (folder / "net/entries.json").write_text(json.dumps(CROSS))
    (folder / "cross.p4").write_text("not yet a program")
    (folder / "solution/cross.p4").write_text(PROGRAM)
    (folder / "lifted.p4").write_text(LIFTED)
    return folder


@pytest.mark.usefixtures("requires_mininet")
def test_an_exercise_of_the_tutorials_under_mininet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHAGG_PYTHON", sys.executable)
    home = exercise_folder(tmp_path)
    flood = "import socket; s = socket.socket(2, 2); [s.sendto(bytes(1400), ('10.0.1.2', 9)) for _ in range(300)]"
    script = tmp_path / "script"
    script.write_text(
        "h1 ping -c 1 10.0.1.2\nh1 ip route show dev eth0\n"
        f'h1 {sys.executable} -S -c "{flood}"\npy s1.p4("register_read deepest 0")\n'
    )
    program = shutil.which("mn") or pytest.skip("needs Mininet's command mn")
    command = [program, "--custom", str(ROOT / "emulation/mn_custom.py"), "--controller", "none", "--test", "none"]
    command += ["--topo", f"switchagg_exercise,{home},solution", "--switch", "switchagg_p4,backend=python"]
    done = subprocess.run(
        [*command, "--post", str(script)], capture_output=True, text=True, timeout=90, cwd="/", check=False
    )
    output = done.stdout + done.stderr
    assert "1 packets transmitted, 1 received" in output
    assert "10.9.0.0/16" in output
    deepest = re.search(r"deepest\[0\]= (\d+)", output)
    assert deepest is not None, output
    assert int(deepest.group(1)) > 10, "a slow link's packets wait in the switch, where the program sees them"


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"topology": {"hosts": {}}}, "topology.json: no topology of the tutorials: KeyError('switches')"),
        ({"topology": []}, "topology.json: expected {hosts, switches, links}"),
        ({"switches": {"s1": {"cpu_port": "510"}}}, "s1 has a cpu_port: its controller speaks P4Runtime"),
        ({"switches": {"s1": {"program": "build/none.json"}}}, "s1: there is no "),
        ({"switches": {"s1": {"color": "red"}}}, "s1: 'color' is unknown here; expected some of cli_input, program, "),
        ({"links": [["h1", "s9-p1"]]}, "a link to s9, which is neither a host nor a switch"),
        ({"links": [["h1", "s1-x1"]]}, "expected ends like h1 and s1-p2, and a latency like 5 (ms) or 5ms"),
        ({"links": [["h1"]]}, r"link ['h1']: expected [node, node, latency, Mb/s]"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("requires_mininet")
def test_what_is_wrong_with_an_exercise(tmp_path: Path, changed: dict[str, Any], wrong: str) -> None:
    from emulation.testbed.mininet.shaping import UnfitError
    from emulation.testbed.mn_cli.tutorial_exercise import read

    with pytest.raises(UnfitError, match=re.escape(wrong)):
        read(exercise_folder(tmp_path, **changed), "solution")
