"""tools/wireshark: tshark shows our packets field by field, and names the rule that a malformed one breaks."""

import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from p4vm.host.pcap import open_capture, record
from p4vm.planes.program import headers_of
from p4vm.planes.traffic_files import sent_by, sent_to
from switchagg.wire import Op, Packet, encode

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
    environment = os.environ | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert "lua" not in ended.stderr.lower().replace("lua_script", ""), ended.stderr
    assert ended.returncode == 0, ended.stderr
    return [line.split("|") for line in ended.stdout.splitlines()]


def to_port(data: bytes, port: int) -> bytes:
    frame = bytearray(headers_of(0, len(data)) + data)
    frame[36:38] = struct.pack("!H", port)
    return bytes(frame)


def test_all_fields(tmp_path: Path) -> None:
    names = "magic wire_version op flags.retransmission flags.version flags.result job slot generation stream rank"
    fields = [f"switchagg.{name}" for name in f"{names} elements chunk value".split()]
    ((*found, values),) = shown([sent_by(0, SENT)], fields, tmp_path)
    true, false = "1True", "0False"  # older and newer tshark say it differently
    assert (found[3] in true, found[4] in true, found[5] in false) == (True, True, True)
    assert found[:3] + found[6:] == ["0x5341", "1", "1", "1", "9", "7", "2", "0", "3", "4294967295"]
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
        "wire_version": SENT[:2] + b"\x20" + SENT[3:],
        "op": SENT[:2] + b"\x12" + SENT[3:],
        "flags": SENT[:3] + b"\x08" + SENT[4:],
        "length": SENT[:-1],
    }
    more = [SENT[:20], SENT + b"\0", SENT[:14] + b"\0\0" + SENT[16:], SENT[:14] + b"\xff\xff" + SENT[16:], b"S"]
    rows = shown([sent_by(0, data) for data in [*wrong.values(), *more]], ["_ws.expert.message"], tmp_path)
    reasons = [row[0].partition("(P6 ")[2].rstrip(")") for row in rows]
    assert reasons == [*wrong, "length", "length", "length", "length", "short"]


def test_other_ports(tmp_path: Path) -> None:
    """Recognised by magic; or, by preference, every packet to that port."""
    frames = [to_port(SENT, 7777), to_port(b"S" + SENT, 7777), to_port(SENT[:19], 7777)]
    assert shown(frames, ["switchagg.chunk"], tmp_path) == [["4294967295"], [""], [""]]
    rows = shown(frames, ["_ws.expert.message"], tmp_path, "-d", "udp.port==7777,switchagg")
    assert [row[0].partition("(P6 ")[2] for row in rows] == ["", "magic)", "short)"]


def test_a_packet_cut_by_the_capture(tmp_path: Path) -> None:
    """Captured only in part: its header and the values that are there, and no complaint about its length."""
    capture = tmp_path / "cut.pcap"
    frame = sent_by(0, SENT)
    with open_capture(capture) as file:
        file.write(struct.pack("<IIII", 0, 0, len(frame) - 6, len(frame)) + frame[:-6])
    command = ["tshark", "-X", f"lua_script:{SCRIPT}", "-r", str(capture), "-T", "fields", "-e", "switchagg.value"]
    ended = subprocess.run([*command, "-e", "_ws.expert.message"], capture_output=True, text=True, timeout=60)
    assert ended.stdout.split("\t")[0] == "1"
    assert "P6" not in ended.stdout
