"""The doctor probes by trying, never raises, leaves nothing behind, and prints how to get what is missing."""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from emulation.cli import doctor
from emulation.cli.doctor import EVERYTHING, PROBES, Finding, MachineCheck
from switchagg.native import bpf, library
from switchagg.native.headers import SA_ABI
from transport.zeromq.keys import make_keys


@pytest.fixture(scope="module")
def findings() -> list[MachineCheck]:
    return doctor.diagnose()


def by_name(findings: list[MachineCheck], name: str) -> MachineCheck:
    return next(finding for finding in findings if finding.name == name)


def test_every_probe_answers_in_order(findings: list[MachineCheck]) -> None:
    assert [finding.name for finding in findings] == list(PROBES)
    assert [finding for finding in findings if "probe failed" in finding.detail] == []


def test_only_missing_things_come_with_how_to_get_them(findings: list[MachineCheck]) -> None:
    for finding in findings:
        assert bool(finding.remedy) != finding.ok, finding
        assert finding.detail
        assert finding.needed_for


def test_the_software_these_tests_need_is_found(findings: list[MachineCheck]) -> None:
    """The tests themselves need these, so a doctor that misses one is wrong."""
    assert all(finding.ok for finding in findings if finding.needed_for == EVERYTHING)
    assert doctor.exit_code(findings) == 0


def test_a_probe_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Finding:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(doctor, "PROBES", {"broken": ("all", broken)})
    (finding,) = doctor.diagnose()
    assert not finding.ok
    assert "RuntimeError: no such thing" in finding.detail


def test_only_what_every_run_needs_makes_the_exit_code_non_zero() -> None:
    assert doctor.exit_code([MachineCheck("bmv2", False, "", "get it", "P4")]) == 0
    assert doctor.exit_code([MachineCheck("pyzmq", True, "", "", EVERYTHING)]) == 0
    assert doctor.exit_code([MachineCheck("pyzmq", False, "", "get it", EVERYTHING)]) == 1


def test_a_package_that_does_not_import_is_missing_or_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._package("absent", "absent_package_of_no_one").detail == "missing"
    (tmp_path / "half_installed.py").write_text("raise ImportError('half')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = doctor._package("half", "half_installed")
    assert (finding.ok, finding.detail) == (False, "broken")


def test_half_a_pytorch_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip leaves it where it is interrupted, or a disk where a file is lost."""
    info, folder = tmp_path / "torch-2.13.0.dist-info", tmp_path / "torch"
    for path in (info, folder / "lib"):
        path.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\nRequires-Dist: numpy\n")
    (info / "RECORD").write_text("torch/version.py,,\ntorch/nn.py,,\ntorch/__pycache__/nn.pyc,,\n")
    (folder / "version.py").write_text("__version__, cuda = '2.13.0+cpu', None\n")
    library = subprocess.run(
        ["cc", "-shared", "-o", folder / "lib/libtorch_python.so", "-xc", "/dev/null"], check=False
    )
    if library.returncode:
        pytest.skip("no C compiler")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert doctor.check("PyTorch").detail == "missing or broken"  # nn.py is
    (folder / "nn.py").touch()
    assert doctor.check("PyTorch").detail == "2.13.0+cpu, runs on the CPU"
    (folder / "lib/libtorch_python.so").write_bytes(b"half a library")
    assert not doctor.check("PyTorch").ok


def test_a_pytorch_that_is_too_old_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `transport.contracts.torch_version` words it, whose tests hold the words."""
    said = "2.9.1+cpu None False older than 2.11, which switchagg needs; run: pip install 'torch>=2.11'"
    monkeypatch.setattr(doctor, "_answer", lambda *_: said)
    assert doctor.check("PyTorch") == MachineCheck(
        "PyTorch", False, "2.9.1+cpu, older than 2.11, which switchagg needs", "pip install 'torch>=2.11'", EVERYTHING
    )


def empty_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is found any more."""
    monkeypatch.setattr(doctor, "SEARCH_PATH", str(folder))
    monkeypatch.setenv("PATH", str(folder))


PROGRAMS: list[tuple[str, str]] = [
    ("Mininet", "mnexec"),
    ("qdisc htb", "iproute2"),
    ("qdisc netem", "iproute2"),
    ("user namespaces", "util-linux"),
    ("C compiler", "gcc"),
    ("clang for BPF", "clang"),
    ("fuzzer", "libclang-rt"),
    ("XDP on veth", "iproute2"),
    ("bmv2", "p4lang"),
    ("p4c", "p4lang"),
]


@pytest.mark.parametrize(("name", "named"), PROGRAMS)
def test_a_missing_program_is_named(name: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_path(tmp_path, monkeypatch)
    finding = doctor.check(name)
    assert not finding.ok
    assert named in finding.detail + finding.remedy


def test_a_program_that_is_there_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "simple_switch"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    empty_path(tmp_path, monkeypatch)
    assert doctor.check("bmv2") == MachineCheck("bmv2", True, str(program), "", PROBES["bmv2"][0])


def test_a_command_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE_TIMEOUT_S", 0.2)
    assert doctor._answer("sleep", "30") is None
    assert doctor._answer("echo", "here") == "here"
    assert doctor._answer("false") is None


def test_a_kernel_without_udp_offload_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Socket(socket.socket):
        def setsockopt(self, level: int, option: int, value: object) -> None:  # type: ignore[override]
            raise OSError(errno.ENOPROTOOPT, "Protocol not available")

    monkeypatch.setattr(doctor.socket, "socket", Socket)
    finding = doctor._udp_offload()
    assert (finding.ok, finding.detail) == (False, "refused: Protocol not available")


def test_bundles_split_on_the_way_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that never asked for bundles gets single datagrams."""

    class Socket(socket.socket):
        def setsockopt(self, level: int, option: int, value: int) -> None:  # type: ignore[override]
            if option != doctor.UDP_GRO:
                super().setsockopt(level, option, value)

    monkeypatch.setattr(doctor.socket, "socket", Socket)
    finding = doctor._udp_offload()
    assert not finding.ok


@pytest.mark.parametrize(("code", "remedy"), [(errno.EPERM, "root"), (errno.ENOSYS, "CONFIG_BPF_SYSCALL")])
def test_a_refused_xdp_program_says_why(code: int, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_load_xdp_program", lambda: code)
    finding = doctor._xdp()
    assert not finding.ok
    assert os.strerror(code) in finding.detail
    assert remedy in finding.remedy


BROKEN = "#!/bin/sh\necho 'error: no' >&2\nexit 1\n"


@pytest.mark.parametrize(
    ("name", "program", "words"),
    [
        ("C compiler", "gcc", "can't compile a line"),
        ("clang for BPF", "clang", "no BPF target"),
        ("fuzzer", "clang", "can't link its fuzzer"),
    ],
)
def test_the_compiler_is_probed_by_compiling(
    name: str, program: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / program).write_text(BROKEN)
    (tmp_path / program).chmod(0o755)
    empty_path(tmp_path, monkeypatch)
    finding = doctor.check(name)
    assert not finding.ok
    assert words in finding.detail
    assert "apt-get install" in finding.remedy


def test_a_missing_core_comes_with_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "libswitchagg.so was built from other sources (ABI 7, not 1); run make native in a checkout, or so"
    monkeypatch.setattr(library, "missing", lambda: reason)
    finding = doctor._compiled_core()
    assert (finding.ok, finding.detail) == (False, "libswitchagg.so was built from other sources (ABI 7, not 1)")
    assert finding.remedy == "run make native in a checkout, or so"
    monkeypatch.setattr(library, "missing", lambda: "SWITCHAGG_NATIVE=0 asks to go without it; unset it")
    assert doctor._compiled_core().remedy == "unset it"


def test_the_core_that_is_used_is_named_with_its_instruction_set() -> None:
    if reason := library.missing():
        pytest.skip(reason)
    finding = doctor._compiled_core()
    assert finding.ok
    assert f"ABI {SA_ABI}, loops use {library.vectors()}" in finding.detail


def test_xdp_programs_that_were_not_built_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpf, "FOLDER", tmp_path)
    finding = doctor._xdp_programs()
    assert not finding.ok
    assert "xdp_mtu1500.bpf.o" in finding.detail
    assert "clang libbpf-dev" in finding.remedy


@pytest.mark.parametrize(
    ("said", "ok", "remedy"),
    [
        ("native XDP on veth, delivery by tcx", True, ""),
        ("not permitted: run it as root, or so", False, "CAP_BPF"),
        ("", False, "a kernel with"),
        (None, False, "run as root"),
    ],
)
def test_results_of_the_xdp_probe(said: str | None, ok: bool, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_in_own_network", lambda script: said)
    monkeypatch.setattr(doctor, "_find", lambda program: program)
    finding = doctor._xdp_on_veth()
    assert finding.ok == ok
    assert remedy in finding.remedy
    assert finding.detail


@pytest.mark.system
def test_the_xdp_probe_leaves_nothing_behind(requires_root_namespaces: None) -> None:
    before = {name for _, name in socket.if_nameindex()}
    assert doctor._xdp_on_veth().detail
    assert {name for _, name in socket.if_nameindex()} == before


def test_a_qdisc_the_kernel_lacks_is_noticed(requires_root_namespaces: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("tc", path=doctor.SEARCH_PATH) is None:
        pytest.skip("needs tc (package iproute2)")
    monkeypatch.setattr(doctor, "QDISCS", {"htb": "htb", "imagined": "imagined", "pfifo": "pfifo limit 10"})
    present = doctor._qdiscs_present()
    assert present is not None
    assert "pfifo" in present  # every kernel has it
    finding = doctor._qdisc("imagined")
    assert not finding.ok
    assert "sch_imagined" in finding.remedy


@pytest.mark.parametrize(
    ("folders", "system", "remedy"),
    [
        ((), "ID=ubuntu", "loads no modules and lacks sch_netem: another kernel"),
        (("6.1",), "ID=debian", "kernel 6.1 comes without sch_netem: another kernel"),
        (("6.1",), "ID=ubuntu", "apt-get install linux-modules-extra-6.1; then modprobe --all sch_netem"),
        (("6.1/kernel/sch_netem.ko.xz",), "ID=debian", "as root: modprobe --all sch_netem; virtual time"),
    ],
)
def test_a_module_is_advised_where_it_can_be_had(
    folders: tuple[str, ...], system: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(doctor, "MODULES", tmp_path)
    monkeypatch.setattr(doctor.platform, "release", lambda: "6.1")
    monkeypatch.setattr(doctor, "_text", lambda path: system)
    assert remedy in doctor._module_remedy("sch_netem")


def state(**missing: bool) -> list[MachineCheck]:
    """Findings in which all is there but what is named, with underscores for spaces."""
    absent = {name.replace("_", " ") for name in missing}
    needed = {"PyTorch": EVERYTHING}
    names = ("PyTorch", "root", "user namespaces", "Mininet", "qdisc htb")
    return [
        MachineCheck(name, name not in absent, "x", "y" if name in absent else "", needed.get(name, "some"))
        for name in names
    ]


CONCLUSIONS: list[tuple[list[MachineCheck], str]] = [
    (state(), "Runs in Mininet and in virtual time"),
    (state(root=True), "in a user namespace"),
    (state(root=True, user_namespaces=True), "runs in Mininet do not"),
    (state(Mininet=True), "runs in Mininet do not"),
    (state(qdisc_htb=True), "runs in Mininet do not"),
    (state(PyTorch=True), "missing: PyTorch"),
]


@pytest.mark.parametrize(("findings", "words"), CONCLUSIONS)
def test_the_last_line_says_what_can_run(findings: list[MachineCheck], words: str) -> None:
    assert words in doctor.conclusion(findings)


@pytest.fixture
def sick(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[MachineCheck]]:
    found = state(PyTorch=True, Mininet=True)
    monkeypatch.setattr(doctor, "diagnose", lambda: found)
    return lambda: found


def test_json_has_everything(sick: Callable[[], list[MachineCheck]], capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run_doctor(json_wanted=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ready"] is False
    assert [MachineCheck(**entry) for entry in told["findings"]] == sick()


def test_the_table_names_what_is_missing_and_how_to_get_it(
    sick: Callable[[], list[MachineCheck]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.run_doctor() == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["NO", "PyTorch"] for line in lines)
    assert any(line.split()[:2] == ["yes", "root"] for line in lines)
    assert "  Mininet: y" in lines


@pytest.mark.system
def test_probing_leaves_the_network_as_it_was(requires_root_namespaces: None) -> None:
    before = doctor._answer("tc", "qdisc", "show", "dev", "lo")
    assert doctor._qdiscs_present() is not None
    assert doctor._answer("tc", "qdisc", "show", "dev", "lo") == before


def test_this_python_is_new_enough_and_an_older_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._python().ok
    monkeypatch.setattr(sys, "version_info", (3, 10, 9))
    finding = doctor.check("Python")
    assert (finding.ok, finding.needed_for) == (False, EVERYTHING)


@pytest.mark.parametrize(
    ("variables", "detail", "remedy"),
    [
        ({}, "on, key: job name, or PyTorch's token; by hand only SWITCHAGG_TOKEN keeps forgers out", ""),
        ({"SWITCHAGG_TOKEN": "t" * 32}, "on, key: token", ""),
        ({"SWITCHAGG_VERIFY": "off", "SWITCHAGG_TOKEN": "t"}, "off (SWITCHAGG_VERIFY)", ""),
        (
            {"SWITCHAGG_TOKEN": "t"},
            "SWITCHAGG_TOKEN: a token of 1 characters can be guessed",
            "make one with `openssl rand",
        ),
        (
            {"SWITCHAGG_TOKEN_FILE": "/nowhere"},
            "token file /nowhere: can't be read: ",
            "give SWITCHAGG_TOKEN_FILE a file",
        ),
    ],
)
def test_the_doctor_says_whether_sums_are_verified_and_by_which_key(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], detail: str, remedy: str
) -> None:
    for name in ("SWITCHAGG_TOKEN", "SWITCHAGG_TOKEN_FILE", "SWITCHAGG_VERIFY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = doctor.check("verified sums")
    assert found.detail.startswith(detail)
    assert found.remedy.startswith(remedy)
    assert found.ok is not bool(remedy)
    assert "t" * 32 not in found.detail


@pytest.mark.parametrize(
    ("choice", "keys", "detail", "remedy"),
    [
        ("", "", "off, no keys: who can send from a rank's or the switch's address may forge packets", ""),
        ("on", "", "off, no keys", "switchagg keys FOLDER, then SWITCHAGG_KEYS=FOLDER"),
        ("on", "made", "on, over UDP and ZeroMQ, at a switch that has keys too", ""),
        ("off", "made", "off (SWITCHAGG_AUTHENTICATE)", ""),
        ("", "none", "no folder of keys at ", "`switchagg keys DIR` makes keys"),
    ],
)
def test_the_doctor_says_whether_packets_are_authenticated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, choice: str, keys: str, detail: str, remedy: str
) -> None:
    make_keys(tmp_path / "made")
    monkeypatch.setenv("SWITCHAGG_AUTHENTICATE", choice)
    monkeypatch.setenv("SWITCHAGG_KEYS", str(tmp_path / keys) if keys else "")
    found = doctor.check("authenticated packets")
    assert found.detail.startswith(detail)
    assert found.remedy.startswith(remedy)
    assert found.ok is not bool(remedy)
