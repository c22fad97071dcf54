"""`p4vm` as users call it, and the socket over which a running switch takes commands."""

import contextlib
import itertools
import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from everything import TEXT, packet, switch

from p4vm.cli.main import app
from p4vm.cli.prompt import say
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.host import control
from p4vm.host.control import PromptClient, PromptServer, connect, parse_address
from p4vm.host.pcap import open_capture, read, record
from p4vm.host.ports import parse_ports
from p4vm.host.queues import OutputQueue
from p4vm.host.turns import PER_TURN, Turns
from p4vm.source import P4Error

DATA = packet().hex()
PASSES = f"add routes hdr.ipv4.dst:0x0a000100/24 forward(dst:0x1, port:2)\npacket 0 {DATA}\nexpect 2 000000000001 $*\n"


def p4(*words: str, given: str | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "p4vm.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, input=given, check=False)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "prog.p4"
    path.write_text(TEXT)
    return path


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command, in this process: it is quicker."""
    try:
        code = app(list(words), prog_name="p4vm", standalone_mode=False)
    except SystemExit as end:
        code = end.code
    output = capsys.readouterr()
    return int(code or 0), output.out, output.err


# ---- check and test


def test_check_says_what_is_in_a_program(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "check", str(program))
    assert code == 0
    assert out.startswith(f"{program}: 8 tables, 3 registers, 1 counter, 1 direct_counter, ")
    _, out, _ = called(capsys, "check", str(program), "--show")
    assert (
        "table MyIngress.fixed                [implementation=None, mk=hdr.ipv4.kind(exact, 8)] size 2, 2 const" in out
    )
    assert "register MyIngress.seen [8]" in out
    _, out, _ = called(capsys, "check", str(program), "--p4info")
    assert json.loads(out)["pkgInfo"] == {"arch": "v1model"}
    _, out, _ = called(capsys, "check", str(program), "--ir")
    assert "\ntable MyIngress.fixed " in out
    _, out, _ = called(capsys, "check", str(program), "--python")
    compile(out, "program", "exec")
    assert "class ethernet_t" in out
    _, out, _ = called(capsys, "check", str(program), "--c")
    assert '#include "p4vm.h"' in out


def test_check_names_the_fault(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.write_text(TEXT.replace("hdr.ipv4.level = level;", "hdr.ipv4.level = levels;"))
    line = 1 + TEXT[: TEXT.index("hdr.ipv4.level = level;")].count("\n")
    code, out, error = called(capsys, "check", str(program))
    assert (code, out) == (1, "")
    assert error.startswith(f"p4vm: {program}:{line}:")
    assert error.count("\n") == 1


def test_check_takes_macros_and_folders(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "sizes.p4").write_text("const bit<32> CELLS = SIZE * 2;\n")
    program.write_text(
        TEXT.replace("enum Color", '#include "sizes.p4"\nenum Color').replace("(8) seen", "(CELLS) seen")
    )
    code, out, error = called(capsys, "check", str(program), "-I", str(tmp_path / "more"), "-D", "SIZE=21", "--show")
    assert (code, error) == (0, "")
    assert "register MyIngress.seen [42]" in out


def test_tests_give_a_line_each_and_an_exit_code(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "prog.stf", tmp_path / "bad.stf"
    good.write_text(PASSES.replace("$*", "*"))
    bad.write_text(good.read_text() + "expect 3 00\n")
    assert called(capsys, "test", str(program), "--backend", "python")[:2] == (
        0,
        f"ok   {good} (python): 1 packets in, 1 out\n",
    )
    code, out, _ = called(capsys, "test", str(program), str(good), str(bad), "--backend", "python")
    assert code == 1
    assert out.splitlines() == [
        f"ok   {good} (python): 1 packets in, 1 out",
        f"FAIL {bad} (python): 1 packets in, 1 out",
        f"  {bad}:4: expect 3: no packet came: port 3 sent 0, this would be packet 1; expected 00",
    ]
    good.write_text("register_read seen 0\n")
    _, out, _ = called(capsys, "test", str(program), "--backend", "python", "-v")
    assert out.splitlines()[1] == "  seen[0]= 0"


def test_a_failure_takes_ten_lines_and_verbose_shows_all(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = tmp_path / "failing.stf"
    wrong = f"packet 0 {DATA}\nexpect 2 00\n"
    failing.write_text("setdefault routes forward(dst:0x1, port:2)\n" + wrong.replace("2 00", "2 01") * 20)
    words = ("test", str(program), str(failing), "--backend", "python")
    code, out, _ = called(capsys, *words)
    first, *lines = out.splitlines()
    assert (code, first.split()[0]) == (1, "FAIL")
    assert len(lines) == 9, "of ten, and failures are whole"
    assert lines[0].endswith("packet 1 on this port differs at byte 0")
    assert lines[4].endswith("packet 2 on this port differs at byte 0")
    assert lines[-1] == "  … and 18 more failures: --verbose shows all"
    code, out, _ = called(capsys, *words, "--verbose")
    assert (code, out.count("differs at byte 0")) == (1, 20)


def test_both_back_ends(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from p4vm.native.build import compiler

    if compiler() is None:
        pytest.skip("needs a C compiler")
    small = tmp_path / "small.p4"
    small.write_text(CROSS)
    (tmp_path / "small.stf").write_text("packet 3 0102\nexpect 4 0102 $\n")
    code, out, _ = called(capsys, "test", str(small), "--backend", "both")
    assert (code, [line.split()[2] for line in out.splitlines()]) == (0, ["(python):", "(native):"])


CROSS = """
#include <core.p4>
#include <v1model.p4>
struct headers_t { }
struct meta_t { }
parser P(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    state start { transition accept; }
}
control Nothing(inout headers_t hdr, inout meta_t meta) { apply { } }
control Cross(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    apply { standard.egress_spec = standard.ingress_port + 1; }
}
control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) { apply { } }
control Emit(packet_out packet, in headers_t hdr) { apply { } }
V1Switch(P(), Nothing(), Cross(), Out(), Nothing(), Emit()) main;
"""


@pytest.mark.parametrize(
    ("words", "code", "wrong"),
    [
        (["test", "PROGRAM", "--backend", "fast"], 2, "--backend fast: unknown; allowed: native, python, both, auto"),
        (["test", "PROGRAM", "none.stf", "--backend", "python"], 1, "none.stf: can't be read: No such file"),
        (["check", "none.p4"], 1, "none.p4: can't read it: No such file"),
        (["run", "PROGRAM"], 1, "a switch needs ports: -i 0@veth0"),
        (["run", "PROGRAM", "-i", "veth0"], 1, "port 'veth0': expected NUMBER@INTERFACE like 0@veth0"),
        (["run", "PROGRAM", "-i", "0@none", "--backend", "slow"], 1, "there is no back end slow"),
        (["cli", "--control", "none.sock", "-c", "help"], 1, "no switch answers at none.sock (No such file or"),
        (["cli", "--control", "10.0.0.1:5", "-c", "help"], 1, "10.0.0.1:5: commands are taken from this machine alone"),
    ],
)
def test_a_fault_is_one_line(
    program: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, wrong: str
) -> None:
    found, out, error = called(capsys, *[str(program) if word == "PROGRAM" else word for word in words])
    assert (found, out) == (code, "")
    assert error.startswith(f"p4vm: {wrong}")
    assert error.count("\n") == 1


def test_a_missing_package_is_named(program: Path) -> None:
    hidden = "import sys; sys.modules['lark'] = None; from p4vm.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "check", str(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "lark" in done.stderr
    assert "pip install 'p4vm'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_teaches_by_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("check", "test", "run", "cli"):
        code, out, _ = called(capsys, word, "--help")
        assert (code, len(re.findall(rf"p4vm\)? {word} ", out)) >= 2) == (0, True)


# ---- the control socket


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[ControlledSwitch, PromptServer, str]]:
    running, address = switch(), str(tmp_path / "control.sock")
    server = PromptServer(running, address, Turns())
    try:
        yield running, server, address
    finally:
        server.close()
        server.turns.close()
    assert not Path(address).exists()


def exchange(server: PromptServer, client: socket.socket, data: bytes, lines: int) -> list[Any]:
    """What so many lines answer, decoded; the server is served meanwhile."""
    client.setblocking(False)
    received, deadline = b"", time.monotonic() + 120
    while received.count(b"\n") < lines and time.monotonic() < deadline:
        if data:
            with contextlib.suppress(BlockingIOError, ConnectionError):  # the answer may come before all is read
                data = data[client.send(data) :]
        server.turns.serve()
        try:
            some = client.recv(1 << 20)
        except BlockingIOError:
            continue
        except ConnectionResetError:
            break
        if not some:
            break
        received += some
    return [json.loads(line) for line in received.splitlines()]


def clients_become(server: PromptServer, count: int) -> bool:
    """Whether so many clients are connected, after a while; commands are carried out meanwhile."""
    deadline = time.monotonic() + 120
    while len(server.clients) != count and time.monotonic() < deadline:
        server.turns.serve()
        time.sleep(0.01)
    return len(server.clients) == count


def test_commands_over_the_socket(served: tuple[ControlledSwitch, PromptServer, str]) -> None:
    running, server, address = served
    with connect(address) as client:
        answers = exchange(server, client, b"register_write seen 1 7\nregister_read seen 1\nnope\n\n", 4)
        assert answers == [
            {"ok": True, "text": ""},
            {"ok": True, "text": "seen[1]= 7"},
            {"ok": False, "error": "Error: Unknown command: nope; see help"},
            {"ok": True, "text": ""},
        ]
        assert exchange(server, client, b'{"complete": "mc_d"}\n{"command": "mc_dump"}\n', 2)[0]["words"] == ["mc_dump"]
    assert running.register_read("seen", 1) == 7


@pytest.mark.parametrize(
    "line",
    [b"\xff\xfe\x00", b"{", b"{}", b'{"command": 3}', b'{"complete": []}', b"[" * 60_000, b"{" * 60_000, b"\0" * 100],
)
def test_garbage_is_answered_by_an_error(served: tuple[ControlledSwitch, PromptServer, str], line: bytes) -> None:
    _, server, address = served
    with connect(address) as client:
        (answer,) = exchange(server, client, line + b"\n", 1)
        assert (answer["ok"], answer["error"].startswith("Error: ")) == (False, True)
        assert exchange(server, client, b"table_num_entries fixed\n", 1) == [{"ok": True, "text": "2"}]


def test_a_line_without_end_ends_the_connection(served: tuple[ControlledSwitch, PromptServer, str]) -> None:
    _, server, address = served
    with connect(address) as client:
        (answer,) = exchange(server, client, b"x" * 300_000, 1)
        assert answer == {"ok": False, "error": "a line of more than 65536 bytes"}
        assert exchange(server, client, b"", 1) == []


def test_a_client_that_does_not_read_is_dropped(
    served: tuple[ControlledSwitch, PromptServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, server, address = served
    monkeypatch.setattr(control, "SEND_S", 1)
    with connect(address) as client, connect(address) as other:
        client.settimeout(0.1)
        assert clients_become(server, 2)
        with contextlib.suppress(OSError):  # until no more fits in
            client.sendall(b"help\n" * 100_000)
        assert clients_become(server, 1), "the first is gone"
        assert exchange(server, other, b"table_num_entries fixed\n", 1) == [{"ok": True, "text": "2"}]


def test_a_line_cut_short_is_no_command(served: tuple[ControlledSwitch, PromptServer, str]) -> None:
    running, server, address = served
    with connect(address) as client:
        client.sendall(b"register_write seen 1 7")
    assert clients_become(server, 0)
    assert running.register_read("seen", 1) == 0


def test_few_pieces_of_work_a_turn(served: tuple[ControlledSwitch, PromptServer, str]) -> None:
    _, server, _ = served
    done: list[str] = []
    with ThreadPoolExecutor(20) as pool:
        for _ in range(20):
            pool.submit(server.turns.carry_out, lambda: done.append("done"))
        deadline = time.monotonic() + 120
        while len(server.turns._waiting) < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        with server.turns._lock:
            pass  # now the last one has called, too
        for count in (PER_TURN, 2 * PER_TURN, 20):
            assert select.select([server.turns], [], [], 20)[0], "it calls again while work waits"
            server.turns.serve()
            assert len(done) == count
    assert not select.select([server.turns], [], [], 0)[0]


def test_work_of_a_switch_that_has_ended_is_given_up() -> None:
    turns = Turns()
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(turns.carry_out, lambda: None)
        assert select.select([turns], [], [], 20)[0]
        turns.close()
        with pytest.raises(TimeoutError):
            work.result(20)
    with pytest.raises(TimeoutError):
        turns.carry_out(lambda: None)


def test_too_many_clients_are_turned_away(served: tuple[ControlledSwitch, PromptServer, str]) -> None:
    _, server, address = served
    clients = []
    for count in range(1, 41):
        clients.append(connect(address))
        if count > control.CLIENTS_MAX:
            assert clients[-1].recv(1) == b""
        assert clients_become(server, min(count, control.CLIENTS_MAX))
    for client in clients:
        client.close()
    assert clients_become(server, 0)


def test_an_address_is_taken_once_and_a_stale_one_again(tmp_path: Path) -> None:
    address = str(tmp_path / "c.sock")
    first = PromptServer(switch(), address, Turns())
    with pytest.raises(P4Error, match=r"a switch answers at .* already; give this one another"):
        PromptServer(switch(), address, Turns())
    first.socket.shutdown(socket.SHUT_RDWR)  # the thread that waits for clients keeps a socket that is only closed
    first.socket.close()  # as when a switch is killed: the file stays
    second = PromptServer(switch(), address, Turns())
    assert Path(address).stat().st_mode & 0o777 == 0o600
    second.close()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(P4Error, match="is there and no socket"):
        PromptServer(switch(), str(tmp_path / "file"), Turns())
    assert (tmp_path / "file").read_text() == "mine"


def test_a_switch_answers_in_a_folder_of_its_users_alone(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("t")  # a short name: a socket's path has 100 bytes
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(control.tempfile, "tempdir", str(folder))
    address = Path(control.default_address())
    assert address.parent.parent == folder
    server = PromptServer(switch(), str(address), Turns())
    assert address.parent.stat().st_mode & 0o777 == 0o700
    assert server.warnings == []
    server.close()
    address.parent.chmod(0o777)
    control.default_address()
    assert address.parent.stat().st_mode & 0o777 == 0o700, "shut again"
    address.parent.rmdir()
    address.parent.symlink_to(folder)
    with pytest.raises(P4Error, match=r"is no folder of yours alone; set XDG_RUNTIME_DIR, or give --control PATH"):
        control.default_address()


def test_addresses_that_others_reach_are_warned_about(tmp_path: Path) -> None:
    with contextlib.closing(PromptServer(switch(), "127.0.0.1:0", Turns())) as server:
        (warning,) = server.warnings
    assert warning == "127.0.0.1:0: every user of this machine can give commands; a --control PATH is yours alone"
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o1777)
    with contextlib.closing(PromptServer(switch(), str(shared / "s1.sock"), Turns())) as server:
        (warning,) = server.warnings
    assert "others can write" in warning
    assert "choose a folder of mode 0700" in warning


def test_a_switch_of_another_user_is_not_taken_for_ones_own(
    served: tuple[ControlledSwitch, PromptServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, address = served
    monkeypatch.setattr(control.os, "getuid", lambda: 12345)
    connect(address).close()  # root's, or one's own
    monkeypatch.setattr(control, "_user_of", lambda connected: 4321)
    with pytest.raises(P4Error, match=r"answers there belongs to user 4321, not to you"):
        connect(address)


def test_addresses() -> None:
    assert parse_address("127.0.0.1:99") == ("127.0.0.1", 99)
    assert parse_address("/a:b/c:5") == "/a:b/c:5"
    assert parse_address("c.sock") == "c.sock"
    for wrong in ("0.0.0.0:5", "example.org:5", "127.0.0.1:99999", "x" * 200):
        with pytest.raises(P4Error):
            parse_address(wrong)


def test_a_client_over_loopback_tcp_says_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", SERVE, str(port)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        client = PromptClient(f"127.0.0.1:{port}")
        assert say(client, "table_num_entries fixed") is True
        assert say(client, "table_delete fixed 0") is False
        assert client.complete("table_du")[0] == "table_dump"
        client.close()
        done = p4("cli", "--control", f"127.0.0.1:{port}", given="# entries\ntable_num_entries fixed\nnope\n")
        assert (done.returncode, done.stdout) == (1, "2\nError: Unknown command: nope; see help\n")
        process.terminate()
    assert capsys.readouterr().out.startswith("2\nInvalid table operation (IMMUTABLE_TABLE_ENTRIES): ")
    with pytest.raises(P4Error, match="no switch answers"):
        PromptClient(f"127.0.0.1:{port}")


SERVE = """
import select, sys
from p4vm.host.control import PromptServer
from p4vm.host.turns import Turns
from everything import switch
turns = Turns()
server = PromptServer(switch(), f"127.0.0.1:{sys.argv[1]}", turns)
print("up", flush=True)
while True:
    select.select([turns], [], [], 20)
    turns.serve()
"""


# ---- what a host is made of


def test_ports_of_a_command_line() -> None:
    assert parse_ports(["0@veth0", "510@s1-eth1"]) == {0: "veth0", 510: "s1-eth1"}
    for wrong in (["0@a", "0@b"], ["0@a", "1@a"], ["511@a"], ["-1@a"], ["@a"], ["0@"], []):
        with pytest.raises(P4Error):
            parse_ports(wrong)


def test_a_queue_keeps_its_depth_and_rate() -> None:
    queue = OutputQueue(depth=10, rate=1000)
    for number in range(12):
        queue.put(bytes([number]))
    assert (len(queue.packets), queue.overflowed) == (10, 2)
    left: list[float] = []
    for now in range(1_000_000, 1_020_000, 100):
        for _ in range(queue.due(now)):
            queue.packets.popleft()
            queue.on_transmit(1)
            left.append(now)
    gaps = {after - before for before, after in itertools.pairwise(left[3:])}
    assert len(left) == 10
    assert gaps == {1000}, "one each millisecond, after the first that an idle queue may catch up on"
    assert queue.wait_us(2e6) is None
    queue.put(b"x")
    assert queue.wait_us(queue.next_us - 300) == 300
    queue.rate = 0
    assert (queue.due(0), queue.wait_us(0)) == (1, 0)


def test_a_capture_is_read_again_up_to_where_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    with open_capture(path) as file:
        file.write(record(1_700_000_000_123_456, b"abc"))
        file.write(record(1_700_000_001_000_000, b"")[:-1])
    assert path.read_bytes()[:4] == bytes.fromhex("d4c3b2a1")
    assert list(read(path)) == [(1_700_000_000_123_456, b"abc")]
    path.write_bytes(b"no capture, but long enough")
    with pytest.raises(P4Error, match="no capture"):
        list(read(path))
