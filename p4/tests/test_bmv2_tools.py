"""What stands for bmv2's programs: command lines translated, files that scripts look for."""

import json
import subprocess
from pathlib import Path

import pytest
from test_p4runtime import RELAY

import p4vm.p4runtime  # noqa: F401
from p4vm.cli import bmv2_compiler as compiler
from p4vm.cli import bmv2_switch as simple_switch
from p4vm.cli import bmv2_tools as tools
from p4vm.source import P4Error


def test_a_makefile_of_the_tutorials_finds_its_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from google.protobuf import text_format
    from p4.config.v1 import p4info_pb2

    (tmp_path / "relay.p4").write_text(RELAY)
    info, made = tmp_path / "relay.p4.p4info.txtpb", tmp_path / "relay.json"
    words = ["--p4v", "16", "--p4runtime-files", str(info), "-o", str(made), str(tmp_path / "relay.p4"), "-DX=1"]
    assert compiler.main(words) == 0
    assert text_format.Parse(info.read_text(), p4info_pb2.P4Info()).tables[0].preamble.name == "MyIngress.nothing"
    theirs = f"-i 1@s1-eth1 --pcap pcaps --nanolog ipc:///x --device-id 2 {made} --log-console --thrift-port 9091"
    theirs += " -- --grpc-server-addr 0.0.0.0:50052 --cpu-port 510"
    assert " ".join(simple_switch.run_words("simple_switch_grpc", theirs.split())) == (
        f"run {tmp_path}/relay.p4 --control 127.0.0.1:9091 -D X=1 -i 1@s1-eth1 --pcap pcaps --log "
        "--p4runtime 0.0.0.0:50052 --device-id 2 --cpu-port 510"
    )
    for given, wrong in (
        ("--no-p4", "start it with a program"),
        (f"{made} -- --priority-queues 8", "a port has one queue here"),
        (f"{info}", "not made by our p4c-bm2-ss"),
        (f"{tmp_path}/none.json", "can't be read: No such file"),
    ):
        with pytest.raises(P4Error, match=wrong):
            simple_switch.run_words("simple_switch", given.split())
    (tmp_path / "relay.p4").write_text("parser {")
    with pytest.raises(P4Error, match=r"relay\.p4 has changed since"):
        simple_switch.run_words("simple_switch", [str(made)])
    assert compiler.main(["-o", str(made), str(tmp_path / "relay.p4")]) == 1
    assert "relay.p4:1:8: " in capsys.readouterr().err


def run(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


def test_scripts_are_found_on_path(tmp_path: Path) -> None:
    assert "simple_switch_grpc" in tools.write(tmp_path)
    (tmp_path / "old.json").write_text(json.dumps({"program": "bmv2's own"}))
    done = subprocess.run(
        [tmp_path / "simple_switch", tmp_path / "old.json"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, "not made by our p4c-bm2-ss" in done.stderr) == (1, True)
    script = "from p4.tmp.p4config_pb2 import P4DeviceConfig as Config; from p4.v1 import p4runtime_pb2\n"
    done = run(
        tmp_path / "python3", "-c", script + "print(Config(reassign=True, device_data=b'x').SerializeToString().hex())"
    )
    assert (done.stdout, done.stderr) == ("08011a0178\n", "")
