"""What this machine can do for switchagg: each thing is tried, not guessed, and what is missing is listed with how to
get it.

Probes run side by side, change nothing that outlives them (qdiscs go onto the loopback of a namespace that dies with
its process) and never raise: a probe that fails to probe is a finding too.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import json
import os
import platform
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from emulation.testbed import netns, patience
from switchagg.dataplane.p4 import p4_plane
from switchagg.errors import SwitchaggError
from switchagg.native import bpf, library
from switchagg.native.headers import SA_ABI
from switchagg.native.libbpf import libbpf
from transport.rdma import hardware

BESIDES = "not needed to run;"
PROBE_TIMEOUT_S = 30.0
"""For one child process. `import torch` takes seconds on a cold disk; all else milliseconds."""

EVERYTHING = "every run"
XDP_PLANE = "the data plane xdp"
# Debian keeps tc, ethtool and brctl where a plain user's PATH does not look.
SEARCH_PATH = os.pathsep.join(filter(None, (os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")))
MODULES = Path("/lib/modules")
DEBIAN_MININET = Path("/usr/lib/python3/dist-packages/mininet")

SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
_BPF_SYSCALL = {"x86_64": 321, "aarch64": 280}
_BPF_PROG_LOAD, _BPF_PROG_TYPE_XDP, _XDP_PASS = 5, 6, 2

QDISCS = {
    "htb": "htb",
    "netem": "netem delay 1ms",
    "tbf": "tbf rate 100mbit burst 32k latency 20ms",
    "prio": "prio",
    "fq": "fq",
    "fq_codel": "fq_codel",
    "red": "red limit 400000 min 30000 max 90000 avpkt 1500 burst 55",
    "hfsc": "hfsc",
}


@dataclass(frozen=True)
class MachineCheck:
    """One thing looked at. `remedy`: how to get what is missing; empty if `ok`."""

    name: str
    ok: bool
    detail: str
    remedy: str
    needed_for: str
    """What can't be done without it; `EVERYTHING` makes `switchagg doctor` exit non-zero."""


def _answer(*command: str) -> str | None:
    """What a command prints, or None if it is missing, fails or takes too long."""
    environment = {**os.environ, "PATH": SEARCH_PATH}
    try:
        done = patience.run(command, PROBE_TIMEOUT_S, check=True, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _find(program: str) -> str | None:
    return shutil.which(program, path=SEARCH_PATH)


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


# ---- Python


def _python() -> MachineCheck:
    version = platform.python_version()
    ok = sys.version_info >= (3, 11)
    return MachineCheck("Python", ok, version, "" if ok else "install Python 3.11 or newer", EVERYTHING)


def _package(name: str, module: str) -> MachineCheck:
    """A Python package without which nothing runs. It is imported: half an installation is none."""
    if _answer(sys.executable, "-P", "-c", f"import {module}") is None:
        detail = "broken" if importlib.util.find_spec(module) else "missing"
        return MachineCheck(name, False, detail, f"pip install --force-reinstall {name}, or make setup", EVERYTHING)
    return MachineCheck(name, True, metadata.version(name), "", EVERYTHING)


def _torch() -> MachineCheck:
    script = (
        "import torch; from transport.torch.registration import too_old; "
        "print(torch.__version__, torch.version.cuda, torch.cuda.is_available(), too_old(torch.__version__))"
    )
    answer = _answer(sys.executable, "-P", "-c", script)
    if answer is None:
        return MachineCheck(
            "PyTorch", False, "missing or broken", "make setup, or pip install 'torch>=2.11'", EVERYTHING
        )
    version, cuda, available, *too_old = answer.splitlines()[-1].split(maxsplit=3)
    if too_old:
        detail, _, remedy = too_old[0].partition("; run: ")
        return MachineCheck("PyTorch", False, f"{version}, {detail}", remedy, EVERYTHING)
    device = f"CUDA {cuda}, GPU usable" if available == "True" else "runs on the CPU"
    return MachineCheck("PyTorch", True, f"{version}, {device}", "", EVERYTHING)


# ---- rights and namespaces


def _root() -> MachineCheck:
    if os.geteuid() != 0:
        remedy = (
            "not needed with user namespaces (below): switchagg compare ... --on mininet; else sudo $(which switchagg)"
        )
        return MachineCheck("root", False, f"uid {os.geteuid()}", remedy, "Mininet without user namespaces")
    if _answer("unshare", "--net", "true") is None:
        remedy = "a container needs --privileged, or --cap-add SYS_ADMIN and NET_ADMIN"
        return MachineCheck("root", False, "root, but may not make network namespaces", remedy, "Mininet")
    return MachineCheck("root", True, "root, may make network namespaces", "", "Mininet")


def _user_namespaces() -> MachineCheck:
    needed_for = "Mininet without root"
    if netns.user_namespaces_allowed():
        return MachineCheck("user namespaces", True, "a plain user may make network namespaces", "", needed_for)
    if _find("unshare") is None:
        return MachineCheck("user namespaces", False, "unshare is missing", "apt-get install util-linux", needed_for)
    switches = {
        "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
        "kernel.unprivileged_userns_clone": ("0", "1"),
        "user.max_user_namespaces": ("0", "10000"),
    }
    for name, (forbids, allows) in switches.items():
        if _text("/proc/sys/" + name.replace(".", "/")) == forbids:
            remedy = f"as root: sysctl {name}={allows}; or run as root"
            return MachineCheck("user namespaces", False, f"forbidden by {name}", remedy, needed_for)
    return MachineCheck("user namespaces", False, "forbidden here (a container's profile?)", "run as root", needed_for)


# ---- Mininet and links


def _mininet() -> MachineCheck:
    packages = {"mnexec": "mininet", "ip": "iproute2", "tc": "iproute2", "ethtool": "ethtool", "brctl": "bridge-utils"}
    packages |= {"ifconfig": "net-tools", "ping": "iputils-ping"}
    missing = {program: package for program, package in packages.items() if _find(program) is None}
    if importlib.util.find_spec("mininet") is None and not DEBIAN_MININET.is_dir():
        missing["Python package mininet"] = "mininet"
    if missing:
        remedy = f"as root: apt-get install --no-install-recommends {' '.join(sorted(set(missing.values())))}"
        return MachineCheck("Mininet", False, f"missing: {', '.join(missing)}", remedy, "Mininet")
    return MachineCheck("Mininet", True, f"{_mininet_version()}, with all programs it calls", "", "Mininet")


def _mininet_version() -> str:
    try:
        return metadata.version("mininet")
    except metadata.PackageNotFoundError:
        return _answer("dpkg-query", "-W", "-f", "${Version}", "mininet") or "version unknown"


def _in_own_network(script: str) -> str | None:
    """What a shell script prints as root of a network namespace that ends with it; None if there can be none."""
    rights = ("--net",) if os.geteuid() == 0 else ("--user", "--map-root-user", "--net")
    return _answer("unshare", *rights, "sh", "-c", script)


def _qdiscs_present() -> list[str] | None:
    """Those of `QDISCS` that the kernel takes, each put on a loopback; None if there is no network to try in."""
    tries = [
        f"tc qdisc add dev lo root {options} 2>/dev/null && echo {name} && tc qdisc del dev lo root"
        for name, options in QDISCS.items()
    ]
    answer = _in_own_network("; ".join(tries) + "; true")
    return None if answer is None else answer.split()


def _qdisc(wanted: str, needed_for: str) -> MachineCheck:
    name = f"qdisc {wanted}"
    if _find("tc") is None:
        return MachineCheck(name, False, "tc is missing", "as root: apt-get install iproute2", needed_for)
    present = _qdiscs_present()
    if present is None:
        return MachineCheck(name, False, "not tried: no network namespace to try in", "run as root", needed_for)
    absent = [other for other in QDISCS if other not in present]
    detail = f"kernel has {' '.join(present) or 'none'}, not {' '.join(absent)}".removesuffix(", not ")
    if wanted in present:
        return MachineCheck(name, True, detail, "", needed_for)
    return MachineCheck(name, False, detail, _module_remedy(f"sch_{wanted}"), needed_for)


def _module_remedy(*modules: str) -> str:
    """How to get kernel modules, where this kernel can have them at all."""
    names, kernel, otherwise = " ".join(modules), platform.release(), "virtual time (--on sim) needs none"
    folder = MODULES / kernel
    if not folder.is_dir():
        return f"kernel {kernel} loads no modules and lacks {names}: another kernel; {otherwise}"
    if all(any(folder.rglob(f"{module}.ko*")) for module in modules):
        return f"as root: modprobe --all {names}; {otherwise}"
    if "ubuntu" in (_text("/etc/os-release") or "").lower():
        return f"as root: apt-get install linux-modules-extra-{kernel}; then modprobe --all {names}; {otherwise}"
    return f"kernel {kernel} comes without {names}: another kernel; {otherwise}"


def _congestion_control() -> MachineCheck:
    current = _text("/proc/sys/net/ipv4/tcp_congestion_control")
    available = _text("/proc/sys/net/ipv4/tcp_available_congestion_control")
    if current is None or available is None:
        return MachineCheck("TCP", False, "no Linux TCP settings to read", "run on Linux", "host allreduce in Mininet")
    return MachineCheck("TCP", True, f"{current} is in use; available: {available}", "", "host allreduce in Mininet")


def _udp_offload() -> MachineCheck:
    """Four datagrams in one send, received as one bundle that names its segment size."""
    needed_for = "speed: 10 to 30 times cheaper packets"
    segment_bytes, segments = 1000, 4
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(2.0)
        try:
            receiver.setsockopt(SOL_UDP, UDP_GRO, 1)
            sender.setsockopt(SOL_UDP, UDP_SEGMENT, segment_bytes)
            sender.sendto(bytes(segment_bytes * segments), receiver.getsockname())
            data, control, _, _ = receiver.recvmsg(65_536, socket.CMSG_SPACE(4))
        except OSError as error:
            why = error.strerror or str(error)
            return MachineCheck(
                "UDP GSO/GRO", False, f"refused: {why}", "Linux 5.0 or newer; runs work without", needed_for
            )
    sizes = [struct.unpack("i", value[:4])[0] for level, kind, value in control if (level, kind) == (SOL_UDP, UDP_GRO)]
    if len(data) == segment_bytes * segments and sizes == [segment_bytes]:
        return MachineCheck(
            "UDP GSO/GRO", True, f"{segments} datagrams in one send, one bundle received", "", needed_for
        )
    return MachineCheck("UDP GSO/GRO", False, "bundles are taken apart on the way", "runs work without", needed_for)


def _priority() -> MachineCheck:
    """What carries a stream's priority class on its way: see `switchagg.priority`."""
    from emulation.testbed.mininet.shaping import u32_missing
    from transport.links.udp_link import takes_socket_priority

    needed_for = "[topology] priority_queues in Mininet"
    marks = "DSCP and SO_PRIORITY" if takes_socket_priority() else "DSCP, no SO_PRIORITY (Linux 6.14 or newer)"
    if _find("tc") is None:
        return MachineCheck(
            "priority", False, f"packets carry {marks}; tc is missing", "apt-get install iproute2", needed_for
        )
    if reason := u32_missing():
        why = f"packets carry {marks}; no queue that reads it: {reason}"
        return MachineCheck("priority", False, why, _module_remedy("sch_htb", "cls_u32"), needed_for)
    return MachineCheck("priority", True, f"packets carry {marks}; HTB classes by DSCP (u32)", "", needed_for)


def _marking() -> MachineCheck:
    """Which queues mark packets instead of dropping them: the kernel's own, or our program before a shaper."""
    from emulation.testbed.mininet.shaping import marking_missing, qdisc_missing

    needed_for = "[topology] ecn_bytes in Mininet"
    if _find("tc") is None:
        return MachineCheck("ECN marks", False, "tc is missing", "apt-get install iproute2", needed_for)
    qdiscs = [name for name in ("codel", "fq_codel", "pie") if qdisc_missing(name) is None]
    kinds = f"the kernel's queues that mark: {', '.join(qdiscs) or 'none'}"
    if reason := marking_missing():
        return MachineCheck("ECN marks", False, f"{kinds}; links in Mininet can't: {reason}", "--on sim", needed_for)
    return MachineCheck("ECN marks", True, f"{kinds}; links in Mininet do it by BPF", "", needed_for)


# ---- other data planes


def _load_xdp_program() -> int:
    """Load `return XDP_PASS` into the kernel and drop it again. 0, or the errno."""
    number = _BPF_SYSCALL.get(platform.machine())
    if number is None or sys.platform != "linux":
        return errno.ENOSYS
    code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, _XDP_PASS, 0x95, 0, 0, 0))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    attributes = struct.pack("=IIQQ", _BPF_PROG_TYPE_XDP, 2, ctypes.addressof(code), ctypes.addressof(licence))
    union = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(ctypes.c_long(number), ctypes.c_int(_BPF_PROG_LOAD), union, ctypes.c_uint(128))
    if descriptor < 0:
        return ctypes.get_errno()
    os.close(descriptor)
    return 0


def _xdp() -> MachineCheck:
    needed_for = XDP_PLANE
    btf = "BTF present" if Path("/sys/kernel/btf/vmlinux").exists() else "no BTF"
    code = _load_xdp_program()
    if code == 0:
        return MachineCheck("XDP", True, f"the kernel takes XDP programs; {btf}", "", needed_for)
    remedy = (
        "run as root, or with CAP_BPF and CAP_NET_ADMIN" if code == errno.EPERM else "a kernel with CONFIG_BPF_SYSCALL"
    )
    return MachineCheck("XDP", False, f"refused: {os.strerror(code)}; {btf}", remedy, needed_for)


def _xdp_on_veth() -> MachineCheck:
    """Loads and attaches the very programs, between two interfaces that vanish with the probe."""
    name, needed_for = "XDP on veth", XDP_PLANE
    if _find("ip") is None or _find("tc") is None:
        return MachineCheck(name, False, "ip or tc is missing", "as root: apt-get install iproute2", needed_for)
    probe = f"{shlex.quote(sys.executable)} -P -m emulation.testbed.mininet.xdp_probe || :"
    answer = _in_own_network(probe)
    if answer is None:
        return MachineCheck(name, False, "not tried: no network namespace to try in", "run as root", needed_for)
    if " on veth, delivery by " in answer:
        return MachineCheck(name, True, answer, "", needed_for)
    remedy = "a kernel with CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_ACT and CONFIG_VETH"
    if "not permitted" in answer:
        remedy = "run as root, or with CAP_BPF and CAP_NET_ADMIN"
    return MachineCheck(name, False, answer or "the probe said nothing", remedy, needed_for)


def _libbpf() -> MachineCheck:
    try:
        libbpf()
    except SwitchaggError as error:
        return MachineCheck(
            "libbpf", False, str(error), "as root: apt-get install libbpf1 (before: libbpf0)", XDP_PLANE
        )
    return MachineCheck("libbpf", True, "libbpf.so.1", "", XDP_PLANE)


def _xdp_programs() -> MachineCheck:
    names = (bpf.MTU_1500, bpf.JUMBO, bpf.LOSS)
    absent = [name for name in names if not (bpf.FOLDER / name).exists()]
    if absent:
        remedy = f"as root: apt-get install clang libbpf-dev; then {library.REMEDY}"
        return MachineCheck("XDP programs", False, f"not built: {', '.join(absent)}", remedy, XDP_PLANE)
    return MachineCheck("XDP programs", True, f"built: {', '.join(names)}", "", XDP_PLANE)


# ---- the compiled core


def _compiles(compiler: str, *flags: str, source: str = "int answer(void) { return 42; }") -> bool:
    """Whether a compiler turns a line of C into something."""
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "made"
        (Path(folder) / "probe.c").write_text(source + "\n", encoding="ascii")
        return _answer(compiler, *flags, "-o", str(binary), f"{folder}/probe.c") is not None and binary.exists()


def _compiler() -> MachineCheck:
    name, remedy = "C compiler", "as root: apt-get install gcc libc6-dev, or pip install ziglang; then make native"
    needed_for = "building the compiled core"
    compilers = [compiler for compiler in ("cc", "gcc", "clang") if _find(compiler)]
    if not compilers:
        return MachineCheck(name, False, "no cc, gcc or clang on PATH", remedy, needed_for)
    flags = ("-shared", "-fPIC", "-include", "stdint.h", "-include", "sys/socket.h", "-include", "linux/types.h")
    for compiler in compilers:
        if _compiles(compiler, *flags):
            version = (_answer(compiler, "--version") or compiler).splitlines()[0]
            return MachineCheck(name, True, version, "", needed_for)
    return MachineCheck(
        name, False, f"{', '.join(compilers)} can't compile a line that includes C's headers", remedy, needed_for
    )


def _compiled_core() -> MachineCheck:
    needed_for = "host methods; speed: switch and workers in C"
    if reason := library.missing():
        detail, _, remedy = reason.partition("; ")
        return MachineCheck("compiled core", False, detail, remedy, needed_for)
    detail = f"{library.load()._name}, ABI {SA_ABI}, loops use {library.vectors()}"
    return MachineCheck("compiled core", True, detail, "", needed_for)


BPF_SOURCE = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>"


def _clang_for_bpf() -> MachineCheck:
    name, needed_for = "clang for BPF", "building the XDP programs"
    remedy = "as root: apt-get install clang libbpf-dev; then make native"
    if _find("clang") is None:
        return MachineCheck(name, False, "clang is not on PATH", remedy, needed_for)
    if not _compiles("clang", "-target", "bpf", "-c"):
        return MachineCheck(name, False, "this clang has no BPF target", remedy, needed_for)
    includes = [f"-I{folder}" for folder in Path("/usr/include").glob("*-linux-gnu")]  # asm/types.h, as Debian has it
    if not _compiles("clang", "-target", "bpf", "-c", *includes, source=BPF_SOURCE):
        return MachineCheck(name, False, "libbpf's headers are missing", remedy, needed_for)
    return MachineCheck(name, True, (_answer("clang", "--version") or "clang").splitlines()[0], "", needed_for)


def _fuzzer() -> MachineCheck:
    name, needed_for = "fuzzer", "tests of the compiled core on made-up packets"
    source = "int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long size) { return data && size > 9; }"
    if _find("clang") is None:
        return MachineCheck(
            name, False, "clang is not on PATH", "as root: apt-get install clang libclang-rt-dev", needed_for
        )
    if not _compiles("clang", "-fsanitize=fuzzer,address,undefined", source=source):
        remedy = "as root: apt-get install libclang-rt-dev (or libclang-rt-14-dev, by clang's version)"
        return MachineCheck(name, False, "clang can't link its fuzzer and sanitizers", remedy, needed_for)
    return MachineCheck(name, True, "clang links its fuzzer, AddressSanitizer and UBSan", "", needed_for)


def _program(name: str, program: str, remedy: str, needed_for: str) -> MachineCheck:
    path = _find(program)
    return MachineCheck(name, path is not None, path or f"{program} is not on PATH", "" if path else remedy, needed_for)


def _rdma() -> MachineCheck:
    """RDMA works without: this is about NICs."""
    needed_for = "RDMA on hardware (SWITCHAGG_RDMA_PROVIDER=verbs); in user space it works without"
    try:
        devices = hardware.devices()
    except SwitchaggError as error:
        what, _, remedy = str(error).rpartition("; ")
        return MachineCheck("RDMA hardware", False, what, remedy, needed_for)
    if not devices:
        return MachineCheck("RDMA hardware", False, "no device", hardware.NO_DEVICE, needed_for)
    return MachineCheck("RDMA hardware", True, ", ".join(devices), "", needed_for)


def _p4_engine() -> MachineCheck:
    """A C compiler makes it fast; without one it runs on Python."""
    needed_for = "switchagg p4, the data plane p4"
    if reason := p4_plane.missing():
        return MachineCheck("P4 engine", False, reason, "pip install 'switchagg[p4]', or make setup", needed_for)
    back_end = "C" if any(map(_find, ("cc", "gcc", "clang"))) else "Python (slow: no C compiler)"
    return MachineCheck(
        "P4 engine", True, f"programs become {back_end}; lark {metadata.version('lark')}", "", needed_for
    )


P4_REMEDY = "see p4.org (Debian, Ubuntu: packages of the p4lang project)"
PROBES: dict[str, Callable[[], MachineCheck]] = {
    "Python": _python,
    "numpy": lambda: _package("numpy", "numpy"),
    "PyTorch": _torch,
    "pyzmq": lambda: _package("pyzmq", "zmq"),
    "msgspec": lambda: _package("msgspec", "msgspec"),
    "root": _root,
    "user namespaces": _user_namespaces,
    "Mininet": _mininet,
    "qdisc htb": lambda: _qdisc("htb", "links with a rate in Mininet"),
    "qdisc netem": lambda: _qdisc("netem", "delay and faults in Mininet"),
    "priority": _priority,
    "ECN marks": _marking,
    "TCP": _congestion_control,
    "UDP GSO/GRO": _udp_offload,
    "C compiler": _compiler,
    "compiled core": _compiled_core,
    "fuzzer": _fuzzer,
    "XDP": _xdp,
    "clang for BPF": _clang_for_bpf,
    "XDP programs": _xdp_programs,
    "libbpf": _libbpf,
    "XDP on veth": _xdp_on_veth,
    "P4 engine": _p4_engine,
    "bmv2": lambda: _program("bmv2", "simple_switch", P4_REMEDY, f"{BESIDES} the data plane bmv2, for conformance"),
    "p4c": lambda: _program("p4c", "p4c", P4_REMEDY, f"{BESIDES} P4 programs on bmv2"),
    "RDMA hardware": _rdma,
}


def _careful(name: str, probe: Callable[[], MachineCheck]) -> MachineCheck:
    try:
        return probe()
    except Exception as error:  # the doctor's own faults are findings too
        detail = f"the probe failed: {type(error).__name__}: {error}"
        return MachineCheck(name, False, detail, "please report this line", "unknown")


def diagnose() -> list[MachineCheck]:
    """Look at everything, in the order of `PROBES`. Takes a few seconds, nearly all of it `import torch`."""
    netns.find_programs()  # as runs in Mininet do
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(_careful, PROBES.keys(), PROBES.values()))


def exit_code(findings: list[MachineCheck]) -> int:
    """1 if something is missing that every run needs, else 0."""
    return int(any(not finding.ok and finding.needed_for == EVERYTHING for finding in findings))


def as_json(findings: list[MachineCheck]) -> str:
    """A JSON object: `ready` (bool) and `findings`, one object each, with the fields of `Finding`."""
    return json.dumps(
        {"ready": exit_code(findings) == 0, "findings": [asdict(finding) for finding in findings]}, indent=2
    )


def _mark(finding: MachineCheck) -> Text:
    if finding.ok:
        return Text("yes", "green")
    if finding.needed_for.startswith(BESIDES):
        return Text("no", "dim")
    return Text("NO", "bold red" if finding.needed_for == EVERYTHING else "yellow")


def print_table(findings: list[MachineCheck]) -> None:
    """A table of what is there and what is not, then the remedies, then what to run."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "", "found", "needed for"):
        table.add_column(title, overflow="fold")
    for finding in findings:
        mark = _mark(finding)
        table.add_row(mark, Text(finding.name), Text(finding.detail), Text(finding.needed_for, "dim"))
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    console.print(table)
    console.print("yes: it is there; NO: what the last column names cannot run; no: nothing needs it", style="dim")
    missing = [finding for finding in findings if not finding.ok]
    if missing:
        console.print("\nHow to get what is missing:")
    for finding in missing:
        console.print(Text(f"  {finding.name}: {finding.remedy}"), soft_wrap=True)
    console.print(f"\n{conclusion(findings)}", soft_wrap=True)


def conclusion(findings: list[MachineCheck]) -> str:
    """One line: which backends can run here."""
    has = {finding.name: finding.ok for finding in findings}
    if exit_code(findings):
        needed = [finding.name for finding in findings if not finding.ok and finding.needed_for == EVERYTHING]
        return f"Nothing can run here yet; missing: {', '.join(needed)}."
    if not (has["Mininet"] and has["qdisc htb"] and (has["root"] or has["user namespaces"])):
        return "Runs in virtual time work here (--on sim); runs in Mininet do not."
    if has["root"]:
        return "Runs in Mininet and in virtual time work here."
    return "Runs in virtual time work here, and runs in Mininet with --on mininet, in a user namespace."


def run_doctor(json_wanted: bool = False) -> int:
    """Body of `switchagg doctor`: print the findings as a table or as JSON; the exit code."""
    findings = diagnose()
    if json_wanted:
        print(as_json(findings))
    else:
        print_table(findings)
    return exit_code(findings)
