"""tools/wireshark: tshark shows our packets field by field, and names the rule that a malformed one breaks."""

import contextlib
import dataclasses
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from emulation.testbed import netns
from p4vm.host.pcap import open_capture, record
from switchagg.dataplane.p4.plane_program import headers_of
from switchagg.dataplane.p4.traffic_files import sent_by, sent_to
from switchagg.wire import Op, Packet, Route, encode
from tests.system.xdp_net import star
from transport.links.udp_link import SO_RCVBUFFORCE

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")

SCRIPT = Path(__file__).parents[2] / "tools" / "wireshark" / "switchagg.lua"
VALUES = np.array([1, -2, 2**31 - 1], np.int32)
SENT = encode(Packet(1, 7, 2, 0, Op.MAX, 9, 1, 4294967295, VALUES, False, True))
RESULT = encode(Packet(1, 7, 2, 1, Op.SUM, 9, 0, 5, VALUES, True))


def shown(frames: Sequence[bytes], fields: Sequence[str], tmp_path: Path, *options: str) -> list[list[str]]:
    """For each frame, what tshark finds in these fields."""
    capture = tmp_path / "capture.pcap"
    with open_capture(capture) as file:
        for number, frame in enumerate(frames):
            file.write(record(1_000_000 * number, frame))
    return read(capture, fields, tmp_path, *options)


def read(capture: Path, fields: Sequence[str], home: Path, *options: str) -> list[list[str]]:
    """For each frame of a capture, what tshark finds in these fields."""
    command = [
        "tshark",
        "-X",
        f"lua_script:{SCRIPT}",
        "-r",
        str(capture),
        "-T",
        "fields",
        "-E",
        "separator=|",
        *options,
    ]
    for field in fields:
        command += ["-e", field]
    environment = os.environ | {"HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert "lua" not in ended.stderr.lower().replace("lua_script", ""), ended.stderr
    assert ended.returncode == 0, ended.stderr
    return [line.split("|") for line in ended.stdout.splitlines()]


def to_port(data: bytes, port: int) -> bytes:
    frame = bytearray(headers_of(0, len(data)) + data)
    frame[36:38] = struct.pack("!H", port)
    return bytes(frame)


def test_all_fields(tmp_path: Path) -> None:
    flags = "flags.retransmission flags.version flags.result"
    names = f"magic wire_version op route owner {flags} job slot generation stream rank elements chunk value"
    fields = [f"switchagg.{name}" for name in names.split()]
    ((*found, values),) = shown([sent_by(0, SENT)], fields, tmp_path)
    true, false = "1True", "0False"  # older and newer tshark say it differently
    assert (found[5] in true, found[6] in true, found[7] in false) == (True, True, True)
    assert found[:5] + found[8:] == ["0x5341", "2", "1", "0", "0", "1", "9", "7", "2", "0", "3", "4294967295"]
    assert values == "1,-2,2147483647"


def test_verdict_hints(tmp_path: Path) -> None:
    frames = [sent_by(0, SENT), sent_by(1, RESULT[:3] + b"\0" + RESULT[4:]), sent_to(0, RESULT), sent_to(1, RESULT)]
    rows = shown([*frames, sent_to(2, RESULT)], ["switchagg.hint", "_ws.expert.message"], tmp_path)
    assert [row[0] for row in rows] == [
        "contribution, sent again",
        "contribution",
        "result to rank 0, caused by rank 1: BROADCAST",
        "result to rank 1, which caused it: BROADCAST or REPLY",
        "result, caused by rank 1",
    ]
    assert [row[1] for row in rows] == ["Sent again (W7, W8)", "", "", "", ""]


def test_malformed(tmp_path: Path) -> None:
    """Which rule they break; never a fault of the script."""
    wrong = {
        "short": SENT[:19],
        "magic": b"\0" + SENT[1:],
        "wire_version": SENT[:2] + b"\x18" + SENT[3:],
        "op": SENT[:2] + b"\x2e" + SENT[3:],
        "flags": SENT[:3] + b"\x08" + SENT[4:],
        "length": SENT[:-1],
    }
    more = [SENT[:20], SENT + b"\0", SENT[:14] + b"\0\0" + SENT[16:], SENT[:14] + b"\xff\xff" + SENT[16:], b"S"]
    rows = shown([sent_by(0, data) for data in [*wrong.values(), *more]], ["_ws.expert.message"], tmp_path)
    reasons = [row[0].partition("(P6 ")[2].rstrip(")") for row in rows]
    assert reasons == [*wrong, "length", "length", "length", "length", "short"]


def test_routes(tmp_path: Path) -> None:
    """Who owns what; header-only packets, also several in one datagram, are no malformed ones."""
    given = Packet(1, 7, 2, 0, Op.SUM, 9, 1, 5, VALUES, route=Route.TO_OWNER, owner=37)
    header_only = dataclasses.replace(given, rank=37, values=VALUES[:0])
    result, more = dataclasses.replace(header_only, result=True), dataclasses.replace(header_only, chunk=6, slot=10)
    frames = [sent_by(0, encode(given)), sent_by(37, encode(header_only) + encode(more)), sent_to(0, encode(result))]
    fields = [f"switchagg.{name}" for name in ("route", "owner", "chunk", "hint")]
    rows = shown(frames, [*fields, "_ws.col.Info", "_ws.expert.group"], tmp_path)
    assert rows[0][:4] == ["1", "37", "5", "contribution"]
    assert rows[1][:4] == ["1,1", "37,37", "5,6", "contribution, header-only,contribution, header-only"]
    one = "SUM TO_OWNER 37 job 1 rank 37 stream 2"
    assert rows[1][4:] == [f"2 packets: {one} chunks 5-6 slots 9.1-10.1 contribution, header-only", ""]
    hint = "result to rank 0, caused by rank 37: BROADCAST, header-only"
    assert rows[2][3:] == [hint, f"{one} chunk 5 slot 9.1 {hint}", ""]


def bundle(chunks: Sequence[int], values: int = 3) -> bytes:
    """Contributions of rank 1 as one datagram: as a capture shows them that one call sent (GSO)."""
    packet = Packet(1, 7, 0, 1, Op.SUM, 0, 0, 0, np.arange(values, dtype=np.int32))
    return b"".join(encode(dataclasses.replace(packet, slot=chunk, chunk=chunk)) for chunk in chunks)


def test_bundles(tmp_path: Path) -> None:
    """GSO, GRO: a datagram of many packets, each shown by itself; the info column joins consecutive chunks."""
    frames = [bundle(range(5, 37), 360), bundle([0, 1, 4]) + RESULT, SENT]
    fields = ["switchagg.chunk", "switchagg.value", "_ws.col.Info", "_ws.expert.group"]
    large, mixed, _ = shown([sent_by(1, data) for data in frames], fields, tmp_path)
    assert large[0] == ",".join(map(str, range(5, 37)))
    assert large[1] == ",".join(map(str, 32 * list(range(360))))
    assert large[2:] == ["32 packets: SUM job 1 rank 1 stream 0 chunks 5-36 slots 5.0-36.0 contribution", ""]
    assert mixed[0] == "0,1,4,5"
    one = "SUM job 1 rank 1 stream 0"
    assert mixed[2:] == [
        f"4 packets: {one} chunks 0-1 slots 0.0-1.0 contribution; {one} chunk 4 slot 4.0 contribution; "
        f"SUM job 1 rank 1 stream 2 chunk 5 slot 9.0 result, caused by rank 1",
        "",
    ]


def test_a_fault_in_a_bundle(tmp_path: Path) -> None:
    """The packets before it are shown as what they are; nothing is guessed after it."""
    whole = bundle([0, 1])
    frames = [whole + SENT[:-1], whole + b"\0" * 40, whole + SENT[:3] + b"\x08" + SENT[4:], whole + SENT[:19]]
    rows = shown([sent_by(1, data) for data in frames], ["switchagg.chunk", "_ws.expert.message"], tmp_path)
    assert [row[0] for row in rows] == ["0,1,4294967295", "0,1", "0,1,4294967295", "0,1"]
    assert [row[1].partition("(P6 ")[2] for row in rows] == ["length)", "length)", "flags)", "length)"]


def test_other_ports(tmp_path: Path) -> None:
    """Recognised by magic; or, by preference, every packet to that port."""
    frames = [to_port(SENT, 7777), to_port(b"S" + SENT, 7777), to_port(SENT[:19], 7777)]
    assert shown(frames, ["switchagg.chunk"], tmp_path) == [["4294967295"], [""], [""]]
    rows = shown(frames, ["_ws.expert.message"], tmp_path, "-d", "udp.port==7777,switchagg")
    assert [row[0].partition("(P6 ")[2] for row in rows] == ["", "magic)", "short)"]


@pytest.mark.parametrize(("data", "cut", "values"), [(SENT, 6, "1"), (bundle([0, 1]), 22, "0,1,2")], ids=["one", "two"])
def test_cut_by_the_capture(tmp_path: Path, data: bytes, cut: int, values: str) -> None:
    """Captured only in part: the headers and the values that are there, and no complaint about lengths."""
    capture = tmp_path / "cut.pcap"
    frame = sent_by(0, data)
    with open_capture(capture) as file:
        file.write(struct.pack("<IIII", 0, 0, len(frame) - cut, len(frame)) + frame[:-cut])
    command = ["tshark", "-X", f"lua_script:{SCRIPT}", "-r", str(capture), "-T", "fields", "-e", "switchagg.value"]
    ended = subprocess.run([*command, "-e", "_ws.expert.message"], capture_output=True, text=True, timeout=300)
    assert ended.stdout.split("\t")[0] == values
    assert "P6" not in ended.stdout


@pytest.mark.system
def test_a_capture_of_an_ordinary_run(requires_root_namespaces: None, tmp_path: Path) -> None:
    """Captured at the switch's port of a worker: each packet that it sent or got is shown, and none is malformed."""
    capture = tmp_path / "run.pcap"
    with star(2) as net, open_capture(capture) as file:
        net.daemon(plane="native")
        every_protocol = socket.htons(3)
        with netns.open_socket(net.switch.holder.pid, socket.AF_PACKET, socket.SOCK_RAW, every_protocol) as tap:
            tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
            tap.bind(("p0", 3))
            said = net.run("--size", "100000", "--calls", "2")[0]["counters"]
            tap.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    file.write(record(0, tap.recv(1 << 17)))
    rows = read(capture, ["switchagg.flags.result", "_ws.expert.group"], tmp_path, "-Y", "switchagg")
    assert [row for row in rows if "Malformed" in row[1]] == []
    results = ",".join(row[0] for row in rows).replace("True", "1").replace("False", "0").split(",")
    assert len(rows) < len(results)
    assert (results.count("0"), results.count("1")) == (said["link_sent_datagrams"], said["link_received_datagrams"])
